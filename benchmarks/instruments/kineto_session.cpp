#include "benchmarks/instruments/kineto_session.hpp"

#include <cstdlib>
#include <exception>
#include <set>

namespace tinyllama::instruments {
namespace {

// libkineto's numbers (kineto/ActivityType.h, which not every libtorch installs).
constexpr uint8_t kHostOperator = 0;
constexpr uint8_t kUserAnnotation = 1;
constexpr uint8_t kConcurrentKernel = 5;
constexpr uint8_t kDeviceCopy = 3;
constexpr uint8_t kDeviceFill = 4;

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
  if (!running_) return;
  try {
    torch::autograd::profiler::disableProfiler();
  } catch (const std::exception&) {
    // Another error is on its way already.
  }
}

std::unique_ptr<torch::autograd::profiler::ProfilerResult> KinetoSession::stop() {
  device_.synchronize();  // where this throws, the destructor stops the recording
  running_ = false;
  return torch::autograd::profiler::disableProfiler();
}

bool is_kernel(const torch::autograd::profiler::KinetoEvent& event, const Device& device) {
  return device.is_gpu() && event.deviceType() == device.torch().type() &&
         event.activityType() == kConcurrentKernel;
}

bool is_device_work(const torch::autograd::profiler::KinetoEvent& event, const Device& device) {
  if (!device.is_gpu() || event.deviceType() != device.torch().type()) return false;
  const uint8_t type = event.activityType();
  return type == kConcurrentKernel || type == kDeviceCopy || type == kDeviceFill;
}

bool is_transfer(const torch::autograd::profiler::KinetoEvent& event, const Device& device) {
  if (!is_device_work(event, device) || event.activityType() != kDeviceCopy) return false;
  const std::string name = event.name();
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return has("HtoD") || has("DtoH") || has("HostToDevice") || has("DeviceToHost");
}

bool is_host_work(const torch::autograd::profiler::KinetoEvent& event) {
  const uint8_t type = event.activityType();
  return event.deviceType() == c10::DeviceType::CPU &&
         (type == kHostOperator || type == kUserAnnotation);
}

}  // namespace tinyllama::instruments
