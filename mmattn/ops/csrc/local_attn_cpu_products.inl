// Products of a row with some rows, and sums of these.
namespace {

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
MMATTN_INLINE void products(const float* x, const float* const* rows, int64_t offset,
    int64_t count, int64_t vectors, float* to) {
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
MMATTN_INLINE void add_rows(const float* weights, const float* const* rows,
    int64_t offset, int64_t count, int64_t vectors, float* to) {
  if constexpr (kVectors == 0) {
    for (int64_t at = 0; at < vectors * kLanes; at += kLanes) {
      add_rows<1>(weights, rows, offset + at, count, 1, to + at);
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

}  // namespace
