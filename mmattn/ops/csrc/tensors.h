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

inline SamplingCall sampling_forward(const Tensor& value, const Tensor& points,
    const Tensor& weights, const std::optional<Tensor>& reference,
    const std::optional<Tensor>& out) {
  SamplingCall call{};
  call.sizes = {value.size(0), value.size(1), value.size(2), value.size(3),
      points.size(1), points.size(3), points.size(4),
      {value.stride(0), value.stride(1), value.stride(2)}, 1, Form::kLocations};
  if (reference) {
    call.sizes.reference_levels = reference->size(2);
    call.sizes.form =
        reference->size(3) == 4 ? Form::kReferenceBoxes : Form::kReferencePoints;
  }
  call.value = array_of(value);
  call.points = array_of(points);
  call.weights = array_of(weights);
  call.reference = array_of(reference);
  call.out = array_of(out);
  return call;
}

inline SamplingCall sampling_backward(const Tensor& grad, const Tensor& value,
    const Tensor& points, const Tensor& weights, const std::optional<Tensor>& reference,
    const Tensor& grad_value, const Tensor& grad_points, const Tensor& grad_weights,
    const std::optional<Tensor>& grad_reference) {
  SamplingCall call = sampling_forward(value, points, weights, reference, {});
  call.grad = array_of(grad);
  call.grad_value = array_of(grad_value);
  call.grad_points = array_of(grad_points);
  call.grad_weights = array_of(grad_weights);
  call.grad_reference = array_of(grad_reference);
  return call;
}

// Calls a function with a call and each of some ranges of its tasks.
template <class Call>
void run(const Call& call, int64_t tasks,
    void (*function)(const Call&, int64_t begin, int64_t end), int64_t grain = 1) {
  torch::stable::parallel_for(
      0, tasks, grain, [&](int64_t begin, int64_t end) { function(call, begin, end); });
}

}  // namespace mmattn
