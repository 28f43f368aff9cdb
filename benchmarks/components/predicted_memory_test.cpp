// Predicted peak memory against what the meter reads when the work runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/proof_grid.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/testing.hpp"

namespace tinyllama::components {
namespace {

// The contract is full_step's; the parts serve admission, where a rough answer is enough.
constexpr double kStepTolerance = 0.03;
constexpr double kPartTolerance = 0.15;

struct Point {
  std::string component;
  Pass pass;
};

void PrintTo(const Point& point, std::ostream* out) {
  *out << point.component << " " << to_string(point.pass);
}

std::vector<Point> points() {
  std::vector<Point> result;
  for (const auto& component : all()) {
    for (const Pass pass : component.passes) result.push_back({component.name, pass});
  }
  return result;
}

class PredictedMemoryTest : public ::testing::TestWithParam<Point> {};

double measured_peak(const instruments::Device& device, const harness::Component& component,
                     const Workload& workload, Pass pass) {
  const int64_t foreign = instruments::host_allocator::read().live_bytes;
  const auto item = component.build({workload, pass, 42, device.torch()});
  return static_cast<double>(harness::meter(device, *item, foreign).peak_bytes);
}

TEST_P(PredictedMemoryTest, IsNearTheMeasuredPeak) {
  const auto cpu = instruments::Device::select("cpu");
  // A quarter of tiny: with these shapes there are 0.5 to 4 tokens for each hidden dimension, as in
  // the default grid.
  const ModelConfig config({.vocab_size = 250,
                            .hidden_dim = 64,
                            .n_layers = 2,
                            .n_heads = 8,
                            .n_kv_heads = 4,
                            .intermediate_dim = 128});
  const auto components = all();
  const auto component = std::find_if(components.begin(), components.end(),
                                      [](const auto& c) { return c.name == GetParam().component; });
  const Pass pass = GetParam().pass;
  const double allowed = component->name == "full_step" ? kStepTolerance : kPartTolerance;
  double worst = 1;
  std::string worst_point;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::amp_bf16}) {
    for (const int64_t batch : {2, 4}) {
      for (const int64_t seq : {16, 64}) {
        const Workload workload{config, Variant(), dtype, batch, seq};
        const double ratio = static_cast<double>(component->memory(workload, pass).peak()) /
                             measured_peak(cpu, *component, workload, pass);
        const std::string point = fmt::format("{}/batch:{}/seq:{}", to_string(dtype), batch, seq);
        EXPECT_NEAR(ratio, 1.0, allowed) << point;
        if (std::abs(ratio - 1) >= std::abs(worst - 1)) {
          worst = ratio;
          worst_point = point;
        }
      }
    }
  }
  RecordProperty("worst_ratio", fmt::format("{:.3f} at {}", worst, worst_point));
  fmt::print("predicted / measured, farthest from 1: {:.3f} at {}\n", worst, worst_point);
}

INSTANTIATE_TEST_SUITE_P(All, PredictedMemoryTest, ::testing::ValuesIn(points()),
                         ::tinyllama::testing::kNamedByParameter);

}  // namespace
}  // namespace tinyllama::components
