// What libtorch's profiler sees of the fake GPU: Kineto takes further profilers, and this one says
// kernels and copies on the device and the calls of the runtime on the host, linked to each other
// and to the operators that made them.
#include <libkineto.h>
#include <output_base.h>

#include <sys/syscall.h>
#include <unistd.h>
#include <mutex>

#include "tests/fakes/gpu/fake_gpu.hpp"

namespace fake_gpu {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

constexpr char kName[] = "fake GPU";
const libkineto::TraceSpan kSpan(0, 0, kName);

struct Noted {
  std::string name;
  ActivityType type;
  int64_t begin_ns, end_ns;
  c10::DeviceIndex device;
  c10::StreamId stream;
  int thread;
};

struct Recording {
  std::mutex mutex;
  bool is_on = false;
  std::vector<Noted> noted;
};

Recording& recording() {
  static auto& only = *new Recording;
  return only;
}

/// Kineto's clock counts from the epoch.
int64_t since_epoch(Clock::time_point time) {
  static const auto distance =
      std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
  const auto since = time.time_since_epoch() + distance;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    const std::lock_guard lock(recording().mutex);
    recording().noted.clear();
    recording().is_on = true;
  }
  void stop() override {
    const std::lock_guard lock(recording().mutex);
    recording().is_on = false;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = kSpan;
    buffer_->gpuOpCount = 0;
    const std::lock_guard lock(recording().mutex);
    int32_t id = 0;
    for (const Noted& noted : recording().noted) {
      buffer_->emplace_activity(buffer_->span, noted.type, noted.name);
      GenericTraceActivity& activity = *buffer_->activities.back();
      const bool is_call = noted.type == ActivityType::CUDA_RUNTIME;
      activity.startTime = noted.begin_ns;
      activity.endTime = noted.end_ns;
      activity.id = ++id;
      activity.device = is_call ? getpid() : noted.device;
      activity.resource = is_call ? noted.thread : static_cast<int32_t>(noted.stream);
      activity.threadId = noted.thread;
      activity.log(logger);
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

 private:
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    if (!wanted.contains(ActivityType::CONCURRENT_KERNEL)) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  std::string name_ = kName;
  std::set<ActivityType> activities_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                        ActivityType::CUDA_RUNTIME};
};

struct Register {
  Register() {
    libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
  }
} const registered;

void note(Noted noted) {
  const std::lock_guard lock(recording().mutex);
  if (recording().is_on) recording().noted.push_back(std::move(noted));
}

int thread_id() {
  return static_cast<int>(::syscall(SYS_gettid));
}

}  // namespace

void note_work(const c10::Stream& stream, const std::string& name, Work kind,
               Clock::time_point begin, Clock::time_point end) {
  const bool is_kernel = kind == Work::kernel;
  std::string text = name;
  if (kind == Work::copy_to_device) text = "Memcpy HtoD (Pageable -> Device)";
  if (kind == Work::copy_to_host) text = "Memcpy DtoH (Device -> Pageable)";
  if (kind == Work::copy_on_device) text = "Memcpy DtoD (Device -> Device)";
  note({text, is_kernel ? ActivityType::CONCURRENT_KERNEL : ActivityType::GPU_MEMCPY,
        since_epoch(begin), since_epoch(end), stream.device_index(), stream.id(), thread_id()});
}

void note_call(const std::string& name, Clock::time_point begin, Clock::time_point end) {
  note({(settings().is_nvidia ? "cuda" : "hip") + name, ActivityType::CUDA_RUNTIME,
        since_epoch(begin), since_epoch(end), 0, 0, thread_id()});
}

}  // namespace fake_gpu
