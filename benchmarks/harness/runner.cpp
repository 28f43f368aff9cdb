#include "benchmarks/harness/runner.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <thread>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/trace.hpp"
#include "benchmarks/instruments/host_load.hpp"
#include "benchmarks/instruments/library_choices.hpp"

namespace tinyllama::harness {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Short compared with a repetition, long compared with the cost of a reading.
constexpr std::chrono::milliseconds kSensorInterval(20);

// Not with checkpoint, whose backward computes the layer once more: autograd's graph does not show
// its parameters.
std::string refuse_without_gradient(const Case& test_case, const WorkItem& item) {
  if (has_backward(test_case.pass) || test_case.workload.variant.has(Switch::checkpoint)) return {};
  const std::vector<std::string> names = item.without_gradient();
  if (names.empty()) return {};
  return fmt::format(
      "no gradient would reach {}: what is timed is the forward of a training, whose operators "
      "autograd records",
      fmt::join(names, ", "));
}

// A key of cases that should reach about the same rate. It has the switches because rates may
// differ widely: bfloat16 GEMMs computed in float32 are thirty times as fast on some processors.
std::string reached_key(const Case& test_case) {
  return fmt::format("{}/{}/{}/{}", test_case.component->name, to_string(test_case.pass),
                     test_case.workload.variant.switch_names(),
                     gemm_type_name(test_case.workload.dtype));
}

}  // namespace

struct Runner::Session {
  const Case* test_case = nullptr;
  CaseWork work;
  Metering metering;
  Comparison comparison;
  Outcome outcome;
  Clock::time_point start = Clock::now();
  double gate_seconds = 0;  // of the iteration that the gate looked at, where it was the case's own
  double last_seconds = 0;  // of one iteration, preparation included
  double median_seconds = 0;  // of the last repetition
  double reached_flops = 0;   // a second, above the peak, but by little
  int64_t repetitions = 0;    // that were timed
  bool measured_peaks_again = false;
  double highest_clock_MHz = 0;  // of a repetition
  bool has_slowed = false;
  std::set<std::string> limits;  // of the clock, that were told

  bool is_over() const { return !outcome.skip.empty() || !outcome.failure.empty(); }
};

Runner::Runner(const instruments::Device& device, MeasuredPeaks& peaks, const RunSettings& settings)
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

// An error of the device is ignored here: the next case will meet and report it.
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

std::string Runner::refuse(const Case& test_case) {
  if (!test_case.skip_reason.empty()) return test_case.skip_reason;
  const auto budget = budget_now();
  const std::string too_large = refuse_for_memory(test_case, budget);
  if (!too_large.empty() && settings_.admit == Admit::fitting) return too_large;
  if (settings_.verify != Verify::off && !gate_.batch_for(test_case, budget.bytes)) {
    return fmt::format(
        "cannot be verified: its float64 reference does not fit beside it into {} ({})",
        console::format_bytes(budget.bytes), budget.source);
  }
  // A proof alone needs no peaks, and only as long as its float64 reference, which the gate limits.
  if (settings_.verify == Verify::only || test_case.cost().hardware_flops == 0) return {};
  return refuse_for_time(test_case, expected_rate(test_case), settings_.max_seconds_per_case);
}

GemmRate Runner::expected_rate(const Case& test_case) const {
  const auto known = reached_.find(reached_key(test_case));
  if (known != reached_.end())
    return {known->second, "the best that other cases of this component and variant reached"};
  const std::string type = gemm_type_name(test_case.workload.dtype);
  return {peaks_.measured_flops(type), fmt::format("the measured {} peak", type)};
}

// The gate's iteration has been timed; the metered and the timed one are still to come.
std::string Runner::refuse_after_gate(const Session& session) const {
  const double needed = kFewestIterations * session.gate_seconds;
  if (needed <= settings_.max_seconds_per_case) return {};
  return fmt::format(
      "an iteration took {:.1f} s, and {} need more than --max-seconds-per-case {:g}",
      session.gate_seconds, kFewestIterations, settings_.max_seconds_per_case);
}

