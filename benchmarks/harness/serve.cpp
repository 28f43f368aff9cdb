#include "benchmarks/harness/serve.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/lines.hpp"
#include "benchmarks/harness/case_counters.hpp"
#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/run_context.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "core/strict_json.hpp"

namespace tinyllama::harness {
namespace {

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

const Json& member(const Json& request, const char* key) {
  const auto found = request.find(key);
  if (found == request.end()) {
    throw std::invalid_argument(
        fmt::format("'{}': the request lacks \"{}\"", quoted(request.dump()), key));
  }
  return *found;
}

// A misspelt key must not pass as one that was left out.
void check_keys(const Json& request, std::vector<std::string> known) {
  known.insert(known.begin(), {"do", "case"});
  for (const auto& [key, value] : request.items()) {
    if (std::ranges::count(known, key) == 0)
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

}  // namespace

ServeRequest parse_serve_request(const std::string& line, double most_seconds) {
  const Json request = parse_object(line);
  ServeRequest parsed;
  const Json& action = member(request, "do");
  if (action != "open" && action != "time" && action != "close")
    refuse("do", action, "must be open, time or close");
  const Json& name = member(request, "case");
  if (!name.is_string()) refuse("case", name, "must be the name of a case");
  parsed.case_name = name.get<std::string>();
  if (action == "open") {
    check_keys(request, {"verify", "meter"});
    parsed.action = Action::open;
    parsed.verify = read_flag(request, "verify");
    parsed.meter = read_flag(request, "meter");
  } else if (action == "time") {
    check_keys(request, {"seconds"});
    parsed.action = Action::time;
    parsed.seconds = read_seconds(request, most_seconds);
  } else {
    check_keys(request, {});
    parsed.action = Action::close;
  }
  return parsed;
}

Server::Server(const instruments::Device& device, const std::vector<Case>& cases,
               const Options& options)
    : cases_(cases), preparation_(device, options) {}

Json Server::answer(const std::string& line) {
  try {
    const auto request = parse_serve_request(line, preparation_.options.max_seconds_per_case);
    if (request.action == Action::open) return open(request);
    return request.action == Action::time ? time(request) : close(request);
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

PreparedCase& Server::find_open(const std::string& name) {
  const auto found = open_.find(name);
  if (found != open_.end()) return found->second;
  find_case(name);
  throw std::invalid_argument(fmt::format("\"case\" \"{}\": must be opened first", name));
}

Json Server::open(const ServeRequest& request) {
  const std::string& name = request.case_name;
  const Case& test_case = find_case(name);
  if (open_.contains(name))
    throw std::invalid_argument(fmt::format("\"case\" \"{}\": is open; close it first", name));
  const Steps steps = {
      .proof = request.verify ? Steps::Proof::results_and_new_inputs : Steps::Proof::none,
      .meters = request.meter};
  // What open cases use is neither free nor left of the user's limit.
  const int64_t live_bytes = instruments::live_tensor_bytes(preparation_.device.torch());
  const PreparedCase& opened =
      open_.try_emplace(name, preparation_, test_case, steps, live_bytes).first->second;
  if (opened.is_over()) return drop(name);
  Json answer = {{"opened", name}};
  if (request.verify) answer["max_rel_error"] = opened.comparison().max_rel_error;
  answer["seconds"] = opened.warm_seconds();
  if (request.meter) answer["counters"] = fixed_counters(test_case, opened.metering());
  return answer;
}

Json Server::time(const ServeRequest& request) {
  PreparedCase& opened = find_open(request.case_name);
  std::vector<double> seconds;
  opened.guarded([&] {
    const auto deadline = instruments::later(instruments::Clock::now(), request.seconds);
    const TimingGoal goal = {.min_seconds = std::numeric_limits<double>::infinity(),
                             .deadline = deadline};
    seconds =
        time_until(preparation_.device, opened.item(), preparation_.flusher.get(), goal).seconds;
  });
  if (opened.is_over()) return drop(request.case_name);
  return {{"seconds", seconds}};
}

Json Server::close(const ServeRequest& request) {
  find_open(request.case_name);
  drop(request.case_name);
  return {{"closed", request.case_name}};
}

// What the allocator keeps for later helps cases that are still open.
Json Server::drop(const std::string& name) {
  const Remarks remarks = open_.at(name).remarks();
  open_.erase(name);
  if (open_.empty()) release_memory(preparation_.device);
  if (!remarks.failure.empty()) return {{"failed", remarks.failure}};
  return {{"skipped", remarks.skip}};
}

console::ExitCode serve(const Options& options, const Plan& plan,
                        const instruments::Device& device) {
  if (plan.cases.empty())
    throw std::invalid_argument("--serve: needs a case; the peaks are not served");
  console::install_interrupt_handler();
  console::LineOutput output;
  instruments::start_computing();  // only now: oneDNN may announce itself when it is asked
  Json context = run_context(options, device);
  context["verify"] = "on request";
  Json names = Json::array();
  for (const Case& test_case : plan.cases) names.push_back(test_case.name());
  Options asked = options;
  asked.admit = Admit::fitting;  // a request is no place for an attempt
  Server server(device, plan.cases, asked);
  bool read = output.write({{"turns", 1}, {"cases", names}, {"context", context}});
  console::LineInput input(STDIN_FILENO);
  while (read) {
    const auto line = input.next();
    if (!line) break;
    read = output.write(server.answer(*line));
  }
  return console::interrupted() ? console::ExitCode::interrupted : console::ExitCode::ok;
}

}  // namespace tinyllama::harness
