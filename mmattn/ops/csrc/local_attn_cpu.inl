// The kernels of local_attn_cpu.cpp for one instruction set.
namespace {

template <class X>
class Buffer {
 public:
  explicit Buffer(int64_t size) : items_(new X[size]()) {}
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    delete[] items_;
  }
  X& operator[](int64_t i) {
    return items_[i];
  }
  X* data() {
    return items_;
  }

 private:
  X* const items_;
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kCanceled = 8;  // limit of the weight taken out over the weight left
#if VECTOR_BYTES == 16
constexpr Ints kNumbers = {0, 1, 2, 3};
#elif VECTOR_BYTES == 32
constexpr Ints kNumbers = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr Ints kNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#endif
constexpr int64_t kAhead = 12;  // tokens that are asked for before they are read
constexpr int64_t kChunk = 32;  // tokens of a dense row that are read at a time

// Reads the channels of some tokens from `first` on, times `factor`; token t goes to
// `to + t * step`.
template <class T>
void read_tokens_as(
    const Tokens& x, int64_t b, int64_t first, int64_t count, int64_t m, int64_t D,
    float factor, int64_t step, float* to) {
  const T* from = static_cast<const T*>(x.data) + b * x.strides[0] +
      first * x.strides[1] + m * x.strides[2];
  const int64_t vectors = num_vectors(D);
  for (int64_t t = 0; t < count; ++t) {
    float* const row = to + t * step;
    prefetch(from + (t + kAhead) * x.strides[1], D);
    read_row(from + t * x.strides[1], x.strides[3], D, row);
    if (factor != 1) {
      for (int64_t c = 0; c < vectors; ++c) {
        store(row + c * kLanes, load(row + c * kLanes) * factor);
      }
    }
  }
}

void read_tokens(
    const Tokens& x, int64_t b, int64_t first, int64_t count, int64_t m, int64_t D,
    float factor, int64_t step, float* to) {
  switch (x.storage) {
    case Storage::kHalf:
      return read_tokens_as<Half>(x, b, first, count, m, D, factor, step, to);
    case Storage::kBFloat16:
      return read_tokens_as<BFloat16>(x, b, first, count, m, D, factor, step, to);
    default:
      return read_tokens_as<float>(x, b, first, count, m, D, factor, step, to);
  }
}

// Writes the channels of a token, which lie side by side.
void write_token(
    const float* from, int64_t D, const Tokens& x, int64_t b, int64_t n, int64_t m) {
  const int64_t at = b * x.strides[0] + n * x.strides[1] + m * x.strides[2];
  switch (x.storage) {
    case Storage::kHalf:
      return write_row(from, D, static_cast<Half*>(x.data) + at);
    case Storage::kBFloat16:
      return write_row(from, D, static_cast<BFloat16*>(x.data) + at);
    default:
      return write_row(from, D, static_cast<float*>(x.data) + at);
  }
}

// Products of x with four rows from an offset on. kVectors is the length of x, or 0
// where `vectors` has it.
template <int kVectors>
MMATTN_INLINE Four four_products(
    const float* x, const float* const* rows, int64_t offset, int64_t vectors) {
  const float *a = rows[0] + offset, *b = rows[1] + offset;
  const float *c = rows[2] + offset, *d = rows[3] + offset;
  Floats y = load(x);
  Floats sums[4] = {y * load(a), y * load(b), y * load(c), y * load(d)};
  const int64_t length = (kVectors ? kVectors : vectors) * kLanes;
#pragma GCC unroll 8
  for (int64_t i = kLanes; i < length; i += kLanes) {
    y = load(x + i);
    sums[0] += y * load(a + i);
    sums[1] += y * load(b + i);
    sums[2] += y * load(c + i);
    sums[3] += y * load(d + i);
  }
  return sum_lanes(sums[0], sums[1], sums[2], sums[3]);
}

// Products of x with rows, by whole vectors: what follows them is arbitrary. Three more
// rows than `count` must be readable.
template <int kVectors>
MMATTN_INLINE void products(
    const float* x, const float* const* rows, int64_t offset, int64_t count,
    int64_t vectors, float* to) {
  for (int64_t j = 0; j < count; j += kLanes) {
    Four fours[4] = {};
#pragma GCC unroll 4
    for (int i = 0; i < kLanes / 4; ++i) {
      if (j + 4 * i < count) {
        fours[i] = four_products<kVectors>(x, rows + j + 4 * i, offset, vectors);
      }
    }
    store(to + j, join(fours[0], fours[1], fours[2], fours[3]));
  }
}

// Adds weighted rows to `to`.
template <int kVectors>
MMATTN_INLINE void add_rows(
    const float* weights, const float* const* rows, int64_t offset, int64_t count,
    int64_t vectors, float* to) {
  if constexpr (kVectors == 0) {
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t i = 0; i < vectors; ++i) {
        const int64_t at = i * kLanes;
        store(to + at, load(to + at) + load(rows[j] + offset + at) * weights[j]);
      }
    }
  } else {
    Floats sums[kVectors], others[kVectors] = {};  // two chains are faster than one
    for (int i = 0; i < kVectors; ++i) {
      sums[i] = load(to + i * kLanes);
    }
    int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
      const float *const row = rows[j] + offset, *const other = rows[j + 1] + offset;
      for (int i = 0; i < kVectors; ++i) {
        sums[i] += load(row + i * kLanes) * weights[j];
        others[i] += load(other + i * kLanes) * weights[j + 1];
      }
    }
    for (int i = 0; i < kVectors && j < count; ++i) {
      sums[i] += load(rows[j] + offset + i * kLanes) * weights[j];
    }
    for (int i = 0; i < kVectors; ++i) {
      store(to + i * kLanes, sums[i] + others[i]);
    }
  }
}

