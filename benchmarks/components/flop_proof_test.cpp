// FLOPs of every component and pass, to the unit: the formulas against what torch's own counter
// counts for LlamaForCausalLM, and against what libtorch's profiler counts in our own work.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/proof_grid.hpp"
#include "benchmarks/instruments/operator_profile.hpp"
#include "model/proof_record.hpp"

namespace tinyllama::components {
namespace {

constexpr const char* kSection = "FLOPs";

using testing::GridPoint;
using testing::proof_grid;

std::string point_name(const GridPoint& point, const harness::Component& component, Pass pass) {
  return fmt::format("{}/{} at {}", component.name, to_string(pass), point.name);
}

TEST(FlopProof, ModelFlopsAreTheOraclesCount) {
  tinyllama::testing::ProofRecord proof(
      {kSection, "model_flops of every component and pass",
       "torch.utils.flop_counter on LlamaForCausalLM, eager attention", 0});
  const auto grid = proof_grid();
  EXPECT_GE(grid.size(), 40U);
  for (const GridPoint& point : grid) {
    const Workload workload{point.config, Variant(), Dtype::f32, point.batch, point.seq};
    for (const auto& component : all()) {
      for (const Pass pass : component.passes) {
        const auto counted = point.counted(component.name, pass);
        ASSERT_TRUE(counted) << "the oracle did not count " << component.name;
        proof.expect_equal_counts(component.cost(workload, pass).model_flops, *counted,
                                  point_name(point, component, pass));
      }
    }
  }
}

class CountedFlopsTest : public ::testing::TestWithParam<Dtype> {};

TEST_P(CountedFlopsTest, HardwareFlopsAreTheProfilersCount) {
  const Dtype dtype = GetParam();
  tinyllama::testing::ProofRecord proof(
      {kSection,
       fmt::format("hardware_flops of every component, pass and variant, {}", to_string(dtype)),
       "matrix products among Kineto's operator events", 0});
  const auto cpu = instruments::Device::select("cpu");
  // Every point in float32; the types change only how products are called, so some do for the rest.
  const size_t stride = dtype == Dtype::f32 ? 1 : 6;
  const auto grid = proof_grid();
  for (size_t i = 0; i < grid.size(); i += stride) {
    const GridPoint& point = grid[i];
    if (!point.is_small()) continue;
    for (const Variant& variant : Variant::all()) {
      const Workload workload{point.config, variant, dtype, point.batch, point.seq};
      for (const auto& component : all()) {
        for (const Pass pass : component.passes) {
          const auto item = component.build({workload, pass, 42, cpu.torch()});
          item->prepare();
          const auto profile = instruments::profile_operators(cpu, [&] { item->run(); });
          EXPECT_EQ(profile.unknown_operators, std::vector<std::string>())
              << point_name(point, component, pass);
          proof.expect_equal_counts(component.cost(workload, pass).hardware_flops,
                                    profile.product_flops, point_name(point, component, pass));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CountedFlopsTest,
                         ::testing::Values(Dtype::f32, Dtype::bf16, Dtype::amp_bf16,
                                           Dtype::amp_f16),
                         [](const auto& dtype) { return std::string(to_string(dtype.param)); });

TEST(FlopProof, WhereConventionsDifferBothFiguresAreGiven) {
  for (const GridPoint& point : proof_grid()) {
    const Workload workload{point.config, Variant(), Dtype::f32, point.batch, point.seq};
    const Cost cost = attention_cost(workload, Pass::forward);
    // Scores and their product with V: 4 S^2 head_dim a head, of which S (S + 1) / 2 are unmasked.
    const int64_t masked_pairs = point.seq * (point.seq - 1) / 2;
    EXPECT_EQ(cost.model_flops - cost.causal_flops,
              4 * point.batch * masked_pairs * point.config.hidden_dim())
        << point.name;
  }
}

}  // namespace
}  // namespace tinyllama::components