std::unique_ptr<Runner::Session> Runner::open(const Case& test_case) {
  close();
  if (on_start_) on_start_(test_case);
  auto session = std::make_unique<Session>();
  session->test_case = &test_case;
  Outcome& outcome = session->outcome;
  guarded(*session, [&] {
    outcome.skip = refuse(test_case);
    if (!outcome.skip.empty()) return;
    // The name of a set does not say what it is here.
    const Variant& variant = test_case.workload.variant;
    if (variant.name() != variant.switch_names())
      outcome.add_to_label(fmt::format("{} = {}", variant.name(), variant.switch_names()));
    session->work = build_work(device_, test_case, settings_.seed, settings_.weights);
    if (settings_.verify != Verify::off) pass_gate(test_case, *session);
    if (!session->is_over() && settings_.verify != Verify::only)
      outcome.skip = refuse_after_gate(*session);
  });
  return session;
}

void Runner::pass_gate(const Case& test_case, Session& session) {
  const auto budget = budget_now();
  const int64_t batch = gate_.batch_for(test_case, budget.bytes).value();
  std::unique_ptr<WorkItem> smaller;
  WorkItem* item = session.work.item.get();
  if (batch != test_case.workload.batch) {
    session.outcome.add_to_label(fmt::format("verified at batch:{}", batch));
    Workload workload = test_case.workload;
    workload.batch = batch;
    smaller = test_case.component->build(
        {workload, test_case.pass, settings_.seed, device_.torch(), settings_.weights});
    item = smaller.get();
  }
  const auto iterate = [&] {
    GateRun run = run_for_gate(device_, *item);
    if (!smaller) note_rate(test_case, run.seconds);
    return run;
  };
  const auto check = [&](const NamedTensors& results) {
    return gate_.check(test_case, batch, results);
  };
  double first_seconds = 0;
  Outcome& outcome = session.outcome;
  {
    const GateRun run = iterate();
    first_seconds = run.seconds;
    outcome.failure = refuse_results(test_case, *item, run, check, session.comparison);
    if (outcome.failure.empty()) outcome.skip = session.comparison.unprovable;
  }
  if (!session.is_over()) outcome.failure = refuse_without_gradient(test_case, *item);
  if (settings_.verify == Verify::only && !session.is_over())
    check_with_new_inputs(session, *item, batch, first_seconds);
  if (smaller || settings_.verify == Verify::only) return;
  session.gate_seconds = first_seconds;
  // A first iteration also loads kernels: where its time would decide, a second one does.
  if (!session.is_over() && first_seconds >= settings_.max_seconds_per_case / 10)
    session.gate_seconds = std::min(
        first_seconds, time_until(device_, *item, nullptr, {.most_iterations = 1}).seconds.front());
}

std::string Runner::refuse_results(const Case& test_case, const WorkItem& item, const GateRun& run,
                                   const Check& check, Comparison& comparison) const {
  const Dtype dtype = test_case.workload.dtype;
  comparison = check(run.results);
  if (comparison.passes()) return {};
  std::string wrong = comparison.failure(dtype);
  constexpr double at_least = 0.1;
  std::this_thread::sleep_for(std::chrono::duration<double>(at_least + 2 * run.seconds));
  if (check(item.results()).passes())
    wrong += "; later it is right: work went on when the timed call had returned";
  return wrong;
}