// Adds x times a weight to `to`.
MMATTN_INLINE void add_row(float weight, const float* x, int64_t vectors, float* to) {
  for (int64_t i = 0; i < vectors * kLanes; i += kLanes) {
    store(to + i, load(to + i) + load(x + i) * weight);
  }
}

MMATTN_INLINE float product(const float* x, const float* y, int64_t vectors) {
  Floats sum = {};
  for (int64_t i = 0; i < vectors * kLanes; i += kLanes) {
    sum += load(x + i) * load(y + i);
  }
  return sum_lanes(sum);
}

// What the tasks of one head of one image share.
struct Head {
  Head(const LocalCall& call, int64_t b, int64_t m)
      : call(call),
        b(b),
        m(m),
        D(call.D),
        vectors(num_vectors(call.D)),
        width(vectors * kLanes),
        scale(1 / std::sqrt(static_cast<float>(call.D))),
        alpha(call.soft ? call.alpha[m] : 0),
        rows((b * call.M + m) * call.N) {}

  // Returns the index of a patch among tokens.
  int64_t token(int64_t y, int64_t x) const {
    return call.special + y * call.columns.side + x;
  }

  const LocalCall& call;
  const int64_t b, m, D, vectors, width;
  const float scale, alpha;
  const int64_t rows;  // place of the head in (B, M, N)
};

// Two tensors' tokens side by side, `2 * width` numbers a token: rows of the map in a
// ring, and the special tokens.
class Ring {
 public:
  Ring(const Head& head, const Tokens& x, float factor, const Tokens& y, int64_t rows)
      : head_(head),
        x_(x),
        y_(y),
        factor_(factor),
        capacity_(rows),
        step_(2 * head.width),
        row_(head.call.columns.side * step_),
        numbers_(rows * row_),
        special_(head.call.special * step_) {
    read(0, head.call.special, special_.data());
  }

  void read_map_row(int64_t y) {
    read(head_.token(y, 0), head_.call.columns.side, row(y));
  }

  float* row(int64_t y) {
    return numbers_.data() + y % capacity_ * row_;
  }

  float* special(int64_t i) {
    return special_.data() + i * step_;
  }

 private:
  void read(int64_t first, int64_t count, float* to) {
    read_tokens(x_, head_.b, first, count, head_.m, head_.D, factor_, step_, to);
    read_tokens(
        y_, head_.b, first, count, head_.m, head_.D, 1, step_, to + head_.width);
  }

