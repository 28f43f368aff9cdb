#include "model/kernels/launch.hpp"

#include <ATen/Version.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace tinyllama::kernels {

// One namespace for each instruction set that CMakeLists.txt compiles for.
namespace isa_default {
RangeKernels make_table(const char* instruction_set);
}
#ifdef __x86_64__
namespace isa_x86_64_v3 {
RangeKernels make_table(const char* instruction_set);
}
namespace isa_x86_64_v4 {
RangeKernels make_table(const char* instruction_set);
}
namespace isa_x86_64_v4_bf16 {
RangeKernels make_table(const char* instruction_set);
}

namespace {

bool has_x86_64_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("movbe");
}

bool has_x86_64_v4() {
  return has_x86_64_v3() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace
#endif

const std::vector<RangeKernels>& available_range_kernels() {
  static const std::vector<RangeKernels> available = [] {
    std::vector<RangeKernels> tables;
#ifdef __x86_64__
    if (has_x86_64_v4() && __builtin_cpu_supports("avx512bf16"))
      tables.push_back(isa_x86_64_v4_bf16::make_table("x86-64-v4+bf16"));
    if (has_x86_64_v4()) tables.push_back(isa_x86_64_v4::make_table("x86-64-v4"));
    if (has_x86_64_v3()) tables.push_back(isa_x86_64_v3::make_table("x86-64-v3"));
#endif
    tables.push_back(isa_default::make_table("default"));
    return tables;
  }();
  return available;
}

const RangeKernels& range_kernels() {
  static const RangeKernels* const best = [] {
    const std::string allowed = at::get_cpu_capability();
    const auto& available = available_range_kernels();
    if (allowed.starts_with("AVX512")) return &available.front();
    const std::string_view most = allowed == "AVX2" ? "x86-64-v3" : "default";
    const auto found = std::ranges::find(available, most, [](const RangeKernels& kernels) {
      return std::string_view(kernels.instruction_set);
    });
    return found == available.end() ? &available.back() : &*found;
  }();
  return *best;
}

}  // namespace tinyllama::kernels
