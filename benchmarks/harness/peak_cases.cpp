#include "benchmarks/harness/peak_cases.hpp"

#include <algorithm>
#include <set>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/outcome.hpp"
#include "model/step_gemms.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kGiga = 1e9;

std::vector<GemmShape> gemm_shapes(const std::vector<Case>& cases) {
  std::set<GemmShape> shapes;
  for (const Case& test_case : cases) {
    if (test_case.cost().model_flops > 0) shapes.merge(linear_gemms(test_case.workload));
  }
  return {shapes.begin(), shapes.end()};
}

int64_t largest_traffic(const Plan& plan) {
  const auto is_of_bandwidth = [](const PeakCase& peak) { return peak.type.empty(); };
  if (std::ranges::any_of(plan.peak_cases, is_of_bandwidth)) return instruments::kTrafficOfMemory;
  int64_t largest = 1;
  for (const Case& test_case : plan.cases) largest = std::max(largest, test_case.cost().bytes);
  return largest;
}

instruments::MeasuredPeak measure_again(const PeakCase& peak, instruments::MeasuredPeaks& peaks) {
  if (peak.type.empty()) return peaks.measure_bandwidth_again();
  return peak.shape ? peaks.measure_gemm(peak.type, *peak.shape)
                    : peaks.measure_flops_again(peak.type);
}

}  // namespace

instruments::PeaksNeeded peaks_needed(const Plan& plan) {
  return {plan.gemm_types, gemm_shapes(plan.cases), largest_traffic(plan)};
}

void measure_peak_case(const PeakCase& peak, instruments::MeasuredPeaks& peaks,
                       const instruments::Device& device, Outcome& outcome) {
  if (console::interrupted()) {
    outcome.interrupted = true;
    return;
  }
  instruments::MeasuredPeak measured;
  outcome.failure = failure_of(device, 0, [&] {
    if (peak.shape)
      outcome.skip =
          instruments::refuse_gemm(device, compute_type(parse_dtype(peak.type)), *peak.shape);
    if (outcome.skip.empty()) measured = measure_again(peak, peaks);
  });
  if (!outcome.skip.empty() || !outcome.failure.empty()) return;
  const double work = peak.shape ? static_cast<double>(peak.shape->flops()) : kGiga;
  Repetition repetition{.seconds = work / measured.per_second};
  if (peak.type.empty()) {
    repetition.counters["GB_per_second"] = measured.per_second / kGiga;
  } else {
    repetition.counters["TFLOPS"] = measured.per_second * 1e-12;
  }
  outcome.repetitions.push_back(std::move(repetition));
  outcome.label = measured.source;
}

}  // namespace tinyllama::harness
