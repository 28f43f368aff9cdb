// What a program says on standard error while it works.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace tinyllama::console {

/// Lines, and on a terminal a status line below them with the time left, which goes again.
class Progress {
 public:
  /// `noun`: what is counted, "case". `is_heard`: says and shows nothing where false, as on all
  /// ranks but the first.
  explicit Progress(std::string noun, bool is_heard = true);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `count` pieces of work are still to come. Those of one kind are expected to take as many times
  /// their `weight` as each other.
  void expect(const std::string& kind, double weight = 1, int64_t count = 1);
  /// Shows on a terminal what is being done; with its number and the time left where it is a piece
  /// that was expected.
  void start(const std::string& name, bool is_expected = true);
  /// A piece that was expected is over. Says `text`, unless it is empty, with its number.
  void finish(const std::string& kind, double weight = 1, const std::string& text = {});
  void say(const std::string& text);
  /// Before something else is printed on the terminal.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  struct Kind {
    double left = 0;  // of the weights to come
    double done = 0;
    double taken = 0;  // seconds, of those that are done
  };
  double seconds_left() const;

  std::string noun_;
  bool is_heard_;
  bool has_terminal_;
  bool is_shown_ = false;
  int64_t total_ = 0;
  int64_t done_ = 0;
  std::map<std::string, Kind> kinds_;
  Clock::time_point last_ = Clock::now();  // when what is being done began
};

}  // namespace tinyllama::console
