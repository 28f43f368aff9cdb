#include "benchmarks/instruments/kineto_session.hpp"

#include <cstdlib>
#include <set>

namespace tinyllama::instruments {
namespace {

// libkineto's numbers of CONCURRENT_KERNEL and GPU_MEMCPY (kineto/ActivityType.h, which not every
// libtorch installs).
constexpr uint8_t kConcurrentKernel = 5;
constexpr uint8_t kDeviceCopy = 3;

// Kineto writes two lines to standard error for each recording, of a level above its errors. Read
// when Kineto starts; a level that the user chose stays.
void quiet_kineto() {
  ::setenv("KINETO_LOG_LEVEL", "6", /*overwrite=*/0);
}

}  // namespace

KinetoSession::KinetoSession(const Device& device, const KinetoDetail& detail) : device_(device) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     detail.shapes, detail.memory,
                                                     /*with_stack=*/false, detail.flops);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_gpu()) activities.insert(ActivityType::CUDA);
  quiet_kineto();
  device.synchronize();
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

KinetoSession::~KinetoSession() {
  if (running_) torch::autograd::profiler::disableProfiler();
}

std::unique_ptr<torch::autograd::profiler::ProfilerResult> KinetoSession::stop() {
  device_.synchronize();
  running_ = false;
  return torch::autograd::profiler::disableProfiler();
}

bool is_kernel(const torch::autograd::profiler::KinetoEvent& event, const Device& device) {
  return device.is_gpu() && event.deviceType() == device.torch().type() &&
         event.activityType() == kConcurrentKernel;
}

bool is_device_copy(const torch::autograd::profiler::KinetoEvent& event, const Device& device) {
  return device.is_gpu() && event.deviceType() == device.torch().type() &&
         event.activityType() == kDeviceCopy;
}

}  // namespace tinyllama::instruments
