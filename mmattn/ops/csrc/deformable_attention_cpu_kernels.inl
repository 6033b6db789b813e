// Deformable attention for one instruction set, a head of an image at a time. Lanes of
// vectors are queries, so that the bias of a key is an interpolated piece of the table.
#include "deformable_attention_cpu_scores.inl"

#include "deformable_attention_cpu_forward.inl"

#include "deformable_attention_cpu_backward.inl"

inline int64_t deformable_tiles(const DeformableCall& call) {
  return call.B * call.M * ((call.num_queries() + kTile - 1) / kTile);
}

inline void deformable_forward(const DeformableCall& call, int64_t begin, int64_t end) {
#if VECTOR_BYTES == 64
  if (call.storage == Storage::kBFloat16 && has_pairs()) {
    return attend<BFloat16, true>(call, begin, end);
  }
#endif
  with_type_of(call.storage, [&](auto x) { attend<decltype(x)>(call, begin, end); });
}

inline void deformable_backward(
    const DeformableCall& call, int64_t begin, int64_t end) {
  with_type_of(
      call.storage, [&](auto x) { differentiate<decltype(x)>(call, begin, end); });
}
