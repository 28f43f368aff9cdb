// Memory predicted on the meta device against what the meter reads when the same work runs, at
// sizes drawn from a seed: to the byte, for every component, pass and variant.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include <random>

#include "benchmarks/components/components.hpp"
#include "benchmarks/harness/metering.hpp"
#include "benchmarks/harness/testing.hpp"
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
    const ModelConfig config({.vocab_size = number(11, 700),
                              .hidden_dim = kv_heads * groups * head_dim,
                              .n_layers = number(1, 3),
                              .n_heads = kv_heads * groups,
                              .n_kv_heads = kv_heads,
                              .intermediate_dim = number(5, 300)});
    return {config, variant, dtype, number(1, 5), number(2, 70)};
  }

 private:
  int64_t number(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(numbers_() % static_cast<uint32_t>(most - least + 1));
  }
  std::mt19937 numbers_;
};

// The first step has gradients to make, and loss scaling skips updates until its scale fits.
constexpr int kMostIterations = 20;

// Sums of the rows of a tile, which each thread of the library's attention makes in its backward,
// and not all need have at one time.
int64_t unsure_bytes(const Case& test_case) {
  if (!test_case.workload.variant.has(Switch::sdpa) || test_case.pass == Pass::forward) return 0;
  return at::get_num_threads() * std::min<int64_t>(test_case.workload.seq, 256) * 4;
}

std::string sizes_of(const Workload& w) {
  const ModelConfig& c = w.config;
  return fmt::format("V {} D {} L {} H {} KV {} F {} B {} S {}", c.vocab_size(), c.hidden_dim(),
                     c.n_layers(), c.n_heads(), c.n_kv_heads(), c.intermediate_dim(), w.batch,
                     w.seq);
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
  const int64_t enough = test_case.memory().peak() - unsure_bytes(test_case);
  for (int i = 0; i < kMostIterations && peak < enough; ++i)
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
        const int64_t missing = test_case.memory().peak() - measured.peak;
        if (missing > 0 && missing <= unsure_bytes(test_case)) measured.peak += missing;
        peaks.expect_equal_counts(test_case.memory().peak(), measured.peak, at);
        lives.expect_equal_counts(test_case.memory().live, measured.live, at);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MemoryPredictionTest, ::testing::ValuesIn(benchmark_dtypes()),
                         ::tinyllama::testing::kNamedByParameter);

}  // namespace
}  // namespace tinyllama::components
