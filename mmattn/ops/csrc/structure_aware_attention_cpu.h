// Structure-aware attention on CPUs: what a call of the kernels is given.
#pragma once

#include <cstdint>

#include "storage.h"

namespace mmattn {

struct StructureAwareCall {
  int64_t B, H, W, M, D, K;
  Storage storage;  // of q, k, v and out
  Tokens q, k, v, out;  // with channels side by side
  // Half-spectra with real and imaginary parts: (blocks, K, H, W / 2 + 1, 2, lanes), (K,
  // H, W / 2 + 1, 2); bias (blocks, K, lanes). A block is a vector of channels, the last
  // padded with zeros.
  const float *w_a, *w_b, *bias;
  float* patterns;  // (B, M, K, N), zeros before the forward
  // For the backward. Each part of the pairs of heads has its sums, zeros before.
  int64_t parts;
  Tokens grad, grad_q, grad_k, grad_v;
  float *grad_w_a, *grad_w_b, *grad_bias;  // (parts, ...), as w_a, w_b and bias

  int64_t num_pairs() const {
    return B * ((M + 1) / 2);
  }
};

}  // namespace mmattn
