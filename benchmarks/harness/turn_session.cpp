#include "benchmarks/harness/turn_session.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <system_error>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/run_context.hpp"
#include "benchmarks/harness/turn_server.hpp"
#include "benchmarks/instruments/host_allocator.hpp"

namespace tinyllama::harness {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

bool LineInput::read_more() {
  // A signal ends poll() at once, but not where it comes right before, or to another thread.
  constexpr int look_at_interrupt_ms = 1000;
  pollfd input = {descriptor_, POLLIN, 0};
  for (;;) {
    if (console::interrupted()) return false;
    const int ready = ::poll(&input, 1, look_at_interrupt_ms);
    if (ready < 0 && errno != EINTR) refuse("waiting for a request");
    if (ready <= 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse("reading a request");
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

LineOutput::LineOutput() {
  std::fflush(stdout);
  descriptor_ = ::dup(STDOUT_FILENO);
  if (descriptor_ < 0) refuse("standard output");
  if (::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) refuse("standard error");
  ::signal(SIGPIPE, SIG_IGN);
}

// What libraries printed may still be in stdio's buffer, and would come after the last answer.
LineOutput::~LineOutput() {
  std::fflush(stdout);
  ::dup2(descriptor_, STDOUT_FILENO);
  ::close(descriptor_);
}

bool LineOutput::write(const nlohmann::ordered_json& line) {
  // What a request quoted need not be UTF-8.
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = ::write(descriptor_, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EPIPE) return false;
    if (count < 0) refuse("writing an answer");
    written += static_cast<size_t>(count);
  }
  return true;
}

console::ExitCode serve_turns(const Options& options, const Plan& plan,
                              const instruments::Device& device, const Weights* weights) {
  if (plan.cases.empty())
    throw std::invalid_argument("--turns: needs a case; the peaks are not measured in turns");
  console::install_interrupt_handler();
  LineOutput output;
  instruments::host_allocator::install();  // only now: oneDNN may announce itself when it is asked
  Json context = run_context(options, device, weights);
  context["verify"] = "on request";
  Json names = Json::array();
  for (const Case& planned : plan.cases) names.push_back(planned.name());
  TurnServer server(device, plan.cases,
                    {.seed = options.seed,
                     .memory_limit_bytes = options.memory_limit_bytes.value_or(0),
                     .max_seconds_per_case = options.max_seconds_per_case,
                     .cold_cache = options.cold_cache,
                     .weights = weights});
  bool read = output.write({{"turns", 1}, {"cases", names}, {"context", context}});
  LineInput input(STDIN_FILENO);
  while (read) {
    const auto line = input.next();
    if (!line) break;
    read = output.write(server.answer(*line));
  }
  return console::interrupted() ? console::ExitCode::interrupted : console::ExitCode::ok;
}

}  // namespace tinyllama::harness
