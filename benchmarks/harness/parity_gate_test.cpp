#include "benchmarks/harness/parity_gate.hpp"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor tensor(const std::vector<double>& values) {
  return at::tensor(values, c10::ScalarType::Double);
}

// Of tensors that rounding scatters by `scatter`.
Roundings rounded(const ReferenceValues& reference, double scatter = 0, double bias = 0) {
  Roundings roundings;
  for (const auto& [name, values] : reference) roundings[name] = {scatter, bias, 0x1p-24};
  return roundings;
}

Comparison compare(const NamedTensors& results, const ReferenceValues& reference,
                   bool expect_gradients = false) {
  return compare(results, reference, rounded(reference), Dtype::f32, expect_gradients);
}

std::string compare_error(const NamedTensors& results, const ReferenceValues& reference,
                          bool expect_gradients = false) {
  return testing::error_of<std::logic_error>(
      [&] { compare(results, reference, expect_gradients); });
}

TEST(CompareTest, ErrorIsRelativeToTheLargestMagnitudeAndNamesTheElement) {
  const ReferenceValues reference = {{"a", {1, 2, 4}}, {"b", {100, -200, 1}}};
  const Comparison equal =
      compare({{"a", tensor({1, 2, 4})}, {"b", tensor({100, -200, 1})}}, reference);
  EXPECT_EQ(equal.max_rel_error, 0);
  EXPECT_EQ(equal.worst_tensor, "");
  EXPECT_EQ(equal.compared_tensors, 2);
  const Comparison off =
      compare({{"a", tensor({1, 2, 3.75})}, {"b", tensor({100, -200, 21})}}, reference);
  EXPECT_DOUBLE_EQ(off.max_rel_error, 20.0 / 200.0);
  EXPECT_EQ(off.worst_tensor, "b[2]");
}

TEST(CompareTest, LooksThroughShapesTypesAndStrides) {
  const at::Tensor rows = tensor({1, 2, 3, 4, 5, 6}).view({2, 3});
  const Comparison comparison = compare({{"a", rows.t().to(c10::ScalarType::BFloat16)}},
                                        {{"a", {1, 4, 2, 5, 3, 6.5}}}, false);
  EXPECT_DOUBLE_EQ(comparison.max_rel_error, 0.5 / 6.5);
  EXPECT_EQ(comparison.worst_tensor, "a[5]");
}

TEST(CompareTest, WhatIsNotFiniteNeverPasses) {
  for (const double value : {kNaN, kInfinity, -kInfinity}) {
    const Comparison wrong = compare({{"a", tensor({1, value})}}, {{"a", {1, 2}}}, false);
    EXPECT_EQ(wrong.max_rel_error, kInfinity) << value;
    EXPECT_EQ(wrong.worst_tensor, "a[1]");
    // Nor does a reference that is not finite, not even against itself.
    const Comparison broken = compare({{"a", tensor({1, value})}}, {{"a", {1, value}}}, false);
    EXPECT_EQ(broken.max_rel_error, kInfinity) << value;
  }
}

TEST(CompareTest, AgainstAZeroReferenceOnlyZeroPasses) {
  EXPECT_EQ(compare({{"a", tensor({0, -0.0})}}, {{"a", {0, 0}}}, false).max_rel_error, 0);
  const Comparison comparison = compare({{"a", tensor({0, 1e-300})}}, {{"a", {0, 0}}}, false);
  EXPECT_EQ(comparison.max_rel_error, kInfinity);
  EXPECT_EQ(comparison.worst_tensor, "a[1]");
}

TEST(CompareTest, WhatCannotBeComparedIsAnError) {
  EXPECT_EQ(compare_error({}, {{"a", {1}}}), "no result to compare with the reference");
  EXPECT_EQ(compare_error({{"b", tensor({1})}}, {{"a", {1}}}), "result 'b' has no reference");
  EXPECT_EQ(compare_error({{"a", tensor({1, 2, 3})}}, {{"a", {1, 2}}}),
            "result 'a' has 3 elements, its reference 2");
  EXPECT_EQ(compare_error({{"a", at::Tensor()}}, {{"a", {1}}}), "result 'a' was not computed");
}

TEST(CompareTest, GradientsMayOnlyBeMissingWhereNoneAreExpected) {
  const ReferenceValues reference = {{"a", {1}}, {"gradient of w", {2}}, {"b", {3}}};
  EXPECT_EQ(compare({{"a", tensor({1})}}, reference, false).compared_tensors, 1);
  EXPECT_EQ(compare_error({{"a", tensor({1})}}, reference, true),
            "'gradient of w' is missing from the results");
  EXPECT_EQ(compare({{"gradient of w", tensor({2})}}, reference, true).max_rel_error, 0);
}

