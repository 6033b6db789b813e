// The scores of a head of an image, for one instruction set.
#include "products.inl"

namespace {

constexpr int kBlock = 64;  // keys
constexpr int kBackwardBlock = 32;  // keys
constexpr int kPitch = kTile + kLanes;  // of scores of a tile, with room for a vector

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
  int32_t index;
  float share;  // of the next number
};

// Splits a point into index and fraction. Numbers outside of [lowest, highest] are zeros
// as that bound's are.
MMATTN_INLINE Place place_of(double point, double lowest, double highest) {
  const double floor = std::floor(point);
  const double index = !(floor > lowest) ? lowest : floor > highest ? highest : floor;
  return {static_cast<int32_t>(index), static_cast<float>(point - floor)};
}

// Where a query's or a vector's displacements from some keys lie on an axis.
struct Places {
  void find(const Axis& axis, int64_t query, const double* keys, int64_t count,
      double lowest, double highest) {
    for (int64_t s = 0; s < count; ++s) {
      const Place place = place_of(axis.point(query, keys[s]), lowest, highest);
      index[s] = place.index;
      share[s] = place.share;
    }
  }

  int32_t index[kBlock];
  float share[kBlock];
};

enum class Step { kUnit, kSmall, kLarge };

// Some queries side by side in a row of the grid, which begin at a lane of a tile.
struct Segment {
  int64_t row, column, lane, count;
};

// A head of an image: its keys, values and table, ready for the products. With kPairs
// a number holds two of T, which are bfloat16.
template <class T, bool kPairs>
class Head {
 public:
  explicit Head(const DeformableCall& call) : call(call) {}

