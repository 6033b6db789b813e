// Multi-scale deformable attention on GPUs: the operators that Python calls.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#define MMATTN_SHARED(type, name)        \
  extern __shared__ float4 name##_raw[]; \
  type* const name = reinterpret_cast<type*>(name##_raw)
#define MMATTN_STREAM cudaStream_t
#define MMATTN_LAUNCH(kernel, plan, stream, parameters)     \
  kernel<<<dim3(static_cast<unsigned>((plan).blocks),       \
               static_cast<unsigned>((plan).passes)),       \
      (plan).threads, (plan).shared, stream>>>(parameters); \
  STD_CUDA_KERNEL_LAUNCH_CHECK()

#include "ms_deform_attn_cuda_launch.cuh"

namespace mmattn {
namespace {

cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

void forward(Tensor value, Tensor points, Tensor weights,
    std::optional<Tensor> reference, std::vector<int64_t> shapes, Tensor out) {
  const torch::stable::accelerator::DeviceGuard guard(value.get_device_index());
  launch_forward(value, points, weights, reference, shapes, out, current_stream(value));
}

void backward(Tensor grad, Tensor value, Tensor points, Tensor weights,
    std::optional<Tensor> reference, std::vector<int64_t> shapes, Tensor grad_value,
    Tensor grad_points, Tensor grad_weights, std::optional<Tensor> grad_reference) {
  const torch::stable::accelerator::DeviceGuard guard(value.get_device_index());
  launch_backward(grad, value, points, weights, reference, shapes, grad_value,
      grad_points, grad_weights, grad_reference, current_stream(value));
}

// Its presence shows that the extension was built with this file.
bool has_cuda_kernels() {
  return true;
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_FRAGMENT(mmattn_extension, library) {
  library.def("has_cuda_kernels() -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CompositeExplicitAutograd, library) {
  library.impl("has_cuda_kernels", TORCH_BOX(&mmattn::has_cuda_kernels));
}

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CUDA, library) {
  library.impl("ms_deform_attn_forward", TORCH_BOX(&mmattn::forward));
  library.impl("ms_deform_attn_backward", TORCH_BOX(&mmattn::backward));
}
