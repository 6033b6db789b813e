// Deformable attention for one instruction set, a head of an image at a time. Lanes of
// vectors are queries, so that the bias of a key is an interpolated piece of the table.
namespace {

constexpr int kRows = VECTOR_BYTES == 64 ? 8 : 4;  // of a product held in registers
constexpr int kColumns = 3;  // vectors of a product held in registers
constexpr int kTile = kColumns * kLanes;  // queries
constexpr int kBlock = 64;  // keys
constexpr int kBackwardBlock = 32;  // keys

#if VECTOR_BYTES == 64
constexpr Floats kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif VECTOR_BYTES == 32
constexpr Floats kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr Floats kLaneNumbers = {0, 1, 2, 3};
#endif

template <class X>
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : size_(size), items_(new (std::align_val_t(64)) X[size]) {
    fill(0);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    operator delete[](items_, std::align_val_t(64));
  }
  operator X*() {
    return items_;
  }
  operator const X*() const {
    return items_;
  }
  void fill(X x) {
    for (int64_t i = 0; i < size_; ++i) {
      items_[i] = x;
    }
  }

 private:
  const int64_t size_;
  X* const items_;
};

MMATTN_INLINE int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Adds a product to kR rows of kV vectors of c, rounding once to the size of c:
//   c[r][.] += sum over i < depth of a[i * a_step + r * kRowStep] * b[i * b_step + .]
template <int kR, int kV, int kRowStep>
MMATTN_INLINE void add_product(
    const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t depth,
    float* c, int64_t c_step) {
  Floats sums[kR][kV] = {};
  for (int64_t i = 0; i < depth; ++i, a += a_step, b += b_step) {
    Floats row[kV];
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      row[v] = load(b + v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const Floats x = broadcast(a[r * kRowStep]);
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) {
        sums[r][v] += x * row[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      float* const to = c + r * c_step + v * kLanes;
      store(to, load(to) + sums[r][v]);
    }
  }
}

// The same for whole multiples of kRows rows, and any number of vectors.
template <int kRowStep>
void add_product_of(
    int64_t rows, int64_t vectors, const float* a, int64_t a_step, const float* b,
    int64_t b_step, int64_t depth, float* c, int64_t c_step) {
  for (int64_t r = 0; r < rows; r += kRows) {
    const float* a_r = a + r * kRowStep;
    float* c_r = c + r * c_step;
    int64_t v = 0;
    for (; v + 3 <= vectors; v += 3) {
      add_product<kRows, 3, kRowStep>(
          a_r, a_step, b + v * kLanes, b_step, depth, c_r + v * kLanes, c_step);
    }
    if (vectors - v == 2) {
      add_product<kRows, 2, kRowStep>(
          a_r, a_step, b + v * kLanes, b_step, depth, c_r + v * kLanes, c_step);
    } else if (vectors - v == 1) {
      add_product<kRows, 1, kRowStep>(
          a_r, a_step, b + v * kLanes, b_step, depth, c_r + v * kLanes, c_step);
    }
  }
}

// Where queries of one side lie in the table, in double: float leaves few digits for a
// fraction in a large table.
class Axis {
 public:
  Axis(int64_t side, int64_t size, bool align_corners)
      : size(size), half_(0.5 * (size - 1)), queries_(side + kTile) {
    const double steps = !align_corners ? side : side > 1 ? side - 1 : 1;
    for (int64_t i = 0; i < side + kTile; ++i) {
      queries_[i] = (2 * i + 1 - side) / steps;
    }
    step = half_ / steps;
  }

  MMATTN_INLINE double point(int64_t query, double key) const {
    return ((queries_[query] - key) / 2 + 1) * half_;
  }

  double slope() const {  // derivative of a point by the position of its key
    return -0.5 * half_;
  }

  const int64_t size;
  double step;  // from query to query

 private:
  const double half_;
  Buffer<double> queries_;
};

struct Place {
  int64_t index;
  float share;  // of the next number
};

// Splits a point into index and fraction. Numbers outside of [lowest, highest] are zeros
// as that bound's are.
MMATTN_INLINE Place place_of(double point, double lowest, double highest) {
  const double floor = std::floor(point);
  const double index = !(floor > lowest) ? lowest : floor > highest ? highest : floor;
  return {static_cast<int64_t>(index), static_cast<float>(point - floor)};
}

enum class Step { kUnit, kSmall, kLarge };

// Some queries side by side in a row of the grid, which begin at a lane of a tile.
struct Segment {
  int64_t row, column, lane, count;
};

// A head of an image: its keys, values and table, ready for the products.
template <class T>
class Head {
 public:
  explicit Head(const DeformableCall& call)
      : call(call),
        y(call.H, call.Th, call.align_corners),
        x(call.W, call.Tw, call.align_corners),
        step(
            x.step == 1      ? Step::kUnit
                : x.step < 1 ? Step::kSmall
                             : Step::kLarge),
        D(call.D),
        DP(round_up(call.D, kLanes)),
        reach_(step == Step::kLarge ? 2 + (int64_t)(1 + kLanes * x.step) : kLanes),
        width_(call.Tw + 2 * (reach_ + 1)),
        keys(round_up(call.K, kBlock) * D),
        values(round_up(call.K, kBlock) * DP),
        places(2 * call.K),
        table_(width_ * (call.Th + 3)),
        slopes_(width_ * (call.Th + 3)),
        row_(DP) {}

  void read(int64_t b, int64_t m) {
    pack_rows(call.k, b, m, keys);
    for (int64_t s = 0; s < call.K; ++s) {
      read_row(tokens(call.v, b, m) + s * call.v.strides[1], 1, D, values + s * DP);
    }
    const int64_t group = b * call.G + m / (call.M / call.G);
    for (int64_t i = 0; i < 2 * call.K; ++i) {
      places[i] = call.positions[group * call.K * 2 + i];
    }
    const float* const table = call.table + m * call.Th * call.Tw;
    for (int64_t i = 0; i < call.Th; ++i) {
      std::memcpy(row_of(table_, i), table + i * call.Tw, call.Tw * sizeof(float));
    }
    for (int64_t i = -2; i < call.Th; ++i) {
      for (int64_t j = 0; j < call.Tw; ++j) {
        row_of(slopes_, i)[j] = row_of(table_, i + 1)[j] - row_of(table_, i)[j];
      }
    }
  }

  const T* tokens(const TokensOfHeads& x, int64_t b, int64_t m) const {
    return static_cast<const T*>(x.data) + b * x.strides[0] + m * x.strides[2];
  }

  // Interleaves kRows keys: (K / kRows, D, kRows).
  void pack_rows(const TokensOfHeads& x, int64_t b, int64_t m, float* to) {
    for (int64_t s = 0; s < call.K; ++s) {
      read_row(tokens(x, b, m) + s * x.strides[1], 1, D, row_);
      float* const group = to + s / kRows * kRows * D + s % kRows;
      for (int64_t d = 0; d < D; ++d) {
        group[d * kRows] = row_[d];
      }
    }
  }

  // Writes the bias of a key and a segment, in whole vectors.
  template <Step kStep>
  MMATTN_INLINE void write_bias(int64_t key, const Segment& segment, float* to) const {
    const Place row = place_of(y.point(segment.row, places[2 * key + 1]), -2, call.Th);
    const float* const table = row_of(table_, row.index);
    const float* const slopes = row_of(slopes_, row.index);
    const Floats share_y = broadcast(row.share);
    for (int64_t lane = 0; lane < segment.count; lane += kLanes) {
      const Place column = place_of(
          x.point(segment.column + lane, places[2 * key]), -(reach_ + 1), call.Tw);
      const float *const numbers = table + column.index,
                         *const changes = slopes + column.index;
      Floats bias;
      if constexpr (kStep == Step::kLarge) {
        for (int i = 0; i < kLanes; ++i) {
          const float point = column.share + i * static_cast<float>(x.step);
          const float last = reach_ - 1;
          const int j = point > 0 ? static_cast<int>(point < last ? point : last) : 0;
          const float a = numbers[j] + row.share * changes[j];
          const float b = numbers[j + 1] + row.share * changes[j + 1];
          bias[i] = a + (point - j) * (b - a);
        }
      } else {
        const Floats a = load(numbers) + share_y * load(changes);
        const Floats b = load(numbers + 1) + share_y * load(changes + 1);
        if constexpr (kStep == Step::kUnit) {
          bias = a + column.share * (b - a);
        } else {
          const Floats points =
              column.share + kLaneNumbers * static_cast<float>(x.step);
          Ints index = __builtin_convertvector(points, Ints);
          index = index < kLanes - 1 ? index : kLanes - 1 - Ints{};
          const Floats share = points - __builtin_convertvector(index, Floats);
          const Floats low = __builtin_shuffle(a, index);
          bias = low + share * (__builtin_shuffle(b, index) - low);
        }
      }
      store(to + segment.lane + lane, bias);
    }
  }

  template <Step kStep>
  void write_biases_of(
      int64_t first, int64_t count, const Segment* segments, int num_segments,
      float* to) const {
    for (int64_t s = 0; s < count; ++s) {
      for (int i = 0; i < num_segments; ++i) {
        write_bias<kStep>(first + s, segments[i], to + s * kTile);
      }
    }
  }

  // Makes the scores of some keys, in rows of kTile, and rows of no key up to a
  // multiple of kRows. The segments are of `vectors` vectors of queries.
  void make_scores(
      int64_t first, int64_t count, const Segment* segments, int num_segments,
      const float* queries, int64_t vectors, float* to) const {
    switch (step) {
      case Step::kUnit:
        write_biases_of<Step::kUnit>(first, count, segments, num_segments, to);
        break;
      case Step::kSmall:
        write_biases_of<Step::kSmall>(first, count, segments, num_segments, to);
        break;
      case Step::kLarge:
        write_biases_of<Step::kLarge>(first, count, segments, num_segments, to);
    }
    multiply_rows(keys, first, count, queries, vectors, to);
  }

  // Adds the products of packed rows and queries (D, kTile).
  void multiply_rows(
      const float* rows, int64_t first, int64_t count, const float* queries,
      int64_t vectors, float* to) const {
    for (int64_t s = 0; s < count; s += kRows) {
      add_product_of<1>(
          kRows,
          vectors,
          rows + (first + s) * D,
          kRows,
          queries,
          kTile,
          D,
          to + s * kTile,
          kTile);
    }
  }

  const DeformableCall& call;
  const Axis y, x;
  const Step step;
  const int64_t D, DP;

 private:
  float* row_of(float* table, int64_t i) const {
    return table + (i + 2) * width_ + reach_ + 1;
  }
  const float* row_of(const float* table, int64_t i) const {
    return table + (i + 2) * width_ + reach_ + 1;
  }

  const int64_t reach_, width_;  // numbers that a vector reads; row with its margins

 public:
  Buffer<float> keys, values;
  Buffer<double> places;  // (x, y) of each key

 private:
  Buffer<float> table_, slopes_, row_;
};

// The attention of a tile of queries, with an online softmax.
template <class T>
class Attention {
 public:
  explicit Attention(const DeformableCall& call)
      : head(call),
        queries(head.D * kTile),
        values(head.DP * kTile),
        top(kTile),
        total(kTile),
        scores_(kBlock * kTile + kLanes),
        row_(head.DP) {}

  // Attends from `count` queries from `first` on. Afterwards `values` holds the output
  // (DP, kTile), `top` and `total` the statistics of its softmax.
  void run(int64_t b, int64_t m, int64_t first, int64_t count) {
    const DeformableCall& call = head.call;
    const int64_t vectors = num_vectors(count);
    read_queries(b, m, first, count);
    int num_segments = 0;
    for (int64_t lane = 0; lane < count;) {
      const int64_t column = (first + lane) % call.W;
      const int64_t rest = call.W - column, left = count - lane;
      segments_[num_segments] = {
          (first + lane) / call.W, column, lane, rest < left ? rest : left};
      lane += segments_[num_segments++].count;
    }
    values.fill(0);
    total.fill(0);
    top.fill(-std::numeric_limits<float>::infinity());
    for (int64_t s = 0; s < call.K; s += kBlock) {
      const int64_t keys = call.K - s < kBlock ? call.K - s : kBlock;
      head.make_scores(s, keys, segments_, num_segments, queries, vectors, scores_);
      for (int64_t v = 0; v < vectors; ++v) {
        exponentiate(keys, s == 0, v * kLanes);
      }
      add_product_of<1>(
          head.DP,
          vectors,
          head.values + s * head.DP,
          head.DP,
          scores_,
          kTile,
          keys,
          values,
          kTile);
    }
    for (int64_t v = 0; v < vectors; ++v) {
      const Floats factor = 1 / load(total + v * kLanes);
      for (int64_t d = 0; d < head.DP; ++d) {
        float* const to = values + d * kTile + v * kLanes;
        store(to, load(to) * factor);
      }
    }
  }

  void write(int64_t b, int64_t m, int64_t first, int64_t count) {
    const DeformableCall& call = head.call;
    T* const out = static_cast<T*>(call.out.data) + b * call.out.strides[0] +
        m * call.out.strides[2];
    float* const lse = call.lse + (b * call.M + m) * call.num_queries() + first;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t d = 0; d < head.D; ++d) {
        row_[d] = values[d * kTile + i];
      }
      write_row(row_, head.D, out + (first + i) * call.out.strides[1]);
      lse[i] = top[i] + std::log(total[i]);
    }
  }

  Head<T> head;
  Buffer<float> queries, values, top, total;

 private:
  void read_queries(int64_t b, int64_t m, int64_t first, int64_t count) {
    const DeformableCall& call = head.call;
    const T* const from = head.tokens(call.q, b, m) + first * call.q.strides[1];
    const float scale = 1 / std::sqrt(static_cast<float>(head.D));
    for (int64_t i = 0; i < count; ++i) {
      read_row(from + i * call.q.strides[1], 1, head.D, row_);
      for (int64_t d = 0; d < head.D; ++d) {
        queries[d * kTile + i] = scale * row_[d];
      }
    }
  }

  // Replaces a vector of each score by its exponential, and updates the statistics.
  MMATTN_INLINE void exponentiate(int64_t keys, bool is_first, int64_t lane) {
    const Floats old = load(top + lane);
    Floats largest = old;
    for (int64_t s = 0; s < keys; ++s) {
      largest = maximum(load(scores_ + s * kTile + lane), largest);
    }
    Floats sum{};
    for (int64_t s = 0; s < keys; ++s) {
      float* const score = scores_ + s * kTile + lane;
      const Floats share = exp(load(score) - largest);
      store(score, share);
      sum += share;
    }
    if (is_first) {
      store(total + lane, sum);
    } else {
      const Floats factor = exp(old - largest);
      store(total + lane, load(total + lane) * factor + sum);
      for (int64_t d = 0; d < head.DP; ++d) {
        float* const to = values + d * kTile + lane;
        store(to, load(to) * factor);
      }
    }
    store(top + lane, largest);
  }

  Segment segments_[kTile];
  Buffer<float> scores_, row_;
};