  const Head& head_;
  const Tokens &x_, &y_;
  const float factor_;
  const int64_t capacity_, step_, row_;
  Buffer<float> numbers_, special_;
};

// The keys and biases of a query, one at a time along a row of the map.
class Window {
 public:
  Window(const Head& head, Ring& ring)
      : head_(head),
        ring_(ring),
        step_(2 * head.width),
        size_(
            num_vectors(head.call.max_keys * head.call.max_keys + head.call.special) *
            kLanes),
        keys(size_ + 4),
        bias(size_ + kLanes),
        rows_(head.call.max_keys) {}

  // Returns the largest number of keys, in whole vectors.
  int64_t size() const {
    return size_;
  }

  void start_row(int64_t y) {
    y_ = y;
    first_y_ = head_.call.rows.first_key[y];
    num_y_ = head_.call.rows.num_keys[y];
    for (int64_t i = 0; i < num_y_; ++i) {
      rows_[i] = ring_.row(first_y_ + i);
    }
    offset_ = num_x_ = -1;
  }

  // Finds the keys: those of the map by rows, then the special ones.
  MMATTN_INLINE void move(int64_t x) {
    const int64_t first = head_.call.columns.first_key[x];
    const int64_t num = head_.call.columns.num_keys[x];
    const float** key = keys.data();
    for (int64_t i = 0; i < num_y_; ++i) {
      const float* from = rows_[i] + first * step_;
      for (int64_t j = 0; j < num; ++j, from += step_) {
        *key++ = from;
      }
    }
    if (first - x == offset_ && num == num_x_) {
      return;
    }
    offset_ = first - x;
    num_x_ = num;
    for (int64_t i = 0; i < head_.call.special; ++i) {
      *key++ = ring_.special(i);
    }
    count = key - keys.data();
    key[0] = key[1] = key[2] = keys[0];
    others = head_.call.fill ? head_.call.N - count : 0;
    if (head_.call.bias != nullptr) {
      int64_t i = 0;
      for_each_entry([&](int64_t entry) { bias[i++] = head_.call.bias[entry]; });
      for (; i < count; ++i) {
        bias[i] = 0;
      }
    }
  }

  // Calls `visit` with the place of each key's bias in the table.
  template <class Visit>
  MMATTN_INLINE void for_each_entry(Visit visit) const {
    const int64_t S = head_.call.table_side;
    const int64_t first = (head_.m * S + S / 2 + first_y_ - y_) * S + S / 2 + offset_;
    for (int64_t i = 0; i < num_y_; ++i) {
      for (int64_t j = 0; j < num_x_; ++j) {
        visit(first + i * S + j);
      }
    }
  }

  int64_t count_in_map() const {
    return num_y_ * num_x_;
  }

 private:
  const Head& head_;
  Ring& ring_;
  const int64_t step_, size_;
  int64_t y_ = 0, first_y_ = 0, num_y_ = 0, num_x_ = -1, offset_ = 0;

 public:
  Buffer<const float*> keys;
  Buffer<float> bias;
  int64_t count = 0;
  int64_t others = 0;  // tokens outside, if they have weight

 private:
  Buffer<float*> rows_;
};

// Replaces what follows `count` numbers in the last vector.
MMATTN_INLINE void hide_padding(float* x, int64_t count, float by) {
  if (count % kLanes != 0) {
    float* const last = x + count / kLanes * kLanes;
    store(
        last,
        kNumbers < static_cast<int32_t>(count % kLanes) ? load(last) : broadcast(by));
  }
}

// Writes the scores of a query with its keys, padded with -inf to whole vectors.
template <int kVectors>
MMATTN_INLINE void find_scores(
    const Head& head, Window& window, const float* q, float* scores) {
  const int64_t count = window.count;
  products<kVectors>(q, window.keys.data(), 0, count, head.vectors, scores);
  if (head.call.bias != nullptr) {
    for (int64_t j = 0; j < count; j += kLanes) {
      store(scores + j, load(scores + j) + load(window.bias.data() + j));
    }
  }
  hide_padding(scores, count, -kInfinity);
}

