#include "benchmarks/harness/runner.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>
#include <utility>

#include "benchmarks/harness/case_counters.hpp"
#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/trace.hpp"
#include "benchmarks/instruments/host_load.hpp"
#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

using instruments::Clock;
using instruments::later;
using instruments::seconds_since;

// Short compared with a repetition, long compared with the cost of a reading.
constexpr std::chrono::milliseconds kSensorInterval(20);

}  // namespace

struct Runner::Session {
  PreparedCase prepared;
  Clock::time_point start = prepared.timing_began();
  double last_seconds = prepared.warm_seconds();  // of one iteration, preparation included
  double median_seconds = 0;                      // of the last repetition
  double reached_flops = 0;                       // a second, above the peak, but by little
  int64_t repetitions = 0;                        // that were timed
  bool measured_peaks_again = false;
  double highest_clock_MHz = 0;  // of a repetition
  bool has_slowed = false;
  std::set<std::string> limits{};  // of the clock, that were told
};

Runner::Runner(const instruments::Device& device, instruments::MeasuredPeaks& peaks,
               const Options& options, std::optional<instruments::SystemReader> sensors)
    : device_(device),
      peaks_(peaks),
      options_(options),
      sensors_(std::move(sensors)),
      preparation_(device, options, &peaks) {}

Runner::~Runner() = default;

void Runner::close() {
  session_.reset();
  release_memory(device_);
}

void Runner::begin(const Case& test_case) {
  close();
  const auto proof = options_.verify == Verify::off ? Steps::Proof::none : Steps::Proof::results;
  session_.reset(new Session{PreparedCase(preparation_, test_case, {.proof = proof})});
  if (sensors_ && sensors_->facts.contains("power_of"))
    session_->prepared.add_to_label("power_W is of " + sensors_->facts.at("power_of"));
  if (!session_->prepared.is_over()) session_->prepared.guarded([&] { write_traces(*session_); });
}

void Runner::write_traces(Session& session) const {
  const auto begin = Clock::now();
  PreparedCase& traced = session.prepared;
  const auto write = [&](const auto& write_one, const std::string& folder) {
    if (folder.empty()) return;
    traced.add_to_label(write_one(device_, traced.item(), traced.test_case().name(), folder));
  };
  write(write_trace, options_.trace_folder);
  write(write_execution_trace, options_.execution_trace_folder);
  session.start += Clock::now() - begin;  // which is not the case's time
}

void Runner::repeat(const Case& test_case, Outcome& outcome) {
  if (!session_ || &session_->prepared.test_case() != &test_case) begin(test_case);
  Session& session = *session_;
  PreparedCase& prepared = session.prepared;
  if (!prepared.is_over()) {
    prepared.guarded([&] {
      time_repetition(session, outcome);
      const auto done = static_cast<int64_t>(outcome.repetitions.size()) + outcome.without_time;
      if (done < options_.timing.repetitions) return;
      if (options_.verify != Verify::off) prepared.prove_after_timing(session.median_seconds);
      if (!prepared.is_over() && session.reached_flops > 0) {
        peaks_.raise(gemm_type_name(test_case.workload.dtype), session.reached_flops,
                     "reached by " + test_case.name());
      }
      if (prepared.remarks().skip.empty()) return;
      // A case that cannot be proved any more gets no time.
      outcome.repetitions.clear();
      outcome.without_time = 0;
    });
  }
  static_cast<Remarks&>(outcome) = prepared.remarks();
}

void Runner::repeat(const PeakCase& peak, Outcome& outcome) {
  instruments::MeasuredPeak measured;
  const auto measure = [&] {
    if (peak.shape)
      outcome.skip =
          instruments::refuse_gemm(device_, compute_type(parse_dtype(peak.type)), *peak.shape);
    if (!outcome.skip.empty()) return;
    measured = peak.type.empty() ? peaks_.measure_bandwidth_again()
               : peak.shape      ? peaks_.measure_gemm(peak.type, *peak.shape)
                                 : peaks_.measure_flops_again(peak.type);
  };
  outcome.failure = failure_of(device_, 0, [&] {
    preparation_.guard ? preparation_.guard->run(peak.name, false, measure) : measure();
  });
  if (!outcome.skip.empty() || !outcome.failure.empty()) return;
  constexpr double giga = 1e9;
  Repetition repetition;
  repetition.seconds =
      (peak.shape ? static_cast<double>(peak.shape->flops()) : giga) / measured.per_second;
  if (peak.type.empty())
    repetition.counters["GB_per_second"] = measured.per_second / giga;
  else
    repetition.counters["TFLOPS"] = measured.per_second * 1e-12;
  if (measured.default_per_second > 0)
    repetition.counters["default_TFLOPS"] = measured.default_per_second * 1e-12;
  outcome.repetitions.push_back(std::move(repetition));
  outcome.label = measured.source;
}

