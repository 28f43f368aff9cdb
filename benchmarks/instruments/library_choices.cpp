#include "benchmarks/instruments/library_choices.hpp"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace tinyllama::instruments {
namespace {

struct Blas {
  const char* name;
  at::BlasBackend backend;
  Backend device;
};

// libtorch calls ROCm's libraries by the names of CUDA's.
constexpr Blas kBlas[] = {{"cublas", at::BlasBackend::Cublas, Backend::cuda},
                          {"cublaslt", at::BlasBackend::Cublaslt, Backend::cuda},
                          {"rocblas", at::BlasBackend::Cublas, Backend::hip},
                          {"hipblaslt", at::BlasBackend::Cublaslt, Backend::hip},
                          {"ck", at::BlasBackend::Ck, Backend::hip}};

struct Attention {
  const char* name;
  void (at::Context::*enable)(bool);
  bool (at::Context::*is_enabled)() const;
  bool on_cpu;
};

constexpr Attention kAttention[] = {
    {"flash", &at::Context::setSDPUseFlash, &at::Context::userEnabledFlashSDP, true},
    {"efficient", &at::Context::setSDPUseMemEfficient, &at::Context::userEnabledMemEfficientSDP,
     false},
    {"cudnn", &at::Context::setSDPUseCuDNN, &at::Context::userEnabledCuDNNSDP, false},
    {"math", &at::Context::setSDPUseMath, &at::Context::userEnabledMathSDP, true}};

[[noreturn]] void reject(const char* option, const std::string& name, const Device& device,
                         const std::vector<std::string>& allowed) {
  throw std::invalid_argument(fmt::format("{} '{}': must be one of {} on {}", option, name,
                                          fmt::join(allowed, ", "), to_string(device.backend())));
}

void choose_blas(const Device& device, const std::string& name) {
  std::vector<std::string> allowed{"default"};
  for (const Blas& blas : kBlas) {
    if (blas.device != device.backend()) continue;
    allowed.emplace_back(blas.name);
    if (blas.name != name) continue;
    try {
      return at::globalContext().setBlasPreferredBackend(blas.backend);
    } catch (const c10::Error& error) {
      throw std::invalid_argument(
          fmt::format("--blas '{}': {}", name, error.what_without_backtrace()));
    }
  }
  if (name != "default") reject("--blas", name, device, allowed);
}

void choose_attention(const Device& device, const std::string& name) {
  if (name == "default") return;
  std::vector<std::string> allowed{"default"};
  for (const Attention& attention : kAttention) {
    if (device.is_gpu() || attention.on_cpu) allowed.emplace_back(attention.name);
  }
  if (std::ranges::count(allowed, name) == 0) reject("--sdpa-backend", name, device, allowed);
  for (const Attention& attention : kAttention)
    (at::globalContext().*attention.enable)(attention.name == name);
}

}  // namespace

void choose_libraries(const Device& device, const LibraryChoices& choices) {
  choose_blas(device, choices.blas);
  choose_attention(device, choices.attention);
  if (!device.is_gpu()) return;
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
}

std::string preferred_blas(const Device& device) {
  if (!device.is_gpu()) return {};
  const at::BlasBackend preferred = at::globalContext().blasPreferredBackend();
  const auto* const found = std::ranges::find_if(kBlas, [&](const Blas& blas) {
    return blas.backend == preferred && blas.device == device.backend();
  });
  return found != std::end(kBlas) ? found->name : "default";
}

std::map<std::string, std::string> library_settings(const Device& device) {
  std::vector<std::string> attention;
  for (const Attention& candidate : kAttention) {
    if ((device.is_gpu() || candidate.on_cpu) && (at::globalContext().*candidate.is_enabled)())
      attention.emplace_back(candidate.name);
  }
  std::map<std::string, std::string> settings{
      {"sdpa_backends", fmt::format("{}", fmt::join(attention, ","))}};
  if (!device.is_gpu()) return settings;
  const auto& context = at::globalContext();
  // Before libtorch 2.10 whether it is allowed, since then one of three ways, of which the first
  // allows it.
  const auto precision = [](auto option) {
    const bool is_reduced = std::is_same_v<decltype(option), bool> ? static_cast<int>(option) == 1
                                                                   : static_cast<int>(option) == 0;
    return is_reduced ? "own type" : "float32";
  };
  settings["blas"] = preferred_blas(device);
  settings["bf16_gemm_sums_in"] = precision(context.allowBF16ReductionCuBLAS());
  settings["f16_gemm_sums_in"] = precision(context.allowFP16ReductionCuBLAS());
  return settings;
}

}  // namespace tinyllama::instruments