MMATTN_INLINE float largest_of(const float* x, int64_t count) {
  Floats largest = load(x);
  for (int64_t j = kLanes; j < count; j += kLanes) {
    largest = maximum(largest, load(x + j));
  }
  return max_lanes(largest);
}

// Computes the rows [first, last) of a head's map, forward.
template <int kVectors>
void forward_rows(const Head& head, int64_t first, int64_t last) {
  const LocalCall& call = head.call;
  Ring ring(head, call.k, 1, call.v, call.max_keys);
  Window window(head, ring);
  const int64_t W = call.columns.side, width = head.width;
  Buffer<float> q(W * width), scores(window.size() + kLanes), sums(width), total(width);
  if (call.fill) {
    const float* const from = call.total + (head.b * call.M + head.m) * head.D;
    std::memcpy(total.data(), from, head.D * sizeof(float));
  }
  int64_t read = call.rows.first_key[first];
  for (int64_t y = first; y < last; ++y) {
    for (; read < call.rows.first_key[y] + call.rows.num_keys[y]; ++read) {
      ring.read_map_row(read);
    }
    window.start_row(y);
    read_tokens(
        call.q,
        head.b,
        head.token(y, 0),
        W,
        head.m,
        head.D,
        head.scale,
        width,
        q.data());
    for (int64_t x = 0; x < W; ++x) {
      const int64_t n = head.token(y, x);
      window.move(x);
      const int64_t count = window.count;
      float* const s = scores.data();
      find_scores<kVectors>(head, window, q.data() + x * width, s);
      float top = largest_of(s, count);
      float low = 0;  // the weight of a token outside, or of the dense pass
      Floats all = {};
      if (call.soft) {
        const float dense = call.dense_lse[head.rows + n];
        top = dense > top ? dense : top;
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats score = load(s + j);
          // The -inf of the padding is no product: alpha may be 0.
          const Floats weight = exp(score - top) - exp(score * head.alpha - top);
          store(s + j, score == -kInfinity ? Floats{} : weight);
          all += load(s + j);
        }
        low = exp(broadcast(dense - top))[0];
        read_tokens(call.out, head.b, n, 1, head.m, head.D, low, 0, sums.data());
      } else {
        top = window.others > 0 && top < 0 ? 0 : top;
        low = window.others > 0 ? exp(broadcast(-top))[0] : 0;
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats weight = exp(load(s + j) - top);
          all += weight;
          store(s + j, weight - low);
        }
        for (int64_t i = 0; i < width; i += kLanes) {
          store(sums.data() + i, load(total.data() + i) * low);
        }
      }
      const float z = sum_lanes(all) + (call.soft ? low : low * window.others);
      const float one_over_z = 1 / z;
      add_rows<kVectors>(
          s, window.keys.data(), width, count, head.vectors, sums.data());
      for (int64_t i = 0; i < width; i += kLanes) {
        store(sums.data() + i, load(sums.data() + i) * one_over_z);
      }
      call.lse[head.rows + n] = top + std::log(z);
      write_token(sums.data(), head.D, call.out, head.b, n, head.m);
    }
  }
}

// Whether the correction of a soft mask has canceled too many digits of a row.
MMATTN_INLINE bool is_canceled(float dense_lse, float lse) {
  return !(dense_lse - lse < std::log(kCanceled));
}

// Reads keys and values of tokens in chunks and calls `visit(key, value, token)`.
template <class Visit>
MMATTN_INLINE void for_each_token(const Head& head, float* scratch, Visit visit) {
  const LocalCall& call = head.call;
  for (int64_t first = 0; first < call.N; first += kChunk) {
    const int64_t count = call.N - first < kChunk ? call.N - first : kChunk;
    const int64_t step = 2 * head.width;
    read_tokens(call.k, head.b, first, count, head.m, head.D, 1, step, scratch);
    read_tokens(
        call.v, head.b, first, count, head.m, head.D, 1, step, scratch + head.width);
    for (int64_t t = 0; t < count; ++t) {
      visit(scratch + t * step, scratch + t * step + head.width, first + t);
    }
  }
}

