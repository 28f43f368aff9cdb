// What the code of a case can do to the process beyond throwing: crash it, hang, or change its
// state for all cases that follow. Our own does not; a plug-in's may.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tinyllama::harness {

/// What operators read that is no argument of theirs, of this thread.
class ProcessState {
 public:
  static ProcessState now();
  /// In words what differs now, "threads: 2, now 1"; empty if nothing does. Then all is put back.
  std::string put_back() const;

 private:
  int threads_ = 0;
  bool records_gradients_ = true;
  c10::ScalarType default_type_ = c10::ScalarType::Float;
  at::Tensor random_state_;  // of libtorch's default generator on the CPU
};

/// Guards steps of cases, each while it runs, in a run that has loaded plug-ins.
class CaseGuard {
 public:
  /// `most_seconds`: of one step. `continued_by`: the options that continue the run, to be named.
  CaseGuard(double most_seconds, std::string continued_by);
  ~CaseGuard();
  CaseGuard(const CaseGuard&) = delete;
  CaseGuard& operator=(const CaseGuard&) = delete;

  /// Called in a thread of its own before a step that hangs ends the process; writes what is known.
  void on_hang(std::function<void()> write) { write_ = std::move(write); }

  /// Runs `step`. With `keeps_state`, what it changed in the process's state is put back and said
  /// in a std::runtime_error. A crash says on standard error in which case, and kills as ever.
  void run(const std::string& case_name, bool keeps_state, const std::function<void()>& step);

 private:
  void watch();

  double most_seconds_;
  std::string continued_by_;
  std::function<void()> write_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string running_;  // name of the case; empty between steps
  uint64_t steps_ = 0;
  bool ends_ = false;
  std::thread watcher_;
};

}  // namespace tinyllama::harness
