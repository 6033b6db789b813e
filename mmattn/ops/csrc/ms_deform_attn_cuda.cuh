// Multi-scale deformable attention on GPUs: the kernels. A group of lanes of one warp
// takes a query and a head. Each lane finds the pixels and weights of a sample, in shared
// memory. Then each lane takes a packet of channels of every pixel, 16 bytes where
// alignment allows.
#pragma once

#include <type_traits>

#include "sampling.h"

namespace mmattn {

constexpr int kMaxLevels = 16;
constexpr int kMinLanes = 4;  // the reduction of four products requires these
constexpr int kWarp = 32;
constexpr int kPadding = 1;  // samples between groups, which would begin in one bank

namespace {

struct Parameters : SamplingCall {
  Level<float> levels[kMaxLevels];
  int32_t lanes;  // size of a group, a power of two
};

// Samples of a group in shared memory.
struct Sample {
  float4 place;  // weights of the corners; in the backward weight, fx, fy
  int4 pixels;
};

template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Packet {
  T items[kWidth];
};

// Numbers that were loaded together. They stay in words of 32 bits where they can: from
// 16-bit numbers the compiler would first cut each out.
template <class T, int kWidth>
struct Loaded {
  static constexpr int kBytes = kWidth * sizeof(T);
  using Word = std::conditional_t<kBytes % 4 == 0, uint32_t, uint16_t>;
  alignas(kBytes) Word words[kBytes / sizeof(Word)];

  __device__ __forceinline__ float operator[](int c) const {
    if constexpr (sizeof(Word) == sizeof(T)) {
      return bit_cast<T>(words[c]);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      return bit_cast<float>(c % 2 ? words[c / 2] & 0xffff0000 : words[c / 2] << 16);
    } else {
      return T(static_cast<uint16_t>(words[c / 2] >> c % 2 * 16), T::from_bits());
    }
  }
};

struct Item {
  int64_t index, row;  // in (B, Q, M) and in (B, Q)
  int64_t image, head;
  int32_t lane;
  bool active;  // the last block has groups without an item, which follow
};

__device__ __forceinline__ Item find_item(const Parameters& p) {
  Item item;
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  item.lane = threadIdx.x & (p.lanes - 1);
  item.index = thread / p.lanes;
  item.active = item.index < p.sizes.B * p.sizes.Q * p.sizes.M;
  item.index = item.active ? item.index : 0;
  item.row = item.index / p.sizes.M;
  item.head = item.index - item.row * p.sizes.M;
  item.image = item.row / p.sizes.Q;
  return item;
}

__device__ __forceinline__ float sum_of_group(float x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffff, x, step);
  }
  return x;
}

__device__ __forceinline__ Reference<float> load_reference(
    const Parameters& p, const Item& item, int level) {
  Reference<float> reference{0, 0, 0, 0};
  if (p.sizes.form == Form::kLocations) {
    return reference;
  }
  const bool boxes = p.sizes.form == Form::kReferenceBoxes;
  const int64_t of_level = p.sizes.reference_levels == 1 ? 0 : level;
  const int64_t first =
      (item.row * p.sizes.reference_levels + of_level) * (boxes ? 4 : 2);
  reference.x = load_one(p.reference, first);
  reference.y = load_one(p.reference, first + 1);
  if (boxes) {
    reference.w = load_one(p.reference, first + 2);
    reference.h = load_one(p.reference, first + 3);
  }
  return reference;
}

// Fills the group's samples for the forward or the backward.
template <bool kBackward>
__device__ __forceinline__ void find_samples(
    const Parameters& p, const Item& item, Sample* samples) {
  const int count = static_cast<int>(p.sizes.L * p.sizes.P);
  const int per_level = static_cast<int>(p.sizes.P);
  const int64_t first = item.index * count;
  float largest = 0, scale = 1;
  const bool normalize = p.sizes.form != Form::kLocations;
  if (normalize) {
    largest = -INFINITY;
    for (int i = item.lane; i < count; i += p.lanes) {
      largest = fmaxf(largest, load_one(p.weights, first + i));
    }
    for (int step = p.lanes / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
    }
    float sum = 0;
    for (int i = item.lane; i < count; i += p.lanes) {
      sum += expf(load_one(p.weights, first + i) - largest);
    }
    scale = 1 / sum_of_group(sum, p.lanes);
  }
  for (int i = item.lane; i < count; i += p.lanes) {
    const int level = i / per_level;
    const int64_t point = 2 * (first + i);
    const Corners<float> corners = find_corners(p.sizes.form, load_one(p.points, point),
        load_one(p.points, point + 1), load_reference(p, item, level), p.levels[level],
        static_cast<float>(per_level));
    float weight = load_one(p.weights, first + i);
    weight = normalize ? expf(weight - largest) * scale : weight;
    samples[i].pixels = make_int4(
        corners.pixel[0], corners.pixel[1], corners.pixel[2], corners.pixel[3]);
    samples[i].place = kBackward
        ? make_float4(weight, corners.fx, corners.fy, corners.inside ? 1.f : 0.f)
        : make_float4(weight * corners.weight(0), weight * corners.weight(1),
              weight * corners.weight(2), weight * corners.weight(3));
  }
  __syncwarp();
}