// Whether token j is outside the soft mask of patch n.
MMATTN_INLINE bool is_outside(const LocalCall& call, int64_t n, int64_t j) {
  if (n < call.special || j < call.special) {
    return false;
  }
  const int64_t W = call.columns.side;
  const int64_t query = n - call.special, key = j - call.special;
  const int64_t y = key / W - call.rows.first_key[query / W];
  const int64_t x = key % W - call.columns.first_key[query % W];
  return y < 0 || y >= call.rows.num_keys[query / W] || x < 0 ||
      x >= call.columns.num_keys[query % W];
}

// Computes the row of a token that attends to all, forward.
void forward_dense_row(const Head& head, int64_t n) {
  const LocalCall& call = head.call;
  Buffer<float> q(head.width), sums(head.width), scratch(kChunk * 2 * head.width);
  Buffer<float> s(call.N + kLanes);
  read_tokens(call.q, head.b, n, 1, head.m, head.D, head.scale, 0, q.data());
  for_each_token(head, scratch.data(), [&](const float* key, const float*, int64_t j) {
    const float score = product(q.data(), key, head.vectors);
    s[j] = is_outside(call, n, j) ? score * head.alpha : score;
  });
  for (int64_t j = call.N; j % kLanes; ++j) {
    s[j] = -kInfinity;
  }
  const float top = largest_of(s.data(), call.N);
  Floats all = {};
  for (int64_t j = 0; j < call.N; j += kLanes) {
    const Floats weight = exp(load(s.data() + j) - top);
    store(s.data() + j, weight);
    all += weight;
  }
  const float z = sum_lanes(all);
  for_each_token(
      head, scratch.data(), [&](const float*, const float* value, int64_t j) {
        add_row(s[j] / z, value, head.vectors, sums.data());
      });
  call.lse[head.rows + n] = top + std::log(z);
  write_token(sums.data(), head.D, call.out, head.b, n, head.m);
}

// Sums all values of a head, and in the backward the gradients of that sum.
void sum_values(const Head& head) {
  const LocalCall& call = head.call;
  const int64_t at = (head.b * call.M + head.m) * head.D;
  Buffer<float> row(head.width), sums(head.width), grads(head.width);
  for (int64_t n = 0; n < call.N; ++n) {
    read_tokens(call.v, head.b, n, 1, head.m, head.D, 1, 0, row.data());
    add_row(1, row.data(), head.vectors, sums.data());
    if (call.dtotal != nullptr && n >= call.special) {
      const int64_t y = (n - call.special) / call.columns.side;
      const int64_t x = (n - call.special) % call.columns.side;
      const int64_t seen =
          call.special + call.rows.num_keys[y] * call.columns.num_keys[x];
      if (seen < call.N) {
        const float u = exp(broadcast(-call.lse[head.rows + n]))[0];
        read_tokens(call.grad, head.b, n, 1, head.m, head.D, 1, 0, row.data());
        add_row(u, row.data(), head.vectors, grads.data());
      }
    }
  }
  std::memcpy(call.total + at, sums.data(), head.D * sizeof(float));
  if (call.dtotal != nullptr) {
    std::memcpy(call.dtotal + at, grads.data(), head.D * sizeof(float));
  }
}