TEST(CompareTest, WhatRoundingScattersIsAllowedTensorByTensor) {
  const ReferenceValues reference = {{"a", {1, -4}}, {"b", {1, -4}}};
  Roundings roundings = rounded(reference);
  roundings["a"].scatter = 1e-3;
  const auto off = [&](const std::string& name, double by) {
    return compare({{name, tensor({1, -4 + by})}}, reference, roundings, Dtype::f32, false);
  };
  EXPECT_TRUE(off("a", 1e-2).passes());
  EXPECT_FALSE(off("a", 1e-1).passes());
  EXPECT_FALSE(off("b", 1e-2).passes());
  const std::string message = off("b", 1e-2).failure(Dtype::f32);
  EXPECT_CONTAINS(message, "wrong result: b[1] differs from the float64 baseline by 0.0025 of");
  EXPECT_CONTAINS(message, "by rounding to f32, plus");
}

TEST(CompareTest, TheTensorFarthestOffForWhatItIsAllowedIsNamed) {
  const ReferenceValues reference = {{"a", {1}}, {"b", {1}}};
  Roundings roundings = rounded(reference);
  roundings["a"].scatter = 1e-2;
  const Comparison comparison = compare({{"a", tensor({1.01})}, {"b", tensor({1.001})}}, reference,
                                        roundings, Dtype::f32, false);
  EXPECT_NEAR(comparison.max_rel_error, 0.01, 1e-12);
  EXPECT_EQ(comparison.worst_tensor, "b[0]");
  EXPECT_NEAR(comparison.error, 0.001, 1e-12);
}

TEST(CompareTest, AGradientThatIsZeroIsMeasuredOnTheLargestOne) {
  const ReferenceValues reference = {{"gradient of q", {0, 0}}, {"gradient of v", {8, -2}}};
  const auto with_q = [&](double value) {
    return compare({{"gradient of q", tensor({0, value})}, {"gradient of v", tensor({8, -2})}},
                   reference, true);
  };
  EXPECT_TRUE(with_q(1e-6).passes()) << "what rounding leaves of 0";
  EXPECT_FALSE(with_q(0.08).passes());
  EXPECT_DOUBLE_EQ(with_q(0.08).max_rel_error, 0.01);
}

TEST(CompareTest, WhereRoundingIsEverythingNothingIsProved) {
  const ReferenceValues reference = {{"a", {1, -4}}};
  const auto unprovable = [&](double scatter, double bias, Dtype dtype, double off = 0) {
    return compare({{"a", tensor({1, -4 + off})}}, reference, rounded(reference, scatter, bias),
                   dtype, false)
        .unprovable;
  };
  EXPECT_EQ(unprovable(0.0025, 0.01, Dtype::bf16), "");
  EXPECT_CONTAINS(unprovable(0.5, 0.01, Dtype::bf16), "rounding to bf16 alone scatters a by 0.5");
  EXPECT_CONTAINS(unprovable(kInfinity, kInfinity, Dtype::f16), "a is not finite where");
  // Only float16 has a range that gradients fall out of, and only what does not agree asks for it.
  EXPECT_CONTAINS(unprovable(0.0025, 0.1, Dtype::amp_f16, 0.4), "a is off by 0.1 of");
  EXPECT_EQ(unprovable(0.0025, 0.1, Dtype::amp_f16), "");
  EXPECT_EQ(unprovable(0.0025, 0.1, Dtype::amp_bf16, 0.4), "");
}

class ParityGateTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSeed = 5;
  static constexpr int64_t kPlenty = int64_t{1} << 40;
  static constexpr double kFast = 1e12;

  Comparison check(const Component& component, Pass pass, Dtype dtype = Dtype::f32,
                   int64_t batch = 2) {
    const Case test_case = testing::small_case(component, pass, dtype, batch);
    const auto item = component.build({test_case.workload, pass, kSeed, cpu.torch()});
    item->prepare();
    item->run();
    return gate.check(test_case, test_case.workload.batch, item->results());
  }
  std::string check_error(const testing::Mistake& mistake) {
    const Component component = testing::linear_component(mistake);
    return testing::error_of<std::logic_error>([&] { check(component, Pass::forward_backward); });
  }

  instruments::Device cpu = instruments::Device::select("cpu");
  ParityGate gate{cpu, kSeed, kFast};
};

TEST_F(ParityGateTest, HonestResultsPassInEveryPassAndDtype) {
  const Component component = testing::linear_component();
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::amp_bf16}) {
    for (const Pass pass : component.passes) {
      const Comparison comparison = check(component, pass, dtype);
      EXPECT_TRUE(comparison.passes()) << comparison.failure(dtype);
      EXPECT_EQ(comparison.unprovable, "");
      // Gemm of values that bfloat16 holds are exact in float32; in bfloat16 they are not.
      if (dtype != Dtype::f32) {
        EXPECT_GT(comparison.max_rel_error, 0) << "compared with itself?";
      }
      EXPECT_EQ(comparison.compared_tensors, has_backward(pass) ? 3 : 1);
    }
  }
}

TEST_F(ParityGateTest, WhatANarrowerTypeWouldBeAllowedIsCaught) {
  const Component component = testing::linear_component({.scale = 1.002});
  const Comparison wrong = check(component, Pass::forward, Dtype::f32);
  EXPECT_NEAR(wrong.max_rel_error, 0.002, 2e-4);
  EXPECT_FALSE(wrong.passes());
  EXPECT_TRUE(wrong.worst_tensor.starts_with("output["));
  EXPECT_FALSE(check(component, Pass::backward, Dtype::f32).passes());
  EXPECT_TRUE(check(component, Pass::forward, Dtype::bf16).passes());
}

