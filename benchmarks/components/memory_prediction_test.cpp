// Memory predicted on the meta device against what the meter reads when the same work runs, at
// sizes drawn from a seed, for every component, pass and variant: to the byte, but for what the
// library's attention takes for tiles of its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/zeros.h>

#include <random>

#include "benchmarks/components/components.hpp"
#include "benchmarks/harness/metering.hpp"
#include "benchmarks/harness/testing.hpp"
#include "model/attention.hpp"
#include "model/proof_record.hpp"
#include "model/variant.hpp"

namespace tinyllama::components {
namespace {

using harness::Case;
using tinyllama::testing::ProofRecord;

// Sizes that no power of two divides evenly: heads of an odd number of pairs, KV heads that may be
// odd, any batch, sequence and vocabulary.
class RandomSizes {
 public:
  explicit RandomSizes(uint32_t seed) : numbers_(seed) {}

  Workload draw(const Variant& variant, Dtype dtype) {
    const int64_t kv_heads = number(1, 5), groups = number(1, 4), head_dim = 2 * number(1, 13);
    ModelDimensions dimensions{.vocab_size = number(11, 700),
                               .hidden_dim = kv_heads * groups * head_dim,
                               .n_layers = number(1, 3),
                               .n_heads = kv_heads * groups,
                               .n_kv_heads = kv_heads,
                               .intermediate_dim = number(5, 300)};
    if (is_drawn()) add_features(dimensions);
    return {ModelConfig(dimensions), variant, dtype, number(1, 5), number(2, 70)};
  }

 private:
  bool is_drawn() { return number(0, 1) == 1; }
  // Of published families, in any combination; and one rank's share.
  void add_features(ModelDimensions& dimensions) {
    if (is_drawn()) dimensions.own_head_dim = 2 * number(1, 20);
    if (is_drawn()) dimensions.sliding_window = number(1, 70);
    if (is_drawn()) dimensions.whole_vocab = 3 * dimensions.vocab_size;
    dimensions.tied_embeddings = is_drawn();
    dimensions.qkv_bias = is_drawn();
    dimensions.o_bias = is_drawn();
    dimensions.mlp_bias = is_drawn();
    dimensions.qk_norm = is_drawn();
  }
  int64_t number(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(numbers_() % static_cast<uint32_t>(most - least + 1));
  }
  std::mt19937 numbers_;
};

// The first step has gradients to make, and loss scaling skips updates until its scale fits.
constexpr int kMostIterations = 20;

// The most that the library's attention takes on this processor beside its results: what it takes
// now, and half as much again, for its threads need not all hold theirs at one time.
int64_t attention_scratch(const Workload& w, Pass pass) {
  if (!w.variant.has(Switch::sdpa)) return 0;
  const auto tensor = [&](int64_t heads) {
    return at::zeros({w.batch, w.seq, heads, w.config.head_dim()}, compute_type(w.dtype))
        .transpose(1, 2);
  };
  const at::Tensor q = tensor(w.config.n_heads()), k = tensor(w.config.n_kv_heads());
  const at::Tensor window = attention_mask(w.config, w.variant, w.seq, w.dtype, c10::kCPU);
  const auto mask = window.defined() ? std::optional(window) : std::nullopt;
  const auto scratch_of = [](const auto& work) {
    instruments::host_allocator::reset_peak();
    const auto results = work();
    const instruments::HostMemory memory = instruments::host_allocator::read();
    return (memory.peak_bytes - memory.live_bytes) * 3 / 2;
  };
  std::tuple<at::Tensor, at::Tensor> results;
  const int64_t forward = scratch_of([&] {
    return results = at::_scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, !mask, mask);
  });
  if (!has_backward(pass)) return forward;
  const auto& [out, log_sum_exp] = results;
  return std::max(forward, scratch_of([&] {
                    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
                        out, q, k, k, out, log_sum_exp, 0.0, !mask, mask);
                  }));
}

