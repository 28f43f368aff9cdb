#include "benchmarks/console/lines.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "benchmarks/console/exit.hpp"

namespace tinyllama::console {
namespace {

[[noreturn]] void refuse_system(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

bool LineInput::read_more() {
  // A signal ends poll() at once, but not where it comes right before, or to another thread.
  constexpr int look_at_interrupt_ms = 1000;
  pollfd input = {descriptor_, POLLIN, 0};
  for (;;) {
    if (interrupted()) return false;
    const int ready = ::poll(&input, 1, look_at_interrupt_ms);
    if (ready < 0 && errno != EINTR) refuse_system("waiting for a request");
    if (ready <= 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_system("reading a request");
    pending_.append(bytes.data(), static_cast<size_t>(count));
    return count > 0;
  }
}

std::optional<std::string> LineInput::next() {
  std::string beginning;
  bool too_long = false;
  for (size_t searched = 0;;) {
    const size_t end = pending_.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = too_long ? beginning : pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    if (pending_.size() > kLongestLine) {
      if (!too_long) beginning = pending_.substr(0, kLongestLine);
      too_long = true;
      pending_.clear();
    }
    searched = pending_.size();
    if (!read_more()) return std::nullopt;
  }
}

LineOutput::LineOutput() : output_(::dup(STDOUT_FILENO)) {
  if (output_.number() < 0) refuse_system("standard output");
  std::fflush(stdout);
  if (::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) refuse_system("standard error");
  ::signal(SIGPIPE, SIG_IGN);
}

// What libraries printed may still be in stdio's buffer, and would come after the last answer.
LineOutput::~LineOutput() {
  std::fflush(stdout);
  ::dup2(output_.number(), STDOUT_FILENO);
}

bool LineOutput::write(const nlohmann::ordered_json& line) {
  // What a request quoted need not be UTF-8.
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  errno = output_.write(text.data(), std::ssize(text));
  if (errno != 0 && errno != EPIPE) refuse_system("writing an answer");
  return errno == 0;
}

}  // namespace tinyllama::console
