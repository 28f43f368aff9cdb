// A file of its own, because the profiler's headers take long to compile.
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "benchmarks/instruments/operator_counter.hpp"

namespace tinyllama::instruments {
namespace {

/// Kineto lists kernels, copies, fills and annotations of the device alike; only the activity type
/// tells them apart.
bool is_kernel(const torch::autograd::profiler::KinetoEvent& event, c10::DeviceType device) {
  if (event.deviceType() != device) return false;
  // libkineto's number of CONCURRENT_KERNEL (kineto/ActivityType.h, which not every libtorch
  // installs).
  constexpr uint8_t concurrent_kernel = 5;
  return event.activityType() == concurrent_kernel;
}

}  // namespace

int64_t count_kernels(const Device& device, const std::function<void()>& work) {
  if (!device.is_gpu()) throw std::logic_error("count_kernels: a CPU launches no kernels");
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CPU, ActivityType::CUDA};
  device.synchronize();
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  try {
    work();
    device.synchronize();
  } catch (...) {
    profiler::disableProfiler();
    throw;
  }
  const auto result = profiler::disableProfiler();
  return std::ranges::count_if(
      result->events(), [&](const auto& event) { return is_kernel(event, device.torch().type()); });
}

}  // namespace tinyllama::instruments
