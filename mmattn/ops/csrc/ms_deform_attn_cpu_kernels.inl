// Multi-scale deformable attention for one instruction set.
#include "ms_deform_attn_cpu_samples.inl"

#include "ms_deform_attn_cpu_forward.inl"

#include "ms_deform_attn_cpu_backward.inl"

namespace {

template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace

// Computes some rows of B * Q.
void ms_deform_attn_forward(const Call& call, int64_t begin, int64_t end) {
  with_any_type_of(call.value.storage,
      [&](auto x) { forward<Arithmetic<decltype(x)>, decltype(x)>(call, begin, end); });
}

// Computes some tasks of splits * B * M, which write to different places.
void ms_deform_attn_backward(const Call& call, int64_t begin, int64_t end) {
  with_any_type_of(call.value.storage, [&](auto x) {
    backward<Arithmetic<decltype(x)>, decltype(x)>(call, begin, end);
  });
}
