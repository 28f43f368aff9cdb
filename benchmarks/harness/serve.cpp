#include "benchmarks/harness/serve.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <system_error>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/harness/parity_gate.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "core/strict_json.hpp"

namespace tinyllama::harness {
namespace {

using Clock = std::chrono::steady_clock;
using Action = ServeRequest::Action;

// A line for a message: shortened, and without zero bytes, at which the message would end.
std::string quoted(const std::string& text) {
  constexpr size_t longest = 120;
  std::string beginning = text.substr(0, longest);
  const auto is_control = [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; };
  std::replace_if(beginning.begin(), beginning.end(), is_control, '?');
  return text.size() <= longest ? beginning : beginning + "...";
}

[[noreturn]] void refuse(const std::string& key, const Json& value, const std::string& rule) {
  throw std::invalid_argument(fmt::format("\"{}\" {}: {}", key, quoted(value.dump()), rule));
}

Json parse_object(const std::string& line) {
  constexpr int deepest_nesting = 4;
  try {
    return parse_strict_json<Json>(line, "request", {.depth = deepest_nesting});
  } catch (const std::invalid_argument&) {
    throw std::invalid_argument(
        fmt::format("'{}': a request is one JSON object on one line", quoted(line)));
  }
}

const Json& member(const Json& request, const std::string& key) {
  const auto found = request.find(key);
  if (found == request.end()) {
    throw std::invalid_argument(
        fmt::format("'{}': the request lacks \"{}\"", quoted(request.dump()), key));
  }
  return *found;
}

Action read_action(const Json& value) {
  if (value == "open") return Action::open;
  if (value == "time") return Action::time;
  if (value == "close") return Action::close;
  refuse("do", value, "must be open, time or close");
}

// A misspelt key must not pass as one that was left out.
void check_keys(const Json& request, const std::vector<std::string>& known) {
  for (const auto& [key, value] : request.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      refuse(key, value, fmt::format("unknown here; known are {}", fmt::join(known, ", ")));
  }
}

bool read_flag(const Json& request, const std::string& key) {
  const auto found = request.find(key);
  if (found == request.end()) return false;
  if (!found->is_boolean()) refuse(key, *found, "must be true or false");
  return found->get<bool>();
}

double read_seconds(const Json& request, double most_seconds) {
  const Json& value = member(request, "seconds");
  const auto in_range = [&] {
    const auto seconds = value.get<double>();
    return seconds >= 0 && seconds <= most_seconds;
  };
  if (!value.is_number() || !in_range()) {
    refuse("seconds", value,
           fmt::format("must be a number from 0 to {:g} (--max-seconds-per-case)", most_seconds));
  }
  return value.get<double>();
}

// Takes longer than its work by a fraction of it. On a GPU the device is waited for before and
// after the work: what was queued earlier is no part of its duration, and the idle time while the
// host spins lies between the device's own events. So nothing is queued ahead there, and the
// waiting comes on top of the fraction.
class SlowedWork final : public WorkItem {
 public:
  SlowedWork(std::unique_ptr<WorkItem> work, const instruments::Device& device, double fraction)
      : work_(std::move(work)), device_(device), fraction_(fraction) {}
  void prepare() override { work_->prepare(); }
  void run() override {
    device_.synchronize();
    const auto start = Clock::now();
    work_->run();
    device_.synchronize();
    const auto end = Clock::now();
    const std::chrono::duration<double> longer = fraction_ * (end - start);
    while (Clock::now() - end < longer) {
    }
  }
  NamedTensors results() const override { return work_->results(); }

