// Vectors of float32 for one instruction set; for_each_instruction_set.inl includes it.
// Arithmetic is the compiler's: a + b, a * b + c (fused where the set has it), a > b.
namespace {

typedef float Floats __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(VECTOR_BYTES)));
constexpr int kLanes = VECTOR_BYTES / 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

#if VECTOR_BYTES == 16
constexpr Ints kLaneNumbers = {0, 1, 2, 3};
#elif VECTOR_BYTES == 32
constexpr Ints kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr Ints kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#endif

// Scratch memory, of zeros at first, that starts at a multiple of 64 bytes. The standard
// library's containers would be instances that instruction sets share.
template <class X>
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : size_(size), items_(new (std::align_val_t(64)) X[size]()) {}
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

// Returns the number of vectors that hold `count` numbers.
MMATTN_INLINE int64_t num_vectors(int64_t count) {
  return (count + kLanes - 1) / kLanes;
}

MMATTN_INLINE Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

MMATTN_INLINE void store(float* to, Floats x) {
  std::memcpy(to, &x, sizeof(x));
}

MMATTN_INLINE Floats broadcast(float x) {
  return x - Floats{};  // -0 stays
}

// Return the larger or the smaller number, and b where one is NaN. GCC compiles the
// formula to a comparison and a choice.
MMATTN_INLINE Floats maximum(Floats a, Floats b) {
#if VECTOR_BYTES == 64
  return _mm512_max_ps(a, b);
#elif VECTOR_BYTES == 32
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

MMATTN_INLINE Floats minimum(Floats a, Floats b) {
#if VECTOR_BYTES == 64
  return _mm512_min_ps(a, b);
#elif VECTOR_BYTES == 32
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

// Widens BFloat16 or Half, or loads float.
template <class T>
MMATTN_INLINE Floats load_as_float(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return load(from);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    typedef uint16_t Shorts __attribute__((vector_size(VECTOR_BYTES / 2)));
    Shorts bits;
    std::memcpy(&bits, from, sizeof(bits));
    return (Floats)(__builtin_convertvector(bits, Words) << 16);
  } else {
#if VECTOR_BYTES == 32
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif VECTOR_BYTES == 64
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
    Floats x;
    for (int i = 0; i < kLanes; ++i) {
      x[i] = from[i];
    }
    return x;
#endif
  }
}

// Rounds numbers to pairs of bfloat16, those of `low` in the lower halves of words.
MMATTN_INLINE Floats pair(Floats low, Floats high) {
  const Words a = (Words)low + 0x8000, b = (Words)high + 0x8000;
  return (Floats)(a >> 16 | (b & 0xffff0000));
}

// Writes numbers rounded to bfloat16, side by side: pairs of neighbors.
MMATTN_INLINE void write_pairs(Floats x, float* to) {
  typedef uint16_t Shorts __attribute__((vector_size(VECTOR_BYTES / 2)));
  const Shorts halves = __builtin_convertvector(((Words)x + 0x8000) >> 16, Shorts);
  std::memcpy(to, &halves, sizeof(halves));
}

// Adds to each lane both products of the pairs of two words. GCC knows the instruction
// only in functions for processors that have it.
MMATTN_INLINE Floats add_pairs(Floats sum, float a, Floats b) {
#if VECTOR_BYTES == 64
  const Floats x = (Floats)(bit_cast<int32_t>(a) - Ints{});
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(b));
#endif
  return sum;
}

// Asks for numbers that will be read soon.
template <class T>
MMATTN_INLINE void prefetch(const T* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / sizeof(T)) {
    __builtin_prefetch(from + i);
  }
}

// Reads `count` numbers at a stride and pads them with zeros to whole vectors.
template <class T>
MMATTN_INLINE void read_row(const T* from, int64_t stride, int64_t count, float* to) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= count; i += kLanes) {
      store(to + i, load_as_float(from + i));
    }
  }
  for (; i < count; ++i) {
    to[i] = from[i * stride];
  }
  for (; i % kLanes; ++i) {
    to[i] = 0;
  }
}

// Writes `count` numbers side by side, rounded to nearest even.
template <class T>
MMATTN_INLINE void write_row(const float* from, int64_t count, T* to) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, float>) {
    for (; i + kLanes <= count; i += kLanes) {
      store(to + i, load(from + i));
    }
  }
  for (; i < count; ++i) {
    to[i] = static_cast<T>(from[i]);
  }
}

typedef float Four __attribute__((vector_size(16)));

// Combines the quarters of a vector, lane by lane, by + or by the larger.
template <bool kSum>
MMATTN_INLINE Four fold(Floats x) {
#if VECTOR_BYTES == 16
  return x;
#else
#if VECTOR_BYTES == 64
  const __m256 a = _mm512_castps512_ps256(x), b = _mm512_extractf32x8_ps(x, 1);
  const __m256 half = kSum ? _mm256_add_ps(a, b) : _mm256_max_ps(a, b);
#else
  const __m256 half = x;
#endif
  const __m128 low = _mm256_castps256_ps128(half);
  const __m128 high = _mm256_extractf128_ps(half, 1);
  return kSum ? _mm_add_ps(low, high) : _mm_max_ps(low, high);
#endif
}