// Returns one of four numbers.
template <class Four>
__device__ __forceinline__ auto number_of(const Four& numbers, int i) {
  return i == 0 ? numbers.x : i == 1 ? numbers.y : i == 2 ? numbers.z : numbers.w;
}

template <class T, int kWidth>
__device__ __forceinline__ Loaded<T, kWidth> load_packet(const T* from, bool wanted) {
  Loaded<T, kWidth> packet{};
  if (wanted) {
    packet = *reinterpret_cast<const Loaded<T, kWidth>*>(from);
  }
  return packet;
}

// Each block of the grid's second axis takes as many channels as a group can hold.
template <class T, int kWidth>
__global__ void __launch_bounds__(128, 5)
    forward_kernel(const __grid_constant__ Parameters p) {
  MMATTN_SHARED(Sample, all_samples);
  const Item item = find_item(p);
  const int count = static_cast<int>(p.sizes.L * p.sizes.P);
  Sample* samples = all_samples + threadIdx.x / p.lanes * (count + kPadding);
  find_samples<false>(p, item, samples);
  const int64_t channel = (int64_t(blockIdx.y) * p.lanes + item.lane) * kWidth;
  if (!item.active || channel >= p.sizes.D) {
    return;
  }
  const T* value = static_cast<const T*>(p.value.data) +
      item.image * p.sizes.value_strides[0] + item.head * p.sizes.value_strides[2] +
      channel;
  float sums[kWidth] = {};
#pragma unroll 2
  for (int i = 0; i < count; ++i) {
    const Sample sample = samples[i];
    Loaded<T, kWidth> packets[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int pixel = number_of(sample.pixels, k);
      packets[k] =
          load_packet<T, kWidth>(value + pixel * p.sizes.value_strides[1], pixel >= 0);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      // A weight that is not finite times 0, of a pixel outside, would be NaN.
      const float weight =
          number_of(sample.pixels, k) < 0 ? 0.f : number_of(sample.place, k);
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        sums[c] += weight * packets[k][c];
      }
    }
  }
  Packet<T, kWidth> out;
#pragma unroll
  for (int c = 0; c < kWidth; ++c) {
    out.items[c] = static_cast<T>(sums[c]);
  }
  *reinterpret_cast<Packet<T, kWidth>*>(
      static_cast<T*>(p.out.data) + item.index * p.sizes.D + channel) = out;
}

template <int kWidth>
__device__ __forceinline__ void add_packet(
    float* to, float weight, const float (&packet)[kWidth]) {
  int c = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#pragma unroll
  for (; c + 4 <= kWidth; c += 4) {
    atomicAdd(reinterpret_cast<float4*>(to + c),
        make_float4(weight * packet[c], weight * packet[c + 1], weight * packet[c + 2],
            weight * packet[c + 3]));
  }
#endif
#pragma unroll
  for (; c < kWidth; ++c) {
    atomicAdd(to + c, weight * packet[c]);
  }
}

// Sums four numbers over a group. Lane 2 * (k & 1) + (k >> 1) gets number k, as do
// those a multiple of four lanes away.
__device__ __forceinline__ float sum_four(
    float x0, float x1, float x2, float x3, int lane, int lanes) {
  const bool upper = lane & 1, odd = lane & 2;
  const float even_sum =
      (upper ? x2 : x0) + __shfl_xor_sync(0xffffffff, upper ? x0 : x2, 1);
  const float odd_sum =
      (upper ? x3 : x1) + __shfl_xor_sync(0xffffffff, upper ? x1 : x3, 1);
  float sum = (odd ? odd_sum : even_sum) +
      __shfl_xor_sync(0xffffffff, odd ? even_sum : odd_sum, 2);
  for (int step = 4; step < lanes; step *= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, step);
  }
  return sum;
}

