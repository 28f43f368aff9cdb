// --replay: the operators of a recorded trace, timed one by one and put beside their sum.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/replay_work.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

struct ReplayRow {
  const ReplayCase* replay = nullptr;
  double seconds = 0;                 ///< of one call: median of the repetitions' medians
  std::vector<double> repetitions{};  ///< median of each
  std::vector<double> samples{};      ///< of all
  std::string failure{};              ///< why it has no time; empty where it has
  double total_seconds() const { return seconds * static_cast<double>(replay->count); }
};

/// Times one case by the engine of all cases, within --max-seconds-per-case.
ReplayRow time_replay(const ReplayCase& replay, const Options& options,
                      const instruments::Device& device);

/// Times the cases that --benchmark_filter and --exclude leave, and prints a table, or with
/// --benchmark_format=json one document. Failed where a case has no time. Throws
/// std::invalid_argument for a file that is no such trace, or that has nothing to replay.
console::ExitCode run_replay(const Options& options, const instruments::Device& device);

}  // namespace tinyllama::harness
