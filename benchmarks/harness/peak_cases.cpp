#include "benchmarks/harness/peak_cases.hpp"

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/measure.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kGiga = 1e9;

instruments::MeasuredPeak measure_again(const PeakCase& peak, PeakBook& peaks) {
  if (peak.type.empty()) return peaks.measure_bandwidth_again();
  return peak.shape ? peaks.measure_product(peak.type, *peak.shape)
                    : peaks.measure_flops_again(peak.type);
}

}  // namespace

void measure_peak_case(const PeakCase& peak, PeakBook& peaks, const instruments::Device& device,
                       Outcome& outcome) {
  if (console::interrupted()) {
    outcome.interrupted = true;
    return;
  }
  if (peak.shape) outcome.skip = instruments::refuse_gemm(device, compute_type(parse_dtype(peak.type)), *peak.shape);
  if (!outcome.skip.empty() || !outcome.failure.empty()) return;
  instruments::MeasuredPeak measured;
  outcome.failure = failure_of(device, 0, [&] { measured = measure_again(peak, peaks); });
  if (!outcome.failure.empty()) return;
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
