// How long the phases of a step take: the steady clock on a CPU, events of the device on a GPU.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/training/phase.hpp"

namespace tinyllama::training {

/// Seconds of each phase of one step, and of the whole.
struct PhaseTimes {
  std::array<double, kPhases.size()> seconds{};
  double& operator[](Phase phase) { return seconds[static_cast<size_t>(phase)]; }
  double operator[](Phase phase) const { return seconds[static_cast<size_t>(phase)]; }
  double total() const;
};

/// Marks are cheap and wait for nothing; on a GPU their distances are known when the device has
/// done the work between them.
class PhaseClock {
 public:
  explicit PhaseClock(const instruments::Device& device);
  ~PhaseClock();
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

  /// What follows belongs to `phase`, until the next begin() or end_step().
  void begin(Phase phase);
  void end_step();
  /// The steps ended since the last collect(), in order. Waits for the device.
  std::vector<PhaseTimes> collect();

 private:
  class Marks;
  struct Stretch {
    Phase phase;
    size_t begin;
    size_t end;
    bool ends_step;
  };
  instruments::Device device_;
  std::unique_ptr<Marks> marks_;
  std::vector<Stretch> stretches_;
  std::optional<std::pair<Phase, size_t>> open_;
};

}  // namespace tinyllama::training
