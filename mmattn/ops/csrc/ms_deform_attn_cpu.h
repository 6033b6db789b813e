// Multi-scale deformable attention on CPUs: what an instruction set's kernels offer.
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
  Array out;  // of the forward
  Array grad;  // of the output, and what the backward fills:
  Array grad_points, grad_weights;
  Array grad_reference;  // (B, Q, M, reference levels, 2 or 4), to be summed over M
  Array grad_value;  // (splits, B, S, M, D), to be summed over splits
  int64_t splits;
};

struct Kernels {
  // Rows of B * Q.
  void (*forward)(const Call&, int64_t begin, int64_t end);
  // Tasks of splits * B * M: no two write to the same place.
  void (*backward)(const Call&, int64_t begin, int64_t end);
};

Kernels baseline_kernels();
#ifdef __x86_64__
Kernels avx2_kernels();
#endif

}  // namespace mmattn
