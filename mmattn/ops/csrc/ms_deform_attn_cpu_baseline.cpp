// The CPU kernels for any processor of the architecture that this is compiled for.
#define VECTOR_BYTES 16
#include "ms_deform_attn_cpu_kernels.inl"

namespace mmattn {

Kernels baseline_kernels() {
  return {forward_any, backward_any};
}

}  // namespace mmattn
