// Multi-scale deformable attention on CPUs: the operators that Python calls.
#include "tensors.h"

namespace mmattn {

// A tensor's memory and type. All but value are contiguous.
struct Array {
  void* data;
  Storage storage;
};

struct Call {
  Sizes sizes;
  const int64_t* shapes;  // heights and widths in turn
  Array value, points, weights, reference;
  Array out;  // output of the forward
  Array grad;  // gradient of the output; the backward fills the rest
  Array grad_points, grad_weights;
  Array grad_reference;  // (B, Q, M, reference levels, 2 or 4), to be summed over M
  Array grad_value;  // (splits, B, S, M, D), to be summed over splits
  int64_t splits;
};

}  // namespace mmattn

#define MMATTN_KERNELS "ms_deform_attn_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

Array array_of(const Tensor& tensor) {
  return {tensor.mutable_data_ptr(), storage_of(tensor)};
}

Call make_call(const Tensor& value, const Tensor& points, const Tensor& weights,
    const std::optional<Tensor>& reference, const std::vector<int64_t>& shapes) {
  Call call{};
  call.sizes = sizes_of(value, points, reference);
  call.shapes = shapes.data();
  call.value = array_of(value);
  call.points = array_of(points);
  call.weights = array_of(weights);
  if (reference) {
    call.reference = array_of(*reference);
  }
  return call;
}

void forward(Tensor value, Tensor points, Tensor weights,
    std::optional<Tensor> reference, std::vector<int64_t> shapes, Tensor out) {
  Call call = make_call(value, points, weights, reference, shapes);
  call.out = array_of(out);
  torch::stable::parallel_for(
      0, call.sizes.B * call.sizes.Q, 16, [&](int64_t begin, int64_t end) {
        MMATTN_DISPATCH(ms_deform_attn_forward)(call, begin, end);
      });
}

void backward(Tensor grad, Tensor value, Tensor points, Tensor weights,
    std::optional<Tensor> reference, std::vector<int64_t> shapes, Tensor grad_value,
    Tensor grad_points, Tensor grad_weights, std::optional<Tensor> grad_reference) {
  Call call = make_call(value, points, weights, reference, shapes);
  call.grad = array_of(grad);
  call.grad_value = array_of(grad_value);
  call.grad_points = array_of(grad_points);
  call.grad_weights = array_of(grad_weights);
  if (grad_reference) {
    call.grad_reference = array_of(*grad_reference);
  }
  call.splits = grad_value.size(0);
  torch::stable::parallel_for(
      0, call.splits * call.sizes.B * call.sizes.M, 1, [&](int64_t begin, int64_t end) {
        MMATTN_DISPATCH(ms_deform_attn_backward)(call, begin, end);
      });
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("ms_deform_attn_forward", TORCH_BOX(&mmattn::forward));
  library.impl("ms_deform_attn_backward", TORCH_BOX(&mmattn::backward));
}
