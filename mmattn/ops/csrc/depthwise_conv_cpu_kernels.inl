// Gradients of depthwise kernels for one instruction set.
namespace {

constexpr int kWidth = 2 * kLanes;  // channels at a time
constexpr int kTaps = 3;  // of a row of the kernels at a time

// Adds the products of some pixels of a row, from each tap's first on, and gradients.
MMATTN_INLINE void add_taps(const float* pixels, const float* grads, int64_t count,
    int64_t step, int64_t taps, float* sums, int64_t columns) {
  Floats s[kTaps][2] = {};
  for (int64_t i = 0; i < count; ++i, pixels += step * kWidth, grads += kWidth) {
    const Floats a = load(grads), b = load(grads + kLanes);
#pragma GCC unroll 3
    for (int t = 0; t < kTaps; ++t) {
      s[t][0] += a * load(pixels + t * kWidth);
      s[t][1] += b * load(pixels + t * kWidth + kLanes);
    }
  }
  for (int64_t t = 0; t < kTaps && t < taps; ++t, sums += columns) {
    store(sums, load(sums) + s[t][0]);
    store(sums + kLanes, load(sums + kLanes) + s[t][1]);
  }
}

template <class T>
void add_rows(const DepthwiseCall& call, int64_t begin, int64_t end) {
  const int64_t K = call.K, columns = call.columns;
  Buffer<float> pixels((call.W + 2 * call.padding + kTaps) * kWidth);
  Buffer<float> grads(call.out_W * kWidth), ones(call.out_W * kWidth);
  ones.fill(1);
  const auto read = [](const Tokens& map, int64_t b, int64_t y, int64_t c,
                        int64_t width, int64_t channels, float* to) {
    const T* from =
        static_cast<const T*>(map.data) + b * map.strides[0] + y * map.strides[1] + c;
    for (int64_t x = 0; x < width; ++x, from += map.strides[2]) {
      read_row(from, 1, channels, to + x * kWidth);
    }
  };
  for (int64_t i = 0; i < call.B * call.out_H; ++i) {
    const int64_t b = i / call.out_H, y = i % call.out_H;
    for (int64_t c = begin; c < end && c < call.C; c += kWidth) {
      const int64_t channels = call.C - c < kWidth ? call.C - c : kWidth;
      read(call.grad, b, y, c, call.out_W, channels, grads);
      add_taps(ones, grads, call.out_W, 1, 1, call.sums + K * K * columns + c, columns);
      for (int64_t tap = 0; tap < K; ++tap) {
        const int64_t row = y * call.stride + tap - call.padding;
        if (row < 0 || row >= call.H) {
          continue;
        }
        read(call.x, b, row, c, call.W, channels, pixels + call.padding * kWidth);
        for (int64_t j = 0; j < K; j += kTaps) {
          float* const to = call.sums + (tap * K + j) * columns + c;
          add_taps(
              pixels + j * kWidth, grads, call.out_W, call.stride, K - j, to, columns);
        }
      }
    }
  }
}

}  // namespace

// Adds up the gradients of some channels, 32 in a task.
void depthwise_weight_gradient(const DepthwiseCall& call, int64_t begin, int64_t end) {
  with_type_of(call.x.storage,
      [&](auto x) { add_rows<decltype(x)>(call, 32 * begin, 32 * end); });
}
