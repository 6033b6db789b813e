// Landmark attention for one instruction set, a tile of tokens at a time. Lanes of
// vectors are tokens. Maps of a tile (heads, L, width) stay in cache.
#include "products.inl"

namespace {

// Transposes kLanes rows of kLanes numbers.
MMATTN_INLINE void transpose_block(
    const float* from, int64_t from_step, float* to, int64_t to_step) {
  Floats x[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    x[i] = load(from + i * from_step);
  }
#pragma GCC unroll 4
  for (int s = 1; s < kLanes; s *= 2) {
    const Ints other = kLaneNumbers ^ s;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & s) == 0) {
        const Floats a = x[i], b = x[i + s];
        x[i] = other > kLaneNumbers ? a : permute(b, other);
        x[i + s] = other > kLaneNumbers ? permute(a, other) : b;
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    store(to + i * to_step, x[i]);
  }
}

// Adds to sums (rows, columns) the products of rows of a with rows of b, of `length`.
void add_inner_products(const float* a, int64_t rows, const float* b, int64_t columns,
    int64_t length, float* sums) {
  constexpr int kI = kRows / 2;
  for (int64_t i = 0; i < rows; i += kI) {
    for (int64_t j = 0; j < columns; j += 4) {
      const float *a_rows[kI], *b_rows[4];
      for (int r = 0; r < kI; ++r) {
        a_rows[r] = a + (i + r < rows ? i + r : i) * length;
      }
      for (int c = 0; c < 4; ++c) {
        b_rows[c] = b + (j + c < columns ? j + c : j) * length;
      }
      Floats products[kI][4] = {};
      for (int64_t at = 0; at < length; at += kLanes) {
#pragma GCC unroll 4
        for (int r = 0; r < kI; ++r) {
          const Floats x = load(a_rows[r] + at);
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) {
            products[r][c] += x * load(b_rows[c] + at);
          }
        }
      }
      for (int r = 0; r < kI && i + r < rows; ++r) {
        const Floats* const p = products[r];
        const Four four = sum_lanes(p[0], p[1], p[2], p[3]);
        for (int c = 0; c < 4 && j + c < columns; ++c) {
          sums[(i + r) * columns + j + c] += four[c];
        }
      }
    }
  }
}

// Parts of the tokens of an image, and their sums.
template <class T>
class Part {
 public:
  // Lays out the memory, or finds its size if there is none.
  Part(const LandmarkCall& call, float* memory) : call(call), memory_(memory) {}

  int64_t size() const {
    return size_;
  }

  void run(int64_t task) {
    const int64_t first = task % call.parts * call.part_size;
    const int64_t end = first + call.part_size, last = end < call.N ? end : call.N;
    b_ = task / call.parts;
    std::memset(sums_, 0, (memory_ + size_ - sums_) * sizeof(float));
    for (int64_t i = 0; i < lanes_; i += kLanes) {
      store(top_ + i, broadcast(std::numeric_limits<float>::lowest()));
    }
    for (int64_t n = first; n < last; n += kTile) {
      run_tile(n, last - n < kTile ? last - n : kTile);
    }
    for (int64_t i = 0; i < E * L && (call.new_lse || call.new_delta); ++i) {
      Floats total = load(total_ + i * kLanes);
      if (call.new_delta != nullptr) {
        call.new_delta[task * E * L + i] = sum_lanes(total);
      } else {
        const Floats top = load(top_ + i * kLanes);
        const float largest = max_lanes(top);
        total *= exp(top - largest);
        call.new_lse[task * E * L + i] = largest + std::log(sum_lanes(total));
      }
    }
    write_sums(sum_w_, M * L, D, DP, task, call.sum_w);
    write_sums(dy_, M * L, D, DP, task, call.dy);
    write_sums(dw1_, E, M, M, task, call.dw1);
    write_sums(dw2_, M, E, E, task, call.dw2);
  }

