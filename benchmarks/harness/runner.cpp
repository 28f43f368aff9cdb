#include "benchmarks/harness/runner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/harness/samples.hpp"
#include "benchmarks/harness/trace.hpp"

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
  Outcome outcome;
  Clock::time_point start = Clock::now();
  double gate_seconds = 0;  // of the iteration that the gate looked at, where it was the case's own
  double last_seconds = 0;  // of one iteration, preparation included
  int64_t repetitions = 0;  // that were timed
  bool measured_peaks_again = false;

  bool is_over() const { return !outcome.skip.empty() || !outcome.failure.empty(); }
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
  session.outcome.failure = std::move(thrown);
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
  Outcome& outcome = session->outcome;
  guarded(*session, [&] {
    outcome.skip = refuse(planned);
    if (!outcome.skip.empty()) return;
    // The name of a set does not say what it is here.
    const Variant& variant = planned.workload.variant;
    if (variant.name() != variant.switch_names())
      outcome.add_to_label(fmt::format("{} = {}", variant.name(), variant.switch_names()));
    session->work = build_work(device_, planned, settings_.seed, settings_.weights);
    if (settings_.verify != Verify::off) pass_gate(planned, *session);
    if (outcome.failure.empty() && settings_.verify != Verify::only)
      outcome.skip = refuse_after_gate(*session);
  });
  return session;
}

void Runner::pass_gate(const Case& planned, Session& session) {
  const auto budget = budget_now();
  const int64_t batch = gate_.batch_for(planned, budget.bytes).value();
  std::unique_ptr<WorkItem> smaller;
  WorkItem* item = session.work.item.get();
  if (batch != planned.workload.batch) {
    session.outcome.add_to_label(fmt::format("verified at batch:{}", batch));
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
    session.outcome.failure = fmt::format(
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
    session.last_seconds = warm_up(device_, *session.work.item, settings_.timing.warm_up_seconds,
                                   settings_.max_seconds_per_case / 10);
  }
  session.metering = meter_work(device_, *session.planned, session.work);
  const auto& unknown = session.metering.profile.unknown_operators;
  if (!unknown.empty())
    session.outcome.add_to_label(
        fmt::format("counted_flops leaves out: {}", fmt::join(unknown, ", ")));
  session.outcome.failure = wrong_flops(*session.planned, session.metering);
  if (!settings_.trace_folder.empty()) {
    const auto begin = Clock::now();
    session.outcome.add_to_label(
        write_trace(device_, *session.work.item, session.planned->name(), settings_.trace_folder));
    session.start += Clock::now() - begin;  // which is not the case's time
  }
}

void Runner::repeat(const Case& planned, Outcome& outcome) {
  if (console::interrupted()) {
    outcome.interrupted = true;
    return;
  }
  if (!session_ || session_->planned != &planned) {
    session_ = open(planned);
    if (!session_->is_over()) guarded(*session_, [&] { prepare_timing(*session_); });
  }
  Session& session = *session_;
  if (!session.is_over()) guarded(session, [&] { time_repetition(session, outcome); });
  outcome.label = session.outcome.label;
  outcome.skip = session.outcome.skip;
  outcome.failure = session.outcome.failure;
}

TimingGoal Runner::timing_goal(const Session& session) const {
  const auto after = [](Clock::time_point start, double seconds) {
    // As many seconds as the clock can count on.
    return start + std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<double>(std::min(seconds, 1e9)));
  };
  const TimingOptions& timing = settings_.timing;
  TimingGoal goal;
  goal.deadline = after(session.start, settings_.max_seconds_per_case);
  if (timing.iterations) {
    goal.min_seconds = std::numeric_limits<double>::infinity();
    goal.most_iterations = *timing.iterations;
    return goal;
  }
  goal.min_seconds = timing.min_seconds;
  goal.precision = timing.precision.value_or(kDefaultPrecision);
  // One that was asked for is worth all the time of the case.
  goal.precision_deadline =
      timing.precision ? after(session.start, settings_.max_seconds_per_case *
                                                  static_cast<double>(session.repetitions + 1) /
                                                  static_cast<double>(timing.repetitions))
                       : after(Clock::now(), kDefaultPrecisionTimes * timing.min_seconds);
  return goal;
}

void Runner::time_repetition(Session& session, Outcome& outcome) {
  const auto begin = Clock::now();
  const double elapsed = std::chrono::duration<double>(begin - session.start).count();
  if (session.repetitions > 0 && elapsed + session.last_seconds > settings_.max_seconds_per_case) {
    ++outcome.without_time;
    return;
  }
  Timing timing = time_until(device_, *session.work.item, flusher_.get(), timing_goal(session));
  const auto iterations = static_cast<int64_t>(timing.seconds.size());
  session.last_seconds = seconds_since(begin) / static_cast<double>(iterations);
  ++session.repetitions;
  const double seconds = mean(timing.seconds);
  note_rate(*session.planned, seconds);
  raise_peaks(session, seconds);
  outcome.repetitions.push_back({seconds, timing.cpu_seconds, iterations,
                                 counters(session, seconds), std::move(timing.seconds)});
}

Counters Runner::counters(const Session& session, double seconds) const {
  Counters all = fixed_counters(*session.planned, session.metering);
  all.merge(rate_counters(*session.planned, seconds));
  if (settings_.verify != Verify::off) all["max_rel_error"] = session.comparison.max_rel_error;
  return all;
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
  return {session->outcome.skip, session->outcome.failure, session->comparison.max_rel_error};
}

}  // namespace tinyllama::harness