// Computes the gradients of the rows [first, last) of a head's map: those of its
// queries, and of its keys from all queries that see them.
template <int kVectors>
void backward_rows(const Head& head, int64_t band, int64_t first, int64_t last) {
  const LocalCall& call = head.call;
  const int64_t W = call.columns.side, D = head.D, width = head.width, M = call.M;
  const int64_t step = 2 * width, vectors = head.vectors;
  Ring ring(head, call.k, 1, call.v, call.max_keys);
  Ring queries(head, call.q, head.scale, call.grad, call.max_queries);
  Window window(head, ring);
  const int64_t size = window.size();
  // Of each query of the ring the gradients of scores, then weights less low.
  Buffer<float> grads(call.max_queries * W * 2 * size);
  Buffer<float> sums(width), dvalue(width);
  Buffer<float> total(width), dtotal(width), special(call.special * step);
  const int64_t S = call.table_side;
  float* const dbias = call.dbias == nullptr
      ? nullptr
      : call.dbias + ((head.b * call.bands + band) * M) * S * S;
  if (call.fill) {
    const int64_t at = (head.b * M + head.m) * D;
    std::memcpy(total.data(), call.total + at, D * sizeof(float));
    std::memcpy(dtotal.data(), call.dtotal + at, D * sizeof(float));
  }
  float dalpha = 0;
  const int64_t begin = call.rows.first_query[first];
  const int64_t end = call.rows.first_query[last - 1] + call.rows.num_queries[last - 1];
  int64_t read = call.rows.first_key[begin], done = first;
  for (int64_t y = begin; y < end; ++y) {
    for (; read < call.rows.first_key[y] + call.rows.num_keys[y]; ++read) {
      ring.read_map_row(read);
    }
    queries.read_map_row(y);
    window.start_row(y);
    const bool is_own = y >= first && y < last;  // others' are of the bands beside
    for (int64_t x = 0; x < W; ++x) {
      const int64_t n = head.token(y, x);
      window.move(x);
      const int64_t count = window.count;
      const float* const q = queries.row(y) + x * step;
      float* const da = grads.data() + ((y % call.max_queries) * W + x) * 2 * size;
      float* const s = da + size;
      find_scores<kVectors>(head, window, q, s);
      products<kVectors>(q + width, window.keys.data(), width, count, vectors, da);
      hide_padding(da, count, 0);
      if (call.soft) {
        const float lse = call.lse[head.rows + n];
        const float delta = call.delta[head.rows + n];
        Floats share = {}, taken = {};
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats score = load(s + j);
          const Floats p = exp(score - lse);
          Floats dense = exp(score * head.alpha - lse);
          dense = score == -kInfinity ? Floats{} : dense;
          const Floats change = load(da + j) - delta;
          share += score == -kInfinity ? Floats{} : dense * change * score;
          taken += dense - p;
          store(da + j, (p - dense * head.alpha) * change);
          store(s + j, p - dense);
        }
        const bool canceled = !(1 + sum_lanes(taken) < kCanceled);
        if (canceled) {
          std::memset(s, 0, count * sizeof(float));
          std::memset(da, 0, count * sizeof(float));
        }
        if (is_own) {
          dalpha -= canceled ? 0 : sum_lanes(share);
          call.dense_lse[head.rows + n] = canceled ? kInfinity : lse;
        }
      } else {
        const float lse = call.lse[head.rows + n];
        const float u = window.others > 0 ? exp(broadcast(-lse))[0] : 0;
        Floats all = {};
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats p = exp(load(s + j) - lse);
          all += (p - u) * load(da + j);
          store(s + j, p);
        }
        float delta = sum_lanes(all);
        if (window.others > 0) {
          delta += u * product(q + width, total.data(), vectors);
        }
        for (int64_t j = 0; j < count; j += kLanes) {
          const Floats p = load(s + j);
          store(da + j, p * (load(da + j) - delta));
          store(s + j, p - u);
        }
      }
      const float *const ds = da, *const weights = s;
      if (!is_own) {
        continue;
      }
      for (int64_t i = 0; i < width; i += kLanes) {
        store(sums.data() + i, Floats{});
      }
      add_rows<kVectors>(ds, window.keys.data(), 0, count, vectors, sums.data());
      for (int64_t i = 0; i < width; i += kLanes) {
        store(sums.data() + i, load(sums.data() + i) * head.scale);
      }
      write_token(sums.data(), D, call.dq, head.b, n, head.m);
      if (dbias != nullptr) {
        const float* share = ds;
        window.for_each_entry([&](int64_t entry) { dbias[entry] += *share++; });
      }
      for (int64_t i = 0; i < call.special; ++i) {
        const int64_t j = window.count_in_map() + i;
        add_row(ds[j], q, vectors, special.data() + i * step);
        add_row(weights[j], q + width, vectors, special.data() + i * step + width);
      }
    }
    for (; done < last &&
         call.rows.first_query[done] + call.rows.num_queries[done] <= y + 1;
         ++done) {
      for (int64_t x = 0; x < W; ++x) {
        constexpr int kSums = kVectors ? kVectors : 1;
        Floats key_sums[kSums] = {}, value_sums[kSums] = {};
        for (int64_t i = 0; kVectors == 0 && i < width; i += kLanes) {
          store(sums.data() + i, Floats{});
          store(dvalue.data() + i, Floats{});
        }
        const int64_t first_y = call.rows.first_query[done];
        const int64_t first_x = call.columns.first_query[x];
        for (int64_t i = first_y; i < first_y + call.rows.num_queries[done]; ++i) {
          const float* const query_row = queries.row(i);
          const float* const row = grads.data() + (i % call.max_queries) * W * 2 * size;
          const int64_t key_y = done - call.rows.first_key[i];
          for (int64_t j = first_x; j < first_x + call.columns.num_queries[x]; ++j) {
            const float* const ds = row + j * 2 * size +
                key_y * call.columns.num_keys[j] + x - call.columns.first_key[j];
            const float* const q = query_row + j * step;
            if constexpr (kVectors == 0) {
              add_row(ds[0], q, vectors, sums.data());
              add_row(ds[size], q + width, vectors, dvalue.data());
            } else {
              for (int c = 0; c < kVectors; ++c) {
                key_sums[c] += load(q + c * kLanes) * ds[0];
                value_sums[c] += load(q + width + c * kLanes) * ds[size];
              }
            }
          }
        }
        for (int c = 0; c < kVectors; ++c) {
          store(sums.data() + c * kLanes, key_sums[c]);
          store(dvalue.data() + c * kLanes, value_sums[c]);
        }
        add_row(1, dtotal.data(), vectors, dvalue.data());
        const int64_t n = head.token(done, x);
        write_token(sums.data(), D, call.dk, head.b, n, head.m);
        write_token(dvalue.data(), D, call.dv, head.b, n, head.m);
      }
    }
  }
  float* to = call.dspecial +
      ((head.b * M + head.m) * call.bands + band) * call.special * 2 * D;
  for (int64_t i = 0; i < 2 * call.special; ++i, to += D) {
    std::memcpy(to, special.data() + i * width, D * sizeof(float));
  }
  if (call.soft) {
    call.dalpha[(head.b * M + head.m) * (call.bands + 1) + band] = dalpha;
  }
}

