#include "benchmarks/harness/serve.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/lines.hpp"
#include "benchmarks/harness/case_counters.hpp"
#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/known_slowdown.hpp"
#include "benchmarks/harness/run_context.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/instruments/memory_meter.hpp"

namespace tinyllama::harness {

Server::Server(const instruments::Device& device, const std::vector<Case>& cases,
               const Options& options, const Weights* weights)
    : cases_(cases),
      preparation_(device, options, weights),
      slowed_(slowed_cases(options.slow, cases)) {}

Json Server::answer(const std::string& line) {
  try {
    const auto request = parse_serve_request(line, preparation_.options.max_seconds_per_case);
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
  const auto slow = slowed_.find(name);
  const Steps steps = {
      .proof = request.verify ? Steps::Proof::results_and_new_inputs : Steps::Proof::none,
      .meters = request.meter,
      .slowed_by = slow == slowed_.end() ? 0 : slow->second};
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
    seconds =
        opened.time({.min_seconds = std::numeric_limits<double>::infinity(), .deadline = deadline})
            .seconds;
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
  if (open_.empty()) {
    const instruments::Device& device = preparation_.device;
    failure_of(device, 0, [&] { instruments::release_cached_memory(device); });
  }
  if (!remarks.failure.empty()) return {{"failed", remarks.failure}};
  return {{"skipped", remarks.skip}};
}

console::ExitCode serve(const Options& options, const Plan& plan, const instruments::Device& device,
                        const Weights* weights) {
  if (plan.cases.empty())
    throw std::invalid_argument("--serve: needs a case; the peaks are not served");
  console::install_interrupt_handler();
  console::LineOutput output;
  instruments::start_computing();  // only now: oneDNN may announce itself when it is asked
  Json context = run_context(options, device, weights);
  context["verify"] = "on request";
  for (const KnownSlowdown& slow : options.slow)
    context["slowed"].push_back(fmt::format("{}={:g}", slow.pattern, slow.fraction));
  Json names = Json::array();
  for (const Case& test_case : plan.cases) names.push_back(test_case.name());
  Options asked = options;
  asked.admit = Admit::fitting;  // a request is no place for an attempt
  Server server(device, plan.cases, asked, weights);
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
