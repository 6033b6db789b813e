// Compiles the file MMATTN_KERNELS once for each instruction set, in the namespaces
// mmattn::baseline, ::avx2 and ::avx512. All headers that it needs precede this one:
// what they define is shared, and compiled for any processor.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "instruction_sets.h"
#include "storage.h"

#define VECTOR_BYTES 16
namespace mmattn::baseline {
#include "vectors.inl"
#include MMATTN_KERNELS
}  // namespace mmattn::baseline
#undef VECTOR_BYTES

#ifdef __x86_64__
MMATTN_BEGIN_TARGET("avx2,fma,f16c")
#define VECTOR_BYTES 32
namespace mmattn::avx2 {
#include "vectors.inl"
#include MMATTN_KERNELS
}  // namespace mmattn::avx2
#undef VECTOR_BYTES
MMATTN_END_TARGET

MMATTN_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define VECTOR_BYTES 64
namespace mmattn::avx512 {
#include "vectors.inl"
#include MMATTN_KERNELS
}  // namespace mmattn::avx512
#undef VECTOR_BYTES
MMATTN_END_TARGET
#endif