// The component is wrong in every type but float64, as a baseline would be whose branch for a type
// is wrong: both noisy runs share it, so that it excuses nothing.
TEST_F(ParityGateTest, ABaselineThatIsWrongInItsDtypeDoesNotExcuseItself) {
  for (const Dtype dtype : benchmark_dtypes()) {
    const Comparison comparison =
        check(testing::linear_component({.scale = 1.05}), Pass::forward_backward, dtype);
    // Float16 cannot tell it from what it has no range for, and then proves nothing.
    EXPECT_FALSE(comparison.passes() && comparison.unprovable.empty())
        << to_string(dtype) << " " << comparison.allowed;
  }
}

TEST_F(ParityGateTest, ALostGradientIsCaught) {
  EXPECT_EQ(check_error({.gradient_not_computed = true}),
            "result 'gradient of weight' was not computed");
  EXPECT_EQ(check_error({.gradient_not_reported = true}),
            "'gradient of weight' is missing from the results");
}

class ParityGateBuildsTest : public ParityGateTest {
 protected:
  Component counting(Component component) {
    component.build = [this, build = component.build](const BuildRequest& request) {
      ++builds[request.workload.dtype];
      return build(request);
    };
    return component;
  }

  std::map<Dtype, int> builds;
};

TEST_F(ParityGateBuildsTest, OneReferenceServesPassesAndDtypesOfAShape) {
  const Component component = counting(testing::linear_component());
  for (const Pass pass : component.passes) {
    check(component, pass, Dtype::f32);
    check(component, pass, Dtype::bf16);
  }
  EXPECT_EQ(builds[Dtype::f64], 1);
  EXPECT_EQ(builds[Dtype::f32], 3) << "the checked ones: their type's own roundoff is enough";
  EXPECT_EQ(builds[Dtype::bf16], 3);
}

TEST_F(ParityGateBuildsTest, RoundingIsMeasuredWhereItDecides) {
  const Component component = counting(testing::linear_component({.scale = 1.05}));
  for (const Pass pass : component.passes)
    EXPECT_FALSE(check(component, pass, Dtype::bf16).passes());
  EXPECT_EQ(builds[Dtype::f64], 1);
  EXPECT_EQ(builds[Dtype::bf16], 3 + 2 + 6 + 18) << "noisy ones serve all passes";
  builds.clear();
  for (const int64_t batch : {4, 8})
    EXPECT_FALSE(check(component, Pass::forward_backward, Dtype::bf16, batch).passes());
  EXPECT_EQ(builds[Dtype::f64], 2) << "each batch has its own";
  EXPECT_EQ(builds[Dtype::bf16], 2) << "what rounding does is known from two samples";
}

TEST_F(ParityGateTest, VerifiesAtTheCasesOwnBatchButAtLeastTwo) {
  const Component component = testing::linear_component();
  for (const auto& [batch, expected] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {2, 2}, {3, 3}, {16, 16}}) {
    const Case test_case = testing::small_case(component, Pass::forward, Dtype::f32, batch);
    EXPECT_EQ(gate.batch_for(test_case, kPlenty), expected);
  }
}

TEST_F(ParityGateTest, HalvesTheBatchWhereMemoryForcesIt) {
  const Component component = testing::linear_component();
  const Case test_case = testing::small_case(component, Pass::forward, Dtype::bf16, 16);
  const Case reference =
      testing::small_case(component, Pass::forward_backward, Dtype::f64, /*batch=*/8);
  // The reference's values and, while they are compared, the case's own lie beside both.
  const PredictedMemory memory = reference.memory();
  const int64_t values = memory.gradients + memory.inputs;
  ASSERT_GT(values, 0);
  const int64_t enough = memory.peak() + test_case.memory().peak() + 2 * values;
  EXPECT_EQ(gate.batch_for(test_case, enough), 8);
  EXPECT_EQ(gate.batch_for(test_case, enough - 1), 4);
  EXPECT_EQ(gate.batch_for(test_case, 0), std::nullopt);
}

TEST_F(ParityGateTest, HalvesTheBatchWhereTheReferenceWouldTakeMoreThan30Seconds) {
  const Component component = testing::linear_component();
  const Case test_case = testing::small_case(component, Pass::forward, Dtype::f32, 16);
  Workload reference = test_case.workload;
  reference.batch = 4;
  // The reference is forward_backward, whatever the pass.
  const auto flops =
      static_cast<double>(testing::linear_cost(reference, Pass::forward_backward).hardware_flops);
  EXPECT_EQ(ParityGate(cpu, kSeed, flops / 29.9).batch_for(test_case, kPlenty), 4);
  EXPECT_EQ(ParityGate(cpu, kSeed, flops / 30.1).batch_for(test_case, kPlenty), 2);
}

}  // namespace
}  // namespace tinyllama::harness
