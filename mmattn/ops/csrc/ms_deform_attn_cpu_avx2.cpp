// The CPU kernels for x86 processors with AVX2 and FMA.
#ifdef __x86_64__
// Headers that other files instantiate precede the change of the instruction set.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <new>
#include <type_traits>

#include "instruction_sets.h"

MMATTN_BEGIN_TARGET("avx2,fma,f16c")
#define VECTOR_BYTES 32
#include "ms_deform_attn_cpu_kernels.inl"
MMATTN_END_TARGET

namespace mmattn {

Kernels avx2_kernels() {
  return {forward_any, backward_any};
}

}  // namespace mmattn
#endif
