// Gradients of depthwise kernels on CPUs: what a call is given.
#pragma once

#include "storage.h"

namespace mmattn {

struct DepthwiseCall {
  int64_t B, H, W, C, K, stride, padding, out_H, out_W;
  Tokens x, grad;  // (B, H, W, C), (B, out_H, out_W, C), with channels side by side
  float* sums;  // (K * K + 1, columns), for each tap and the bias
  int64_t columns;  // a multiple of 32, at least C
};

}  // namespace mmattn
