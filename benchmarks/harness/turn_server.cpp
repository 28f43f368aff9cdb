#include "benchmarks/harness/turn_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

#include "benchmarks/harness/admission.hpp"
#include "benchmarks/harness/counters.hpp"
#include "benchmarks/harness/parity_gate.hpp"

namespace tinyllama::harness {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct TurnServer::OpenCase {
  const Case* planned = nullptr;
  CaseWork work;
};

TurnServer::TurnServer(const instruments::Device& device, const std::vector<Case>& cases,
                       const RunSettings& settings)
    : device_(device), cases_(cases), settings_(settings), no_peaks_(device) {
  settings_.verify = Verify::only;
  if (settings.cold_cache) flusher_ = std::make_unique<CacheFlusher>(device);
}

TurnServer::~TurnServer() = default;

Json TurnServer::answer(const std::string& line) {
  try {
    const TurnRequest request = parse_turn_request(line, settings_.max_seconds_per_case);
    switch (request.action) {
      case TurnRequest::Action::open:
        return open(request);
      case TurnRequest::Action::time:
        return time(request);
      case TurnRequest::Action::close:
        return close(request);
    }
    throw std::logic_error("a request of no kind");
  } catch (const std::invalid_argument& error) {
    return {{"error", error.what()}};
  }
}

const Case& TurnServer::find_case(const std::string& name) const {
  const auto found = std::find_if(cases_.begin(), cases_.end(),
                                  [&](const Case& planned) { return planned.name() == name; });
  if (found == cases_.end()) {
    throw std::invalid_argument(
        fmt::format("\"case\" \"{}\": must be one of the cases that the first line names", name));
  }
  return *found;
}

TurnServer::OpenCase& TurnServer::find_open(const std::string& name) {
  const auto found = open_.find(name);
  if (found != open_.end()) return found->second;
  find_case(name);
  throw std::invalid_argument(fmt::format("\"case\" \"{}\": must be opened first", name));
}

int64_t TurnServer::live_bytes() const {
  return instruments::MemoryMeter(device_).read().live_bytes;
}

std::string TurnServer::refuse(const Case& planned) const {
  if (!planned.skip_reason.empty()) return planned.skip_reason;
  return refuse_for_memory(planned,
                           memory_budget(device_, settings_.memory_limit_bytes, live_bytes()));
}

Runner::Verdict TurnServer::verify(const Case& planned) {
  if (!prover_) prover_ = std::make_unique<Runner>(device_, no_peaks_, settings_);
  return prover_->verify(planned, live_bytes());
}

Json TurnServer::open(const TurnRequest& request) {
  const Case& planned = find_case(request.case_name);
  if (open_.contains(request.case_name)) {
    throw std::invalid_argument(
        fmt::format("\"case\" \"{}\": is open; close it first", request.case_name));
  }
  // Memory that the allocator keeps for later would not count as free.
  if (!refuse(planned).empty()) instruments::release_cached_memory(device_);
  const std::string reason = refuse(planned);
  if (!reason.empty()) return {{"skipped", reason}};
  Json answer = {{"opened", request.case_name}};
  if (request.verify) {
    const Runner::Verdict verdict = verify(planned);
    if (!verdict.skip.empty()) return {{"skipped", verdict.skip}};
    if (!verdict.failure.empty()) return {{"failed", verdict.failure}};
    answer["max_rel_error"] = verdict.max_rel_error;
  }
  OpenCase& opened = open_[request.case_name];
  opened.planned = &planned;
  const std::string failure =
      failure_of(device_, settings_.memory_limit_bytes, [&] { prepare(request, opened, answer); });
  if (failure.empty()) return answer;
  drop(request.case_name);
  return {{"failed", failure}};
}

void TurnServer::prepare(const TurnRequest& request, OpenCase& opened, Json& answer) {
  opened.work = build_work(device_, *opened.planned, settings_.seed, settings_.weights);
  answer["seconds"] =
      warm_up(device_, *opened.work.item, kWarmUpSeconds, settings_.max_seconds_per_case / 10);
  if (!request.meter) return;
  const Metering metering = meter_work(device_, *opened.planned, opened.work);
  const std::string wrong = wrong_flops(*opened.planned, metering);
  if (!wrong.empty()) throw std::runtime_error(wrong);
  answer["counters"] = fixed_counters(*opened.planned, metering);
}

Json TurnServer::time(const TurnRequest& request) {
  OpenCase& opened = find_open(request.case_name);
  std::vector<double> seconds;
  const auto turn = [&] {
    const auto length = std::chrono::duration<double>(request.seconds);
    const TimingGoal goal{
        .min_seconds = std::numeric_limits<double>::infinity(),
        .deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(length)};
    seconds = time_until(device_, *opened.work.item, flusher_.get(), goal).seconds;
  };
  const std::string failure = failure_of(device_, settings_.memory_limit_bytes, turn);
  if (failure.empty()) return {{"seconds", seconds}};
  drop(request.case_name);
  return {{"failed", failure}};
}

Json TurnServer::close(const TurnRequest& request) {
  find_open(request.case_name);
  drop(request.case_name);
  return {{"closed", request.case_name}};
}

// What the allocator keeps for later helps cases that are still open.
void TurnServer::drop(const std::string& name) {
  open_.erase(name);
  if (open_.empty()) instruments::release_cached_memory(device_);
}

}  // namespace tinyllama::harness
