#include "benchmarks/console/exit.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>

namespace tinyllama::console {
namespace {

// A signal handler can reach nothing but a global. It runs in any of the threads, and others than
// the main one ask and request: only an atomic is for both, and only without a lock.
std::atomic<bool> interrupt_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  interrupt_requested = true;
}

}  // namespace

int run_program(const char* program, const std::function<ExitCode()>& run) {
  try {
    return static_cast<int>(run());
  } catch (const c10::Error& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
  }
  return static_cast<int>(ExitCode::bad_input);
}

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // the second signal has its default effect
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return interrupt_requested;
}

void request_interrupt() {
  interrupt_requested = true;
}

}  // namespace tinyllama::console
