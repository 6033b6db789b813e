// The CPU kernels for one instruction set, chosen by the file that includes this one.
#pragma once

#include "ms_deform_attn_cpu_backward.inl"
#include "ms_deform_attn_cpu_forward.inl"

namespace mmattn {
namespace {

void forward_any(const Call& call, int64_t begin, int64_t end) {
  switch (call.value.storage) {
    case Storage::kDouble:
      return forward<double, double>(call, begin, end);
    case Storage::kFloat:
      return forward<float, float>(call, begin, end);
    case Storage::kHalf:
      return forward<float, Half>(call, begin, end);
    case Storage::kBFloat16:
      return forward<float, BFloat16>(call, begin, end);
  }
}

void backward_any(const Call& call, int64_t begin, int64_t end) {
  switch (call.value.storage) {
    case Storage::kDouble:
      return backward<double, double>(call, begin, end);
    case Storage::kFloat:
      return backward<float, float>(call, begin, end);
    case Storage::kHalf:
      return backward<float, Half>(call, begin, end);
    case Storage::kBFloat16:
      return backward<float, BFloat16>(call, begin, end);
  }
}

}  // namespace
}  // namespace mmattn