// Computes some tiles of all images and heads.
template <class T>
void attend(const DeformableCall& call, int64_t begin, int64_t end) {
  const int64_t N = call.num_queries(), tiles = (N + kTile - 1) / kTile;
  Attention<T> attention(call);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t tile = task % tiles, m = task / tiles % call.M;
    const int64_t b = task / tiles / call.M, first = tile * kTile;
    if (task == begin || tile == 0) {
      attention.head.read(b, m);
    }
    const int64_t count = N - first < kTile ? N - first : kTile;
    attention.run(b, m, first, count);
    attention.write(b, m, first, count);
  }
}

// The gradients of a head and some rows of its queries. A strip of columns is taken at
// a time. For a key, the gradients of scores are first added up by the table's row, and
// then multiplied by the interpolation along columns, once for each row of the table.
template <class T>
class Gradients {
 public:
  explicit Gradients(const DeformableCall& call)
      : call_(call),
        attention_(call),
        head_(attention_.head),
        D(call.D),
        DP(head_.DP),
        rows_((call.H + call.splits - 1) / call.splits),
        window_(most_rows_of_table()),
        line_(round_up(window_ + 1, kLanes) + kLanes),
        height_(round_up(call.Th + 4 + line_, kLanes)),
        queries_(rows_ * D * kTile),
        grads_(rows_ * D * kTile),
        query_rows_(rows_ * kTile * DP),
        grad_rows_(rows_ * kTile * DP),
        dqueries_(rows_ * DP * kTile),
        lse_(rows_ * kTile),
        delta_(rows_ * kTile),
        key_rows_(round_up(call.K, kBlock) * DP),
        values_(round_up(call.K, kBlock) * D),
        dkeys_(round_up(call.K, kBlock) * DP),
        dvalues_(round_up(call.K, kBlock) * DP),
        shares_(kBackwardBlock * kTile + kLanes),
        dscores_(kBackwardBlock * kTile + kLanes),
        sums_(kBackwardBlock * window_ * kTile),
        shared_sums_(kBackwardBlock * window_ * kTile),
        columns_(kTile * line_),
        shared_columns_(kTile * line_),
        table_((call.Tw + 4) * height_),
        dtable_((call.Tw + 4) * height_),
        row_(DP) {}