 private:
  void run_tile(int64_t first, int64_t count) {
    vectors_ = num_vectors(count);
    width_ = vectors_ * kLanes;
    read(call.x, first, count, x_, x_rows_);
    multiply(call.y_columns, D, L, x_, scores_);
    mix(call.w1_columns, M, E, scores_, shares_);
    if (call.new_lse != nullptr || call.lse != nullptr) {
      hide_padding(count);
    }
    if (call.new_lse != nullptr) {
      return add_to_statistics();
    }
    exponentiate();
    if (call.w.data != nullptr) {
      read(call.w, first, count, w_, w_rows_);
    }
    if (call.out.data != nullptr || call.sum_w != nullptr) {
      mix(call.w2_columns, E, M, shares_, maps_);
    }
    if (call.out.data != nullptr) {
      multiply(call.z, L, D, maps_, out_);
      write(call.out, first, count);
    }
    if (call.sum_w != nullptr) {
      add_tokens(maps_, w_rows_, count, sum_w_);
    }
    if (call.new_delta == nullptr && call.dx.data == nullptr) {
      return;
    }
    multiply(call.z_columns, D, L, w_, maps_);
    mix(call.w2, M, E, maps_, dshares_);
    if (call.new_delta != nullptr) {
      return add_to_delta();
    }
    add_inner_products(maps_, M, shares_, E, L * width_, dw2_);
    differentiate_softmax();
    add_inner_products(dshares_, E, scores_, M, L * width_, dw1_);
    mix(call.w1, E, M, dshares_, scores_);
    multiply(call.y, L, D, scores_, out_);
    write(call.dx, first, count);
    add_tokens(scores_, x_rows_, count, dy_);
  }

  MMATTN_INLINE T* token(const Tokens& x, int64_t n, int64_t m) const {
    return static_cast<T*>(x.data) + b_ * x.strides[0] + n * x.strides[1] +
        m * x.strides[2];
  }

