// Times that all ranks take together, the rounds in which everything that is compared is measured
// once, and the rows that they become, in Google Benchmark's format.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/console/progress.hpp"
#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/scaling/options.hpp"
#include "benchmarks/scaling/waits.hpp"

namespace tinyllama::scaling {

using distributed::ProcessGroup;

/// What the ranks do in an iteration.
struct RankWork {
  std::function<void()> run;
  std::function<void()> prepare = [] {};  ///< before each iteration, untimed
  int64_t calls = 1;                      ///< of run() that are timed as one iteration
  bool first_rank_only = false;           ///< the others wait, without using a processor
};

/// What one rank measured.
struct RankTimes {
  std::vector<double> seconds;  ///< a call in each iteration; none where the rank had no part
  /// Mean of a call over all threads of this process; waiting for other ranks before an iteration,
  /// and what prepares it, are left out.
  double cpu_seconds = 0;
  /// Of all iterations' collectives; none on a GPU, whose host does not wait.
  std::vector<distributed::OperationTimes> operations = {};
};

/// instruments::time_iterations on all ranks, which start each iteration together. All of them have
/// to call it, with the same arguments.
RankTimes time_together(ProcessGroup& group, const RankWork& work, int64_t iterations);

/// How many iterations of `seconds` each take `wanted_seconds`, 1 to 10^6. All ranks get the number
/// of rank 0, because each has measured another time.
int64_t agreed_iterations(ProcessGroup& group, double wanted_seconds, double seconds);

/// Seconds of a round: [rank][iteration]. A rank without a part in it has none.
using RoundSamples = std::vector<std::vector<double>>;

/// What every rank measured, on all of them. Ranks may have different numbers of samples. All of
/// them have to call it.
RoundSamples gather_samples(ProcessGroup& group, const std::vector<double>& mine);

/// slowest_seconds: median over the iterations of the slowest rank's time. mean_seconds: of the
/// mean over the ranks that took part. Throws std::invalid_argument where there is no sample.
double slowest_seconds(const RoundSamples& round);
double mean_seconds(const RoundSamples& round);

/// 0 to count - 1 in an order drawn from the two numbers, the same with every standard library: all
/// ranks draw alike, without talking to each other.
std::vector<size_t> random_order(size_t count, uint64_t seed, uint64_t round);

/// Whether a signal asked any rank to stop. All ranks have to call it, and get the same answer.
bool any_rank_interrupted(ProcessGroup& group);

/// A row while it is measured. A repetition is one round's measurement: seconds of an iteration on
/// the slowest rank, processor seconds of all threads of rank 0's process.
struct RowRecord {
  std::string name = {};
  std::string unit = "ms";
  std::string label = {};
  std::vector<harness::Repetition> repetitions = {};  ///< a round
  std::vector<RoundSamples> samples = {};             ///< a round: what each rank measured
  std::vector<CollectiveWaits> waits = {};            ///< a round; none where nothing was sent
};

/// Adds the round's waits, where there are any: gather_waits. All ranks have to call it.
void add_waits(RowRecord& record, ProcessGroup& group, const RankTimes& mine, int64_t iterations);
/// wait_ms and transfer_ms of the last round, means over the ranks; empty where there are none.
harness::Counters wait_counters(const RowRecord& record);

/// The repetitions and, where there are two or more, their mean, median, standard deviation and
/// coefficient of variation, counters included.
harness::CaseResult to_case_result(const RowRecord& record);

/// What a run has measured so far, and the file that it goes to.
class ScalingResults {
 public:
  /// All ranks have to make one: they tell rank 0 where they are. `bucket_bytes` of the gradients;
  /// empty where no step is measured.
  ScalingResults(const ScalingOptions& options, ProcessGroup& group,
                 const std::vector<int64_t>& bucket_bytes);

  /// Takes the row as it is now, unless it has no repetition yet. Does nothing on other ranks than
  /// the first.
  void keep(const RowRecord& record);
  /// Writes the file anew, on rank 0: nothing that was measured is lost with a process, whatever
  /// ends it. Throws std::runtime_error where it cannot be written.
  void write() const;
  /// For the end: the document (--benchmark_format=json), or a table of medians and which rank the
  /// others wait for.
  std::string text() const;
  bool is_empty() const { return rows_.empty(); }

 private:
  harness::Json document() const;

  const ScalingOptions& options_;
  bool is_first_;
  harness::Json context_;
  std::vector<RowRecord> rows_;
};

/// The rounds of a run over records with a `row`: in each, measure(record, place) once for each of
/// them, in an order drawn anew, so that the machine's drift hits all alike; then words() say what
/// came out, and the results get the rows. An interrupt of any rank ends it after a round.
template <typename Record, typename Measure, typename Words>
void measure_rounds(const ScalingOptions& options, ProcessGroup& group, console::Progress& progress,
                    ScalingResults& results, std::vector<Record>& records, const Measure& measure,
                    const Words& words) {
  const std::string& name = records.front().row.name;
  const std::string kind = name.substr(0, name.find('/'));
  progress.expect(kind, 1, options.rounds);
  for (int64_t round = 0; round < options.rounds && !any_rank_interrupted(group); ++round) {
    const std::string place =
        "round " + std::to_string(round + 1) + " of " + std::to_string(options.rounds);
    progress.start(kind);
    for (const size_t index :
         random_order(records.size(), options.seed, static_cast<uint64_t>(round)))
      measure(records[index], place);
    progress.finish(kind);
    progress.say(place + ": " + words());
    for (const Record& record : records) results.keep(record.row);
    results.write();
  }
}

}  // namespace tinyllama::scaling
