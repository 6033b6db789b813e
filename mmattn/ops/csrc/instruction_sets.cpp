#include "instruction_sets.h"

#include <torch/csrc/stable/library.h>

#include <cstdlib>
#include <cstring>

namespace mmattn {
namespace {

InstructionSet choose_set() {
#ifdef __x86_64__
  const char* const wanted = std::getenv("ATEN_CPU_CAPABILITY");
  const auto is = [&](const char* name) {
    return wanted != nullptr && std::strcmp(wanted, name) == 0;
  };
  // Processors with AVX2 have F16C, which old Clangs do not ask for.
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  if (has_avx512 && !is("avx2") && !is("default")) {
    return InstructionSet::kAvx512;
  }
  if (has_avx2 && !is("default")) {
    return InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kBaseline;
}

int64_t instruction_set_number() {
  return static_cast<int64_t>(instruction_set());
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet chosen = choose_set();
  return chosen;
}

bool has_pairs() {
#ifdef __x86_64__
  static const bool supported = __builtin_cpu_supports("avx512bf16");
  return supported && instruction_set() == InstructionSet::kAvx512;
#else
  return false;
#endif
}

}  // namespace mmattn

STABLE_TORCH_LIBRARY_IMPL(mmattn_extension, CompositeExplicitAutograd, library) {
  library.impl("instruction_set", TORCH_BOX(&mmattn::instruction_set_number));
}
