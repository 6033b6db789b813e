// Runs the CUDA kernels of multi-scale deformable attention on a CPU, to test what they
// compute where there is no GPU: indices, masks, shuffles, shared memory. Threads of a
// block are fibers; one that waits for its warp hands over to the next. Races between
// warps, alignment and speed are not what this shows: an executor may take the launches.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define MMATTN_SHARED(type, name) \
  type* const name = reinterpret_cast<type*>(emulated::shared.data())
#define MMATTN_STREAM emulated::Stream
#define MMATTN_LAUNCH(kernel, plan, stream, parameters)                               \
  emulated::launch([&] { kernel(parameters); }, emulated::name<kernel>(), parameters, \
      plan.blocks, plan.passes, plan.threads, plan.shared)

struct alignas(16) float4 {
  float x, y, z, w;
};

struct alignas(16) int4 {
  int x, y, z, w;
};

struct Index {
  unsigned x, y;
};

static Index threadIdx, blockIdx, blockDim;

static float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

static int4 make_int4(int x, int y, int z, int w) {
  return {x, y, z, w};
}

static void atomicAdd(float* to, float x) {
  *to += x;
}

namespace emulated {

constexpr int kWarpSize = 32;
constexpr size_t kStack = 256 * 1024;

struct Stream {
  template <class Tensor>
  explicit Stream(const Tensor&) {}
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool done;
  int64_t meetings;  // that the thread has come to
};

static std::vector<float4> shared;
static std::vector<std::unique_ptr<Fiber>> fibers;
static ucontext_t scheduler;
static void (*run_thread)(const void*);
static const void* body;
static float exchanged[1024];

static void enter() {
  Fiber& fiber = *fibers[threadIdx.x];
  run_thread(body);
  fiber.done = true;
  swapcontext(&fiber.context, &scheduler);
}

// Waits until each thread of the warp has come as often as this one.
static void meet() {
  const unsigned self = threadIdx.x;
  Fiber& fiber = *fibers[self];
  const int64_t meeting = ++fiber.meetings;
  const unsigned first = self / kWarpSize * kWarpSize;
  for (unsigned other = first; other < first + kWarpSize; ++other) {
    while (fibers[other]->meetings < meeting) {
      if (fibers[other]->done) {
        throw std::runtime_error("a thread left its warp waiting");
      }
      swapcontext(&fiber.context, &scheduler);
    }
  }
}

// What executes a launch in place of the fibers, if it is set.
using Executor = void (*)(const char* name, const void* parameters, int64_t size,
    int64_t blocks, int64_t passes, int64_t threads, int64_t shared);
static Executor executor = nullptr;

template <auto kKernel>
const char* name() {
  return __PRETTY_FUNCTION__;
}

template <class F, class P>
void launch(const F& kernel, const char* name, const P& parameters, int64_t blocks,
    int64_t passes, int threads, int64_t bytes) {
  if (executor != nullptr) {
    return executor(
        name, &parameters, sizeof(parameters), blocks, passes, threads, bytes);
  }
  body = &kernel;
  run_thread = [](const void* f) { (*static_cast<const F*>(f))(); };
  blockDim = {static_cast<unsigned>(threads), 1};
  while (static_cast<int>(fibers.size()) < threads) {
    fibers.push_back(std::make_unique<Fiber>());
  }
  for (int64_t block = 0; block < blocks * passes; ++block) {
    blockIdx = {
        static_cast<unsigned>(block % blocks), static_cast<unsigned>(block / blocks)};
    const float nan = std::nanf("");
    shared.assign((bytes + 15) / 16, float4{nan, nan, nan, nan});
    for (int t = 0; t < threads; ++t) {
      Fiber& fiber = *fibers[t];
      fiber.done = false;
      fiber.meetings = 0;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, enter, 0);
    }
    for (bool running = true; running;) {
      running = false;
      // From the last to the first: what a thread needs of others is not there by luck.
      for (int t = threads - 1; t >= 0; --t) {
        if (!fibers[t]->done) {
          threadIdx = {static_cast<unsigned>(t), 0};
          swapcontext(&scheduler, &fibers[t]->context);
          running = running || !fibers[t]->done;
        }
      }
    }
  }
}

}  // namespace emulated

static void __syncwarp() {
  emulated::meet();
}

static float __shfl_xor_sync(unsigned, float x, int mask) {
  const unsigned self = threadIdx.x;
  emulated::exchanged[self] = x;
  emulated::meet();
  const float other = emulated::exchanged[self ^ mask];
  emulated::meet();
  return other;
}

#include "ms_deform_attn_cuda_launch.cuh"

extern "C" void mmattn_set_executor(emulated::Executor executor) {
  emulated::executor = executor;
}

STABLE_TORCH_LIBRARY(mmattn_emulated, library) {
  library.def(
      "ms_deform_attn_forward(Tensor value, Tensor points, Tensor weights, "
      "Tensor? reference, int[] shapes, Tensor(a!) out) -> ()");
  library.def(
      "ms_deform_attn_backward(Tensor grad, Tensor value, Tensor points, "
      "Tensor weights, Tensor? reference, int[] shapes, Tensor(a!) grad_value, "
      "Tensor(b!) grad_points, Tensor(c!) grad_weights, "
      "Tensor(d!)? grad_reference) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mmattn_emulated, CPU, library) {
  library.impl("ms_deform_attn_forward", TORCH_BOX(&mmattn::forward));
  library.impl("ms_deform_attn_backward", TORCH_BOX(&mmattn::backward));
}
