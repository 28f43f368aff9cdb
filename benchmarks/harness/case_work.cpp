#include "benchmarks/harness/case_work.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/memory_meter.hpp"

namespace tinyllama::harness {

AllocationLimit::AllocationLimit(int64_t bytes)
    : before_(instruments::host_allocator::set_limit(bytes)) {}

AllocationLimit::~AllocationLimit() {
  instruments::host_allocator::set_limit(before_);
}

std::string failure_of(const instruments::Device& device, int64_t memory_limit_bytes,
                       const std::function<void()>& step) {
  try {
    const AllocationLimit limit(device.is_gpu() ? 0 : memory_limit_bytes);
    step();
    return {};
  } catch (const c10::OutOfMemoryError& error) {
    return fmt::format("out of memory: {}", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return "out of memory: the system refused an allocation";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

CaseWork build_work(const instruments::Device& device, const Case& planned, uint64_t seed,
                    const Weights* weights) {
  CaseWork work;
  work.foreign_bytes = instruments::MemoryMeter(device).read().live_bytes;
  instruments::MemoryMeter memory(device);
  memory.start();
  work.item = planned.component->build(
      {planned.workload, planned.pass, seed, device.torch(), weights, std::nullopt});
  work.build_peak_bytes = memory.read().peak_bytes - work.foreign_bytes;
  return work;
}

Metering meter_work(const instruments::Device& device, const Case& planned, const CaseWork& work) {
  Metering metering = meter(device, *work.item, work.foreign_bytes);
  // What a replayed step computes with lies in the pool of its graph, which the allocator counts as
  // free. The steps before the capture needed as much.
  if (planned.pass == Pass::train && planned.workload.variant.has(Switch::graph))
    metering.peak_bytes = std::max(metering.peak_bytes, work.build_peak_bytes);
  return metering;
}

std::string wrong_flops(const Case& planned, const Metering& metering) {
  const Cost cost = planned.cost();
  const auto& profile = metering.profile;
  const bool known = profile.unknown_operators.empty();
  if (!known || profile.product_flops == cost.hardware_flops - cost.opaque_flops) return {};
  return fmt::format("wrong FLOPs: hardware_flops by formula {}, counted by the profiler {}",
                     cost.hardware_flops, profile.product_flops + cost.opaque_flops);
}

}  // namespace tinyllama::harness