// Adds the gradients of the row of a token that attends to all, and returns the one of
// alpha. The gradients of keys and values are in float32.
float backward_dense_row(const Head& head, int64_t n) {
  const LocalCall& call = head.call;
  const int64_t width = head.width, vectors = head.vectors, D = head.D;
  Buffer<float> q(width), g(width), sums(width), scratch(kChunk * 2 * width);
  Buffer<float> s(call.N), p(call.N + kLanes), da(call.N);
  read_tokens(call.q, head.b, n, 1, head.m, D, head.scale, 0, q.data());
  read_tokens(call.grad, head.b, n, 1, head.m, D, 1, 0, g.data());
  float delta = 0, dalpha = 0;
  for_each_token(
      head, scratch.data(), [&](const float* key, const float* value, int64_t j) {
        s[j] = product(q.data(), key, vectors);
        p[j] = is_outside(call, n, j) ? s[j] * head.alpha : s[j];
        da[j] = product(g.data(), value, vectors);
      });
  for (int64_t j = 0; j < call.N; j += kLanes) {
    store(p.data() + j, exp(load(p.data() + j) - call.lse[head.rows + n]));
  }
  for (int64_t j = 0; j < call.N; ++j) {
    delta += p[j] * da[j];
  }
  float* const dk = static_cast<float*>(call.dk.data);
  float* const dv = static_cast<float*>(call.dv.data);
  for_each_token(head, scratch.data(), [&](const float* key, const float*, int64_t j) {
    float ds = p[j] * (da[j] - delta);
    if (is_outside(call, n, j)) {
      dalpha += ds * s[j];
      ds *= head.alpha;
    }
    add_row(ds * head.scale, key, vectors, sums.data());
    const int64_t at = ((head.b * call.N + j) * call.M + head.m) * D;
    for (int64_t i = 0; i < D; ++i) {
      dk[at + i] += ds * q[i];
      dv[at + i] += p[j] * g[i];
    }
  });
  write_token(sums.data(), D, call.dq, head.b, n, head.m);
  return dalpha;
}

}  // namespace