  void run(int64_t task) {
    const int64_t m = task % call_.M, b = task / call_.M % call_.B;
    const int64_t split = task / call_.M / call_.B, K = call_.K;
    const int64_t first = call_.H * split / call_.splits;
    const int64_t last = call_.H * (split + 1) / call_.splits;
    read_head(b, m);
    float* const dplaces = call_.grad_positions + task * K * 2;
    std::memset(dplaces, 0, K * 2 * sizeof(float));
    for (int64_t column = 0; column < call_.W; column += kTile) {
      const int64_t count = call_.W - column < kTile ? call_.W - column : kTile;
      read_strip(b, m, first, last, column, count);
      for (int64_t s = 0; s < K; s += kBackwardBlock) {
        const int64_t keys = K - s < kBackwardBlock ? K - s : kBackwardBlock;
        run_keys(s, keys, first, last, column, count);
        for (int64_t key = 0; key < keys; ++key) {
          add_gradients_of_bias(
              s + key, key, first, last, column, count, dplaces + 2 * (s + key));
        }
      }
      write_strip(b, m, first, last, column, count);
    }
    for (int64_t s = 0; s < K; ++s) {
      std::memcpy(
          call_.grad_k + (task * K + s) * D, dkeys_ + s * DP, D * sizeof(float));
      std::memcpy(
          call_.grad_v + (task * K + s) * D, dvalues_ + s * DP, D * sizeof(float));
    }
    float* const dtable = call_.grad_table + task * call_.Th * call_.Tw;
    for (int64_t i = 0; i < call_.Th; ++i) {
      for (int64_t j = 0; j < call_.Tw; ++j) {
        dtable[i * call_.Tw + j] = dtable_[(j + 2) * height_ + i + 2];
      }
    }
  }

