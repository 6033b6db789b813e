// Gradients of depthwise kernels on CPUs: the operator that Python calls.
#include "tensors.h"

namespace mmattn {

struct DepthwiseCall {
  int64_t B, H, W, C, K, stride, padding, out_H, out_W;
  Tokens x, grad;  // (B, H, W, C), (B, out_H, out_W, C), with channels side by side
  float* sums;  // (K * K + 1, columns), for each tap and the bias
  int64_t columns;  // a multiple of 32, at least C
};

}  // namespace mmattn

#define MMATTN_KERNELS "depthwise_conv_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

void weight_gradient(
    Tensor x, Tensor grad, int64_t stride, int64_t padding, Tensor sums) {
  const int64_t K = std::lround(std::sqrt(sums.size(0) - 1.0));
  const DepthwiseCall call{x.size(0), x.size(1), x.size(2), x.size(3), K, stride,
      padding, grad.size(1), grad.size(2), tokens_of(x), tokens_of(grad),
      floats_of(sums), sums.size(1)};
  run(call, call.columns / 32, MMATTN_DISPATCH(depthwise_weight_gradient));
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("depthwise_weight_gradient", TORCH_BOX(&mmattn::weight_gradient));
}
