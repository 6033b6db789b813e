// Multi-scale deformable attention for one instruction set.
#include "ms_deform_attn_cpu_samples.inl"

#include "ms_deform_attn_cpu_forward.inl"

#include "ms_deform_attn_cpu_backward.inl"

// Computes some rows of B * Q.
void ms_deform_attn_forward(const Call& call, int64_t begin, int64_t end) {
  if (call.value.storage == Storage::kDouble) {
    return forward<double, double>(call, begin, end);
  }
  with_type_of(call.value.storage,
      [&](auto x) { forward<float, decltype(x)>(call, begin, end); });
}

// Computes some tasks of splits * B * M, which write to different places.
void ms_deform_attn_backward(const Call& call, int64_t begin, int64_t end) {
  if (call.value.storage == Storage::kDouble) {
    return backward<double, double>(call, begin, end);
  }
  with_type_of(call.value.storage,
      [&](auto x) { backward<float, decltype(x)>(call, begin, end); });
}
