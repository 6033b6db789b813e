// Deformable attention for one instruction set, a head of an image at a time. Lanes of
// vectors are queries, so that the bias of a key is an interpolated piece of the table.
#include "deformable_attention_cpu_scores.inl"

#include "deformable_attention_cpu_forward.inl"

#include "deformable_attention_cpu_backward.inl"

inline int64_t deformable_tiles(const DeformableCall& call) {
  return call.B * call.M * ((call.num_queries() + kTile - 1) / kTile);
}

// Calls a function with a number of the storage type, and whether to multiply pairs.
template <class Function>
void with_pairs_or_not(const DeformableCall& call, const Function& function) {
  with_type_of(call.storage, [&](auto x) {
    if constexpr (VECTOR_BYTES == 64 && std::is_same_v<decltype(x), BFloat16>) {
      if (has_pairs()) {
        return function(x, std::true_type());
      }
    }
    function(x, std::false_type());
  });
}

inline void deformable_forward(const DeformableCall& call, int64_t begin, int64_t end) {
  with_pairs_or_not(call, [&](auto x, auto pairs) {
    attend<decltype(x), decltype(pairs)::value>(call, begin, end);
  });
}

inline void deformable_backward(
    const DeformableCall& call, int64_t begin, int64_t end) {
  with_pairs_or_not(call, [&](auto x, auto pairs) {
    differentiate<decltype(x), decltype(pairs)::value>(call, begin, end);
  });
}
