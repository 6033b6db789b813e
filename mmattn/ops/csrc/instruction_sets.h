// The instruction set of a processor, chosen when first asked for.
#pragma once

#include <cstdint>

namespace mmattn {

enum class InstructionSet : int64_t { kBaseline, kAvx2, kAvx512 };

// Returns the widest set that the processor and PyTorch's ATEN_CPU_CAPABILITY allow.
InstructionSet instruction_set();

// Whether that set is AVX-512 on a processor that multiplies pairs of bfloat16.
bool has_pairs();

}  // namespace mmattn

// The function of the chosen set, of a file that for_each_instruction_set.inl included.
#ifdef __x86_64__
#define MMATTN_DISPATCH(function)                                         \
  (instruction_set() == InstructionSet::kAvx512        ? avx512::function \
          : instruction_set() == InstructionSet::kAvx2 ? avx2::function   \
                                                       : baseline::function)
#else
#define MMATTN_DISPATCH(function) (baseline::function)
#endif

// Compile what stands between them for an instruction set.
#define MMATTN_PRAGMA(...) _Pragma(#__VA_ARGS__)
#ifdef __clang__
#define MMATTN_BEGIN_TARGET(set) \
  MMATTN_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define MMATTN_END_TARGET MMATTN_PRAGMA(clang attribute pop)
#else
#define MMATTN_BEGIN_TARGET(set)  \
  MMATTN_PRAGMA(GCC push_options) \
  MMATTN_PRAGMA(GCC target(set))
#define MMATTN_END_TARGET MMATTN_PRAGMA(GCC pop_options)
#endif
