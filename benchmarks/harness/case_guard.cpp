#include "benchmarks/harness/case_guard.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "benchmarks/console/exit.hpp"

namespace tinyllama::harness {
namespace {

constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

// A signal handler can reach nothing but a global: what it says of the case that runs, empty
// between cases.
std::array<char, 2048> crash_text = {};
std::array<char, 1 << 16> crash_stack = {};

void say_which_case() {
  const size_t length = strnlen(crash_text.data(), crash_text.size());
  static_cast<void>(!write(STDERR_FILENO, crash_text.data(), length));
}

void on_crash(int signal) {
  // SA_RESETHAND: the signal, raised once more on return, kills as it would have.
  say_which_case();
  raise(signal);
}

// Work that calls exit() must not pass for a run that ended.
void on_exit() {
  if (crash_text.front() == '\0') return;
  say_which_case();
  std::_Exit(static_cast<int>(console::ExitCode::failed));
}

// Once in the life of the process, also where several runs of cases follow each other.
void say_where_it_crashes() {
  static bool is_installed = false;
  if (std::exchange(is_installed, true)) return;
  // A stack that overflowed has no room for the handler.
  const stack_t stack = {.ss_sp = crash_stack.data(), .ss_flags = 0, .ss_size = crash_stack.size()};
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_RESETHAND | SA_ONSTACK;
  for (const int signal : kCrashes) {
    // A plug-in's runtime, or a sanitizer, may have a handler of its own.
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_DFL)
      sigaction(signal, &action, nullptr);
  }
  std::atexit(on_exit);
  std::at_quick_exit(on_exit);
}

void set_crash_text(const std::string& text) {
  const size_t length = std::min(text.size(), crash_text.size() - 1);
  std::memcpy(crash_text.data(), text.data(), length);
  crash_text[length] = '\0';
}

at::Generator default_generator() {
  return at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::CPU));
}

std::string pattern_of(const std::string& name) {
  std::string pattern = "^";
  for (const char c : name) {
    if (std::strchr("+.[](){}*?|^$\\", c) != nullptr) pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

}  // namespace

ProcessState ProcessState::now() {
  ProcessState state;
  state.threads_ = at::get_num_threads();
  state.records_gradients_ = at::GradMode::is_enabled();
  state.default_type_ = c10::get_default_dtype_as_scalartype();
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  state.random_state_ = generator.get_state();
  return state;
}

std::string ProcessState::put_back() const {
  const ProcessState found = now();
  std::vector<std::string> changes;
  if (found.threads_ != threads_) {
    changes.push_back(fmt::format("threads: {}, now {}", threads_, found.threads_));
    at::set_num_threads(threads_);
  }
  if (found.records_gradients_ != records_gradients_) {
    changes.push_back(
        fmt::format("autograd records: {}, now {}", records_gradients_, found.records_gradients_));
    at::GradMode::set_enabled(records_gradients_);
  }
  if (found.default_type_ != default_type_) {
    changes.push_back(fmt::format("default type: {}, now {}", c10::toString(default_type_),
                                  c10::toString(found.default_type_)));
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_type_));
  }
  if (!at::equal(found.random_state_, random_state_)) {
    changes.emplace_back("state of the default random generator");
    at::Generator generator = default_generator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(random_state_);
  }
  return fmt::format("{}", fmt::join(changes, "; "));
}

std::unique_ptr<CaseGuard> CaseGuard::of(const instruments::Device& device,
                                         const Options& options) {
  if (options.plugins.empty() && !device.is_gpu() && !options.hang_seconds) return nullptr;
  Advice advice;
  if (!options.journal_file.empty())
    advice.continued_by = " --resume --journal " + options.journal_file;
  if (!options.plugins.empty()) advice.of_crash = ", in the code of a plug-in or because of it";
  // AMD's HPC training examples, PROFILER_ISSUES.md, 5.2 (seen with ROCm 7.2.3 and PyTorch 2.12): a
  // transformer's first bf16 GEMMs stall for minutes or hang, and do not by rocBLAS.
  if (device.backend() == instruments::Backend::hip)
    advice.of_hang = "; bf16 GEMMs of hipBLASLt are known to hang (ROCm 7.2): try --blas rocblas";
  // A GPU holds models of 10^10 weights, which take minutes to draw on the host.
  const double longer = device.is_gpu() ? 1200 : 300;
  return std::make_unique<CaseGuard>(
      options.hang_seconds.value_or(longer + options.max_seconds_per_case), std::move(advice));
}

CaseGuard::CaseGuard(double most_seconds, Advice advice)
    : most_seconds_(most_seconds), advice_(std::move(advice)) {
  say_where_it_crashes();
  watcher_ = std::thread([this] { watch(); });
}

CaseGuard::~CaseGuard() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  watcher_.join();
}

void CaseGuard::note(const std::string& name, const std::string& leave_out) {
  const std::string text = fmt::format(
      "\n{}: ended the process{}. Cases that ended before are in the journal, if there is one{}\n",
      name, advice_.of_crash, leave_out);
  set_crash_text(name.empty() ? "" : text);
  {
    const std::lock_guard lock(mutex_);
    running_ = name;
    leave_out_ = leave_out;
    ++steps_;
  }
  changed_.notify_one();
}

void CaseGuard::run_beside_cases(const std::string& what, const std::function<void()>& step) {
  note(what, {});
  try {
    step();
  } catch (...) {
    note({}, {});
    throw;
  }
  note({}, {});
}

void CaseGuard::run(const std::string& case_name, bool keeps_state,
                    const std::function<void()>& step) {
  const ProcessState before = ProcessState::now();
  note(case_name, fmt::format("; leave this case out with{} --exclude='{}'", advice_.continued_by,
                              pattern_of(case_name)));
  std::exception_ptr thrown;
  try {
    step();
  } catch (...) {
    thrown = std::current_exception();
  }
  note({}, {});
  const std::string changes = before.put_back();
  if (thrown != nullptr && (changes.empty() || !keeps_state)) std::rethrow_exception(thrown);
  if (changes.empty() || !keeps_state) return;
  // What was thrown may only follow from the change.
  throw std::runtime_error("the work changed what other cases depend on: " + changes);
}

void CaseGuard::watch() {
  std::unique_lock lock(mutex_);
  const auto most = std::chrono::duration<double>(most_seconds_);
  while (!ends_) {
    const uint64_t step = steps_;
    const auto other = [&] { return ends_ || steps_ != step; };
    if (running_.empty()) {
      changed_.wait(lock, other);
      continue;
    }
    if (changed_.wait_for(lock, most, other)) continue;
    const std::string reason =
        fmt::format("has not ended after {:g} s (--hang-limit){}", most_seconds_, advice_.of_hang);
    fmt::print(stderr, "\n{}: {}. The program ends here{}\n", running_, reason, leave_out_);
    try {
      if (write_) write_(running_, reason);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    std::fflush(stderr);
    // The thread that hangs would keep exit() waiting.
    std::_Exit(static_cast<int>(console::ExitCode::failed));
  }
}

}  // namespace tinyllama::harness
