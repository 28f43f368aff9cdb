// What became of a case: why it was not measured, or its repetitions with what was counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tinyllama::harness {

using Counters = std::map<std::string, double>;

struct Repetition {
  double seconds = 0;      ///< of an iteration: their median
  double cpu_seconds = 0;  ///< of an iteration, of the timing thread: their mean
  int64_t iterations = 1;
  Counters counters{};
  std::vector<double>
      samples{};               ///< seconds of each iteration; none where they are no figure of ours
  double watched_seconds = 0;  ///< of the clock, while others' work was watched
  double taken_seconds = 0;    ///< of processors, which others took from our threads meanwhile
};

/// What is said of a case beside its figures.
struct Remarks {
  std::string label;
  std::string skip;     ///< why it was not measured
  std::string failure;  ///< what was wrong with it; outweighs repetitions that went well

  void add_to_label(const std::string& text) {
    label += label.empty() || text.empty() ? text : "; " + text;
  }
};

struct Outcome : Remarks {
  bool interrupted = false;  ///< before all repetitions were done: no result
  int64_t without_time = 0;  ///< repetitions left out because the case's time was used up
  std::vector<Repetition> repetitions;
};

}  // namespace tinyllama::harness