TimingGoal Runner::timing_goal(const Session& session) const {
  const TimingOptions& timing = options_.timing;
  TimingGoal goal;
  goal.deadline = later(session.start, options_.max_seconds_per_case);
  if (timing.iterations) {
    goal.min_seconds = std::numeric_limits<double>::infinity();
    goal.most_iterations = *timing.iterations;
    return goal;
  }
  goal.min_seconds = timing.min_seconds;
  goal.precision = timing.precision.value_or(kDefaultPrecision);
  // A precision that the user asked for may take all the time of the case.
  goal.precision_deadline =
      timing.precision ? later(session.start, options_.max_seconds_per_case *
                                                  static_cast<double>(session.repetitions + 1) /
                                                  static_cast<double>(timing.repetitions))
                       : later(Clock::now(), kDefaultPrecisionTimes * timing.min_seconds);
  return goal;
}

void Runner::time_repetition(Session& session, Outcome& outcome) {
  const Case& test_case = session.prepared.test_case();
  const auto begin = Clock::now();
  const double elapsed = seconds_since(session.start, begin);
  if (session.repetitions > 0 && elapsed + session.last_seconds > options_.max_seconds_per_case) {
    ++outcome.without_time;
    return;
  }
  const bool looks_at_ends = sensors_ && sensors_->only_at_ends;
  std::optional<instruments::SystemSampler> sampler;
  if (sensors_ && !looks_at_ends) sampler.emplace(*sensors_, kSensorInterval);
  if (looks_at_ends) sensors_->read();
  const instruments::HostWatch watch;
  Timing timing = time_until(device_, session.prepared.item(), preparation_.flusher.get(),
                             timing_goal(session));
  const instruments::HostLoad load = watch.so_far();
  // before a peak is measured again, whose clock and power are not the case's
  std::optional<instruments::SystemSamples> seen;
  if (sampler) seen = sampler->stop();
  if (looks_at_ends) seen = instruments::power_since_last(*sensors_);
  const auto iterations = static_cast<int64_t>(timing.seconds.size()) * timing.runs;
  session.last_seconds = seconds_since(begin) / static_cast<double>(iterations);
  ++session.repetitions;
  const double seconds = median(timing.seconds);
  session.median_seconds = seconds;
  preparation_.note_rate(test_case, seconds);
  raise_peaks(session, seconds);
  Counters all = counters(session, seconds);
  all.merge(device_counters(session.prepared.metering(), timing));
  if (seen) all.merge(sensor_counters(test_case, *seen, mean(timing.seconds)));
  warn_of_clock(session, all);
  const double taken = device_.is_gpu() ? 0 : load.taken_from(at::get_num_threads());
  outcome.repetitions.push_back({seconds, timing.cpu_seconds, iterations, std::move(all),
                                 std::move(timing.seconds), load.seconds, taken * load.seconds});
}

// Where the clock falls between repetitions, their times cannot be compared.
void Runner::warn_of_clock(Session& session, const Counters& counters) const {
  for (const auto& [name, value] : counters) {
    if (!name.starts_with("limited_by_") || session.limits.contains(name)) continue;
    session.limits.insert(name);
    session.prepared.add_to_label(
        fmt::format("clock held down by {}", name.substr(std::string("limited_by_").size())));
  }
  const auto clock = counters.find("clock_MHz");
  if (clock == counters.end()) return;
  session.highest_clock_MHz = std::max(session.highest_clock_MHz, clock->second);
  constexpr double kept = 0.97;
  if (session.has_slowed || clock->second >= kept * session.highest_clock_MHz) return;
  session.has_slowed = true;
  session.prepared.add_to_label(fmt::format("clock fell from {:.0f} to {:.0f} MHz",
                                            session.highest_clock_MHz, clock->second));
}

Counters Runner::counters(const Session& session, double seconds) const {
  const PreparedCase& prepared = session.prepared;
  Counters all = fixed_counters(prepared.test_case(), prepared.metering());
  all.merge(rate_counters(prepared.test_case(), seconds));
  if (options_.verify != Verify::off) all["max_rel_error"] = prepared.comparison().max_rel_error;
  return all;
}

// A case above a peak shows that the peak was measured too low, beside other load for example: it
// is measured once more, and what is still above it by little is the peak, once it is proved. What
// is above it by more has no shares in the end (add_shares).
void Runner::raise_peaks(Session& session, double seconds) {
  const Case& test_case = session.prepared.test_case();
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
  if (above_flops() && rate <= instruments::kLargestShare * peaks_.measured_flops(type))
    session.reached_flops = std::max(session.reached_flops, rate);
}

}  // namespace tinyllama::harness
