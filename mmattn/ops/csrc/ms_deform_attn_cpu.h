// Multi-scale deformable attention on CPUs: interface of the kernels.
#pragma once

#include "sampling.h"
#include "storage.h"

namespace mmattn {

// A tensor's memory and type. All but value are contiguous.
struct Array {
  void* data;
  Storage storage;
};

struct Call {
  Sizes sizes;
  const int64_t* shapes;  // heights and widths in turn
  Array value, points, weights, reference;
  Array out;  // output of the forward
  Array grad;  // gradient of the output; the backward fills the rest
  Array grad_points, grad_weights;
  Array grad_reference;  // (B, Q, M, reference levels, 2 or 4), to be summed over M
  Array grad_value;  // (splits, B, S, M, D), to be summed over splits
  int64_t splits;
};

}  // namespace mmattn
