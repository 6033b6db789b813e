// Keys and values of a head as rows of float32, and which of them a query sees.
namespace {

constexpr float kCanceled = 8;  // limit of the weight taken out over the weight left
constexpr int64_t kAhead = 12;  // tokens that are asked for before they are read
constexpr int64_t kChunk = 32;  // tokens of a dense row that are read at a time

// Reads the channels of some tokens from `first` on, times `factor`; token t goes to
// `to + t * step`.
void read_tokens(const Tokens& x, int64_t b, int64_t first, int64_t count, int64_t m,
    int64_t D, float factor, int64_t step, float* to) {
  const int64_t at = b * x.strides[0] + first * x.strides[1] + m * x.strides[2];
  with_type_of(x.storage, [&](auto type) {
    const auto* const from = static_cast<const decltype(type)*>(x.data) + at;
    for (int64_t t = 0; t < count; ++t) {
      float* const row = to + t * step;
      prefetch(from + (t + kAhead) * x.strides[1], D);
      read_row(from + t * x.strides[1], x.strides[3], D, row);
      for (int64_t c = 0; factor != 1 && c < num_vectors(D); ++c) {
        store(row + c * kLanes, load(row + c * kLanes) * factor);
      }
    }
  });
}

// Writes the channels of a token, which lie side by side.
void write_token(
    const float* from, int64_t D, const Tokens& x, int64_t b, int64_t n, int64_t m) {
  const int64_t at = b * x.strides[0] + n * x.strides[1] + m * x.strides[2];
  with_type_of(x.storage, [&](auto type) {
    write_row(from, D, static_cast<decltype(type)*>(x.data) + at);
  });
}

// What the tasks of one head of one image share.
struct Head {
  Head(const LocalCall& call, int64_t b, int64_t m) : call(call), b(b), m(m) {}

  // Returns the index of a patch among tokens.
  int64_t token(int64_t y, int64_t x) const {
    return call.special + y * call.columns.side + x;
  }

  const LocalCall& call;
  const int64_t b, m, D = call.D, vectors = num_vectors(D), width = vectors * kLanes;
  const float scale = 1 / std::sqrt(static_cast<float>(D));
  const float alpha = call.soft ? call.alpha[m] : 0;
  const int64_t rows = (b * call.M + m) * call.N;  // place of the head in (B, M, N)
};

// Two tensors' tokens side by side, `2 * width` numbers a token: rows of the map in a
// ring, and the special tokens.
class Ring {
 public:
  Ring(const Head& head, const Tokens& x, float factor, const Tokens& y, int64_t rows)
      : head_(head), x_(x), y_(y), factor_(factor), capacity_(rows) {
    read(0, head.call.special, special_);
  }

  void read_map_row(int64_t y) {
    read(head_.token(y, 0), head_.call.columns.side, row(y));
  }

  float* row(int64_t y) {
    return numbers_ + y % capacity_ * row_;
  }

  float* special(int64_t i) {
    return special_ + i * step_;
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
  const int64_t capacity_, step_ = 2 * head_.width;
  const int64_t row_ = head_.call.columns.side * step_;
  Buffer<float> numbers_{capacity_ * row_}, special_{head_.call.special * step_};
};

// The keys and biases of a query, one at a time along a row of the map.
class Window {
 public:
  Window(const Head& head, Ring& ring) : head_(head), ring_(ring) {}

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

  // Finds the keys of the map by rows, then the special ones.
  MMATTN_INLINE void move(int64_t x) {
    const int64_t first = head_.call.columns.first_key[x];
    const int64_t num = head_.call.columns.num_keys[x];
    const float** key = keys;
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
    count = key - keys;
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
  const LocalCall& call_ = head_.call;
  const int64_t step_ = 2 * head_.width;
  const int64_t size_ =
      num_vectors(call_.max_keys * call_.max_keys + call_.special) * kLanes;
  int64_t y_ = 0, first_y_ = 0, num_y_ = 0, num_x_ = -1, offset_ = 0;
  Buffer<float*> rows_{call_.max_keys};

 public:
  Buffer<const float*> keys{size_ + 4};
  Buffer<float> bias{size_ + kLanes};
  int64_t count = 0;
  int64_t others = 0;  // tokens outside, if they have weight
};

// Replaces what follows `count` numbers in the last vector.
MMATTN_INLINE void hide_padding(float* x, int64_t count, float by) {
  if (count % kLanes != 0) {
    float* const last = x + count / kLanes * kLanes;
    store(last,
        kLaneNumbers < static_cast<int32_t>(count % kLanes) ? load(last)
                                                            : broadcast(by));
  }
}

// Writes the scores of a query with its keys, padded with -inf to whole vectors.
template <int kVectors>
MMATTN_INLINE void find_scores(
    const Head& head, Window& window, const float* q, float* scores) {
  const int64_t count = window.count;
  products<kVectors>(q, window.keys, 0, count, head.vectors, scores);
  if (head.call.bias != nullptr) {
    for (int64_t j = 0; j < count; j += kLanes) {
      store(scores + j, load(scores + j) + load(window.bias + j));
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

}  // namespace
