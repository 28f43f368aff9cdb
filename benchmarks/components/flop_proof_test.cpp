// FLOPs of every component and pass, to the unit: the formulas against what torch's own counter
// counts for LlamaForCausalLM and, with their features, for models of other families, and against
// what libtorch's profiler counts in our own work.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "benchmarks/components/components.hpp"
#include "benchmarks/instruments/operator_profile.hpp"
#include "model/proof_record.hpp"
#include "model/testing.hpp"
#include "model/train_step.hpp"

namespace tinyllama::components {
namespace {

constexpr const char* kSection = "FLOPs";

// A configuration at which FLOPs are proved, with what torch.utils.flop_counter counts for
// the oracle at it.
struct GridPoint {
  std::string name;
  ModelConfig config;
  int64_t batch;
  int64_t seq;
  nlohmann::json flops;  ///< component -> pass -> FLOPs
  bool has_features;     ///< a head_dim of its own, a window, biases ...

  /// Small enough to be run by a test, and not only counted.
  bool is_small() const { return name.starts_with("grid_"); }

  /// What the oracle counts for a pass; nothing where it does not count the component. A loss adds
  /// no GEMMs to the model's forward.
  std::optional<int64_t> counted(const std::string& component, Pass pass) const {
    if (!flops.contains(component)) return std::nullopt;
    const auto& passes = flops.at(component);
    if (pass == Pass::forward_loss) pass = Pass::forward;
    if (pass == Pass::forward_backward) {
      return passes.at("forward").get<int64_t>() + passes.at("backward").get<int64_t>();
    }
    return passes.at(std::string(to_string(pass))).get<int64_t>();
  }
};

// Sets what the entry has of the families' features, named as the fields are; whether it has any.
bool read_features(const nlohmann::json& entry, ModelDimensions& dimensions) {
  const ModelDimensions without = dimensions;
  if (entry.contains("own_head_dim"))
    dimensions.own_head_dim = entry.at("own_head_dim").get<int64_t>();
  if (entry.contains("sliding_window"))
    dimensions.sliding_window = entry.at("sliding_window").get<int64_t>();
  dimensions.tied_embeddings = entry.value("tied_embeddings", false);
  dimensions.qkv_bias = entry.value("qkv_bias", false);
  dimensions.o_bias = entry.value("o_bias", false);
  dimensions.mlp_bias = entry.value("mlp_bias", false);
  dimensions.qk_norm = entry.value("qk_norm", false);
  return dimensions != without;
}

std::vector<GridPoint> proof_grid() {
  std::ifstream file(TINY_LLAMA_SOURCE_DIR "/fixtures/golden/flops.json");
  const auto document = nlohmann::json::parse(file);
  std::vector<GridPoint> grid;
  for (const auto& entry : document.at("configurations")) {
    const auto size = [&](const char* key) { return entry.at(key).get<int64_t>(); };
    ModelDimensions dimensions{.vocab_size = size("vocab_size"),
                               .hidden_dim = size("hidden_dim"),
                               .n_layers = size("n_layers"),
                               .n_heads = size("n_heads"),
                               .n_kv_heads = size("n_kv_heads"),
                               .intermediate_dim = size("intermediate_dim")};
    const bool has_features = read_features(entry, dimensions);
    grid.push_back({entry.at("name").get<std::string>(), ModelConfig(dimensions), size("batch"),
                    size("seq"), entry.at("flops"), has_features});
  }
  return grid;
}

std::string point_name(const GridPoint& point, const harness::Component& component, Pass pass) {
  return fmt::format("{}/{} at {}", component.name, to_string(pass), point.name);
}

TEST(FlopProof, ModelFlopsAreTheOraclesCount) {
  tinyllama::testing::ProofRecord proof({kSection, "model_flops of every component and pass",
                                         "torch.utils.flop_counter on the oracle, eager attention",
                                         0});
  const auto grid = proof_grid();
  EXPECT_GE(grid.size(), 40U);
  EXPECT_GE(std::ranges::count_if(grid, &GridPoint::has_features), 10);
  size_t components_counted = 0;
  for (const GridPoint& point : grid) {
    const Workload workload{point.config, Variant(), Dtype::f32, point.batch, point.seq};
    for (const auto& component : all()) {
      components_counted += point.flops.contains(component.name);
      for (const Pass pass : component.passes) {
        const auto counted = point.counted(component.name, pass);
        if (!counted) continue;  // held against the profiler's count alone, below
        proof.expect_equal_counts(component.cost(workload, pass).model_flops, *counted,
                                  point_name(point, component, pass));
      }
    }
  }
  EXPECT_EQ(components_counted, 10 * grid.size());
}

// Every size in float32; other types change only how GEMMs are called, so some sizes do.
std::vector<GridPoint> sizes_to_run(Dtype dtype) {
  const size_t stride = dtype == Dtype::f32 ? 1 : 6;
  const auto grid = proof_grid();
  std::vector<GridPoint> chosen;
  for (size_t i = 0; i < grid.size(); i += stride) {
    if (grid[i].is_small()) chosen.push_back(grid[i]);
  }
  return chosen;
}

// The baseline at each of those, the others at one in some, for they change operators and not
// sizes; of models with features, which may change both, at one in three, in other types at all.
std::vector<Variant> variants_at(const GridPoint& point, size_t index, Dtype dtype) {
  constexpr size_t stride = 7;
  const bool is_chosen =
      point.has_features ? dtype != Dtype::f32 || index % 3 == 2 : index % stride == 0;
  if (!is_chosen) return {Variant()};
  return runnable_variants(dtype, cpu_traits());
}

class CountedFlopsTest : public ::testing::TestWithParam<Dtype> {};

TEST_P(CountedFlopsTest, HardwareFlopsAreTheProfilersCount) {
  const Dtype dtype = GetParam();
  const std::vector<GridPoint> grid = sizes_to_run(dtype);
  tinyllama::testing::ProofRecord proof(
      {kSection,
       fmt::format("hardware_flops without attention kernels, every component, pass and variant at "
                   "{} sizes, {}",
                   grid.size(), to_string(dtype)),
       "matrix multiplications among Kineto's operator events", 0});
  const auto cpu = instruments::Device::select("cpu");
  for (size_t i = 0; i < grid.size(); ++i) {
    const GridPoint& point = grid[i];
    for (const Variant& variant : variants_at(point, i, dtype)) {
      const Workload workload{point.config, variant, dtype, point.batch, point.seq};
      for (const auto& component : all()) {
        for (const Pass pass : component.passes) {
          if (component.refusal && !component.refusal(workload, pass).empty()) continue;
          const auto item = component.build({workload, pass, 42, cpu.torch()});
          item->prepare();
          const auto profile = instruments::profile_operators(cpu, [&] { item->run(); });
          EXPECT_EQ(profile.unknown_operators, std::vector<std::string>())
              << point_name(point, component, pass);
          const Cost cost = component.cost(workload, pass);
          proof.expect_equal_counts(
              cost.hardware_flops - cost.opaque_flops, profile.gemm_flops,
              fmt::format("{}, {}", variant.name(), point_name(point, component, pass)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CountedFlopsTest, ::testing::ValuesIn(benchmark_dtypes()),
                         ::tinyllama::testing::kNamedByParameter);

// The pairs that the causal mask hides were counted in the mask that the oracle itself makes.
TEST(FlopProof, CausalFlopsAreTheOraclesWithoutWhatItsMaskHides) {
  tinyllama::testing::ProofRecord proof({kSection,
                                         "causal_flops of attention, block, model and step",
                                         "torch.utils.flop_counter less its scores at the "
                                         "positions that the oracle's own mask hides",
                                         0});
  for (const GridPoint& point : proof_grid()) {
    const Workload workload{point.config, Variant(), Dtype::f32, point.batch, point.seq};
    const auto masked = point.flops.at("attention_scores").at("masked_forward").get<int64_t>();
    const int64_t layers = point.config.n_layers();
    const auto check = [&](const Cost& cost, int64_t all, int64_t hidden, const char* what) {
      proof.expect_equal_counts(cost.causal_flops, all - hidden,
                                fmt::format("{} at {}", what, point.name));
    };
    const auto counted = [&](const char* component, Pass pass) {
      return point.counted(component, pass).value();
    };
    check(attention_cost(workload, Pass::forward), counted("attention", Pass::forward), masked,
          "attention/forward");
    check(attention_cost(workload, Pass::backward), counted("attention", Pass::backward),
          2 * masked, "attention/backward");
    check(block_cost(workload, Pass::forward), counted("block", Pass::forward), masked,
          "block/forward");
    check(model_cost(workload, Pass::forward), counted("model", Pass::forward), layers * masked,
          "model/forward");
    check(full_step_cost(workload), counted("full_step", Pass::train), 3 * layers * masked,
          "full_step/train");
  }
}

}  // namespace
}  // namespace tinyllama::components
