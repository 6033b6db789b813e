// Deformable attention on CPUs: what a call of the kernels is given.
#pragma once

#include <cstdint>

#include "storage.h"

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

  float* statistics_of(int64_t b, int64_t m, int64_t n) const {
    return statistics + ((b * M + m) * num_queries() + n) * (1 + D);
  }
};

}  // namespace mmattn
