// What the programs' exit statuses mean.
#pragma once

namespace tinyllama::console {

enum class ExitCode {
  ok = 0,         ///< all done, or skipped with a reason
  failed = 1,     ///< something measured was wrong: a case that failed, a loss that is not finite
  bad_input = 2,  ///< options, files, or a machine that cannot do what was asked
  interrupted = 130  ///< by a signal, with everything done so far written
};

}  // namespace tinyllama::console
