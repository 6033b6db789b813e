// Storage types of tensors, which the kernels read and write.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "sampling.h"

namespace mmattn {

enum class Storage : int32_t { kDouble, kFloat, kHalf, kBFloat16 };

// Tokens (B, N, M, D), of any strides.
struct Tokens {
  void* data;
  Storage storage;
  int64_t strides[4];
};

namespace {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

template <class To, class From>
MMATTN_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

template <class T>
MMATTN_INLINE T widen(T x) {
  return x;
}

MMATTN_INLINE float widen(BFloat16 x) {
  return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

MMATTN_INLINE float widen(Half x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x.bits));
#else
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  const uint32_t special = magnitude >= 0x0f800000 ? 0x7f800000 : 0;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const float scaled = bit_cast<float>(magnitude) * 0x1p112f;
  return bit_cast<float>(bit_cast<uint32_t>(scaled) | special | sign);
#endif
}

MMATTN_INLINE void narrow(double x, double& to) {
  to = x;
}

MMATTN_INLINE void narrow(float x, float& to) {
  to = x;
}

MMATTN_INLINE void narrow(float x, double& to) {
  to = x;
}

MMATTN_INLINE void narrow(float x, BFloat16& to) {
#ifdef __CUDA_ARCH__
  to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t nearest_even = bits + 0x7fff + ((bits >> 16) & 1);
  to.bits = x != x ? 0x7fc0 : static_cast<uint16_t>(nearest_even >> 16);
#endif
}

MMATTN_INLINE void narrow(float x, Half& to) {
#ifdef __CUDA_ARCH__
  to.bits = __half_as_ushort(__float2half_rn(x));
#else
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00;
  } else if (magnitude >= 0x47800000) {  // 65536: infinity in half precision
    half = 0x7c00;
  } else if (magnitude < 0x38800000) {  // below 2^-14 a step is 2^-24, as of 0.5
    half = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  } else {
    half = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  }
  to.bits = static_cast<uint16_t>(half | ((bits >> 16) & 0x8000));
#endif
}

template <class T>
MMATTN_INLINE void narrow(double x, T& to) {
  narrow(static_cast<float>(x), to);
}

// A number of any storage type.
MMATTN_INLINE float load_one(const void* from, Storage storage, int64_t i) {
  switch (storage) {
    case Storage::kDouble:
      return static_cast<float>(static_cast<const double*>(from)[i]);
    case Storage::kFloat:
      return static_cast<const float*>(from)[i];
    case Storage::kHalf:
      return widen(static_cast<const Half*>(from)[i]);
    default:
      return widen(static_cast<const BFloat16*>(from)[i]);
  }
}

MMATTN_INLINE void store_one(float x, Storage storage, int64_t i, void* to) {
  switch (storage) {
    case Storage::kDouble:
      return narrow(x, static_cast<double*>(to)[i]);
    case Storage::kFloat:
      return narrow(x, static_cast<float*>(to)[i]);
    case Storage::kHalf:
      return narrow(x, static_cast<Half*>(to)[i]);
    default:
      return narrow(x, static_cast<BFloat16*>(to)[i]);
  }
}

// A run of numbers.
template <class A, class T>
MMATTN_INLINE void load_as(const void* from, int64_t first, int64_t count, A* to) {
  const T* source = static_cast<const T*>(from) + first;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<A>(widen(source[i]));
  }
}

template <class A>
MMATTN_INLINE void load(
    const void* from, Storage storage, int64_t first, int64_t count, A* to) {
  switch (storage) {
    case Storage::kDouble:
      return load_as<A, double>(from, first, count, to);
    case Storage::kFloat:
      return load_as<A, float>(from, first, count, to);
    case Storage::kHalf:
      return load_as<A, Half>(from, first, count, to);
    case Storage::kBFloat16:
      return load_as<A, BFloat16>(from, first, count, to);
  }
}

template <class A, class T>
MMATTN_INLINE void store_as(const A* from, int64_t first, int64_t count, void* to) {
  T* target = static_cast<T*>(to) + first;
  for (int64_t i = 0; i < count; ++i) {
    narrow(from[i], target[i]);
  }
}

template <class A>
MMATTN_INLINE void store(
    const A* from, Storage storage, int64_t first, int64_t count, void* to) {
  switch (storage) {
    case Storage::kDouble:
      return store_as<A, double>(from, first, count, to);
    case Storage::kFloat:
      return store_as<A, float>(from, first, count, to);
    case Storage::kHalf:
      return store_as<A, Half>(from, first, count, to);
    case Storage::kBFloat16:
      return store_as<A, BFloat16>(from, first, count, to);
  }
}

}  // namespace
}  // namespace mmattn
