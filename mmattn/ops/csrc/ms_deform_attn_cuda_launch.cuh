// Multi-scale deformable attention on GPUs: launches, and the operators that Python
// calls. MMATTN_LAUNCH starts a kernel, on the MMATTN_STREAM of a tensor's device.
#pragma once

#include <climits>

#include "ms_deform_attn_cuda.cuh"
#include "tensors.h"

namespace mmattn {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kPreferredShared = 26 * 1024, kMaxShared = 48 * 1024;

Parameters make_parameters(
    const SamplingCall& call, const std::vector<int64_t>& shapes) {
  Parameters p{call};
  STD_TORCH_CHECK(
      p.sizes.L <= kMaxLevels, "at most ", kMaxLevels, " levels, got ", p.sizes.L);
  find_levels(shapes.data(), p.sizes.L, p.levels);
  return p;
}

bool is_aligned(const Array& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

// Channels that a lane reads at once: 16 bytes, or one where rows are not aligned.
int packet_width(const Parameters& p, int64_t item_size, const Array& rows) {
  const int64_t width = 16 / item_size;
  bool whole = p.sizes.D % width == 0 && is_aligned(p.value) && is_aligned(rows);
  for (const int64_t stride : p.sizes.value_strides) {
    whole = whole && stride % width == 0;
  }
  return whole ? static_cast<int>(width) : 1;
}

struct Plan {
  int64_t blocks, passes;
  int threads;
  int64_t shared;
};

// Also chooses the lanes of a group, by its channels and shared memory.
Plan make_plan(Parameters& p, int width, int64_t bytes_of_sample) {
  const int64_t packets = (p.sizes.D + width - 1) / width;
  const int64_t bytes_of_group = (p.sizes.L * p.sizes.P + kPadding) * bytes_of_sample;
  STD_TORCH_CHECK(
      bytes_of_group <= kMaxShared, "too many points: ", p.sizes.L * p.sizes.P);
  Plan plan{};
  p.lanes = kMinLanes;
  while (p.lanes < packets && p.lanes < kWarp) {
    p.lanes *= 2;
  }
  plan.threads = kThreads;
  const auto shared = [&] { return plan.threads / p.lanes * bytes_of_group; };
  while (shared() > kPreferredShared && plan.threads > kWarp) {
    plan.threads /= 2;
  }
  while (shared() > kMaxShared) {
    p.lanes *= 2;
  }
  plan.shared = shared();
  plan.passes = (packets + p.lanes - 1) / p.lanes;
  const int64_t items = p.sizes.B * p.sizes.Q * p.sizes.M;
  const int64_t items_of_block = plan.threads / p.lanes;
  plan.blocks = (items + items_of_block - 1) / items_of_block;
  STD_TORCH_CHECK(
      plan.blocks <= INT_MAX && plan.passes <= 65535, "too large a call: ", items);
  return plan;
}

template <class T>
void run_forward(Parameters& p, const MMATTN_STREAM& stream) {
  const int width = packet_width(p, sizeof(T), p.out);
  const Plan plan = make_plan(p, width, sizeof(Sample));
  if (width == 1) {
    MMATTN_LAUNCH((forward_kernel<T, 1>), plan, stream, p);
  } else {
    MMATTN_LAUNCH((forward_kernel<T, 16 / sizeof(T)>), plan, stream, p);
  }
}

template <class T>
void run_backward(Parameters& p, const MMATTN_STREAM& stream) {
  const int width = packet_width(p, sizeof(T), p.grad);
  Plan plan = make_plan(p, width, sizeof(Sample) + sizeof(float4));
  const bool one_pass = plan.passes == 1;
  plan.passes = 1;  // a group goes through all channels itself
  if (width == 1 && one_pass) {
    MMATTN_LAUNCH((backward_kernel<T, 1, true>), plan, stream, p);
  } else if (width == 1) {
    MMATTN_LAUNCH((backward_kernel<T, 1, false>), plan, stream, p);
  } else if (one_pass) {
    MMATTN_LAUNCH((backward_kernel<T, 16 / sizeof(T), true>), plan, stream, p);
  } else {
    MMATTN_LAUNCH((backward_kernel<T, 16 / sizeof(T), false>), plan, stream, p);
  }
}

void forward(Tensor value, Tensor points, Tensor weights,
    std::optional<Tensor> reference, std::vector<int64_t> shapes, Tensor out) {
  const MMATTN_STREAM stream(value);
  Parameters p =
      make_parameters(sampling_call(value, points, weights, reference, out), shapes);
  with_type_of(p.value.storage, [&](auto x) { run_forward<decltype(x)>(p, stream); });
}

void backward(Tensor grad, Tensor value, Tensor points, Tensor weights,
    std::optional<Tensor> reference, std::vector<int64_t> shapes, Tensor grad_value,
    Tensor grad_points, Tensor grad_weights, std::optional<Tensor> grad_reference) {
  const MMATTN_STREAM stream(value);
  Parameters p =
      make_parameters(sampling_call(value, points, weights, reference, {}, grad,
                          grad_points, grad_weights, grad_reference, grad_value),
          shapes);
  with_type_of(p.value.storage, [&](auto x) { run_backward<decltype(x)>(p, stream); });
}

}  // namespace
}  // namespace mmattn
