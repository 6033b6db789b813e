// Structure-aware attention on CPUs: the operators that Python calls.
#include <cmath>

#include "tensors.h"

namespace mmattn {

struct StructureAwareCall {
  int64_t B, H, W, M, D, K;
  Storage storage;  // of q, k, v and out
  Tokens q, k, v;  // with channels side by side
  // Half-spectra with real and imaginary parts: (blocks, K, H, W / 2 + 1, 2, lanes), (K,
  // H, W / 2 + 1, 2); bias (blocks, K, lanes). A block is a vector of channels, the last
  // padded with zeros.
  const float *w_a, *w_b, *bias;
  float* patterns;  // (B, M, K, N), zeros before the forward
  Tokens out;
  // For the backward. Each part of the pairs of heads has its sums, zeros before.
  int64_t parts;
  Tokens grad, grad_q, grad_k, grad_v;
  float *grad_w_a, *grad_w_b, *grad_bias;  // (parts, ...), as w_a, w_b and bias

  int64_t num_pairs() const {
    return B * ((M + 1) / 2);
  }
};

}  // namespace mmattn

#define MMATTN_KERNELS "structure_aware_attention_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

StructureAwareCall make_call(const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& w_a, const Tensor& w_b, const Tensor& bias,
    const std::vector<int64_t>& grid, const Tensor& patterns) {
  return {q.size(0), grid[0], grid[1], q.size(2), q.size(3), w_b.size(0), storage_of(q),
      tokens_of(q), tokens_of(k), tokens_of(v), floats_of(w_a), floats_of(w_b),
      floats_of(bias), floats_of(patterns)};
}

void forward(Tensor q, Tensor k, Tensor v, Tensor w_a, Tensor w_b, Tensor bias,
    std::vector<int64_t> grid, Tensor out, Tensor patterns) {
  StructureAwareCall call = make_call(q, k, v, w_a, w_b, bias, grid, patterns);
  call.out = tokens_of(out);
  run(call, call.num_pairs(), MMATTN_DISPATCH(structure_aware_forward));
}

void backward(Tensor grad, Tensor patterns, Tensor q, Tensor k, Tensor v, Tensor w_a,
    Tensor w_b, Tensor bias, std::vector<int64_t> grid, Tensor grad_q, Tensor grad_k,
    Tensor grad_v, Tensor grad_w_a, Tensor grad_w_b, Tensor grad_bias) {
  StructureAwareCall call = make_call(q, k, v, w_a, w_b, bias, grid, patterns);
  call.grad = tokens_of(grad);
  call.grad_q = tokens_of(grad_q);
  call.grad_k = tokens_of(grad_k);
  call.grad_v = tokens_of(grad_v);
  call.grad_w_a = floats_of(grad_w_a);
  call.grad_w_b = floats_of(grad_w_b);
  call.grad_bias = floats_of(grad_bias);
  call.parts = grad_bias.size(0);
  run(call, call.parts, MMATTN_DISPATCH(structure_aware_backward));
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("structure_aware_attention_forward", TORCH_BOX(&mmattn::forward));
  library.impl("structure_aware_attention_backward", TORCH_BOX(&mmattn::backward));
}
