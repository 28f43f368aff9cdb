// How a program ends: what its exit status means, and Ctrl-C, SIGTERM or SIGHUP. The first signal
// ends the run after the current case, with everything written; the second one kills. A closed
// standard output (SIGPIPE) ends the run as a first signal does, also when it is met again.
#pragma once

#include <functional>
#include <stdexcept>

namespace tinyllama::console {

enum class ExitCode {
  ok = 0,         ///< all done, or skipped with a reason
  failed = 1,     ///< something measured was wrong: a case that failed, a loss that is not finite
  bad_input = 2,  ///< options, files, or a machine that cannot do what was asked
  interrupted = 130  ///< by a signal, with everything done so far written
};

/// What was computed is wrong, though nothing that was given is to blame: ExitCode::failed.
class WrongResultError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs a program: the one place where errors become exit codes. `program`: its name, in front of
/// what is said on standard error.
int run_program(const char* program, const std::function<ExitCode()>& run);

void install_interrupt_handler();
bool interrupted();
/// What a signal would do, for faults after which measuring on makes no sense (a full disk).
void request_interrupt();

}  // namespace tinyllama::console
