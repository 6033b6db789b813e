// The forward of the CPU kernels: a list of pixels and weights, then their sum.
namespace {

template <class A, class T>
struct Tap {
  const T* pixel;
  A weight;
};

// Sums the channels from one on, kVectors vectors at a time and then fewer.
template <class A, class T, int kVectors = 4>
void weigh(
    const Buffer<Tap<A, T>>& taps, int64_t count, int64_t channel, int64_t D, A* out) {
  constexpr int64_t kStep = kVectors * kLanesOf<A>;
  for (; channel + kStep <= D; channel += kStep) {
    Vector<A> sums[kVectors] = {};
    for (int64_t i = 0; i < count; ++i) {
      const T* const pixel = taps[i].pixel + channel;
      const A weight = taps[i].weight;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[v] += weight * load_vector<A, T>(pixel + v * kLanesOf<A>);
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store_vector(out + channel + v * kLanesOf<A>, sums[v]);
    }
  }
  if constexpr (kVectors > 1) {
    return weigh<A, T, kVectors / 2>(taps, count, channel, D, out);
  }
  for (; channel < D; ++channel) {
    A sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      sum += taps[i].weight * static_cast<A>(taps[i].pixel[channel]);
    }
    out[channel] = sum;
  }
}

template <class A, class T>
void forward(const Call& call, int64_t begin, int64_t end) {
  const Sizes& sizes = call.sizes;
  Samples<A> samples(call);
  Buffer<Tap<A, T>> taps(4 * samples.count());
  Buffer<A> out(sizes.D);
  T* const all_out = static_cast<T*>(call.out.data);
  for (int64_t row = begin; row < end; ++row) {
    const T* image =
        static_cast<const T*>(call.value.data) + row / sizes.Q * sizes.value_strides[0];
    for (int64_t m = 0; m < sizes.M; ++m) {
      const T* value = image + m * sizes.value_strides[2];
      samples.read(row, m);
      int64_t count = 0;
      for (int64_t i = 0; i < samples.count(); ++i) {
        const Corners<A>& corners = samples.corners[i];
        for (int k = 0; k < 4; ++k) {
          taps[count].pixel = value + corners.pixel[k] * sizes.value_strides[1];
          taps[count].weight = samples.weights[i] * corners.weight(k);
          count += corners.pixel[k] >= 0;
        }
      }
      weigh<A, T>(taps, count, 0, sizes.D, out);
      store_as<A, T>(out, 0, sizes.D, all_out + (row * sizes.M + m) * sizes.D);
    }
  }
}

}  // namespace
