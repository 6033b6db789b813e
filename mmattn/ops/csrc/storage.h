// Storage types of tensors, which the kernels read and write.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <torch/headeronly/util/bit_cast.h>

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define MMATTN_INLINE __host__ __device__ __forceinline__
#else
#define MMATTN_INLINE inline __attribute__((always_inline))
#endif

namespace mmattn {

using c10::BFloat16, c10::bit_cast, c10::Half;

enum class Storage : int32_t { kDouble, kFloat, kHalf, kBFloat16 };

// Numbers side by side.
struct Array {
  void* data;
  Storage storage;
};

// Tokens (B, N, M, D), of any strides.
struct Tokens {
  void* data;
  Storage storage;
  int64_t strides[4];
};

namespace {

// Calls a function with a number of the storage type, which is not double.
template <class Function>
MMATTN_INLINE auto with_type_of(Storage storage, const Function& function) {
  switch (storage) {
    case Storage::kHalf:
      return function(Half());
    case Storage::kBFloat16:
      return function(BFloat16());
    default:
      return function(0.0f);
  }
}

// The same for any type.
template <class Function>
MMATTN_INLINE auto with_any_type_of(Storage storage, const Function& function) {
  return storage == Storage::kDouble ? function(0.0) : with_type_of(storage, function);
}

// A number of any storage type.
MMATTN_INLINE float load_one(const Array& from, int64_t i) {
  return with_any_type_of(from.storage, [&](auto x) {
    return static_cast<float>(static_cast<const decltype(x)*>(from.data)[i]);
  });
}

MMATTN_INLINE void store_one(float x, int64_t i, const Array& to) {
  with_any_type_of(to.storage,
      [&](auto y) { static_cast<decltype(y)*>(to.data)[i] = decltype(y)(x); });
}

// A run of numbers.
template <class A, class T>
MMATTN_INLINE void load_as(const void* from, int64_t first, int64_t count, A* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<A>(static_cast<const T*>(from)[first + i]);
  }
}

template <class A>
MMATTN_INLINE void load(
    const void* from, Storage storage, int64_t first, int64_t count, A* to) {
  with_any_type_of(
      storage, [&](auto x) { load_as<A, decltype(x)>(from, first, count, to); });
}

template <class A, class T>
MMATTN_INLINE void store_as(const A* from, int64_t first, int64_t count, void* to) {
  for (int64_t i = 0; i < count; ++i) {
    static_cast<T*>(to)[first + i] = static_cast<T>(from[i]);
  }
}

template <class A>
MMATTN_INLINE void store(
    const A* from, Storage storage, int64_t first, int64_t count, void* to) {
  with_any_type_of(
      storage, [&](auto x) { store_as<A, decltype(x)>(from, first, count, to); });
}

}  // namespace
}  // namespace mmattn
