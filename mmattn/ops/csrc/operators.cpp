// Signatures of the extension's operators, which the kernels' files implement. The
// caller allocates the outputs.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(mmattn_extension, library) {
  library.def("instruction_set() -> int");
  library.def(
      "ms_deform_attn_forward(Tensor value, Tensor points, Tensor weights, "
      "Tensor? reference, int[] shapes, Tensor(a!) out) -> ()");
  library.def(
      "ms_deform_attn_backward(Tensor grad, Tensor value, Tensor points, "
      "Tensor weights, Tensor? reference, int[] shapes, Tensor(a!) grad_value, "
      "Tensor(b!) grad_points, Tensor(c!) grad_weights, "
      "Tensor(d!)? grad_reference) -> ()");
}
