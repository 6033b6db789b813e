// Multi-scale deformable attention on GPUs: compiles the operators for CUDA.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#define MMATTN_SHARED(type, name)        \
  extern __shared__ float4 name##_raw[]; \
  type* const name = reinterpret_cast<type*>(name##_raw)
#define MMATTN_STREAM Stream
#define MMATTN_LAUNCH(kernel, plan, stream, parameters)     \
  kernel<<<dim3(static_cast<unsigned>((plan).blocks),       \
               static_cast<unsigned>((plan).passes)),       \
      (plan).threads, (plan).shared, stream>>>(parameters); \
  STD_CUDA_KERNEL_LAUNCH_CHECK()

#include "tensors.h"

namespace mmattn {
namespace {

// The current stream of a tensor's device, which is the current device meanwhile.
class Stream {
 public:
  explicit Stream(const Tensor& tensor) : guard_(tensor.get_device_index()) {
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream_));
  }
  operator cudaStream_t() const {
    return static_cast<cudaStream_t>(stream_);
  }

 private:
  const torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};

// Its presence shows that the extension was built with this file.
bool has_cuda_kernels() {
  return true;
}

}  // namespace
}  // namespace mmattn

#include "ms_deform_attn_cuda_launch.cuh"

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
