#include "benchmarks/console/interrupt.hpp"

#include <csignal>

namespace tinyllama::console {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t interrupt_requested = 0;

void on_signal(int) {
  interrupt_requested = 1;
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // the second signal has its default effect
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return interrupt_requested != 0;
}

void request_interrupt() {
  interrupt_requested = 1;
}

}  // namespace tinyllama::console