// Proves the same work item that was timed, with inputs that it cannot have results of.
void Runner::check_with_new_inputs(Session& session, WorkItem& item, int64_t batch,
                                   double usual_seconds) {
  const Case& test_case = *session.test_case;
  Outcome& outcome = session.outcome;
  uint64_t seed = ParityGate::kChangedSeed;
  const auto change = [&] { change_inputs(item, seed++, distinct_samples(batch)); };
  const auto check = [&](const NamedTensors& results) {
    return gate_.check_changed(test_case, batch, results);
  };
  change();
  const NamedTensors givens = copies_of(item.givens());
  const GateRun run = run_for_gate(device_, item);
  Comparison comparison;
  const std::string wrong = refuse_results(test_case, item, run, check, comparison);
  const std::string changed = first_changed(item.givens(), givens);
  if (!wrong.empty())
    outcome.failure = "with new inputs at the same addresses: " + wrong;
  else if (!changed.empty())
    outcome.failure = changed + " was changed in place by the work, which only reads it";
  else if (comparison.unprovable.empty())
    outcome.failure = skipped_work(device_, item, usual_seconds, run.seconds, change);
  else
    outcome.skip = comparison.unprovable;
}

void Runner::note_rate(const Case& test_case, double seconds) {
  const int64_t flops = test_case.cost().hardware_flops;
  if (flops > 0)
    reached_[reached_key(test_case)] =
        std::max(reached_[reached_key(test_case)], static_cast<double>(flops) / seconds);
}

void Runner::prepare_timing(Session& session) {
  session.start = Clock::now();
  session.last_seconds = session.gate_seconds;
  // The gate's iteration has warmed a slow case up.
  if (session.gate_seconds < settings_.max_seconds_per_case / 10) {
    session.last_seconds = warm_up(device_, *session.work.item, settings_.timing.warm_up_seconds,
                                   settings_.max_seconds_per_case / 10);
  }
  session.metering = meter_work(device_, *session.test_case, session.work);
  const auto& unknown = session.metering.profile.unknown_operators;
  if (!unknown.empty())
    session.outcome.add_to_label(
        fmt::format("counted_flops leaves out: {}", fmt::join(unknown, ", ")));
  if (const std::string& lack = session.metering.profile.lack; !lack.empty())
    session.outcome.add_to_label("kernels and their time unknown: " + lack);
  const std::string& attention = session.metering.profile.attention_backend;
  if (!attention.empty()) session.outcome.add_to_label("attention: " + attention);
  const std::string blas = instruments::preferred_blas(device_);
  if (!blas.empty()) session.outcome.add_to_label("BLAS: " + blas);
  session.outcome.failure = wrong_flops(*session.test_case, session.metering);
  if (!settings_.trace_folder.empty()) {
    const auto begin = Clock::now();
    session.outcome.add_to_label(write_trace(device_, *session.work.item, session.test_case->name(),
                                             settings_.trace_folder));
    session.start += Clock::now() - begin;  // which is not the case's time
  }
}

void Runner::repeat(const Case& test_case, Outcome& outcome) {
  if (console::interrupted()) {
    outcome.interrupted = true;
    return;
  }
  if (!session_ || session_->test_case != &test_case) {
    session_ = open(test_case);
    if (!session_->is_over()) guarded(*session_, [&] { prepare_timing(*session_); });
  }
  Session& session = *session_;
  if (!session.is_over()) {
    guarded(session, [&] {
      time_repetition(session, outcome);
      const auto done = static_cast<int64_t>(outcome.repetitions.size()) + outcome.without_time;
      if (done < settings_.timing.repetitions) return;
      if (settings_.verify != Verify::off) prove_again(session);
      if (!session.is_over() && session.reached_flops > 0) {
        peaks_.raise(gemm_type_name(test_case.workload.dtype), session.reached_flops,
                     "reached by " + test_case.name());
      }
      if (session.outcome.skip.empty()) return;
      // A case that cannot be proved any more gets no time.
      outcome.repetitions.clear();
      outcome.without_time = 0;
    });
  }
  outcome.label = session.outcome.label;
  outcome.skip = session.outcome.skip;
  outcome.failure = session.outcome.failure;
}

