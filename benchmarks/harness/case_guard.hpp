// What the code of a case can do to the process beyond throwing: crash it, hang, or change its
// state for all cases that follow. Our own does not on a CPU; a plug-in's may, and a GPU's
// libraries.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "benchmarks/harness/options.hpp"
#include "benchmarks/instruments/device.hpp"

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

/// Guards steps of cases, each while it runs.
class CaseGuard {
 public:
  /// What is said where a step ends the process.
  struct Advice {
    std::string continued_by{};  ///< the options that continue the run
    std::string of_crash{};      ///< whose fault that may be: ", in the code of a plug-in"
    std::string of_hang{};       ///< what may help
  };
  /// `most_seconds`: of one step.
  CaseGuard(double most_seconds, Advice advice);
  /// That of a run with plug-ins, on a GPU, or with --hang-limit; null otherwise.
  static std::unique_ptr<CaseGuard> of(const instruments::Device& device, const Options& options);
  ~CaseGuard();
  CaseGuard(const CaseGuard&) = delete;
  CaseGuard& operator=(const CaseGuard&) = delete;

  /// `write`: writes what is known, the reason why this case failed included, before a step that
  /// hangs ends the process. It is called in a thread of its own.
  using Write = std::function<void(const std::string& case_name, const std::string& reason)>;
  void on_hang(Write write) { write_ = std::move(write); }

  /// Runs `step`. With `keeps_state`, what it changed in the process's state is put back and said
  /// in a std::runtime_error. A crash says on standard error in which case, and kills as ever.
  void run(const std::string& case_name, bool keeps_state, const std::function<void()>& step);
  /// The same of work that is no case's, and cannot be left out.
  void run_beside_cases(const std::string& what, const std::function<void()>& step);

 private:
  void watch();
  void note(const std::string& name, const std::string& leave_out);

  double most_seconds_;
  Advice advice_;
  Write write_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string running_;    // name of the case; empty between steps
  std::string leave_out_;  // how it is left out of the next run
  uint64_t steps_ = 0;
  bool ends_ = false;
  std::thread watcher_;
};

}  // namespace tinyllama::harness