 private:
  // Returns how many rows of the table the queries of a column lie in.
  int64_t most_rows_of_table() const {
    const double rows = head_.y.step * rows_;
    return rows < call_.Th ? static_cast<int64_t>(rows) + 3 : call_.Th + 3;
  }

  void read_head(int64_t b, int64_t m) {
    head_.read(b, m);
    head_.pack_rows(call_.v, b, m, values_);
    for (int64_t s = 0; s < call_.K; ++s) {
      const T* const key = head_.tokens(call_.k, b, m) + s * call_.k.strides[1];
      read_row(key, 1, D, key_rows_ + s * DP);
    }
    const float* const table = call_.table + m * call_.Th * call_.Tw;
    for (int64_t i = 0; i < call_.Th; ++i) {
      for (int64_t j = 0; j < call_.Tw; ++j) {
        table_[(j + 2) * height_ + i + 2] = table[i * call_.Tw + j];
      }
    }
    dkeys_.fill(0);
    dvalues_.fill(0);
    dtable_.fill(0);
  }

  // Reads a token and scales it, as a row and as a column of a tile.
  void read_token(const T* from, float scale, float* row, float* column) {
    read_row(from, 1, D, row);
    for (int64_t d = 0; d < D; ++d) {
      row[d] *= scale;
      column[d * kTile] = row[d];
    }
  }