  void read(int64_t b, int64_t m) {
    pack_rows(call.k, b, m, keys);
    read_rows(call.v, b, m, values);
    const int64_t group = b * call.G + m / (call.M / call.G);
    for (int64_t s = 0; s < call.K; ++s) {
      xs[s] = call.positions[(group * call.K + s) * 2];
      ys[s] = call.positions[(group * call.K + s) * 2 + 1];
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

  const T* tokens(const Tokens& x, int64_t b, int64_t m) const {
    return static_cast<const T*>(x.data) + b * x.strides[0] + m * x.strides[2];
  }

  // Reads `depth` numbers of a token.
  void read_token(const T* from, float* to) const {
    if constexpr (kPairs) {
      to[depth - 1] = 0;
      std::memcpy(to, from, D * sizeof(T));
    } else {
      read_row(from, 1, D, to);
    }
  }

  // Reads token i of rows (tokens / kStep, DP). One of a pair is every other half.
  void read_row_of(const T* from, int64_t i, float* rows) const {
    if constexpr (kPairs) {
      char* const to = reinterpret_cast<char*>(rows + i / 2 * DP) + i % 2 * sizeof(T);
      for (int64_t d = 0; d < D; ++d) {
        std::memcpy(to + d * sizeof(float), from + d, sizeof(T));
      }
    } else {
      read_row(from, 1, D, rows + i * DP);
    }
  }

  void read_rows(const Tokens& x, int64_t b, int64_t m, float* rows) const {
    for (int64_t s = 0; s < call.K; ++s) {
      read_row_of(tokens(x, b, m) + s * x.strides[1], s, rows);
    }
  }

  // Interleaves kRows keys: (K / kRows, depth, kRows).
  void pack_rows(const Tokens& x, int64_t b, int64_t m, float* to) {
    for (int64_t s = 0; s < call.K; ++s) {
      read_token(tokens(x, b, m) + s * x.strides[1], row_);
      float* const group = to + s / kRows * kRows * depth + s % kRows;
      for (int64_t d = 0; d < depth; ++d) {
        group[d * kRows] = row_[d];
      }
    }
  }

  // Reads numbers between two rows of the table.
  MMATTN_INLINE Floats between(int64_t at, float share) const {
    return load(table_ + at) + broadcast(share) * load(slopes_ + at);
  }

  // Writes some vectors of biases of key s of some.
  template <Step kStep>
  MMATTN_INLINE void write_bias(const Places& rows, const Places& columns, int64_t s,
      int64_t vectors, float* to) const {
    const float row_share = rows.share[s], column_share = columns.share[s];
    const int64_t at = origin_ + rows.index[s] * width_ + columns.index[s];
    Floats a = between(at, row_share);
    if constexpr (kStep == Step::kUnit) {
      for (int64_t v = 0; v < vectors; ++v) {
        const Floats next = between(at + (v + 1) * kLanes, row_share);
        store(to + v * kLanes, a + column_share * (shift(a, next) - a));
        a = next;
      }
    } else if constexpr (kStep == Step::kSmall) {
      const Floats b = between(at + 1, row_share);
      const float step = static_cast<float>(x.step);
      const Floats steps = step * __builtin_convertvector(kLaneNumbers, Floats);
      for (int64_t v = 0; v < vectors; ++v) {
        const Floats points = column_share + v * kLanes * step + steps;
        Ints index = __builtin_convertvector(points, Ints);
        index = index < kLanes - 1 ? index : kLanes - 1 - Ints{};
        const Floats share = points - __builtin_convertvector(index, Floats);
        const Floats low = permute(a, index);
        store(to + v * kLanes, low + share * (permute(b, index) - low));
      }
    } else {
      const float* const numbers = table_ + at;
      const float* const changes = slopes_ + at;
      for (int i = 0; i < kLanes; ++i) {
        // Double, as float leaves few digits for a fraction of a long way.
        const double point = column_share + i * x.step, last = reach_ - 1;
        const int j = point > 0 ? static_cast<int>(point < last ? point : last) : 0;
        const float low = numbers[j] + row_share * changes[j];
        const float high = numbers[j + 1] + row_share * changes[j + 1];
        to[i] = low + static_cast<float>(point - j) * (high - low);
      }
    }
  }

  // Writes biases in rows of kPitch. Vectors reach into what is written after them.
  template <Step kStep>
  void write_biases_of(int64_t first, int64_t count, const Segment* segments,
      int num_segments, float* to) const {
    Places rows, columns;
    for (int i = 0; i < num_segments; ++i) {
      const Segment& at = segments[i];
      rows.find(y, at.row, ys + first, count, -2, call.Th);
      for (int64_t lane = 0; lane < at.count; lane += spread_) {
        const double lowest = -(reach_ + 1);
        columns.find(x, at.column + lane, xs + first, count, lowest, call.Tw);
        const int64_t rest = at.count - lane;
        const int64_t vectors = num_vectors(rest < spread_ ? rest : spread_);
        for (int64_t s = 0; s < count; ++s) {
          write_bias<kStep>(
              rows, columns, s, vectors, to + s * kPitch + at.lane + lane);
        }
      }
    }
  }

  // Makes the scores of some keys, in rows of kPitch, and rows of no key up to a
  // multiple of kRows. The segments are of `vectors` vectors of queries, whose products
  // with keys a factor scales.
  void make_scores(int64_t first, int64_t count, const Segment* segments,
      int num_segments, const float* queries, int64_t vectors, float* to,
      float factor) const {
    if (call.is_plain()) {
      std::memset(to, 0, count * kPitch * sizeof(float));
    } else if (step == Step::kUnit) {
      write_biases_of<Step::kUnit>(first, count, segments, num_segments, to);
    } else if (step == Step::kSmall) {
      write_biases_of<Step::kSmall>(first, count, segments, num_segments, to);
    } else {
      write_biases_of<Step::kLarge>(first, count, segments, num_segments, to);
    }
    multiply_rows(keys, first, count, queries, vectors, to, factor);
  }

  // Adds the products of packed rows and queries (depth, kTile).
  void multiply_rows(const float* rows, int64_t first, int64_t count,
      const float* queries, int64_t vectors, float* to, float factor) const {
    for (int64_t s = 0; s < count; s += kRows) {
      add_product_of<1, true, kPairs>(kRows, vectors, rows + (first + s) * depth, kRows,
          queries, kTile, depth, to + s * kPitch, kPitch, factor);
    }
  }

  static constexpr int64_t kStep = kPairs ? 2 : 1;  // numbers of T in one of float

  const DeformableCall& call;
  const Axis y{call.H, call.Th, call.align_corners};
  const Axis x{call.W, call.Tw, call.align_corners};
  const Step step = x.step == 1 ? Step::kUnit
      : x.step < 1              ? Step::kSmall
                                : Step::kLarge;
  const int64_t D = call.D, DP = round_up(D, kLanes), depth = (D + kStep - 1) / kStep;

 private:
  float* row_of(float* table, int64_t i) const {
    return table + origin_ + i * width_;
  }

  // Queries whose numbers are read from one place, which a vector holds for small steps;
  // numbers read from there; row with its margins; origin of a table with these.
  const double spread_of_vector_ =
      step == Step::kSmall ? 1 + (kLanes - 1) / x.step : kLanes;
  const int64_t spread_ = step == Step::kUnit || spread_of_vector_ >= kTile
      ? kTile
      : (int64_t)spread_of_vector_ / kLanes * kLanes;
  const int64_t reach_ =
      step == Step::kLarge ? 2 + (int64_t)(1 + kLanes * x.step) : kTile + kLanes;
  const int64_t width_ = call.Tw + 2 * (reach_ + 1), origin_ = 2 * width_ + reach_ + 1;
  const int64_t keys_ = round_up(call.K, kBlock), table_size_ = width_ * (call.Th + 3);

 public:
  Buffer<float> keys{keys_ * D}, values{keys_ * DP};
  Buffer<double> xs{call.K}, ys{call.K};  // positions of keys

 private:
  Buffer<float> table_{table_size_}, slopes_{table_size_}, row_{DP};
};

}  // namespace
