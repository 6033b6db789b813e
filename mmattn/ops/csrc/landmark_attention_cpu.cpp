// Landmark attention on CPUs: the operator that Python calls.

#include "tensors.h"

namespace mmattn {

// Mixed attention between tokens x and landmarks y, in parts of the tokens. Each result
// may be absent; sums over tokens have an axis of parts.
struct LandmarkCall {
  int64_t B, N, L, M, D, E, part_size, parts;
  Storage storage;  // of the tokens
  Tokens x, w;  // (B, N, M, D), with channels side by side; w are values of x
  Tokens out, dx;  // maps times z, gradient of x
  const float *y, *z;  // (B, M, L, D); y is scaled, z are values of y
  const float *y_columns, *z_columns;  // (B, M, D, L)
  const float *w1, *w2, *w1_columns, *w2_columns;  // (E, M), (M, E), and transposed
  // (B, E, L). Without log-sum-exps over tokens, softmax is over landmarks.
  const float *lse, *delta;
  float *new_lse, *new_delta;  // (B, parts, E, L)
  float *sum_w, *dy;  // (B, parts, M, L, D): maps times w, gradient of y
  float *dw1, *dw2;  // (B, parts, E, M), (B, parts, M, E)
};

// Returns memory that a thread keeps: the system takes as long to clear new pages. It
// starts at a multiple of 64 bytes.
inline float* kept_memory(size_t size) {
  struct alignas(64) Line {
    float numbers[16];
  };
  thread_local std::vector<Line> lines;
  if (16 * lines.size() < size) {
    lines = std::vector<Line>(size / 16 + 1);
  }
  return lines.data()->numbers;
}

}  // namespace mmattn

#define MMATTN_KERNELS "landmark_attention_cpu_kernels.inl"
#include "for_each_instruction_set.inl"

namespace mmattn {
namespace {

void attend(Tensor x, Tensor y, Tensor y_columns, Tensor w1, Tensor w1_columns,
    Tensor w2, Tensor w2_columns, int64_t part_size, std::optional<Tensor> w,
    std::optional<Tensor> z, std::optional<Tensor> z_columns, std::optional<Tensor> lse,
    std::optional<Tensor> delta, std::optional<Tensor> new_lse,
    std::optional<Tensor> new_delta, std::optional<Tensor> out,
    std::optional<Tensor> sum_w, std::optional<Tensor> dx, std::optional<Tensor> dy,
    std::optional<Tensor> dw1, std::optional<Tensor> dw2) {
  const int64_t N = x.size(1), parts = (N + part_size - 1) / part_size;
  const LandmarkCall call{x.size(0), N, y.size(2), x.size(2), x.size(3), w1.size(0),
      part_size, parts, storage_of(x), tokens_of(x), tokens_of(w), tokens_of(out),
      tokens_of(dx), floats_of(y), floats_of(z), floats_of(y_columns),
      floats_of(z_columns), floats_of(w1), floats_of(w2), floats_of(w1_columns),
      floats_of(w2_columns), floats_of(lse), floats_of(delta), floats_of(new_lse),
      floats_of(new_delta), floats_of(sum_w), floats_of(dy), floats_of(dw1),
      floats_of(dw2)};
  run(call, call.B * parts, MMATTN_DISPATCH(landmark_attention));
}

}  // namespace
}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CPU, library) {
  library.impl("landmark_attention", TORCH_BOX(&mmattn::attend));
}
