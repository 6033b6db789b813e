// Structure-aware attention on CPUs: the operator that Python calls.
#include <cmath>
#include <new>

#include "instruction_sets.h"
#include "storage.h"
#include "tensors.h"

namespace mmattn {

struct StructureAwareCall {
  int64_t B, H, W, M, D, K;
  int64_t DP;  // channels of the kernels of k, padded with zeros
  Storage storage;  // of q, k, v and out, (B, N, M, D)
  const void *q, *k, *v;
  void* out;
  int64_t q_strides[3], k_strides[3], v_strides[3];
  // Half-spectra with real and imaginary parts: (K, H, W / 2 + 1, 2, DP), (K, H,
  // W / 2 + 1, 2); bias (K, DP).
  const float *w_a, *w_b, *bias;
  float* patterns;  // (B, M, K, N), zeros
};

}  // namespace mmattn

#define MMATTN_KERNELS "structure_aware_attention_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

void set_strides(const Tensor& x, int64_t (&strides)[3]) {
  for (int i = 0; i < 3; ++i) {
    strides[i] = x.stride(i);
  }
}

void forward(
    Tensor q, Tensor k, Tensor v, Tensor w_a, Tensor w_b, Tensor bias,
    std::vector<int64_t> grid, Tensor out, Tensor patterns) {
  StructureAwareCall call{};
  call.B = q.size(0);
  call.H = grid[0];
  call.W = grid[1];
  call.M = q.size(2);
  call.D = q.size(3);
  call.K = w_b.size(0);
  call.DP = bias.size(1);
  call.storage = storage_of(q);
  call.q = q.mutable_data_ptr();
  call.k = k.mutable_data_ptr();
  call.v = v.mutable_data_ptr();
  call.out = out.mutable_data_ptr();
  set_strides(q, call.q_strides);
  set_strides(k, call.k_strides);
  set_strides(v, call.v_strides);
  call.w_a = static_cast<const float*>(w_a.mutable_data_ptr());
  call.w_b = static_cast<const float*>(w_b.mutable_data_ptr());
  call.bias = static_cast<const float*>(bias.mutable_data_ptr());
  call.patterns = static_cast<float*>(patterns.mutable_data_ptr());
  const int64_t pairs = call.B * ((call.M + 1) / 2);
  torch::stable::parallel_for(0, pairs, 1, [&](int64_t begin, int64_t end) {
    MMATTN_DISPATCH(structure_aware_forward)(call, begin, end);
  });
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("structure_aware_attention_forward", TORCH_BOX(&mmattn::forward));
}
