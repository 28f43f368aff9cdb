// Who else is at work on this machine's processors, while nothing is measured and while something
// is.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tinyllama::instruments {

/// On average over the time of a watch, in processors.
struct HostLoad {
  double seconds = 0;     ///< of the watch
  double processors = 0;  ///< that this process may use
  double others = 0;      ///< that other processes were busy on
  double stolen = 0;      ///< that other virtual machines took

  /// What the others took from `threads` busy threads of ours.
  double taken_from(int threads) const;
};

/// Watches, from its construction on, the processors that this process may use. The kernel counts
/// in steps of 10 ms, so that a watch of a tenth of a second is right to about 0.2 processors.
class HostWatch {
 public:
  explicit HostWatch(std::filesystem::path statistics = "/proc/stat");

  HostLoad so_far() const;

 private:
  struct Times {
    double at = 0;  // seconds, as all of these
    double busy = 0;
    double stolen = 0;
    double own = 0;
  };
  Times times() const;

  std::filesystem::path statistics_;
  std::vector<int> processors_;
  Times start_;
};

/// What will disturb a measurement on `threads` threads, in one line with what to do: other
/// processes, other virtual machines, a quota, a limited clock. Empty where nothing does. Watches
/// for a fifth of a second.
std::string what_disturbs(int threads);

}  // namespace tinyllama::instruments
