#include "benchmarks/harness/runner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/harness/case_work.hpp"
#include "benchmarks/harness/counters.hpp"
#include "benchmarks/harness/result_document.hpp"

namespace tinyllama::harness {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of cases that should reach one rate. A variant's may be far from another's: bfloat16 products
// computed in float32 are thirty times as fast on some processors.
std::string reached_key(const Case& planned) {
  return fmt::format("{}/{}/{}/{}", planned.component->name, to_string(planned.pass),
                     planned.workload.variant.switch_names(),
                     product_type_name(planned.workload.dtype));
}

}  // namespace

struct Runner::Session {
  const Case* planned = nullptr;
  CaseWork work;
  Metering metering;
  Comparison comparison;
  std::string label;
  std::string skip;
  std::string failure;
  Clock::time_point start = Clock::now();
  double gate_seconds = 0;  // of the iteration that the gate looked at, where it was the case's own
  double last_seconds = 0;  // of one iteration
  int64_t last_iterations = 0;
  bool measured_peaks_again = false;

  void add_to_label(const std::string& text) { label += label.empty() ? text : "; " + text; }
};

Runner::Runner(const instruments::Device& device, PeakBook& peaks, const RunSettings& settings)
    : device_(device),
      peaks_(peaks),
      settings_(settings),
      gate_(device, settings.seed, std::nullopt, settings.weights) {
  if (settings.cold_cache) flusher_ = std::make_unique<CacheFlusher>(device);
}

Runner::~Runner() = default;

void Runner::close() {
  session_.reset();
  release_memory();
}

// What that throws, of a device in error, the next case will meet again and report.
void Runner::release_memory() {
  failure_of(device_, 0, [&] { instruments::release_cached_memory(device_); });
}

// Whatever a case throws becomes its own failure, and the run goes on.
template <typename Step>
void Runner::guarded(Session& session, Step step) {
  std::string thrown = failure_of(device_, settings_.memory_limit_bytes, step);
  if (thrown.empty()) return;
  session.failure = std::move(thrown);
  session.work.item.reset();
  release_memory();
}

MemoryBudget Runner::budget_now() const {
  return memory_budget(device_, settings_.memory_limit_bytes, live_beside_);
}

std::string Runner::refuse(const Case& planned) {
  if (!planned.skip_reason.empty()) return planned.skip_reason;
  const auto budget = budget_now();
  const std::string too_large = refuse_for_memory(planned, budget);
  if (!too_large.empty() && settings_.admit == Admit::fitting) return too_large;
  if (settings_.verify != Verify::off && !gate_.batch_for(planned, budget.bytes)) {
    return fmt::format(
        "cannot be verified: its float64 reference does not fit beside it into {} ({})",
        console::format_bytes(budget.bytes), budget.source);
  }
  // A proof alone needs no peaks, and only as long as its float64 reference, which the gate limits.
  if (settings_.verify == Verify::only || planned.cost().hardware_flops == 0) return {};
  return refuse_for_time(planned, expected_rate(planned), settings_.max_seconds_per_case);
}

ProductRate Runner::expected_rate(const Case& planned) const {
  const auto known = reached_.find(reached_key(planned));
  if (known != reached_.end())
    return {known->second, "the best that other cases of this component and variant reached"};
  const std::string type = product_type_name(planned.workload.dtype);
  return {peaks_.measured_flops(type), fmt::format("the measured {} peak", type)};
}

// One iteration is known now; the metered and the timed one are still to come.
std::string Runner::refuse_after_gate(const Session& session) const {
  const double needed = kFewestIterations * session.gate_seconds;
  if (needed <= settings_.max_seconds_per_case) return {};
  return fmt::format(
      "an iteration took {:.1f} s, and {} need more than --max-seconds-per-case {:g}",
      session.gate_seconds, kFewestIterations, settings_.max_seconds_per_case);
}

std::unique_ptr<Runner::Session> Runner::open(const Case& planned) {
  close();
  if (on_start_) on_start_(planned);
  auto session = std::make_unique<Session>();
  session->planned = &planned;
  guarded(*session, [&] {
    session->skip = refuse(planned);
    if (!session->skip.empty()) return;
    // The name of a set does not say what it is here.
    const Variant& variant = planned.workload.variant;
    if (variant.name() != variant.switch_names())
      session->add_to_label(fmt::format("{} = {}", variant.name(), variant.switch_names()));
    session->work = build_work(device_, planned, settings_.seed, settings_.weights);
    if (settings_.verify != Verify::off) pass_gate(planned, *session);
    if (session->failure.empty() && settings_.verify != Verify::only)
      session->skip = refuse_after_gate(*session);
  });
  return session;
}

void Runner::pass_gate(const Case& planned, Session& session) {
  const auto budget = budget_now();
  const int64_t batch = gate_.batch_for(planned, budget.bytes).value();
  std::unique_ptr<WorkItem> smaller;
  WorkItem* item = session.work.item.get();
  if (batch != planned.workload.batch) {
    session.add_to_label(fmt::format("verified at batch:{}", batch));
    Workload workload = planned.workload;
    workload.batch = batch;
    smaller = planned.component->build(
        {workload, planned.pass, settings_.seed, device_.torch(), settings_.weights});
    item = smaller.get();
  }
  const auto start = Clock::now();
  item->prepare();
  item->run();
  device_.synchronize();
  if (!smaller) {
    session.gate_seconds = seconds_since(start);
    note_rate(planned, session.gate_seconds);
  }
  session.comparison = gate_.check(planned, batch, item->results());
  const double allowed = tolerance(planned.workload.dtype);
  if (session.comparison.max_rel_error > allowed) {
    session.failure = fmt::format(
        "wrong result: {} differs from the float64 baseline by {:.3g} of its largest magnitude, "
        "allowed are {:g}",
        session.comparison.worst_tensor, session.comparison.max_rel_error, allowed);
  }
}

