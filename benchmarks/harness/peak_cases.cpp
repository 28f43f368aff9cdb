#include "benchmarks/harness/peak_cases.hpp"

#include <benchmark/benchmark.h>

#include "benchmarks/console/interrupt.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kGiga = 1e9;
const std::string kGemmPrefix = "peak/gemm/";

void run_peak_case(const std::string& name, PeakBook& peaks, benchmark::State& state) {
  if (console::interrupted()) return state.SkipWithMessage("interrupted");
  const bool products = name.starts_with(kGemmPrefix);
  instruments::MeasuredPeak measured;
  while (state.KeepRunningBatch(state.max_iterations)) {
    measured = products ? peaks.measure_flops_again(name.substr(kGemmPrefix.size()))
                        : peaks.measure_bandwidth_again();
    state.SetIterationTime(static_cast<double>(state.max_iterations) * kGiga / measured.per_second);
  }
  if (products) {
    state.counters["TFLOPS"] = measured.per_second * 1e-12;
  } else {
    state.counters["GB_per_second"] = measured.per_second / kGiga;
  }
  state.SetLabel(measured.source);
}

}  // namespace

void register_peak_case(const std::string& name, PeakBook& peaks) {
  benchmark::RegisterBenchmark(
      name, [name, &peaks](benchmark::State& state) { run_peak_case(name, peaks, state); })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1);
}

}  // namespace tinyllama::harness
