#include "benchmarks/scaling/scaling_row.hpp"

#include "benchmarks/harness/samples.hpp"

namespace tinyllama::scaling {

double median(std::vector<double> values) {
  return harness::median(std::move(values));
}

harness::CaseResult to_case_result(const std::string& name, benchmark::TimeUnit unit,
                                   const std::vector<Repetition>& repetitions) {
  harness::Outcome outcome;
  for (const Repetition& r : repetitions)
    outcome.repetitions.push_back({r.seconds, r.cpu_seconds, r.iterations, r.counters});
  return harness::to_rows(
      name, {name, 0, static_cast<int64_t>(repetitions.size()), benchmark::GetTimeUnitString(unit)},
      outcome);
}

}  // namespace tinyllama::scaling
