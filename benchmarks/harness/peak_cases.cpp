#include "benchmarks/harness/peak_cases.hpp"

#include <benchmark/benchmark.h>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/case_work.hpp"
#include "benchmarks/harness/result_document.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kGiga = 1e9;

instruments::MeasuredPeak measure_again(const PeakCase& peak, PeakBook& peaks) {
  if (peak.type.empty()) return peaks.measure_bandwidth_again();
  return peak.shape ? peaks.measure_product(peak.type, *peak.shape)
                    : peaks.measure_flops_again(peak.type);
}

void run_peak_case(const PeakCase& peak, PeakBook& peaks, const instruments::Device& device,
                   benchmark::State& state) {
  if (console::interrupted()) return state.SkipWithMessage(kInterrupted);
  if (peak.shape) {
    const c10::ScalarType type = compute_type(parse_dtype(peak.type));
    const std::string refused = instruments::refuse_gemm(device, type, *peak.shape);
    if (!refused.empty()) return state.SkipWithMessage(refused);
  }
  const double work = peak.shape ? static_cast<double>(peak.shape->flops()) : kGiga;
  instruments::MeasuredPeak measured;
  std::string failure;
  while (state.KeepRunningBatch(state.max_iterations)) {
    failure = failure_of(device, 0, [&] { measured = measure_again(peak, peaks); });
    if (!failure.empty()) return state.SkipWithError(failure);
    state.SetIterationTime(static_cast<double>(state.max_iterations) * work / measured.per_second);
  }
  if (!peak.type.empty()) {
    state.counters["TFLOPS"] = measured.per_second * 1e-12;
  } else {
    state.counters["GB_per_second"] = measured.per_second / kGiga;
  }
  state.SetLabel(measured.source);
}

}  // namespace

void register_peak_case(const PeakCase& peak, PeakBook& peaks, const instruments::Device& device) {
  benchmark::RegisterBenchmark(peak.name,
                               [peak, &peaks, &device](benchmark::State& state) {
                                 run_peak_case(peak, peaks, device, state);
                               })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1);
}

}  // namespace tinyllama::harness