// Adds to the gradient of value and stores the products of pixels and gradient.
template <class T, int kWidth, bool kOnePass>
__device__ __forceinline__ void scatter(
    const Parameters& p, const Item& item, const Sample* samples, float4* products) {
  const int count = static_cast<int>(p.sizes.L * p.sizes.P);
  const T* value = static_cast<const T*>(p.value.data) +
      item.image * p.sizes.value_strides[0] + item.head * p.sizes.value_strides[2];
  const T* grads = static_cast<const T*>(p.grad.data) + item.index * p.sizes.D;
  const int64_t pixel_size = p.sizes.M * p.sizes.D;
  float* grad_value = static_cast<float*>(p.grad_value.data) +
      (item.image * p.sizes.S * p.sizes.M + item.head) * p.sizes.D;
  const int64_t first = item.lane * kWidth, step = p.lanes * kWidth;
  float grad[kWidth];
  const auto load_grad = [&](int64_t channel) {
    const auto packet =
        load_packet<T, kWidth>(grads + channel, item.active && channel < p.sizes.D);
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      grad[c] = packet[c];
    }
  };
  load_grad(first);
  for (int i = 0; i < count; ++i) {
    const Sample sample = samples[i];
    const Corners<float> corners{{}, sample.place.y, sample.place.z, true};
    float sums[4] = {};
    for (int64_t channel = first; channel < p.sizes.D; channel += step) {
      if (!kOnePass) {
        load_grad(channel);
      }
      Loaded<T, kWidth> packets[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int pixel = number_of(sample.pixels, k);
        packets[k] =
            load_packet<T, kWidth>(value + pixel * p.sizes.value_strides[1] + channel,
                item.active && pixel >= 0);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int pixel = number_of(sample.pixels, k);
        if (item.active && pixel >= 0) {
          add_packet<kWidth>(grad_value + pixel * pixel_size + channel,
              sample.place.x * corners.weight(k), grad);
#pragma unroll
          for (int c = 0; c < kWidth; ++c) {
            sums[k] += grad[c] * packets[k][c];
          }
        }
      }
      if (kOnePass) {
        break;
      }
    }
    const float sum = sum_four(sums[0], sums[1], sums[2], sums[3], item.lane, p.lanes);
    if (item.lane < 4) {
      const int k = 2 * (item.lane & 1) + (item.lane >> 1);
      reinterpret_cast<float*>(products + i)[k] = sum;
    }
  }
  __syncwarp();
}

// Writes the gradients of points, weights and reference from the products.
__device__ __forceinline__ void finish(
    const Parameters& p, const Item& item, Sample* samples, float4* products) {
  const int count = static_cast<int>(p.sizes.L * p.sizes.P);
  const int per_level = static_cast<int>(p.sizes.P);
  const int64_t first = item.index * count;
  float mean = 0;  // mean of the gradients of the weights
  for (int i = item.lane; i < count; i += p.lanes) {
    const float4 place = samples[i].place;
    const int level = i / per_level;
    const bool inside = place.w != 0;
    const Corners<float> corners{{}, place.y, place.z, inside};
    const float of_pixels[4] = {
        products[i].x, products[i].y, products[i].z, products[i].w};
    const SampleGradient<float> sample = sample_gradient(corners, of_pixels);
    PointGradient<float> point{0, 0, {0, 0, 0, 0}};
    if (inside) {
      point = point_gradient(p.sizes.form, place.x * sample.x, place.x * sample.y,
          load_one(p.points, 2 * (first + i)), load_one(p.points, 2 * (first + i) + 1),
          load_reference(p, item, level), p.levels[level],
          static_cast<float>(per_level));
    }
    const float grad_weight = inside ? sample.value : 0.f;
    mean += place.x * grad_weight;
    samples[i].place.y = grad_weight;
    products[i] = make_float4(
        point.reference.x, point.reference.y, point.reference.w, point.reference.h);
    if (item.active) {
      store_one(point.x, 2 * (first + i), p.grad_points);
      store_one(point.y, 2 * (first + i) + 1, p.grad_points);
    }
  }
  const bool normalize = p.sizes.form != Form::kLocations;
  mean = sum_of_group(mean, p.lanes);
  for (int i = item.lane; item.active && i < count; i += p.lanes) {
    const float4 place = samples[i].place;
    const float grad = normalize ? place.x * (place.y - mean) : place.y;
    store_one(grad, first + i, p.grad_weights);
  }
  __syncwarp();
  if (!normalize || !item.active) {
    return;
  }
  const int sides = p.sizes.form == Form::kReferenceBoxes ? 4 : 2;
  const int numbers = static_cast<int>(p.sizes.reference_levels) * sides;
  const int samples_of_each = p.sizes.reference_levels == 1 ? count : per_level;
  for (int n = item.lane; n < numbers; n += p.lanes) {
    const float4* of_level = products + n / sides * samples_of_each;
    float sum = 0;
    for (int i = 0; i < samples_of_each; ++i) {
      sum += number_of(of_level[i], n % sides);
    }
    static_cast<float*>(p.grad_reference.data)[item.index * numbers + n] = sum;
  }
}

template <class T, int kWidth, bool kOnePass>
__global__ void __launch_bounds__(128, 5)
    backward_kernel(const __grid_constant__ Parameters p) {
  MMATTN_SHARED(Sample, all_samples);
  const Item item = find_item(p);
  const int places = static_cast<int>(p.sizes.L * p.sizes.P) + kPadding;
  const int groups = blockDim.x / p.lanes, group = threadIdx.x / p.lanes;
  Sample* samples = all_samples + group * places;
  float4* products =
      reinterpret_cast<float4*>(all_samples + groups * places) + group * places;
  find_samples<true>(p, item, samples);
  scatter<T, kWidth, kOnePass>(p, item, samples, products);
  finish(p, item, samples, products);
}

}  // namespace
}  // namespace mmattn
