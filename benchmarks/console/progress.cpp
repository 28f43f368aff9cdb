#include "benchmarks/console/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tinyllama::console {
namespace {

std::string format_duration(double seconds) {
  constexpr double minute = 60;
  constexpr double hour = 60 * minute;
  if (seconds < 1.5 * minute) return fmt::format("{:.0f} s", seconds);
  if (seconds < 1.5 * hour) return fmt::format("{:.0f} min", seconds / minute);
  return fmt::format("{:.1f} h", seconds / hour);
}

// A line that wraps could not be erased.
size_t columns_of_terminal() {
  winsize window = {};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1;
  return is_known ? window.ws_col : 80;
}

}  // namespace

Progress::Progress(std::string noun, bool is_heard)
    : noun_(std::move(noun)),
      is_heard_(is_heard),
      has_terminal_(is_heard && ::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  clear();
}

void Progress::expect(const std::string& kind, double weight, int64_t count) {
  total_ += count;
  kinds_[kind].left += weight * static_cast<double>(count);
}

// Estimated from the time that pieces of the same kind took so far or, for a kind without any, that
// all took.
double Progress::seconds_left() const {
  Kind all;
  for (const auto& [name, kind] : kinds_) {
    all.done += kind.done;
    all.taken += kind.taken;
  }
  double left = 0;
  for (const auto& [name, kind] : kinds_) {
    const Kind& known = kind.done > 0 ? kind : all;
    left += kind.left * known.taken / std::max(known.done, 1e-9);
  }
  return left;
}

void Progress::start(const std::string& name, bool is_expected) {
  last_ = Clock::now();
  if (!has_terminal_) return;
  clear();
  const std::string left = done_ == 0 ? "" : ", about " + format_duration(seconds_left()) + " left";
  const std::string place =
      is_expected ? fmt::format("{} {} of {}{}: ", noun_, done_ + 1, total_, left) : "";
  const std::string line = fmt::format("{}{} ...", place, name);
  fmt::print(stderr, "{}", line.substr(0, columns_of_terminal() - 1));
  std::fflush(stderr);
  is_shown_ = true;
}

void Progress::finish(const std::string& kind, double weight, const std::string& text) {
  ++done_;
  Kind& of_kind = kinds_[kind];
  of_kind.left -= weight;
  of_kind.done += weight;
  const auto now = Clock::now();
  of_kind.taken += std::chrono::duration<double>(now - last_).count();
  last_ = now;
  if (!text.empty()) say(fmt::format("[{}/{}] {}", done_, total_, text));
}

void Progress::say(const std::string& text) {
  clear();
  if (is_heard_) fmt::print(stderr, "{}\n", text);
}

void Progress::clear() {
  if (is_shown_) fmt::print(stderr, "\r\033[K");
  is_shown_ = false;
}

}  // namespace tinyllama::console