  void read_strip(
      int64_t b, int64_t m, int64_t first, int64_t last, int64_t column,
      int64_t count) {
    const float scale = 1 / std::sqrt(static_cast<float>(D));
    dqueries_.fill(0);
    for (int64_t row = first; row < last; ++row) {
      const int64_t r = row - first, query = row * call_.W + column;
      if constexpr (!std::is_same_v<T, float>) {
        attention_.run(b, m, query, count);  // the output, before it was rounded
      }
      for (int64_t i = 0; i < kTile; ++i) {
        float* const column_q = queries_ + r * D * kTile + i;
        float* const column_g = grads_ + r * D * kTile + i;
        if (i >= count) {  // zeros, and shares of zero
          for (int64_t d = 0; d < D; ++d) {
            column_q[d * kTile] = column_g[d * kTile] = 0;
          }
          lse_[r * kTile + i] = 3e38f;
          delta_[r * kTile + i] = 0;
          continue;
        }
        const int64_t n = query + i;
        float* const g = grad_rows_ + (r * kTile + i) * DP;
        read_token(
            head_.tokens(call_.q, b, m) + n * call_.q.strides[1],
            scale,
            query_rows_ + (r * kTile + i) * DP,
            column_q);
        read_token(
            head_.tokens(call_.grad, b, m) + n * call_.grad.strides[1], 1, g, column_g);
        float delta = 0;
        if constexpr (std::is_same_v<T, float>) {
          const T* out = head_.tokens(call_.out, b, m) + n * call_.out.strides[1];
          for (int64_t d = 0; d < D; ++d) {
            delta += out[d] * g[d];
          }
          lse_[r * kTile + i] = call_.lse[(b * call_.M + m) * call_.num_queries() + n];
        } else {
          for (int64_t d = 0; d < D; ++d) {
            delta += attention_.values[d * kTile + i] * g[d];
          }
          lse_[r * kTile + i] = attention_.top[i] + std::log(attention_.total[i]);
        }
        delta_[r * kTile + i] = delta;
      }
    }
  }

