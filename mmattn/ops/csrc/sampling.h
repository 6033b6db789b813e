// Places of samples and their gradients: the arithmetic that the CPU and the CUDA
// kernels share. Zhu et al., "Deformable DETR", equation 3 and
// appendix A.4, https://arxiv.org/abs/2010.04159.
#pragma once

#include "storage.h"

namespace mmattn {

enum class Form : int32_t {
  kLocations,  // points are normalized locations, weights as they are
  kReferencePoints,  // points are offsets in pixels, weights are logits
  kReferenceBoxes,  // points are offsets in half sizes of a box over P, logits
};

// Sizes of a call. B batch, S pixels of all levels, M heads, D head width, Q queries,
// L levels, P points.
struct Sizes {
  int64_t B, S, M, D, Q, L, P;
  int64_t value_strides[3];  // strides of B, S and M; D is contiguous
  int64_t reference_levels;  // 1 or L
  Form form;
};

// Tensors of a call. All but value are contiguous.
struct SamplingCall {
  Sizes sizes;
  Array value, points, weights, reference;
  Array out;  // output of the forward
  Array grad;  // gradient of the output; the backward fills the rest
  Array grad_points, grad_weights;
  Array grad_reference;  // (B, Q, M, reference levels, 2 or 4), to be summed over M
  Array grad_value;  // (splits, B, S, M, D); on GPUs of one split, zeros before
};

// The namespace is unnamed, here and in the kernels, because files that are compiled for
// different instruction sets must not share instances.
namespace {

template <class A>
struct Level {
  A height, width;
  int32_t rows, columns;
  int64_t start;
};

template <class A>
MMATTN_INLINE void find_levels(const int64_t* shapes, int64_t L, Level<A>* levels) {
  int64_t start = 0;
  for (int64_t l = 0; l < L; ++l) {
    const int64_t rows = shapes[2 * l], columns = shapes[2 * l + 1];
    levels[l] = {static_cast<A>(rows), static_cast<A>(columns),
        static_cast<int32_t>(rows), static_cast<int32_t>(columns), start};
    start += rows * columns;
  }
}

template <class A>
struct Reference {
  A x, y, w, h;
};

// Four pixels of a sample, in the order of (y, x): 00, 01, 10, 11. Pixel -1 is outside.
template <class A>
struct Corners {
  int32_t pixel[4];
  A fx, fy;  // distance from corner 00
  bool inside;  // whether any corner is inside the map

  MMATTN_INLINE A weight(int corner) const {
    return (corner & 1 ? fx : 1 - fx) * (corner & 2 ? fy : 1 - fy);
  }
};

template <class A>
MMATTN_INLINE Corners<A> find_corners(Form form, A x, A y,
    const Reference<A>& reference, const Level<A>& level, A points) {
  if (form == Form::kLocations) {
    x *= level.width;
    y *= level.height;
  } else if (form == Form::kReferencePoints) {
    x += reference.x * level.width;
    y += reference.y * level.height;
  } else {
    const A scale = A(0.5) / points;
    x = (reference.x + x * scale * reference.w) * level.width;
    y = (reference.y + y * scale * reference.h) * level.height;
  }
  x -= A(0.5);
  y -= A(0.5);
  Corners<A> corners{{-1, -1, -1, -1}, 0, 0, false};
  // NaN and infinity fail a comparison, too.
  if (!(x > -1 && y > -1 && x < level.width && y < level.height)) {
    return corners;
  }
  const int32_t column = static_cast<int32_t>(x) - (x < 0);
  const int32_t row = static_cast<int32_t>(y) - (y < 0);
  corners.inside = true;
  corners.fx = x - column;
  corners.fy = y - row;
  const int32_t first =
      static_cast<int32_t>(level.start) + row * level.columns + column;
  const bool top = row >= 0, bottom = row + 1 < level.rows;
  const bool left = column >= 0, right = column + 1 < level.columns;
  corners.pixel[0] = top && left ? first : -1;
  corners.pixel[1] = top && right ? first + 1 : -1;
  corners.pixel[2] = bottom && left ? first + level.columns : -1;
  corners.pixel[3] = bottom && right ? first + level.columns + 1 : -1;
  return corners;
}

// Gradients of a sample, from the products of its pixels with the gradient.
template <class A>
struct SampleGradient {
  A value;  // gradient of the weight
  A x, y;  // gradients of the place in pixels, without the weight
};

template <class A>
MMATTN_INLINE SampleGradient<A> sample_gradient(
    const Corners<A>& corners, const A (&products)[4]) {
  const A fx = corners.fx, fy = corners.fy;
  const A upper = products[1] - products[0], lower = products[3] - products[2];
  const A top = products[0] + fx * upper, bottom = products[2] + fx * lower;
  return {top + fy * (bottom - top), upper + fy * (lower - upper), bottom - top};
}

// Gradients of a point and its reference, from the gradient of its place in pixels.
template <class A>
struct PointGradient {
  A x, y;
  Reference<A> reference;
};

template <class A>
MMATTN_INLINE PointGradient<A> point_gradient(Form form, A grad_x, A grad_y, A x, A y,
    const Reference<A>& reference, const Level<A>& level, A points) {
  const A location_x = grad_x * level.width, location_y = grad_y * level.height;
  if (form == Form::kLocations) {
    return {location_x, location_y, {0, 0, 0, 0}};
  }
  if (form == Form::kReferencePoints) {
    return {grad_x, grad_y, {location_x, location_y, 0, 0}};
  }
  const A scale = A(0.5) / points;
  return {location_x * scale * reference.w, location_y * scale * reference.h,
      {location_x, location_y, location_x * scale * x, location_y * scale * y}};
}

}  // namespace
}  // namespace mmattn