void Runner::note_rate(const Case& planned, double seconds) {
  const int64_t flops = planned.cost().hardware_flops;
  if (flops > 0)
    reached_[reached_key(planned)] =
        std::max(reached_[reached_key(planned)], static_cast<double>(flops) / seconds);
}

void Runner::prepare_timing(Session& session) {
  session.start = Clock::now();
  session.last_seconds = session.gate_seconds;
  // The gate's iteration has warmed a slow case up.
  if (session.gate_seconds < settings_.max_seconds_per_case / 10) {
    session.last_seconds =
        warm_up(device_, *session.work.item, kWarmUpSeconds, settings_.max_seconds_per_case / 10);
  }
  session.metering = meter_work(device_, *session.planned, session.work);
  const auto& unknown = session.metering.profile.unknown_operators;
  if (!unknown.empty())
    session.add_to_label(fmt::format("counted_flops leaves out: {}", fmt::join(unknown, ", ")));
  session.failure = wrong_flops(*session.planned, session.metering);
}

void Runner::run(const Case& planned, benchmark::State& state) {
  if (console::interrupted()) return state.SkipWithMessage(kInterrupted);
  const bool first_call = !session_ || session_->planned != &planned;
  if (first_call) session_ = open(planned);
  Session& session = *session_;
  if (first_call && session.failure.empty() && session.skip.empty())
    guarded(session, [&] { prepare_timing(session); });
  if (session.failure.empty() && session.skip.empty()) {
    guarded(session, [&] { time_repetition(session, state); });
  }
  if (!session.skip.empty()) state.SkipWithMessage(session.skip);
  if (!session.failure.empty()) state.SkipWithError(session.failure);
}

void Runner::time_repetition(Session& session, benchmark::State& state) {
  const int64_t iterations = state.max_iterations;
  // The same count again means another repetition; the reporter drops it if the time for it has run
  // out.
  const bool repeats = iterations == session.last_iterations;
  const double needed = static_cast<double>(iterations) * session.last_seconds;
  if (repeats && seconds_since(session.start) + needed > settings_.max_seconds_per_case)
    return state.SkipWithMessage(kNoTimeLeft);
  // As many seconds as the clock can count on.
  const std::chrono::duration<double> most(std::min(settings_.max_seconds_per_case, 1e9));
  const TimingBounds bounds{session.start + std::chrono::duration_cast<Clock::duration>(most),
                            &state};
  double seconds = 0;
  const auto begin = Clock::now();
  while (state.KeepRunningBatch(iterations)) {
    const std::vector<double> samples =
        time_work(device_, *session.work.item, iterations, flusher_.get(), bounds);
    seconds =
        std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
    // Google Benchmark divides by its own count, and takes the time for that of all iterations.
    state.SetIterationTime(seconds * static_cast<double>(iterations));
    session.last_seconds = seconds_since(begin) / static_cast<double>(samples.size());
    if (static_cast<int64_t>(samples.size()) < iterations)
      state.counters[kTimedIterations] = static_cast<double>(samples.size());
  }
  session.last_iterations = iterations;
  report(session, seconds, state);
}

void Runner::report(Session& session, double seconds, benchmark::State& state) {
  note_rate(*session.planned, seconds);
  raise_peaks(session, seconds);
  const auto set = [&](const Counters& counters) {
    for (const auto& [name, value] : counters) state.counters[name] = value;
  };
  set(fixed_counters(*session.planned, session.metering));
  set(rate_counters(*session.planned, seconds));
  if (settings_.verify != Verify::off)
    state.counters["max_rel_error"] = session.comparison.max_rel_error;
  state.SetLabel(session.label);
}

// A case above a peak shows that the peak was measured too low, beside other load for example: it
// is measured once more, and what is still above it by little is the peak. What is above it by more
// has no shares in the end (add_shares).
void Runner::raise_peaks(Session& session, double seconds) {
  const Case& planned = *session.planned;
  const std::string type = product_type_name(planned.workload.dtype);
  const Cost cost = planned.cost();
  const double rate = static_cast<double>(cost.hardware_flops) / seconds;
  const double traffic = static_cast<double>(cost.bytes) / seconds;
  const auto above_flops = [&] { return rate > 0 && rate > peaks_.measured_flops(type); };
  const auto above_bandwidth = [&] { return traffic > peaks_.bandwidth(cost.bytes); };
  const AllocationLimit none(0);
  if (!session.measured_peaks_again && (above_flops() || above_bandwidth())) {
    session.measured_peaks_again = true;
    const auto begin = Clock::now();
    if (above_flops()) peaks_.measure_flops_again(type);
    if (above_bandwidth()) peaks_.measure_bandwidth_again();
    session.start += Clock::now() - begin;  // which is not the case's time
  }
  if (above_flops() && rate <= kLargestShare * peaks_.measured_flops(type))
    peaks_.raise(type, rate, "reached by " + planned.name());
}

Runner::Verdict Runner::verify(const Case& planned, int64_t live_beside) {
  live_beside_ = live_beside;
  const auto session = open(planned);
  return {session->skip, session->failure, session->comparison.max_rel_error};
}

}  // namespace tinyllama::harness
