#include "benchmarks/harness/metering.hpp"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>

#include "benchmarks/harness/failure.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/instruments/onednn_kernels.hpp"

namespace tinyllama::harness {
namespace {

// Whether `math` is the only backend allowed: --sdpa-backend math.
bool is_attention_by_math_wanted() {
  const auto& context = at::globalContext();
  return context.userEnabledMathSDP() && !context.userEnabledFlashSDP();
}

}  // namespace

CaseWork build_work(const instruments::Device& device, const Case& test_case, uint64_t seed,
                    const Weights* weights) {
  CaseWork work;
  finish_backwards(device);
  instruments::MemoryMeter memory(device);
  work.other_bytes = memory.read().live_bytes;
  memory.start();
  work.item = test_case.component->build(
      {test_case.workload, test_case.pass, seed, device.torch(), weights, std::nullopt});
  // What a replayed step computes with lies in the pool of its graph, which the allocator counts as
  // free. The steps before the capture needed as much.
  if (test_case.pass == Pass::train && test_case.workload.variant.has(Switch::graph))
    work.capture_peak_bytes = memory.read().peak_bytes - work.other_bytes;
  return work;
}

Metering meter(const instruments::Device& device, const CaseWork& work) {
  Metering metering;
  WorkItem& item = *work.item;
  finish_backwards(device);
  instruments::MemoryMeter memory(device);
  memory.start();
  item.prepare();
  const int64_t prepared_allocations = memory.read().allocations;
  const auto run = [&] {
    metering.operators = instruments::count_operators(
        [&] { metering.profile = instruments::profile_operators(device, [&] { item.run(); }); });
  };
  if (device.is_gpu())
    run();
  else
    metering.onednn_kernels = instruments::onednn_kernels(run);
  const auto reading = memory.read();
  metering.peak_bytes = std::max(reading.peak_bytes - work.other_bytes, work.capture_peak_bytes);
  metering.allocations = reading.allocations - prepared_allocations;
  metering.library_scratch_bytes = reading.scratch_peak_bytes;
  if (device.is_gpu() || !instruments::why_no_counts().empty()) return metering;
  // an iteration of its own: the profiler's instructions are not the work's
  item.prepare();
  metering.hardware = instruments::count_events([&] { item.run(); });
  return metering;
}

std::string wrong_flops(const Case& test_case, const Metering& metering) {
  const Cost cost = test_case.cost();
  const auto& profile = metering.profile;
  const auto& of_plugins = test_case.workload.variant.operators();
  for (const std::string& name : profile.unknown_operators) {
    if (of_plugins.empty() && instruments::is_gemm_like(name))
      return fmt::format("wrong FLOPs: {} may multiply matrices, and nobody counts its FLOPs",
                         name);
  }
  if (profile.attention_backend.starts_with("math")) {
    if (is_attention_by_math_wanted()) return {};
    return "sdpa was computed as a score matrix (libtorch's math backend), because no other "
           "backend takes this case; --sdpa-backend math asks for that";
  }
  // What an operator of a plug-in multiplies, and how, is its own.
  if (!of_plugins.empty()) return {};
  const bool known = profile.unknown_operators.empty();
  if (!known || profile.gemm_flops == cost.hardware_flops - cost.opaque_flops) return {};
  return fmt::format("wrong FLOPs: hardware_flops by formula {}, counted by the profiler {}",
                     cost.hardware_flops, profile.gemm_flops + cost.opaque_flops);
}

}  // namespace tinyllama::harness
