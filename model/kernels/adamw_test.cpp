#include "model/kernels/kernels.hpp"

#include <cmath>
#include <limits>

#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

constexpr AdamWOptions kOptions = {.learning_rate = 1e-2, .weight_decay = 0.1};

struct State {
  Tensors parameters, gradients, first_moments, second_moments;

  void add(const at::Tensor& parameter, const at::Tensor& gradient) {
    parameters.push_back(parameter);
    gradients.push_back(gradient);
    first_moments.push_back(at::zeros_like(parameter));
    second_moments.push_back(at::zeros_like(parameter));
  }
  State in_f64() const {
    const auto wide = [](const Tensors& tensors) {
      Tensors result;
      for (const at::Tensor& tensor : tensors) result.push_back(tensor.to(kF64, false, true));
      return result;
    };
    return {wide(parameters), wide(gradients), wide(first_moments), wide(second_moments)};
  }
  void step(int64_t step) {
    adamw_(parameters, gradients, first_moments, second_moments, kOptions, step);
  }
};

// Algorithm 2 of the paper, without regard to rounding.
void reference_step(State& state, int64_t step) {
  const AdamWOptions& o = kOptions;
  const auto t = static_cast<double>(step);
  for (size_t i = 0; i < state.parameters.size(); ++i) {
    at::Tensor& p = state.parameters[i];
    const at::Tensor& g = state.gradients[i];
    at::Tensor& m = state.first_moments[i];
    at::Tensor& v = state.second_moments[i];
    p.mul_(1 - o.learning_rate * o.weight_decay);
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const at::Tensor corrected_m = m / (1 - std::pow(o.beta1, t));
    const at::Tensor corrected_v = v / (1 - std::pow(o.beta2, t));
    p.sub_(o.learning_rate * corrected_m / (corrected_v.sqrt() + o.eps));
  }
}

// Sizes around a vector's length, and enough elements in all that threads meet inside a tensor.
State random_state(c10::ScalarType type) {
  State state;
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {1}, {7}, {3, 12}, {301, 130}, {33}, {5, 5, 5}, {400, 97}, {0}}) {
    state.add(random(shape, type), random(shape, type));
  }
  return state;
}

// Relative at least to what a gradient of 1 adds: a moment that happens to cancel out keeps the
// errors of its terms.
void expect_close_states(const State& actual, const State& expected, double units) {
  for (size_t i = 0; i < actual.parameters.size(); ++i) {
    expect_close(actual.parameters[i], expected.parameters[i], units, "parameter", 1);
    expect_close(actual.first_moments[i], expected.first_moments[i], units, "first moment", 0.1);
    expect_close(actual.second_moments[i], expected.second_moments[i], units, "second moment",
                 0.001);
  }
}

TEST(AdamWKernel, AgreesWithTheAlgorithmInFloat64) {
  for (const auto type : kTypes) {
    State state = random_state(type);
    for (int64_t step = 1; step <= 3; ++step) {
      // From the same state each time: what narrow types round away is theirs to keep.
      State expected = state.in_f64();
      reference_step(expected, step);
      state.step(step);
      expect_close_states(state, expected, 4);
    }
  }
}

TEST(AdamWKernel, TakesDenseTensorsInAnyOrderOfDimensions) {
  const at::Tensor parameter = random({6, 5, 4}, kF32).permute({2, 0, 1});
  State state, plain;
  state.add(parameter, random({4, 6, 5}, kF32));  // a gradient with other strides
  state.add(random({9, 5}, kF32).t(), random({9, 5}, kF32).t());
  for (size_t i = 0; i < 2; ++i)
    plain.add(state.parameters[i].contiguous().clone(), state.gradients[i].contiguous());
  ASSERT_FALSE(state.first_moments[0].is_contiguous());
  state.step(1);
  plain.step(1);
  for (size_t i = 0; i < 2; ++i)
    expect_same_bits(state.parameters[i], plain.parameters[i], "parameter");
}

TEST(AdamWKernel, ChangesNothingBesideItsRows) {
  const at::Tensor buffer = random({10, 12}, kF32);
  const at::Tensor before = buffer.clone();
  State state;
  state.add(buffer.narrow(0, 3, 4), random({4, 12}, kF32));
  state.step(1);
  expect_same_bits(buffer.narrow(0, 0, 3), before.narrow(0, 0, 3), "rows before");
  expect_same_bits(buffer.narrow(0, 7, 3), before.narrow(0, 7, 3), "rows behind");
  EXPECT_FALSE(at::equal(buffer[3], before[3]));
}

TEST(AdamWKernel, LeavesParametersWithoutGradientAlone) {
  State state;
  state.add(random({5}, kF32), {});
  state.add(random({5}, kF32), random({5}, kF32));
  const at::Tensor before = state.parameters[0].clone();
  state.step(1);
  expect_same_bits(state.parameters[0], before, "parameter");
}

TEST(AdamWKernel, NanStaysVisible) {
  for (const auto type : kTypes) {
    State state;
    state.add(random({13}, type), random({13}, type));
    state.gradients[0][12] = std::numeric_limits<double>::quiet_NaN();
    state.step(1);
    EXPECT_EQ(state.parameters[0].isnan().sum().item<int64_t>(), 1);
    EXPECT_TRUE(state.parameters[0][12].isnan().item<bool>());
  }
}

TEST(AdamWKernel, ReadsItsCorrectionsWhereTheyAreGiven) {
  for (const auto type : kTypes) {
    State expected = random_state(type), actual;
    for (size_t i = 0; i < expected.parameters.size(); ++i)
      actual.add(expected.parameters[i].clone(), expected.gradients[i]);
    const at::Tensor corrections =
        at::tensor({1.0 / std::sqrt(1.0 - std::pow(kOptions.beta2, 3.0)),
                    kOptions.learning_rate / (1.0 - std::pow(kOptions.beta1, 3.0))},
                   kF64);
    expected.step(3);
    adamw_(actual.parameters, actual.gradients, actual.first_moments, actual.second_moments,
           kOptions, 1000, corrections);
    for (size_t i = 0; i < expected.parameters.size(); ++i)
      expect_same_bits(actual.parameters[i], expected.parameters[i], "parameter");
    EXPECT_THROW(adamw_(actual.parameters, actual.gradients, actual.first_moments,
                        actual.second_moments, kOptions, 3, corrections.to(kF32)),
                 c10::ValueError);
  }
}

TEST(AdamWKernel, ErrorsNameValueAndRuleAndChangeNothing) {
  State state;
  state.add(random({5}, kF32), random({5}, kF32));
  const at::Tensor before = state.parameters[0].clone();
  EXPECT_THROW(state.step(0), c10::ValueError);
  State wrong_gradient = state;
  wrong_gradient.add(random({4}, kF32), random({5}, kF32));
  EXPECT_THROW(wrong_gradient.step(1), c10::ValueError);
  State wrong_type = state;
  wrong_type.add(random({4}, kF64), random({4}, kF64));
  EXPECT_THROW(wrong_type.step(1), c10::ValueError);
  State not_dense = state;
  not_dense.add(random({4, 4}, kF32).narrow(1, 0, 2), random({4, 2}, kF32));
  EXPECT_THROW(not_dense.step(1), c10::ValueError);
  State too_few = state;
  too_few.gradients.clear();
  EXPECT_THROW(too_few.step(1), c10::ValueError);
  expect_same_bits(state.parameters[0], before, "parameter");
}

}  // namespace
}  // namespace tinyllama::kernels