  void write_strip(
      int64_t b, int64_t m, int64_t first, int64_t last, int64_t column,
      int64_t count) {
    const float scale = 1 / std::sqrt(static_cast<float>(D));
    T* const dq = static_cast<T*>(call_.grad_q.data) + b * call_.grad_q.strides[0] +
        m * call_.grad_q.strides[2];
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t d = 0; d < D; ++d) {
          row_[d] = scale * dqueries_[((row - first) * DP + d) * kTile + i];
        }
        write_row(row_, D, dq + (row * call_.W + column + i) * call_.grad_q.strides[1]);
      }
    }
  }

  void run_keys(
      int64_t s, int64_t keys, int64_t first, int64_t last, int64_t column,
      int64_t count) {
    const int64_t vectors = num_vectors(count), padded = round_up(keys, kRows);
    std::memset(sums_, 0, keys * window_ * kTile * sizeof(float));
    std::memset(shared_sums_, 0, keys * window_ * kTile * sizeof(float));
    for (int64_t row = first; row < last; ++row) {
      const int64_t r = row - first;
      const Segment segment{row, column, 0, count};
      const float* const queries = queries_ + r * D * kTile;
      head_.make_scores(s, keys, &segment, 1, queries, vectors, shares_);
      for (int64_t v = 0; v < vectors; ++v) {
        const Floats lse = load(lse_ + r * kTile + v * kLanes);
        for (int64_t i = 0; i < keys; ++i) {
          float* const share = shares_ + i * kTile + v * kLanes;
          store(share, exp(load(share) - lse));
          store(dscores_ + i * kTile + v * kLanes, Floats{});
        }
      }
      add_product_of<kTile>(
          padded,
          DP / kLanes,
          shares_,
          1,
          grad_rows_ + r * kTile * DP,
          DP,
          count,
          dvalues_ + s * DP,
          DP);
      head_.multiply_rows(values_, s, keys, grads_ + r * D * kTile, vectors, dscores_);
      for (int64_t i = 0; i < keys; ++i) {
        add_to_row_of_table(s + i, i, first, row, vectors);
      }
      add_product_of<1>(
          DP,
          vectors,
          key_rows_ + s * DP,
          DP,
          dscores_,
          kTile,
          keys,
          dqueries_ + r * DP * kTile,
          kTile);
      add_product_of<kTile>(
          padded,
          DP / kLanes,
          dscores_,
          1,
          query_rows_ + r * kTile * DP,
          DP,
          count,
          dkeys_ + s * DP,
          DP);
    }
  }

  Place row_of_table(int64_t key, int64_t row) const {
    return place_of(head_.y.point(row, head_.places[2 * key + 1]), -2, call_.Th);
  }

  // Multiplies the gradients by the shares, and adds them to those of the row of the
  // table that a row of queries lies in.
  MMATTN_INLINE void add_to_row_of_table(
      int64_t key, int64_t i, int64_t first, int64_t row, int64_t vectors) {
    const Place place = row_of_table(key, row);
    const int64_t line = place.index - row_of_table(key, first).index;
    float* const sums = sums_ + (i * window_ + line) * kTile;
    float* const shared = shared_sums_ + (i * window_ + line) * kTile;
    const float* const deltas = delta_ + (row - first) * kTile;
    for (int64_t lane = 0; lane < vectors * kLanes; lane += kLanes) {
      float* const dscore = dscores_ + i * kTile + lane;
      const Floats change = load(dscore) - load(deltas + lane);
      const Floats ds = change * load(shares_ + i * kTile + lane);
      store(dscore, ds);
      store(sums + lane, load(sums + lane) + ds);
      store(shared + lane, load(shared + lane) + place.share * ds);
    }
  }

  void add_gradients_of_bias(
      int64_t key, int64_t i, int64_t first, int64_t last, int64_t column,
      int64_t count, float* dplace) {
    if (first == last) {
      return;
    }
    const int64_t top = row_of_table(key, first).index;
    const int64_t lines = row_of_table(key, last - 1).index - top + 1;
    const float* const sums = sums_ + i * window_ * kTile;
    const float* const shared = shared_sums_ + i * window_ * kTile;
    // Columns begin with a zero, for the shift by one row.
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t line = 0; line < lines; ++line) {
        columns_[n * line_ + line + 1] = sums[line * kTile + n];
        shared_columns_[n * line_ + line + 1] = shared[line * kTile + n];
      }
      for (int64_t line = lines; line < round_up(lines + 1, kLanes); ++line) {
        columns_[n * line_ + line + 1] = shared_columns_[n * line_ + line + 1] = 0;
      }
    }
    Floats dx{}, dy{};
    for (int64_t n = 0; n < count; ++n) {
      const Place place =
          place_of(head_.x.point(column + n, head_.places[2 * key]), -2, call_.Tw);
      const float* const low = table_ + (place.index + 2) * height_ + top + 2;
      float* const dlow = dtable_ + (place.index + 2) * height_ + top + 2;
      for (int64_t line = 0; line <= lines; line += kLanes) {
        const float* const shared_column = shared_columns_ + n * line_ + line;
        const Floats sum = load(columns_ + n * line_ + line + 1);
        const Floats d = sum - load(shared_column + 1) + load(shared_column);
        const Floats a = load(low + line);
        const Floats change = load(low + height_ + line) - a;
        const Floats next = load(low + line + 1);
        const Floats next_change = load(low + height_ + line + 1) - next;
        dx += d * change;
        dy += sum * (next - a + place.share * (next_change - change));
        store(dlow + line, load(dlow + line) + (1 - place.share) * d);
        float* const dhigh = dlow + height_ + line;
        store(dhigh, load(dhigh) + place.share * d);
      }
    }
    dplace[0] += static_cast<float>(head_.x.slope()) * sum_lanes(dx);
    dplace[1] += static_cast<float>(head_.y.slope()) * sum_lanes(dy);
  }

  const DeformableCall& call_;
  Attention<T> attention_;
  Head<T>& head_;
  const int64_t D, DP, rows_, window_, line_, height_;
  Buffer<float> queries_, grads_, query_rows_, grad_rows_, dqueries_, lse_, delta_;
  Buffer<float> key_rows_, values_, dkeys_, dvalues_, shares_, dscores_;
  // By row of the table: gradients of scores, and these times the share of the next row.
  Buffer<float> sums_, shared_sums_, columns_, shared_columns_;
  Buffer<float> table_, dtable_, row_;  // tables (Tw + 4, height), with margins of two
};

// Computes some tasks of splits * B * M, which write to different places.
template <class T>
void differentiate(const DeformableCall& call, int64_t begin, int64_t end) {
  Gradients<T> gradients(call);
  for (int64_t task = begin; task < end; ++task) {
    gradients.run(task);
  }
}

}  // namespace

inline int64_t deformable_tiles(const DeformableCall& call) {
  return call.B * call.M * ((call.num_queries() + kTile - 1) / kTile);
}

inline void deformable_forward(const DeformableCall& call, int64_t begin, int64_t end) {
  switch (call.storage) {
    case Storage::kHalf:
      return attend<Half>(call, begin, end);
    case Storage::kBFloat16:
      return attend<BFloat16>(call, begin, end);
    default:
      return attend<float>(call, begin, end);
  }
}

inline void deformable_backward(
    const DeformableCall& call, int64_t begin, int64_t end) {
  switch (call.storage) {
    case Storage::kHalf:
      return differentiate<Half>(call, begin, end);
    case Storage::kBFloat16:
      return differentiate<BFloat16>(call, begin, end);
    default:
      return differentiate<float>(call, begin, end);
  }
}
