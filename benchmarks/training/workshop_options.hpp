// The workshop's own names for what this program does: options of its versions 1 and 2 that are
// read beside ours, and turned into ours (docs/course.md).
#pragma once

#include <string>

#include "benchmarks/training/train_options.hpp"

namespace CLI {
class App;
}

namespace tinyllama::training {

class WorkshopOptions {
 public:
  /// Adds them to the command line. This object and `options` must outlive its reading.
  void add_to(CLI::App& app, TrainOptions& options);
  /// What was given, as `options`; `use_amp`: whether --use-amp was. Fusions are version 2's: all
  /// are on unless one is disabled. Throws std::invalid_argument, whose message names both, where
  /// two options contradict each other.
  void apply(const CLI::App& app, bool use_amp, TrainOptions& options) const;

 private:
  bool all_profiling_ = false;
  Dtype amp_dtype_ = Dtype::amp_bf16;
};

}  // namespace tinyllama::training
