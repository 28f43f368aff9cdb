#include "benchmarks/scaling/step_rounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/scaling/random_order.hpp"
#include "benchmarks/scaling/run_control.hpp"
#include "benchmarks/scaling/scaling_row.hpp"
#include "benchmarks/scaling/step_counters.hpp"

namespace tinyllama::scaling {
namespace {

constexpr int64_t kWarmUpSteps = 3;

struct ModeRecord {
  int64_t steps = 1;  // in a round
  double peak_bytes = 0;
  std::vector<Repetition> repetitions;
  std::vector<RoundSamples> samples;
};

class StepRounds {
 public:
  StepRounds(StepSession& session, const ScalingOptions& options, distributed::ProcessGroup& group,
             const StepProof& proof)
      : session_(session),
        options_(options),
        group_(group),
        proof_(proof),
        modes_(step_modes(options, group.size())) {}

  void measure(const KeepRows& keep) {
    for (const StepMode mode : modes_) {
      if (any_rank_interrupted(group_)) return;
      warm_up(mode);
    }
    for (int64_t round = 0; round < options_.rounds; ++round) {
      if (any_rank_interrupted(group_)) return;
      measure_round(round);
      keep(rows());
    }
  }

 private:
  void warm_up(StepMode mode) {
    group_.enter(fmt::format("warm-up of {}", to_string(mode)));
    instruments::MemoryMeter meter(group_.device());
    meter.start();
    const RoundSamples samples =
        gather_samples(group_, session_.time_steps(mode, kWarmUpSteps).seconds);
    ModeRecord& record = records_[mode];
    record.peak_bytes = group_.largest_number(static_cast<double>(meter.read().peak_bytes));
    // The last one: the first pay for what later ones find in caches. Every rank has all samples,
    // but their clocks' readings decide: rank 0's word counts.
    double last = 0;
    for (const auto& rank : samples) {
      if (!rank.empty()) last = std::max(last, rank.back());
    }
    const double steps = std::ceil(options_.min_seconds / std::max(last, 1e-6));
    record.steps = static_cast<int64_t>(group_.number_of_first(std::clamp(steps, 1.0, 1e6)));
  }

  void measure_round(int64_t round) {
    ModeSamples of_round;
    std::map<StepMode, double> cpu_seconds;
    for (const size_t index :
         random_order(modes_.size(), options_.seed, static_cast<uint64_t>(round))) {
      const StepMode mode = modes_[index];
      const int64_t steps = records_[mode].steps;
      group_.enter(fmt::format("round {} of {}, {} steps {}", round + 1, options_.rounds, steps,
                               to_string(mode)));
      const StepTimes mine = session_.time_steps(mode, steps);
      cpu_seconds[mode] = mine.cpu_seconds;
      of_round[mode] = gather_samples(group_, mine.seconds);
    }
    for (const StepMode mode : modes_) note(mode, of_round, cpu_seconds.at(mode));
    say(group_, fmt::format("round {} of {}: {}", round + 1, options_.rounds, summary(of_round)));
  }

  static std::string summary(const ModeSamples& of_round) {
    std::string text;
    for (const auto& [mode, samples] : of_round) {
      text +=
          fmt::format("{}{} {:.1f} ms", text.empty() ? "" : ", ",
                      mode == StepMode::alone_global ? "alone with all samples" : to_string(mode),
                      slowest_seconds(samples) * 1e3);
    }
    return text;
  }

  void note(StepMode mode, const ModeSamples& of_round, double cpu_seconds) {
    ModeRecord& record = records_[mode];
    const RoundSamples& samples = of_round.at(mode);
    Repetition repetition{slowest_seconds(samples), cpu_seconds, record.steps, {}};
    repetition.counters = counters(mode, repetition.seconds, record.peak_bytes);
    if (is_data_parallel(mode)) {
      for (const auto& [name, value] : scaling_counters(of_round, mode, group_.size()))
        repetition.counters[name] = value;
    }
    record.repetitions.push_back(std::move(repetition));
    record.samples.push_back(samples);
  }

  static bool is_data_parallel(StepMode mode) {
    return mode == StepMode::overlap || mode == StepMode::no_overlap || mode == StepMode::sharded;
  }

  // Of the ranks that compute.
  harness::Counters counters(StepMode mode, double seconds, double peak_bytes) const {
    harness::Counters found = {{"ranks", group_.size()}};
    // Its gradients are those of a step before, whose peak is no figure of the sums.
    if (mode == StepMode::communication) return found;
    found["peak_memory_MiB"] = peak_bytes / 1048576.0;
    const Workload workload = workload_of(mode);
    const bool alone = mode == StepMode::alone || mode == StepMode::alone_global;
    const auto samples = static_cast<double>(workload.batch * (alone ? 1 : group_.size()));
    const Cost cost = full_step_cost(workload);
    found["samples_per_second"] = samples / seconds;
    found["tokens_per_second"] = samples * static_cast<double>(workload.seq) / seconds;
    // Of one rank, as its device's peak is.
    found["TFLOPS"] = static_cast<double>(cost.model_flops) / seconds * 1e-12;
    found["model_flops"] = static_cast<double>(cost.model_flops);
    if (options_.verify && is_data_parallel(mode))
      found["max_rel_error"] =
          mode == StepMode::sharded ? proof_.sharded_error : proof_.max_rel_error;
    return found;
  }

  Workload workload_of(StepMode mode) const {
    Workload workload = options_.workload();
    if (mode == StepMode::alone_global) workload.batch = *options_.global_batch;
    return workload;
  }

  std::string name_of(StepMode mode) const {
    const Workload workload = workload_of(mode);
    return fmt::format("full_step/train/{}/{}/{}/batch:{}/seq:{}/ranks:{}/{}",
                       workload.variant.name(), options_.size, to_string(workload.dtype),
                       workload.batch, workload.seq, group_.size(), to_string(mode));
  }

  std::vector<MeasuredRow> rows() const {
    std::vector<MeasuredRow> found;
    for (const StepMode mode : modes_) {
      const ModeRecord& record = records_.at(mode);
      if (record.repetitions.empty()) continue;
      found.push_back({to_case_result(name_of(mode), benchmark::kMillisecond, record.repetitions),
                       record.samples});
    }
    return found;
  }

  StepSession& session_;
  const ScalingOptions& options_;
  distributed::ProcessGroup& group_;
  const StepProof& proof_;
  std::vector<StepMode> modes_;
  std::map<StepMode, ModeRecord> records_;
};

}  // namespace

void measure_steps(StepSession& session, const ScalingOptions& options,
                   distributed::ProcessGroup& group, const StepProof& proof, const KeepRows& keep) {
  StepRounds(session, options, group, proof).measure(keep);
}

}  // namespace tinyllama::scaling
