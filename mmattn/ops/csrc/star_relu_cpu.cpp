// StarReLU on CPUs, scale * relu(x)^2 + bias: the operator that Python calls.
#include <algorithm>

#include "tensors.h"

namespace mmattn {

struct StarReLUCall {
  const void *x, *grad;  // grad is null in the forward
  void* out;  // gradient of x in the backward
  Storage storage;
  float scale, bias;
};

}  // namespace mmattn

#define MMATTN_KERNELS "star_relu_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

// A row of `sums`, (parts, 2), has the gradients of scale and bias of some numbers.
void star_relu(Tensor x, std::optional<Tensor> grad, double scale, double bias,
    Tensor out, Tensor sums) {
  const StarReLUCall call{x.data_ptr(), grad ? grad->data_ptr() : nullptr,
      out.mutable_data_ptr(), storage_of(x), static_cast<float>(scale),
      static_cast<float>(bias)};
  const int64_t parts = sums.size(0), size = (x.numel() + parts - 1) / parts;
  torch::stable::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t last = std::min((i + 1) * size, x.numel());
      MMATTN_DISPATCH(star_relu)(call, i * size, last, floats_of(sums) + 2 * i);
    }
  });
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("star_relu", TORCH_BOX(&mmattn::star_relu));
}
