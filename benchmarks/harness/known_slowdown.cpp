#include "benchmarks/harness/known_slowdown.hpp"

#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/option_grammar.hpp"

namespace tinyllama::harness {
namespace {

// On a GPU the device is waited for before and after the work: what was queued earlier is no part
// of its duration, and the idle time while the host spins lies between the device's own events. So
// nothing is queued ahead there, and the waiting comes on top of the fraction.
class SlowedWork final : public WorkItem {
 public:
  SlowedWork(std::unique_ptr<WorkItem> work, const instruments::Device& device, double fraction)
      : work_(std::move(work)), device_(device), fraction_(fraction) {}
  void prepare() override { work_->prepare(); }
  void run() override {
    using Clock = std::chrono::steady_clock;
    device_.synchronize();
    const auto start = Clock::now();
    work_->run();
    device_.synchronize();
    const auto end = Clock::now();
    const std::chrono::duration<double> longer = fraction_ * (end - start);
    while (Clock::now() - end < longer) {
    }
  }
  NamedTensors results() const override { return work_->results(); }

 private:
  std::unique_ptr<WorkItem> work_;
  instruments::Device device_;
  double fraction_;
};

}  // namespace

std::map<std::string, double> slowed_cases(const std::vector<KnownSlowdown>& slowdowns,
                                           const std::vector<Case>& cases) {
  std::map<std::string, double> fractions;
  for (const KnownSlowdown& slowdown : slowdowns) {
    const auto is_slowed = console::parse_pattern("--slow", slowdown.pattern);
    bool found = false;
    for (const Case& test_case : cases) {
      if (!is_slowed(test_case.name())) continue;
      fractions[test_case.name()] = slowdown.fraction;
      found = true;
    }
    if (!found) {
      throw std::invalid_argument(
          fmt::format("--slow '{}': no case has such a name", slowdown.pattern));
    }
  }
  return fractions;
}

std::unique_ptr<WorkItem> slowed(std::unique_ptr<WorkItem> work, const instruments::Device& device,
                                 double fraction) {
  return std::make_unique<SlowedWork>(std::move(work), device, fraction);
}

}  // namespace tinyllama::harness
