// Deformable attention on CPUs: the operators that Python calls.

#include "tensors.h"

namespace mmattn {

struct DeformableCall {
  int64_t B, H, W, K, M, D, G, Th, Tw;
  bool align_corners;
  Storage storage;  // of the tokens
  Tokens q, k, v;  // with channels side by side
  const float *positions, *table;  // (B, G, K, 2), (M, Th, Tw)
  Tokens out, grad, grad_q;
  float* statistics;  // (B, M, N, 1 + D): log-sum-exp, and the output before rounding
  // For the backward, one for each task: (splits, B, M, ...).
  float *grad_k, *grad_v;  // (K, D)
  float *grad_positions, *grad_table;  // (K, 2), (Th, Tw)
  int64_t splits;

  int64_t num_queries() const {
    return H * W;
  }

  // Whether the table has one number, which moves all scores alike.
  bool is_plain() const {
    return Th * Tw == 1;
  }

  float* statistics_of(int64_t b, int64_t m, int64_t n) const {
    return statistics + ((b * M + m) * num_queries() + n) * (1 + D);
  }
};

}  // namespace mmattn

#define MMATTN_KERNELS "deformable_attention_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

DeformableCall make_call(const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& positions, const Tensor& table, const std::vector<int64_t>& grid,
    bool align_corners) {
  return {q.size(0), grid[0], grid[1], k.size(1), q.size(2), q.size(3),
      positions.size(1), table.size(1), table.size(2), align_corners, storage_of(q),
      tokens_of(q), tokens_of(k), tokens_of(v), floats_of(positions), floats_of(table)};
}

void forward(Tensor q, Tensor k, Tensor v, Tensor positions, Tensor table,
    std::vector<int64_t> grid, bool align_corners, Tensor out, Tensor statistics) {
  DeformableCall call = make_call(q, k, v, positions, table, grid, align_corners);
  call.out = tokens_of(out);
  call.statistics = floats_of(statistics);
  const int64_t tiles = MMATTN_DISPATCH(deformable_tiles)(call);
  run(call, tiles, MMATTN_DISPATCH(deformable_forward), 8);
}

void backward(Tensor grad, Tensor statistics, Tensor q, Tensor k, Tensor v,
    Tensor positions, Tensor table, std::vector<int64_t> grid, bool align_corners,
    Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_positions,
    Tensor grad_table) {
  DeformableCall call = make_call(q, k, v, positions, table, grid, align_corners);
  call.grad = tokens_of(grad);
  call.statistics = floats_of(statistics);
  call.grad_q = tokens_of(grad_q);
  call.grad_k = floats_of(grad_k);
  call.grad_v = floats_of(grad_v);
  call.grad_positions = floats_of(grad_positions);
  call.grad_table = floats_of(grad_table);
  call.splits = grad_k.size(0);
  run(call, call.splits * call.B * call.M, MMATTN_DISPATCH(deformable_backward));
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("deformable_attention_forward", TORCH_BOX(&mmattn::forward));
  library.impl("deformable_attention_backward", TORCH_BOX(&mmattn::backward));
}
