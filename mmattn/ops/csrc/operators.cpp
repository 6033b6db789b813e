// Signatures of the extension's operators, which the kernels' files implement. The
// caller allocates the outputs.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(mmattn_extension, library) {
  library.def("instruction_set() -> int");
  library.def(
      "depthwise_weight_gradient(Tensor x, Tensor grad, int stride, int padding, "
      "Tensor(a!) sums) -> ()");
  library.def(
      "star_relu(Tensor x, Tensor? grad, float scale, float bias, Tensor(a!) out, "
      "Tensor(b!) sums) -> ()");
  library.def(
      "ms_deform_attn_forward(Tensor value, Tensor points, Tensor weights, "
      "Tensor? reference, int[] shapes, Tensor(a!) out) -> ()");
  library.def(
      "ms_deform_attn_backward(Tensor grad, Tensor value, Tensor points, "
      "Tensor weights, Tensor? reference, int[] shapes, Tensor(a!) grad_value, "
      "Tensor(b!) grad_points, Tensor(c!) grad_weights, "
      "Tensor(d!)? grad_reference) -> ()");
  library.def(
      "local_attn_forward(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? alpha, "
      "int[] grid, int window, int special, bool fill, bool clipped, int bands, "
      "Tensor(a!) out, Tensor(b!) lse, Tensor(c!) total, Tensor? dense_lse) -> ()");
  library.def(
      "local_attn_backward(Tensor grad, Tensor lse, Tensor q, Tensor k, Tensor v, "
      "Tensor? bias, Tensor? alpha, int[] grid, int window, int special, bool fill, "
      "bool clipped, int bands, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, "
      "Tensor(d!)? dbias, Tensor(e!)? dalpha, Tensor(f!) total, Tensor(g!) dtotal, "
      "Tensor(h!) dspecial, Tensor? delta, Tensor(i!)? dense_lse) -> ()");
  library.def(
      "deformable_attention_forward(Tensor q, Tensor k, Tensor v, Tensor positions, "
      "Tensor table, int[] grid, bool align_corners, Tensor(a!) out, "
      "Tensor(b!) statistics) -> ()");
  library.def(
      "deformable_attention_backward(Tensor grad, Tensor statistics, Tensor q, "
      "Tensor k, Tensor v, Tensor positions, Tensor table, int[] grid, "
      "bool align_corners, Tensor(a!) grad_q, Tensor(b!) grad_k, Tensor(c!) grad_v, "
      "Tensor(d!) grad_positions, Tensor(e!) grad_table) -> ()");
  library.def(
      "landmark_attention(Tensor x, Tensor y, Tensor y_columns, Tensor w1, "
      "Tensor w1_columns, Tensor w2, Tensor w2_columns, int part_size, "
      "Tensor? w=None, Tensor? z=None, Tensor? z_columns=None, Tensor? lse=None, "
      "Tensor? delta=None, Tensor(a!)? new_lse=None, Tensor(b!)? new_delta=None, "
      "Tensor(c!)? out=None, Tensor(d!)? sum_w=None, Tensor(e!)? dx=None, "
      "Tensor(f!)? dy=None, Tensor(g!)? dw1=None, Tensor(h!)? dw2=None) -> ()");
  library.def(
      "structure_aware_attention_forward(Tensor q, Tensor k, Tensor v, Tensor w_a, "
      "Tensor w_b, Tensor bias, int[] grid, Tensor(a!) out, "
      "Tensor(b!) patterns) -> ()");
  library.def(
      "structure_aware_attention_backward(Tensor grad, Tensor patterns, Tensor q, "
      "Tensor k, Tensor v, Tensor w_a, Tensor w_b, Tensor bias, int[] grid, "
      "Tensor(a!) grad_q, Tensor(b!) grad_k, Tensor(c!) grad_v, Tensor(d!) grad_w_a, "
      "Tensor(e!) grad_w_b, Tensor(f!) grad_bias) -> ()");
}
