// Progress on standard error: on a terminal a status line with the time left, elsewhere a plain
// line a case.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

class Progress {
 public:
  /// `work`: each case's name with the seconds it is expected to take, relative to the others.
  explicit Progress(const std::vector<std::pair<std::string, double>>& work);
  ~Progress();

  void say(const std::string& text);
  void start(const std::string& name);
  void finish(const CaseResult& result);

 private:
  void erase_status();
  bool terminal_;
  size_t total_;
  size_t done_ = 0;
  std::map<std::string, double> seconds_;
  double seconds_left_ = 0;
  double seconds_done_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tinyllama::harness