 private:
  std::unique_ptr<WorkItem> work_;
  instruments::Device device_;
  double fraction_;
};

void add(std::map<std::string, double>& slowed, const KnownSlowdown& slowdown,
         const std::vector<Case>& cases) {
  const auto is_slowed = console::parse_pattern("--slow", slowdown.pattern);
  bool found = false;
  for (const Case& test_case : cases) {
    if (!is_slowed(test_case.name())) continue;
    slowed[test_case.name()] = slowdown.fraction;
    found = true;
  }
  if (!found) {
    throw std::invalid_argument(
        fmt::format("--slow '{}': no case has such a name", slowdown.pattern));
  }
}

[[noreturn]] void refuse_system(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

ServeRequest parse_serve_request(const std::string& line, double most_seconds) {
  const Json request = parse_object(line);
  ServeRequest parsed;
  parsed.action = read_action(member(request, "do"));
  const Json& name = member(request, "case");
  if (!name.is_string()) refuse("case", name, "must be the name of a case");
  parsed.case_name = name.get<std::string>();
  switch (parsed.action) {
    case Action::open:
      check_keys(request, {"do", "case", "verify", "meter"});
      parsed.verify = read_flag(request, "verify");
      parsed.meter = read_flag(request, "meter");
      break;
    case Action::time:
      check_keys(request, {"do", "case", "seconds"});
      parsed.seconds = read_seconds(request, most_seconds);
      break;
    case Action::close:
      check_keys(request, {"do", "case"});
      break;
  }
  return parsed;
}

Server::Server(const instruments::Device& device, const std::vector<Case>& cases,
               const RunSettings& settings, const std::vector<KnownSlowdown>& slow)
    : device_(device), cases_(cases), settings_(settings), no_peaks_(device) {
  settings_.verify = Verify::only;
  for (const KnownSlowdown& slowdown : slow) add(slowed_, slowdown, cases);
  if (settings.cold_cache) flusher_ = std::make_unique<CacheFlusher>(device);
}

Server::~Server() = default;

Json Server::answer(const std::string& line) {
  try {
    const ServeRequest request = parse_serve_request(line, settings_.max_seconds_per_case);
    switch (request.action) {
      case ServeRequest::Action::open:
        return open(request);
      case ServeRequest::Action::time:
        return time(request);
      case ServeRequest::Action::close:
        return close(request);
    }
    throw std::logic_error("a request of no kind");
  } catch (const std::invalid_argument& error) {
    return {{"error", error.what()}};
  }
}

const Case& Server::find_case(const std::string& name) const {
  const auto found = std::find_if(cases_.begin(), cases_.end(),
                                  [&](const Case& test_case) { return test_case.name() == name; });
  if (found == cases_.end()) {
    throw std::invalid_argument(
        fmt::format("\"case\" \"{}\": must be one of the cases that the first line names", name));
  }
  return *found;
}

CaseWork& Server::find_open(const std::string& name) {
  const auto found = open_.find(name);
  if (found != open_.end()) return found->second;
  find_case(name);
  throw std::invalid_argument(fmt::format("\"case\" \"{}\": must be opened first", name));
}

int64_t Server::live_bytes() const {
  return instruments::MemoryMeter(device_).read().live_bytes;
}

std::string Server::refuse(const Case& test_case) const {
  if (!test_case.skip_reason.empty()) return test_case.skip_reason;
  return refuse_for_memory(test_case,
                           memory_budget(device_, settings_.memory_limit_bytes, live_bytes()));
}

Runner::Verdict Server::verify(const Case& test_case) {
  if (!prover_) prover_ = std::make_unique<Runner>(device_, no_peaks_, settings_);
  return prover_->verify(test_case, live_bytes());
}

Json Server::open(const ServeRequest& request) {
  const Case& test_case = find_case(request.case_name);
  if (open_.contains(request.case_name)) {
    throw std::invalid_argument(
        fmt::format("\"case\" \"{}\": is open; close it first", request.case_name));
  }
  Json answer;
  const std::string failure = failure_of(device_, settings_.memory_limit_bytes,
                                         [&] { answer = prepare(request, test_case); });
  if (failure.empty()) return answer;
  drop(request.case_name);
  return {{"failed", failure}};
}

Json Server::prepare(const ServeRequest& request, const Case& test_case) {
  // The allocator's cached memory would not count as free: release it first.
  if (!refuse(test_case).empty()) instruments::release_cached_memory(device_);
  const std::string reason = refuse(test_case);
  if (!reason.empty()) return {{"skipped", reason}};
  Json answer = {{"opened", request.case_name}};
  if (request.verify) {
    const Runner::Verdict verdict = verify(test_case);
    if (!verdict.skip.empty()) return {{"skipped", verdict.skip}};
    if (!verdict.failure.empty()) return {{"failed", verdict.failure}};
    answer["max_rel_error"] = verdict.comparison.max_rel_error;
  }
  CaseWork& opened = open_[request.case_name];
  opened = build_work(device_, test_case, settings_.seed, settings_.weights);
  if (const auto slow = slowed_.find(request.case_name); slow != slowed_.end())
    opened.item = std::make_unique<SlowedWork>(std::move(opened.item), device_, slow->second);
  answer["seconds"] =
      warm_up(device_, *opened.item, kWarmUpSeconds, settings_.max_seconds_per_case / 10);
  if (!request.meter) return answer;
  const Metering metering = meter_work(device_, test_case, opened);
  const std::string wrong = wrong_flops(test_case, metering);
  if (!wrong.empty()) throw std::runtime_error(wrong);
  answer["counters"] = fixed_counters(test_case, metering);
  return answer;
}

Json Server::time(const ServeRequest& request) {
  const CaseWork& opened = find_open(request.case_name);
  std::vector<double> seconds;
  const auto timing = [&] {
    const auto length = std::chrono::duration<double>(request.seconds);
    const TimingGoal goal{
        .min_seconds = std::numeric_limits<double>::infinity(),
        .deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(length)};
    seconds = time_until(device_, *opened.item, flusher_.get(), goal).seconds;
  };
  const std::string failure = failure_of(device_, settings_.memory_limit_bytes, timing);
  if (failure.empty()) return {{"seconds", seconds}};
  drop(request.case_name);
  return {{"failed", failure}};
}

Json Server::close(const ServeRequest& request) {
  find_open(request.case_name);
  drop(request.case_name);
  return {{"closed", request.case_name}};
}

// What the allocator keeps for later helps cases that are still open.
void Server::drop(const std::string& name) {
  open_.erase(name);
  if (open_.empty()) failure_of(device_, 0, [&] { instruments::release_cached_memory(device_); });
}

bool LineInput::read_more() {
  // A signal ends poll() at once, but not where it comes right before, or to another thread.
  constexpr int look_at_interrupt_ms = 1000;
  pollfd input = {descriptor_, POLLIN, 0};
  for (;;) {
    if (console::interrupted()) return false;
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

LineOutput::LineOutput() {
  std::fflush(stdout);
  descriptor_ = ::dup(STDOUT_FILENO);
  if (descriptor_ < 0) refuse_system("standard output");
  if (::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) refuse_system("standard error");
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
    if (count < 0) refuse_system("writing an answer");
    written += static_cast<size_t>(count);
  }
  return true;
}

console::ExitCode serve(const Options& options, const Plan& plan, const instruments::Device& device,
                        const Weights* weights) {
  if (plan.cases.empty())
    throw std::invalid_argument("--serve: needs a case; the peaks are not served");
  console::install_interrupt_handler();
  LineOutput output;
  instruments::host_allocator::install();  // only now: oneDNN may announce itself when it is asked
  Json context = run_context(options, device, weights);
  context["verify"] = "on request";
  for (const KnownSlowdown& slow : options.slow)
    context["slowed"].push_back(fmt::format("{}={:g}", slow.pattern, slow.fraction));
  Json names = Json::array();
  for (const Case& test_case : plan.cases) names.push_back(test_case.name());
  Server server(device, plan.cases,
                {.seed = options.seed,
                 .memory_limit_bytes = options.memory_limit_bytes.value_or(0),
                 .max_seconds_per_case = options.max_seconds_per_case,
                 .cold_cache = options.cold_cache,
                 .weights = weights},
                options.slow);
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
