#include "benchmarks/harness/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "benchmarks/harness/trace.hpp"

namespace tinyllama::harness {
namespace {

std::string describe(const CaseResult& result) {
  const Json& entry = result.entries.front();
  if (entry.contains("error_occurred")) return "FAILED: " + entry.value("error_message", "");
  if (entry.contains("skipped")) return "skipped: " + entry.value("skip_message", "");
  const Json* chosen = &entry;
  for (const auto& candidate : result.entries) {
    if (candidate.value("aggregate_name", "") == "median") chosen = &candidate;
  }
  const std::string label = entry.value("label", "");
  const size_t fault = label.find(kNoTrace);
  return fmt::format("{:.4g} {}{}", chosen->value("real_time", 0.0), chosen->value("time_unit", ""),
                     fault == std::string::npos ? "" : "  " + label.substr(fault));
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(const std::vector<std::pair<std::string, double>>& work)
    : terminal_(isatty(STDERR_FILENO) == 1), total_(work.size()) {
  for (const auto& [name, seconds] : work) {
    seconds_[name] = seconds;
    seconds_left_ += seconds;
  }
}

Progress::~Progress() {
  erase_status();
}

void Progress::say(const std::string& text) {
  erase_status();
  fmt::print(stderr, "{}\n", text);
}

void Progress::start(const std::string& name) {
  if (!terminal_) return;
  erase_status();
  std::string left;
  if (seconds_done_ > 0) {
    const double elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    left = ", " + format_duration(elapsed * seconds_left_ / seconds_done_) + " left";
  }
  // A line that wraps could not be erased.
  winsize window = {};
  const size_t columns =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col : 80;
  const std::string line = fmt::format("[{}/{}{}] {} ...", done_ + 1, total_, left, name);
  fmt::print(stderr, "{}", line.substr(0, columns - 1));
  std::fflush(stderr);
}

void Progress::finish(const CaseResult& result) {
  ++done_;
  seconds_left_ -= seconds_[result.name];
  seconds_done_ += seconds_[result.name];
  say(fmt::format("[{}/{}] {}  {}", done_, total_, result.name, describe(result)));
}

void Progress::erase_status() {
  if (terminal_) fmt::print(stderr, "\r\033[K");
}

}  // namespace tinyllama::harness
