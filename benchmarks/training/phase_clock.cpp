#include "benchmarks/training/phase_clock.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <numeric>

namespace tinyllama::training {

double PhaseTimes::total() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

// Points in time, by number. A GPU's are events, reused from step to step: creating one takes
// longer than recording it.
class PhaseClock::Marks {
 public:
  explicit Marks(c10::Device device) : device_(device) {}

  size_t add() {
    if (device_.is_cpu()) {
      times_.push_back(std::chrono::steady_clock::now());
      return times_.size() - 1;
    }
    const c10::impl::VirtualGuardImpl guard(device_.type());
    if (used_ == events_.size())
      events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_[used_].record(guard.getStream(device_));
    return used_++;
  }

  double seconds(size_t begin, size_t end) const {
    if (device_.is_cpu()) return std::chrono::duration<double>(times_[end] - times_[begin]).count();
    constexpr double milliseconds_to_seconds = 1e-3;
    return events_[begin].elapsedTime(events_[end]) * milliseconds_to_seconds;
  }

  void clear() {
    times_.clear();
    used_ = 0;
  }

 private:
  c10::Device device_;
  std::vector<std::chrono::steady_clock::time_point> times_;
  std::vector<c10::Event> events_;
  size_t used_ = 0;
};

PhaseClock::PhaseClock(const instruments::Device& device)
    : device_(device), marks_(std::make_unique<Marks>(device.torch())) {}

PhaseClock::~PhaseClock() = default;

void PhaseClock::begin(Phase phase) {
  const size_t now = marks_->add();
  if (open_) stretches_.push_back({open_->first, open_->second, now, false});
  open_.emplace(phase, now);
}

void PhaseClock::end_step() {
  if (!open_) return;
  stretches_.push_back({open_->first, open_->second, marks_->add(), true});
  open_.reset();
}

std::vector<PhaseTimes> PhaseClock::collect() {
  device_.synchronize();
  std::vector<PhaseTimes> steps;
  PhaseTimes step;
  for (const Stretch& stretch : stretches_) {
    step[stretch.phase] += marks_->seconds(stretch.begin, stretch.end);
    if (!stretch.ends_step) continue;
    steps.push_back(step);
    step = {};
  }
  stretches_.clear();
  marks_->clear();
  return steps;
}

}  // namespace tinyllama::training
