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
#include "storage.h"

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

inline Tokens tokens_of(const Tensor& x) {
  return {x.mutable_data_ptr(), storage_of(x),
      {x.stride(0), x.stride(1), x.stride(2), x.stride(3)}};
}

inline Tokens tokens_of(const std::optional<Tensor>& x) {
  return x ? tokens_of(*x) : Tokens{};
}

inline float* floats_of(const std::optional<Tensor>& x) {
  return x ? static_cast<float*>(x->mutable_data_ptr()) : nullptr;
}

inline Sizes sizes_of(
    const Tensor& value, const Tensor& points, const std::optional<Tensor>& reference) {
  Sizes sizes{};
  sizes.B = value.size(0);
  sizes.S = value.size(1);
  sizes.M = value.size(2);
  sizes.D = value.size(3);
  sizes.Q = points.size(1);
  sizes.L = points.size(3);
  sizes.P = points.size(4);
  for (int i = 0; i < 3; ++i) {
    sizes.value_strides[i] = value.stride(i);
  }
  sizes.form = Form::kLocations;
  sizes.reference_levels = 1;
  if (reference) {
    sizes.reference_levels = reference->size(2);
    sizes.form =
        reference->size(3) == 4 ? Form::kReferenceBoxes : Form::kReferencePoints;
  }
  return sizes;
}

}  // namespace mmattn
