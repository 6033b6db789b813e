// Products of matrices for one instruction set.
namespace {

constexpr int kRows = VECTOR_BYTES == 64 ? 8 : 4;  // of a product held in registers
constexpr int kColumns = 3;  // vectors of a product held in registers
constexpr int kTile = kColumns * kLanes;  // tokens

MMATTN_INLINE int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Adds a product to kR rows of kV vectors of c, or writes it there if !kAdd, rounding
// once to the size of c:
//   c[r][.] += factor *
//       sum over i < depth of a[i * a_step + r * kRowStep] * b[i * b_step + .]
// With kPairs, which AVX-512 alone has, numbers of a and b are pairs of bfloat16.
template <int kR, int kV, int kRowStep, bool kAdd, bool kPairs>
MMATTN_INLINE void add_product(const float* a, int64_t a_step, const float* b,
    int64_t b_step, int64_t depth, float* c, int64_t c_step, float factor) {
  Floats sums[kR][kV] = {};
  for (int64_t i = 0; i < depth; ++i, a += a_step, b += b_step) {
    Floats row[kV];
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      row[v] = load(b + v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) {
        if constexpr (kPairs) {
          sums[r][v] = add_pairs(sums[r][v], a[r * kRowStep], row[v]);
        } else {
          sums[r][v] += broadcast(a[r * kRowStep]) * row[v];
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      float* const to = c + r * c_step + v * kLanes;
      store(to, kAdd ? load(to) + factor * sums[r][v] : factor * sums[r][v]);
    }
  }
}

// The same for any number of rows and vectors.
template <int kRowStep, bool kAdd = true, bool kPairs = false, int kR = kRows>
void add_product_of(int64_t rows, int64_t vectors, const float* a, int64_t a_step,
    const float* b, int64_t b_step, int64_t depth, float* c, int64_t c_step,
    float factor = 1) {
  for (; rows >= kR; rows -= kR, a += kR * kRowStep, c += kR * c_step) {
    int64_t v = 0;
    for (; v + 3 <= vectors; v += 3) {
      add_product<kR, 3, kRowStep, kAdd, kPairs>(
          a, a_step, b + v * kLanes, b_step, depth, c + v * kLanes, c_step, factor);
    }
    if (vectors - v == 2) {
      add_product<kR, 2, kRowStep, kAdd, kPairs>(
          a, a_step, b + v * kLanes, b_step, depth, c + v * kLanes, c_step, factor);
    } else if (vectors - v == 1) {
      add_product<kR, 1, kRowStep, kAdd, kPairs>(
          a, a_step, b + v * kLanes, b_step, depth, c + v * kLanes, c_step, factor);
    }
  }
  if constexpr (kR > 1) {
    if (rows > 0) {
      add_product_of<kRowStep, kAdd, kPairs, kR / 2>(
          rows, vectors, a, a_step, b, b_step, depth, c, c_step, factor);
    }
  }
}

}  // namespace
