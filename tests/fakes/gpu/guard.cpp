// Devices, streams and events.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/fakes/gpu/fake_gpu.hpp"

namespace fake_gpu {
namespace {

constexpr c10::StreamId kDefaultStream = 0;

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> stream_of_thread;

/// When the last work of each stream is done.
struct Timelines {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Clock::time_point> done;
};

Timelines& timelines() {
  static auto& all = *new Timelines;  // outlives what other destructors still free
  return all;
}

Clock::time_point done_of(const c10::Stream& stream) {
  Timelines& all = timelines();
  const std::lock_guard lock(all.mutex);
  return all.done[{stream.device_index(), stream.id()}];
}

void not_before(const c10::Stream& stream, Clock::time_point time) {
  Timelines& all = timelines();
  const std::lock_guard lock(all.mutex);
  auto& done = all.done[{stream.device_index(), stream.id()}];
  done = std::max(done, time);
}

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device), id);
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : device_of_thread;
}

void check_index(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < settings().devices, "device ", int{device}, " of ",
              settings().devices, ": invalid device ordinal");
}

c10::Stream new_stream(c10::Device device) {
  static std::atomic<c10::StreamId> last = kDefaultStream;
  return stream_of(index_of(device), ++last);
}

struct Event {
  bool is_timed;
  c10::DeviceIndex device;
  Clock::time_point done = {};
  bool is_captured = false;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(settings().devices);
  }
  c10::Device getDevice() const override { return {c10::kCUDA, device_of_thread}; }
  void setDevice(c10::Device device) const override {
    check_index(device.index());
    // whatever state the device is in: libtorch's threads do this where nothing catches
    device_of_thread = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    device_of_thread = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device != before) setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(index_of(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), kDefaultStream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return new_stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return new_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    stream_of_thread[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override {
    refuse_in_capture("whether a stream is done");
    check_alive();
    return Clock::now() >= done_of(stream);
  }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(stream); }
  bool isStreamCapturing(const c10::Stream& stream) const override { return is_captured(stream); }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    refuse_in_capture("waiting for the device");
    check_alive();
    ++counts().waits;
    Clock::time_point last;
    {
      Timelines& all = timelines();
      const std::lock_guard lock(all.mutex);
      for (const auto& [stream, done] : all.done) {
        if (stream.first == device) last = std::max(last, done);
      }
    }
    const auto begin = Clock::now();
    std::this_thread::sleep_until(last);
    note_call("DeviceSynchronize", begin, Clock::now());
  }

  void record(void** handle, const c10::Stream& stream, c10::DeviceIndex device,
              c10::EventFlag flag) const override {
    check_alive();
    TORCH_CHECK(device == -1 || device == stream.device_index(), "an event of device ", int{device},
                " cannot be recorded on device ", int{stream.device_index()});
    if (*handle == nullptr) {
      *handle = new Event{.is_timed = flag == c10::EventFlag::BACKEND_DEFAULT,
                          .device = stream.device_index()};
    }
    auto& event = *static_cast<Event*>(*handle);
    event.is_captured = is_captured(stream);
    event.done = std::max(Clock::now(), done_of(stream));
    ++counts().events;
  }
  void destroyEvent(void* handle, c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<Event> owned(static_cast<Event*>(handle));
  }
  void block(void* handle, const c10::Stream& stream) const override {
    if (handle == nullptr) return;
    const auto& event = *static_cast<Event*>(handle);
    if (event.is_captured != is_captured(stream)) {
      refuse_in_capture("a stream that is captured and one that is not depend on each other");
    }
    not_before(stream, event.done);
  }
  bool queryEvent(void* handle) const override {
    if (handle == nullptr) return true;
    refuse_in_capture("whether an event is done");
    check_alive();
    return Clock::now() >= static_cast<Event*>(handle)->done;
  }
  void synchronizeEvent(void* handle) const override {
    refuse_in_capture("waiting for an event");
    check_alive();
    ++counts().waits;
    if (handle != nullptr) std::this_thread::sleep_until(static_cast<Event*>(handle)->done);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    check_alive();
    TORCH_CHECK(first != nullptr && second != nullptr,
                "invalid resource handle: both events must be recorded");
    const auto &begin = *static_cast<Event*>(first), &end = *static_cast<Event*>(second);
    TORCH_CHECK(begin.is_timed && end.is_timed,
                "invalid resource handle: both events must be made to time");
    TORCH_CHECK(begin.device == end.device, "invalid resource handle: events of two devices");
    TORCH_CHECK(!begin.is_captured && !end.is_captured,
                "operation not permitted on an event last recorded in a capturing stream");
    TORCH_CHECK(Clock::now() >= begin.done && Clock::now() >= end.done, "device not ready");
    static std::atomic<int64_t> pairs = 0;
    const int64_t every = settings().backward_events;
    if (every > 0 && ++pairs % every == 0) return -1.78;  // as seen (ROCm/rocm-libraries#6379)
    return std::chrono::duration<double, std::milli>(end.done - begin.done).count();
  }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return settings().devices > 0; }
  bool hasCUDA() const override { return true; }
  bool hasROCM() const override { return !settings().is_nvidia; }
  bool hasCuBLASLt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return settings().devices; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator only = at::detail::createCPUGenerator();
    return only;
  }
  c10::DeviceIndex deviceCount() const override { return Guard().deviceCount(); }
  c10::DeviceIndex current_device() const override { return device_of_thread; }
  c10::DeviceIndex getCurrentDevice() const override { return device_of_thread; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    Guard().setDevice({c10::kCUDA, device});
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({c10::kCUDA, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    Guard().synchronizeDevice(device);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace

c10::DeviceIndex current_device() {
  return device_of_thread;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return stream_of(device, stream_of_thread[device]);
}

void launch(const c10::Stream& stream, const std::string& name, Work kind,
            std::function<void()> work) {
  check_alive();
  if (is_captured(stream)) return keep_step(name, kind, std::move(work));
  const auto begin = Clock::now();
  launch_replayed(stream, name, kind, work);
  note_call(kind == Work::kernel ? "LaunchKernel" : "MemcpyAsync", begin, Clock::now());
}

void launch_replayed(const c10::Stream& stream, const std::string& name, Work kind,
                     const std::function<void()>& work) {
  check_alive();
  const int64_t number = ++(kind == Work::kernel ? counts().kernels : counts().copies);
  if (kind == Work::kernel && number == settings().hang_at)
    std::this_thread::sleep_until(Clock::time_point::max());
  if (kind == Work::kernel && name.find(settings().fault_kernel) != name.npos) ++counts().suspects;
  const auto begin = Clock::now();
  {
    const at::DisableRecordFunctionGuard unseen;  // the CPU's operators that do it
    work();
  }
  const auto took = Clock::now() - begin + settings().kernel_time;
  const auto start = std::max(begin, done_of(stream));
  not_before(stream, start + took);
  note_work(stream, name, kind, start, start + took);
}

void wait_for(const c10::Stream& stream) {
  refuse_in_capture("waiting for a stream");
  check_alive();
  ++counts().waits;
  const auto begin = Clock::now();
  std::this_thread::sleep_until(done_of(stream));
  note_call("StreamSynchronize", begin, Clock::now());
}

}  // namespace fake_gpu

// The registry pastes the class's name.
namespace at {
using FakeGpuHooks = fake_gpu::Hooks;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeGpuHooks)
}  // namespace at