  // Calls a function with the places of each block in rows (width_, M, DP) and in columns
  // (M, D, width_). Blocks reach into the columns of the next head, which follow them.
  template <class Function>
  MMATTN_INLINE void for_blocks(const Function& function) const {
    for (int64_t i = 0; i < width_; i += kLanes) {
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t d = 0; d < D; d += kLanes) {
          function((i * M + m) * DP + d, (m * D + d) * width_ + i);
        }
      }
    }
  }

  // Reads tokens as rows and as columns, of zeros beyond `count`.
  void read(
      const Tokens& x, int64_t first, int64_t count, float* columns, float* rows) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t m = 0; m < M; ++m) {
        read_row(token(x, first + i, m), 1, D, rows + (i * M + m) * DP);
      }
    }
    std::memset(rows + count * M * DP, 0, (width_ - count) * M * DP * sizeof(float));
    for_blocks([&](int64_t row, int64_t column) {
      transpose_block(rows + row, M * DP, columns + column, width_);
    });
  }

  // Writes columns `out_` to tokens.
  void write(const Tokens& x, int64_t first, int64_t count) {
    for_blocks([&](int64_t row, int64_t column) {
      transpose_block(out_ + column, width_, out_rows_ + row, M * DP);
    });
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t m = 0; m < M; ++m) {
        write_row(out_rows_ + (i * M + m) * DP, D, token(x, first + i, m));
      }
    }
  }

  // Multiplies landmarks (M, depth, rows) by columns (M, depth, width_) of tokens or maps.
  void multiply(
      const float* a, int64_t depth, int64_t rows, const float* b, float* c) const {
    for (int64_t m = 0; m < M; ++m, b += depth * width_, c += rows * width_) {
      const float* const head = a + (b_ * M + m) * depth * rows;
      add_product_of<1, false>(rows, vectors_, head, rows, b, width_, depth, c, width_);
    }
  }

  // Mixes heads of maps by weights (from, to).
  void mix(
      const float* weights, int64_t from, int64_t to, const float* maps, float* mixed) {
    const int64_t size = L * width_;
    add_product_of<1, false>(
        to, L * vectors_, weights, to, maps, size, from, mixed, size);
  }

  // Adds tokens by maps to sums (M, L, DP).
  void add_tokens(const float* maps, const float* rows, int64_t count, float* sums) {
    const auto add = vectors_ == 3 ? add_product_of<3 * kLanes, true>
        : vectors_ == 2            ? add_product_of<2 * kLanes, true>
                                   : add_product_of<kLanes, true>;
    for (int64_t m = 0; m < M; ++m, maps += L * width_, rows += DP, sums += L * DP) {
      add(L, DP / kLanes, maps, 1, rows, M * DP, count, sums, DP, 1);
    }
  }

  // Replaces scores of no token.
  void hide_padding(int64_t count) {
    for (int64_t i = 0; i < E * L; ++i) {
      for (int64_t lane = count; lane < width_; ++lane) {
        shares_[i * width_ + lane] = -kInfinity;
      }
    }
  }

  // Updates the largest score and the sum of exponentials of each lane.
  void add_to_statistics() {
    for (int64_t i = 0; i < E * L; ++i) {
      const float* const scores = shares_ + i * width_;
      const Floats old = load(top_ + i * kLanes);
      Floats largest = old;
      for (int64_t lane = 0; lane < width_; lane += kLanes) {
        largest = maximum(load(scores + lane), largest);
      }
      Floats sum = load(total_ + i * kLanes) * exp(old - largest);
      for (int64_t lane = 0; lane < width_; lane += kLanes) {
        sum += exp(load(scores + lane) - largest);
      }
      store(top_ + i * kLanes, largest);
      store(total_ + i * kLanes, sum);
    }
  }

  // Replaces mixed scores by their softmax, over tokens or over landmarks.
  void exponentiate() {
    for (int64_t i = 0; call.lse != nullptr && i < E * L; ++i) {
      const Floats lse = broadcast(call.lse[b_ * E * L + i]);
      for (int64_t at = i * width_; at < (i + 1) * width_; at += kLanes) {
        store(shares_ + at, exp(load(shares_ + at) - lse));
      }
    }
    for (int64_t i = 0; call.lse == nullptr && i < E * vectors_; ++i) {
      float* const column = shares_ + i / vectors_ * L * width_ + i % vectors_ * kLanes;
      Floats largest = load(column), sum{};
      for (int64_t l = 1; l < L; ++l) {
        largest = maximum(load(column + l * width_), largest);
      }
      for (int64_t l = 0; l < L; ++l) {
        const Floats share = exp(load(column + l * width_) - largest);
        store(column + l * width_, share);
        sum += share;
      }
      const Floats factor = 1 / sum;
      for (int64_t l = 0; l < L; ++l) {
        store(column + l * width_, load(column + l * width_) * factor);
      }
    }
  }

  void add_to_delta() {
    for (int64_t i = 0; i < E * L; ++i) {
      Floats sum = load(total_ + i * kLanes);
      for (int64_t at = i * width_; at < (i + 1) * width_; at += kLanes) {
        sum += load(shares_ + at) * load(dshares_ + at);
      }
      store(total_ + i * kLanes, sum);
    }
  }

  // Replaces the gradients of shares by those of mixed scores.
  void differentiate_softmax() {
    for (int64_t i = 0; i < E * vectors_; ++i) {
      const int64_t e = i / vectors_, at = e * L * width_ + i % vectors_ * kLanes;
      const float* const deltas = call.delta + (b_ * E + e) * L;
      Floats delta{};
      for (int64_t l = 0; call.delta == nullptr && l < L; ++l) {
        delta += load(shares_ + at + l * width_) * load(dshares_ + at + l * width_);
      }
      for (int64_t l = 0; l < L; ++l) {
        float* const d = dshares_ + at + l * width_;
        delta = call.delta == nullptr ? delta : broadcast(deltas[l]);
        store(d, load(shares_ + at + l * width_) * (load(d) - delta));
      }
    }
  }

  void write_sums(const float* from, int64_t rows, int64_t width, int64_t step,
      int64_t task, float* to) const {
    for (int64_t i = 0; to != nullptr && i < rows; ++i) {
      write_row(from + i * step, width, to + (task * rows + i) * width);
    }
  }

  float* take(int64_t size) {
    float* const begin = memory_ == nullptr ? nullptr : memory_ + size_;
    size_ += round_up(size, 16);
    return begin;
  }

  const LandmarkCall& call;
  float* const memory_;
  int64_t size_ = 0, b_ = 0, vectors_ = 0, width_ = 0;  // the last two of the tile
  const int64_t L = call.L, M = call.M, D = call.D, E = call.E;
  const int64_t DP = round_up(D, kLanes), tokens_ = M * DP * kTile;
  const int64_t lanes_ = call.new_lse || call.new_delta ? E * L * kLanes : 0;
  float *const x_ = take(tokens_), *const x_rows_ = take(tokens_);
  float *const w_ = take(tokens_), *const w_rows_ = take(tokens_);
  float *const out_ = take(tokens_), *const out_rows_ = take(tokens_);
  float *const scores_ = take(M * L * kTile), *const maps_ = take(M * L * kTile);
  float *const shares_ = take(E * L * kTile), *const dshares_ = take(E * L * kTile);
  float *const top_ = take(lanes_), *const sums_ = take(0),
               *const total_ = take(lanes_);
  float* const sum_w_ = take(call.sum_w ? M * L * DP : 0);
  float* const dy_ = take(call.dy ? M * L * DP : 0);
  float *const dw1_ = take(E * M), *const dw2_ = take(M * E);
};

}  // namespace

// Computes some parts of all images.
inline void landmark_attention(const LandmarkCall& call, int64_t begin, int64_t end) {
  with_type_of(call.storage, [&](auto x) {
    using Type = Part<decltype(x)>;
    Type part(call, kept_memory(Type(call, nullptr).size()));
    for (int64_t task = begin; task < end; ++task) {
      part.run(task);
    }
  });
}
