// Multi-scale deformable attention on CPUs: the operators that Python calls.
#include "tensors.h"

namespace mmattn {

struct Call : SamplingCall {
  const int64_t* shapes;  // heights and widths in turn
  int64_t splits;  // of the gradient of value, to be summed
};

}  // namespace mmattn

#define MMATTN_KERNELS "ms_deform_attn_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

void forward(Tensor value, Tensor points, Tensor weights,
    std::optional<Tensor> reference, std::vector<int64_t> shapes, Tensor out) {
  const Call call{sampling_call(value, points, weights, reference, out), shapes.data()};
  run(call, call.sizes.B * call.sizes.Q, MMATTN_DISPATCH(ms_deform_attn_forward), 16);
}

void backward(Tensor grad, Tensor value, Tensor points, Tensor weights,
    std::optional<Tensor> reference, std::vector<int64_t> shapes, Tensor grad_value,
    Tensor grad_points, Tensor grad_weights, std::optional<Tensor> grad_reference) {
  const Call call{sampling_call(value, points, weights, reference, {}, grad,
                      grad_points, grad_weights, grad_reference, grad_value),
      shapes.data(), grad_value.size(0)};
  run(call, call.splits * call.sizes.B * call.sizes.M,
      MMATTN_DISPATCH(ms_deform_attn_backward));
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("ms_deform_attn_forward", TORCH_BOX(&mmattn::forward));
  library.impl("ms_deform_attn_backward", TORCH_BOX(&mmattn::backward));
}