// Copies of inputs and results take memory that the timed work did not need.
void Runner::prove_again(Session& session) {
  const std::string thrown = failure_of(device_, settings_.memory_limit_bytes, [&] {
    check_with_new_inputs(session, *session.work.item, session.test_case->workload.batch,
                          session.median_seconds);
  });
  std::string& failure = session.outcome.failure;
  if (thrown.starts_with("out of memory"))
    session.outcome.add_to_label("not proved with new inputs: " + thrown);
  else if (!thrown.empty())
    failure = thrown;
  if (!failure.empty()) failure = "after timing, " + failure;
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
  // A precision that the user asked for may take all the time of the case.
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
  std::optional<instruments::SystemSampler> sampler;
  if (settings_.sensors) sampler.emplace(*settings_.sensors, kSensorInterval);
  const instruments::HostWatch watch;
  Timing timing = time_until(device_, *session.work.item, flusher_.get(), timing_goal(session));
  const instruments::HostLoad load = watch.so_far();
  // before a peak is measured again, whose clock and power are not the case's
  std::optional<instruments::SystemSamples> seen;
  if (sampler) seen = sampler->stop();
  const auto iterations = static_cast<int64_t>(timing.seconds.size()) * timing.runs;
  session.last_seconds = seconds_since(begin) / static_cast<double>(iterations);
  ++session.repetitions;
  const double seconds = median(timing.seconds);
  session.median_seconds = seconds;
  note_rate(*session.test_case, seconds);
  raise_peaks(session, seconds);
  Counters all = counters(session, seconds);
  all.merge(device_counters(session.metering, timing));
  if (seen) all.merge(sensor_counters(*session.test_case, *seen, mean(timing.seconds)));
  warn_of_clock(session, all);
  const double taken = device_.is_gpu() ? 0 : load.taken_from(at::get_num_threads());
  outcome.repetitions.push_back({seconds, timing.cpu_seconds, iterations, std::move(all),
                                 std::move(timing.seconds), load.seconds, taken * load.seconds});
}

// Where the clock falls between repetitions, their times cannot be compared.
void Runner::warn_of_clock(Session& session, const Counters& counters) {
  for (const auto& [name, value] : counters) {
    if (!name.starts_with("limited_by_") || session.limits.contains(name)) continue;
    session.limits.insert(name);
    session.outcome.add_to_label(
        fmt::format("clock held down by {}", name.substr(std::string("limited_by_").size())));
  }
  const auto clock = counters.find("clock_MHz");
  if (clock == counters.end()) return;
  session.highest_clock_MHz = std::max(session.highest_clock_MHz, clock->second);
  constexpr double kept = 0.97;
  if (session.has_slowed || clock->second >= kept * session.highest_clock_MHz) return;
  session.has_slowed = true;
  session.outcome.add_to_label(fmt::format("clock fell from {:.0f} to {:.0f} MHz",
                                           session.highest_clock_MHz, clock->second));
}

Counters Runner::counters(const Session& session, double seconds) const {
  Counters all = fixed_counters(*session.test_case, session.metering);
  all.merge(rate_counters(*session.test_case, seconds));
  if (settings_.verify != Verify::off) all["max_rel_error"] = session.comparison.max_rel_error;
  return all;
}

// A case above a peak shows that the peak was measured too low, beside other load for example: it
// is measured once more, and what is still above it by little is the peak, once it is proved. What
// is above it by more has no shares in the end (add_shares).
void Runner::raise_peaks(Session& session, double seconds) {
  const Case& test_case = *session.test_case;
  const std::string type = gemm_type_name(test_case.workload.dtype);
  const Cost cost = test_case.cost();
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
    session.reached_flops = std::max(session.reached_flops, rate);
}

Runner::Verdict Runner::verify(const Case& test_case, int64_t live_beside) {
  live_beside_ = live_beside;
  const auto session = open(test_case);
  return {session->outcome.skip, session->outcome.failure, session->comparison};
}

}  // namespace tinyllama::harness