std::string sizes_of(const Workload& w) {
  const ModelConfig& c = w.config;
  std::string features;
  const auto add = [&](bool has, const char* name) { features += has ? name : ""; };
  add(c.tied_embeddings(), " tied");
  add(c.qkv_bias(), " qkv_bias");
  add(c.o_bias(), " o_bias");
  add(c.mlp_bias(), " mlp_bias");
  add(c.qk_norm(), " qk_norm");
  add(c.has_vocabulary_share(), " share");
  return fmt::format("V {} D {} L {} H {} KV {} head_dim {} F {} B {} S {} window {}{}",
                     c.vocab_size(), c.hidden_dim(), c.n_layers(), c.n_heads(), c.n_kv_heads(),
                     c.head_dim(), c.intermediate_dim(), w.batch, w.seq, c.window(w.seq), features);
}

struct Measured {
  int64_t peak;
  int64_t live;
};

Measured measure(const Case& test_case) {
  const auto cpu = instruments::Device::select("cpu");
  const int64_t before = instruments::host_allocator::read().live_bytes;
  const auto work = harness::build_work(cpu, test_case, 42, nullptr);
  int64_t peak = 0;
  for (int i = 0; i < kMostIterations && peak < test_case.memory().peak(); ++i)
    peak = std::max(peak, harness::meter(cpu, work).peak_bytes);
  return {peak, instruments::host_allocator::read().live_bytes - before};
}

class MemoryPredictionTest : public ::testing::TestWithParam<Dtype> {};

TEST_P(MemoryPredictionTest, PeakAndLiveBytesAreTheMeters) {
  ProofRecord peaks(
      {"Memory", fmt::format("peak bytes, {}", to_string(GetParam())), "the suite's allocator", 0});
  ProofRecord lives(
      {"Memory", fmt::format("live bytes, {}", to_string(GetParam())), "the suite's allocator", 0});
  RandomSizes sizes(2026);
  const auto components = all();
  for (const Variant& variant : runnable_variants(GetParam(), cpu_traits())) {
    for (const auto& component : components) {
      for (const Pass pass : component.passes) {
        const Case test_case{&component, pass, "custom", sizes.draw(variant, GetParam()), ""};
        if (component.refusal && !component.refusal(test_case.workload, pass).empty()) continue;
        const std::string at = test_case.name() + ": " + sizes_of(test_case.workload);
        Measured measured = measure(test_case);
        const int64_t beyond = measured.peak - test_case.memory().peak();
        if (beyond > 0 && beyond <= attention_scratch(test_case.workload, pass))
          measured.peak -= beyond;
        peaks.expect_equal_counts(test_case.memory().peak(), measured.peak, at);
        lives.expect_equal_counts(test_case.memory().live, measured.live, at);
      }
    }
  }
}

// That scratch grows with the threads, and neither with batch nor model; blocks and steps have
// their peak elsewhere.
TEST_P(MemoryPredictionTest, TheLibrarysAttentionAloneIsWithinTwoPercent) {
  ProofRecord peaks({"Memory",
                     fmt::format("peak bytes of the library's attention alone, tiny at 16 x 256 on "
                                 "two threads, {}",
                                 to_string(GetParam())),
                     "the suite's allocator", 0.02});
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  const auto component = attention();
  for (const Variant& variant : {Variant({Switch::sdpa}), Variant::fused()}) {
    for (const Pass pass : component.passes) {
      const Case test_case{
          &component, pass, "tiny", {ModelConfig(), variant, GetParam(), 16, 256}, ""};
      peaks.expect_equal_counts(test_case.memory().peak(), measure(test_case).peak,
                                test_case.name());
    }
  }
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(All, MemoryPredictionTest, ::testing::ValuesIn(benchmark_dtypes()),
                         ::tinyllama::testing::kNamedByParameter);

}  // namespace
}  // namespace tinyllama::components
