#include "benchmarks/instruments/timer.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <stdexcept>

#include "core/statistics.hpp"

namespace tinyllama::instruments {

Marks::Marks(const Device& device, size_t expected) : device_(device.torch()) {
  // touched now, and not while it is timed
  if (device_.is_cpu()) times_.resize(expected);
  while (!device_.is_cpu() && events_.size() < expected) make_event();
}

// The first record is what creates it. libtorch's default events do not time.
void Marks::make_event() {
  events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  events_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

size_t Marks::add() {
  if (device_.is_cpu()) {
    if (count_ == times_.size()) times_.emplace_back();
    times_[count_] = Clock::now();
    return count_++;
  }
  if (count_ == events_.size()) {
    make_event();
  } else {
    events_[count_].record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  return count_++;
}

double Marks::seconds(size_t begin, size_t end) const {
  if (device_.is_cpu()) return seconds_since(times_[begin], times_[end]);
  constexpr double milliseconds_to_seconds = 1e-3;
  const double elapsed = events_[begin].elapsedTime(events_[end]) * milliseconds_to_seconds;
  return std::max(elapsed, 0.0);
}

namespace {

std::vector<double> take_iterations(const Device& device, int64_t iterations,
                                    const std::function<void()>& prepare,
                                    const std::function<void()>& run, TimePoint deadline,
                                    int64_t runs) {
  Marks marks(device, 2 * static_cast<size_t>(iterations));
  size_t marked = 0;
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    prepare();
    marks.add();
    for (int64_t i = 0; i < runs; ++i) run();
    marked = marks.add() + 1;
    if (Clock::now() >= deadline) break;
  }
  device.synchronize();
  std::vector<double> seconds;
  seconds.reserve(marked / 2);
  for (size_t begin = 0; begin < marked; begin += 2)
    seconds.push_back(marks.seconds(begin, begin + 1) / static_cast<double>(runs));
  return seconds;
}

}  // namespace

std::vector<double> time_iterations(const Device& device, int64_t iterations,
                                    const std::function<void()>& prepare,
                                    const std::function<void()>& run, TimePoint deadline,
                                    int64_t runs) {
  const auto take = [&] {
    return take_iterations(device, iterations, prepare, run, deadline, runs);
  };
  return device.is_gpu() ? until_timed(take) : take();
}

std::vector<double> until_timed(const std::function<std::vector<double>()>& take) {
  constexpr int most_attempts = 10;
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    std::vector<double> seconds = take();
    std::erase_if(seconds, [](double time) { return !(time > 0); });
    if (!seconds.empty()) return seconds;
  }
  throw std::runtime_error(
      "the device's events give no time above 0: the work between them is too short, or its clock "
      "is wrong");
}

double seconds_of_empty_pair(const Device& device) {
  constexpr size_t pairs = 101;
  Marks marks(device, 2 * pairs);
  for (size_t mark = 0; mark < 2 * pairs; ++mark) marks.add();
  device.synchronize();
  std::vector<double> seconds;
  for (size_t begin = 0; begin < 2 * pairs; begin += 2)
    seconds.push_back(marks.seconds(begin, begin + 1));
  return median(seconds);
}

}  // namespace tinyllama::instruments