// Sums the values of some of B * M heads.
void local_sums(const LocalCall& call, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    sum_values(Head(call, i / call.M, i % call.M));
  }
}

// Computes some of B * M * (bands + 1) tasks: bands of rows, and rows of special tokens.
void local_forward(const LocalCall& call, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t band = i % (call.bands + 1), item = i / (call.bands + 1);
    const Head head(call, item / call.M, item % call.M);
    if (band == call.bands) {
      for (int64_t n = 0; n < call.special; ++n) {
        forward_dense_row(head, n);
      }
      continue;
    }
    const int64_t first = band * call.band_rows, after = first + call.band_rows;
    const int64_t last = after < call.rows.side ? after : call.rows.side;
    switch (head.vectors) {
      case 1:
        forward_rows<1>(head, first, last);
        break;
      case 2:
        forward_rows<2>(head, first, last);
        break;
      case 4:
        forward_rows<4>(head, first, last);
        break;
      case 8:
        forward_rows<8>(head, first, last);
        break;
      default:
        forward_rows<0>(head, first, last);
    }
    for (int64_t n = head.token(first, 0); call.soft && n < head.token(last, 0); ++n) {
      if (is_canceled(call.dense_lse[head.rows + n], call.lse[head.rows + n])) {
        forward_dense_row(head, n);
      }
    }
  }
}

// Computes some of B * M * bands tasks, which write to different places.
void local_backward(const LocalCall& call, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t band = i % call.bands, item = i / call.bands;
    const Head head(call, item / call.M, item % call.M);
    const int64_t first = band * call.band_rows, after = first + call.band_rows;
    const int64_t last = after < call.rows.side ? after : call.rows.side;
    switch (head.vectors) {
      case 1:
        backward_rows<1>(head, band, first, last);
        break;
      case 2:
        backward_rows<2>(head, band, first, last);
        break;
      case 4:
        backward_rows<4>(head, band, first, last);
        break;
      case 8:
        backward_rows<8>(head, band, first, last);
        break;
      default:
        backward_rows<0>(head, band, first, last);
    }
  }
}

// Adds what rows of tokens that attend to all, and the bands' shares of special tokens,
// make of the gradients of some of B * M heads.
void local_backward_dense(const LocalCall& call, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const Head head(call, item / call.M, item % call.M);
    Buffer<float> sums(2 * head.width);
    for (int64_t i = 0; i < call.special; ++i) {
      const int64_t at = ((head.b * call.N + i) * call.M + head.m) * head.D;
      for (int64_t d = 0; d < head.D; ++d) {
        float dk = 0, dv = call.fill ? call.dtotal[item * head.D + d] : 0;
        for (int64_t band = 0; band < call.bands; ++band) {
          const float* const from = call.dspecial +
              (((item * call.bands + band) * call.special + i) * 2) * head.D;
          dk += from[d];
          dv += from[head.D + d];
        }
        static_cast<float*>(call.dk.data)[at + d] = dk;
        static_cast<float*>(call.dv.data)[at + d] = dv;
      }
    }
    float dalpha = 0;
    for (int64_t n = 0; n < call.N; ++n) {
      if (n < call.special ||
          (call.soft && call.dense_lse[head.rows + n] == kInfinity)) {
        dalpha += backward_dense_row(head, n);
      }
    }
    if (call.soft) {
      call.dalpha[item * (call.bands + 1) + call.bands] = dalpha;
    }
  }
}
