// Access to tensors. Python has checked shapes and devices, and that value's channels
// and all other tensors are contiguous.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <vector>

#include "sampling.h"

namespace mmattn {

using torch::stable::Tensor;

inline Storage storage_of(const Tensor& tensor) {
  using torch::headeronly::ScalarType;
  switch (tensor.scalar_type()) {
    case ScalarType::Double:
      return Storage::kDouble;
    case ScalarType::Float:
      return Storage::kFloat;
    case ScalarType::Half:
      return Storage::kHalf;
    case ScalarType::BFloat16:
      return Storage::kBFloat16;
    default:
      STD_TORCH_CHECK(false, "a tensor has no floating-point type");
  }
}

// No tensor has no data.
inline Array array_of(const std::optional<Tensor>& x) {
  return x ? Array{x->mutable_data_ptr(), storage_of(*x)} : Array{};
}

inline Tokens tokens_of(const std::optional<Tensor>& x) {
  return x ? Tokens{x->mutable_data_ptr(), storage_of(*x),
                 {x->stride(0), x->stride(1), x->stride(2), x->stride(3)}}
           : Tokens{};
}

inline float* floats_of(const std::optional<Tensor>& x) {
  return x ? static_cast<float*>(x->mutable_data_ptr()) : nullptr;
}

inline SamplingCall sampling_call(const Tensor& value, const Tensor& points,
    const Tensor& weights, const std::optional<Tensor>& reference,
    const std::optional<Tensor>& out, const std::optional<Tensor>& grad = {},
    const std::optional<Tensor>& grad_points = {},
    const std::optional<Tensor>& grad_weights = {},
    const std::optional<Tensor>& grad_reference = {},
    const std::optional<Tensor>& grad_value = {}) {
  Sizes sizes{value.size(0), value.size(1), value.size(2), value.size(3),
      points.size(1), points.size(3), points.size(4),
      {value.stride(0), value.stride(1), value.stride(2)}, 1, Form::kLocations};
  if (reference) {
    sizes.reference_levels = reference->size(2);
    sizes.form =
        reference->size(3) == 4 ? Form::kReferenceBoxes : Form::kReferencePoints;
  }
  return {sizes, array_of(value), array_of(points), array_of(weights),
      array_of(reference), array_of(out), array_of(grad), array_of(grad_points),
      array_of(grad_weights), array_of(grad_reference), array_of(grad_value)};
}

// Calls a function with a call and each of some ranges of its tasks.
template <class Call>
void run(const Call& call, int64_t tasks,
    void (*function)(const Call&, int64_t begin, int64_t end), int64_t grain = 1) {
  torch::stable::parallel_for(
      0, tasks, grain, [&](int64_t begin, int64_t end) { function(call, begin, end); });
}

}  // namespace mmattn