// Takes two lanes of each quarter of a, then of b.
template <int kI, int kJ>
MMATTN_INLINE Floats pairs(Floats a, Floats b) {
#if VECTOR_BYTES == 64
  return _mm512_shuffle_ps(a, b, _MM_SHUFFLE(kJ, kI, kJ, kI));
#elif VECTOR_BYTES == 32
  return _mm256_shuffle_ps(a, b, _MM_SHUFFLE(kJ, kI, kJ, kI));
#else
  return Floats{a[kI], a[kJ], b[kI], b[kJ]};
#endif
}

// Returns lane index[i] of x as lane i; indices are at least 0 and below kLanes.
MMATTN_INLINE Floats permute(Floats x, Ints index) {
#if VECTOR_BYTES == 64
  return _mm512_maskz_permutexvar_ps(0xffff, (__m512i)index, x);  // GCC warns without
#elif VECTOR_BYTES == 32
  return _mm256_permutevar8x32_ps(x, (__m256i)index);
#else
  index &= kLanes - 1;  // as the others do, where a NaN made the index
  return Floats{x[index[0]], x[index[1]], x[index[2]], x[index[3]]};
#endif
}

// Returns lanes of a from the second on, then the first of b.
MMATTN_INLINE Floats shift(Floats a, Floats b) {
#if VECTOR_BYTES == 64
  return (Floats)_mm512_alignr_epi32((__m512i)b, (__m512i)a, 1);
#elif VECTOR_BYTES == 32
  const __m256 middle = _mm256_permute2f128_ps(a, b, 0x21);
  return (Floats)_mm256_alignr_epi8((__m256i)middle, (__m256i)a, 4);
#else
  return Floats{a[1], a[2], a[3], b[0]};
#endif
}

// Returns the sum of the lanes of each of four vectors.
MMATTN_INLINE Four sum_lanes(Floats a, Floats b, Floats c, Floats d) {
  const Floats ab = pairs<0, 1>(a, b) + pairs<2, 3>(a, b);
  const Floats cd = pairs<0, 1>(c, d) + pairs<2, 3>(c, d);
  return fold<true>(pairs<0, 2>(ab, cd) + pairs<1, 3>(ab, cd));
}

// Puts quarters side by side; narrower sets ignore the last ones.
MMATTN_INLINE Floats join(Four a, Four b, Four c, Four d) {
#if VECTOR_BYTES == 16
  return a;
#elif VECTOR_BYTES == 32
  return _mm256_set_m128(b, a);
#else
  const __m512 low = _mm512_castps256_ps512(_mm256_set_m128(b, a));
  return _mm512_insertf32x8(low, _mm256_set_m128(d, c), 1);
#endif
}

MMATTN_INLINE float sum_lanes(Floats x) {
  Four y = fold<true>(x);
  y += Four{y[2], y[3], y[0], y[1]};
  return y[0] + y[1];
}

// Returns the largest lane, of lanes that are not NaN.
MMATTN_INLINE float max_lanes(Floats x) {
  Four y = fold<false>(x);
  const Four other = {y[2], y[3], y[0], y[1]};
  y = y > other ? y : other;
  return y[0] > y[1] ? y[0] : y[1];
}

// e^x to 1 unit in the last place. It is 0 below -87.3 and at most 2.4e38.
MMATTN_INLINE Floats exp(Floats x) {
  const Floats lowest = broadcast(-87.3f), largest = broadcast(88.37f);
  const Floats magic = broadcast(12582912.0f);  // rounds to an integer, in its low bits
  Floats r = maximum(lowest, minimum(largest, x));
  const Floats shifted = r * 1.44269504f + magic;
  const Floats n = shifted - magic;
  r = r - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Floats p = r * 1.3814320469e-3f + 8.3688512046e-3f;
  p = p * r + 4.1668401095e-2f;
  p = p * r + 1.6666519523e-1f;
  p = p * r + 4.9999993373e-1f;
  p = (p * r + 1.0f) * r + 1.0f;
#if VECTOR_BYTES == 64
  const __mmask16 is_zero = _mm512_cmp_ps_mask(x, lowest, _CMP_LT_OQ);  // a NaN stays
  return _mm512_maskz_scalef_ps(~is_zero, p, n);
#else
  const Floats y = (Floats)((Ints)p + ((Ints)shifted << 23));
  return x >= lowest ? y : (x < lowest ? Floats{} : x);  // a NaN stays
#endif
}

// e^x to 1e-4 of it, and 1 for 0, where it is rounded to bfloat16.
MMATTN_INLINE Floats coarse_exp(Floats x, float one = 1) {
#if VECTOR_BYTES == 64
  const Floats y = x * 1.44269504f;
  const Floats r = _mm512_reduce_ps(y, 1);  // y - floor(y); scalef takes the floor, too
  const Floats p = (r * 0.07706705f + 0.22764498f) * r + 0.69511679f;
  return _mm512_scalef_ps(p * r + one, y);
#else
  return exp(x);
#endif
}

// Returns e^x as pairs of bfloat16: 2^-8 is half a unit in the last place of 1 to 2.
MMATTN_INLINE Floats pair_exp(Floats low, Floats high) {
  const Words a = (Words)coarse_exp(low, 1 + 0x1p-8f);
  const Words b = (Words)coarse_exp(high, 1 + 0x1p-8f);
  return (Floats)(a >> 16 | (b & 0xffff0000));
}

}  // namespace
