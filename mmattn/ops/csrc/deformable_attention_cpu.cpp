// Deformable attention on CPUs: the operators that Python calls.

#include "tensors.h"

namespace mmattn {

struct DeformableCall {
  int64_t B, H, W, K, M, D, G, Th, Tw;
  bool align_corners;
  Storage storage;  // of the tokens
  Tokens q, k, v, out, grad, grad_q;  // with channels side by side
  const float *positions, *table;  // (B, G, K, 2), (M, Th, Tw)
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
  DeformableCall call{};
  call.B = q.size(0);
  call.H = grid[0];
  call.W = grid[1];
  call.K = k.size(1);
  call.M = q.size(2);
  call.D = q.size(3);
  call.G = positions.size(1);
  call.Th = table.size(1);
  call.Tw = table.size(2);
  call.align_corners = align_corners;
  call.storage = storage_of(q);
  call.q = tokens_of(q);
  call.k = tokens_of(k);
  call.v = tokens_of(v);
  call.positions = floats_of(positions);
  call.table = floats_of(table);
  return call;
}

void forward(Tensor q, Tensor k, Tensor v, Tensor positions, Tensor table,
    std::vector<int64_t> grid, bool align_corners, Tensor out, Tensor statistics) {
  DeformableCall call = make_call(q, k, v, positions, table, grid, align_corners);
  call.out = tokens_of(out);
  call.statistics = floats_of(statistics);
  const int64_t tiles = MMATTN_DISPATCH(deformable_tiles)(call);
  torch::stable::parallel_for(0, tiles, 8, [&](int64_t begin, int64_t end) {
    MMATTN_DISPATCH(deformable_forward)(call, begin, end);
  });
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
  const int64_t tasks = call.splits * call.B * call.M;
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    MMATTN_DISPATCH(deformable_backward)(call, begin, end);
  });
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("deformable_attention_forward", TORCH_BOX(&mmattn::forward));
  library.impl("deformable_attention_backward", TORCH_BOX(&mmattn::backward));
}
