#include "benchmarks/console/exit.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>

#include "benchmarks/console/versions.hpp"
#include "core/text.hpp"

namespace tinyllama::console {
namespace {

// A signal handler can reach nothing but a global. It runs in any thread, and several threads read
// and set the flag: that takes an atomic, and in a handler one without a lock.
std::atomic<bool> interrupt_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  interrupt_requested = true;
}

}  // namespace

int run_program(const char* program, const std::function<ExitCode()>& run) {
  // A limit on file sizes is then an error of the write, whose message names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    refuse_other_libtorch();
    const ExitCode code = run();
    // Text may still be in a buffer. Ranks that are silent have set failbit only.
    std::cout.flush();
    const bool is_flushed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if ((is_flushed && !std::cout.bad()) || code == ExitCode::interrupted)
      return static_cast<int>(code);
    if (interrupted()) return static_cast<int>(ExitCode::interrupted);
    fmt::print(stderr, "{}: standard output cannot be written; is the disk full?\n", program);
  } catch (const c10::AcceleratorError& error) {
    // of a GPU that computes no more: nothing that was given is to blame
    fmt::print(stderr, "{}: {}\n", program, message_of(error));
    return static_cast<int>(ExitCode::failed);
  } catch (const WrongResultError& error) {
    fmt::print(stderr, "{}: wrong result: {}\n", program, error.what());
    return static_cast<int>(ExitCode::failed);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, message_of(error));
  }
  return static_cast<int>(ExitCode::bad_input);
}

void install_interrupt_handler() {
  const auto install = [](int number, int flags, bool unless_ignored) {
    struct sigaction action = {};
    sigaction(number, nullptr, &action);
    if (unless_ignored && action.sa_handler == SIG_IGN) return;
    action = {};
    action.sa_handler = on_signal;
    action.sa_flags = flags | SA_RESTART;
    sigaction(number, &action, nullptr);
  };
  // SA_RESETHAND: the second of these signals has its default effect.
  install(SIGINT, SA_RESETHAND, false);
  install(SIGTERM, SA_RESETHAND, false);
  install(SIGHUP, SA_RESETHAND, true);  // nohup ignores it
  install(SIGPIPE, 0, true);            // connections between ranks do
}

bool interrupted() {
  return interrupt_requested;
}

void request_interrupt() {
  interrupt_requested = true;
}

}  // namespace tinyllama::console
