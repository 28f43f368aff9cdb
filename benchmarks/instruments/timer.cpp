#include "benchmarks/instruments/timer.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <utility>

namespace tinyllama::instruments {
namespace {

std::vector<double> time_on_cpu(int64_t iterations, const std::function<void()>& prepare,
                                const std::function<void()>& run, TimePoint deadline) {
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(iterations));
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    prepare();
    const auto begin = std::chrono::steady_clock::now();
    run();
    const auto end = std::chrono::steady_clock::now();
    seconds.push_back(std::chrono::duration<double>(end - begin).count());
    if (end >= deadline) break;
  }
  return seconds;
}

std::vector<double> time_on_gpu(c10::Device device, int64_t iterations,
                                const std::function<void()>& prepare,
                                const std::function<void()>& run, TimePoint deadline,
                                int64_t runs) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  // Events that time (libtorch's default ones do not), recorded once so that their creation falls
  // outside the timed region.
  std::vector<std::pair<c10::Event, c10::Event>> events;
  for (int64_t index = 0; index < iterations; ++index) {
    auto& [begin, end] =
        events.emplace_back(c10::Event(device.type(), c10::EventFlag::BACKEND_DEFAULT),
                            c10::Event(device.type(), c10::EventFlag::BACKEND_DEFAULT));
    begin.record(stream);
    end.record(stream);
  }
  size_t recorded = 0;
  for (auto& [begin, end] : events) {
    prepare();
    begin.record(stream);
    for (int64_t i = 0; i < runs; ++i) run();
    end.record(stream);
    ++recorded;
    if (std::chrono::steady_clock::now() >= deadline) break;
  }
  while (events.size() > recorded) events.pop_back();
  guard.synchronizeDevice(device.index());
  std::vector<double> seconds;
  seconds.reserve(events.size());
  constexpr double milliseconds_to_seconds = 1e-3;
  for (const auto& [begin, end] : events) {
    const double elapsed = begin.elapsedTime(end) * milliseconds_to_seconds;
    seconds.push_back(elapsed / static_cast<double>(runs));
  }
  return seconds;
}

}  // namespace

std::vector<double> time_iterations(const Device& device, int64_t iterations,
                                    const std::function<void()>& prepare,
                                    const std::function<void()>& run, TimePoint deadline,
                                    int64_t runs) {
  if (device.is_gpu()) return time_on_gpu(device.torch(), iterations, prepare, run, deadline, runs);
  TORCH_INTERNAL_ASSERT(runs == 1, "a CPU's clock needs one run a sample");
  return time_on_cpu(iterations, prepare, run, deadline);
}

}  // namespace tinyllama::instruments
