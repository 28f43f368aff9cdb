// Helpers of the tests in this folder: a cheap component that can be made wrong on purpose, made-up
// peaks, folders that go away.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "model/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::harness::testing {

using ::tinyllama::testing::contains;
using ::tinyllama::testing::error_of;

// The allocator that counts must be there before the first tensor.
class AllocatorEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { instruments::host_allocator::install(); }
};
inline ::testing::Environment* const kAllocatorEnvironment =
    ::testing::AddGlobalTestEnvironment(new AllocatorEnvironment);

using ::tinyllama::testing::TemporaryFolder;

inline ModelConfig small_config() {
  return ModelConfig({.vocab_size = 16,
                      .hidden_dim = 8,
                      .n_layers = 2,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .intermediate_dim = 12});
}

/// How the component below differs from the baseline that it is compared with: in every dtype but
/// float64, so that its reference stays right.
struct Mistake {
  double scale = 1.0;
  bool gradient_not_computed = false;
  bool gradient_not_reported = false;
};

inline Cost linear_cost(const Workload& w, Pass pass) {
  const int64_t D = w.config.hidden_dim();
  const int64_t gemms = pass == Pass::forward ? 1 : pass == Pass::backward ? 2 : 3;
  const int64_t flops = gemms * 2 * w.tokens() * D * D;
  return {.parameters = D * D,
          .model_flops = flops,
          .causal_flops = flops,
          .hardware_flops = flops,
          .bytes = gemms * (2 * w.tokens() * D + D * D)};
}

/// y = x W^T with x [B, S, D] and W [D, D]. Counts its forwards outside float64 where `forwards` is
/// given.
inline Component linear_component(const Mistake& mistake = {},
                                  std::shared_ptr<int> forwards = nullptr) {
  const auto build = [=](const BuildRequest& request) -> std::unique_ptr<WorkItem> {
    const Workload& w = request.workload;
    const int64_t D = w.config.hidden_dim();
    const bool honest = w.dtype == Dtype::f64;
    TensorInitializer initializer(request.seed, w.dtype, request.device);
    const at::Tensor weight = initializer.normal_parameter({D, D}, 1.0);
    const at::Tensor x = initializer.normal({w.batch, w.seq, D}).requires_grad_(true);
    std::vector<at::Tensor> gradients;
    if (has_backward(request.pass))
      gradients = {initializer.normal(x.sizes()).to(compute_type(w.dtype))};
    NamedTensors parameters = {{"weight", weight}};
    if (!honest && mistake.gradient_not_reported) parameters.clear();
    const auto forward = [=] {
      if (!honest && forwards && !x.is_meta()) ++*forwards;
      const bool cut = !honest && mistake.gradient_not_computed;
      at::Tensor y = x.matmul((cut ? weight.detach() : weight).t());
      if (!honest && mistake.scale != 1.0) y = y * mistake.scale;
      return NamedTensors{{"output", y}};
    };
    return std::make_unique<LayerWork>(Layer{{{"x", x}}, parameters, forward, gradients},
                                       request.pass, w.dtype, request.device.type());
  };
  return {"linear", {Pass::forward, Pass::backward, Pass::forward_backward}, linear_cost, build};
}

/// As linear_component(), but with this forward of an input of ones [1, 1, 4, 8].
inline Component with_forward(const std::function<at::Tensor(const at::Tensor&)>& function) {
  Component component = linear_component();
  component.build = [function](const BuildRequest& request) {
    const at::Tensor x = at::ones({1, 1, 4, 8}).requires_grad_(true);
    const auto forward = [=] { return NamedTensors{{"output", function(x)}}; };
    return std::make_unique<LayerWork>(Layer{{{"x", x}}, {}, forward, {}}, request.pass,
                                       request.workload.dtype, request.device.type());
  };
  return component;
}

/// linear_component() under the name "broken", whose build does this before anything else, but not
/// where its memory is predicted.
inline Component component_with_build(const std::function<void()>& before) {
  Component component = linear_component();
  component.name = "broken";
  component.build = [before, build = component.build](const BuildRequest& request) {
    if (!request.device.is_meta()) before();
    return build(request);
  };
  return component;
}

inline Case small_case(const Component& component, Pass pass, Dtype dtype = Dtype::f32,
                       int64_t batch = 2) {
  return {&component, pass, "custom", {small_config(), Variant(), dtype, batch, 4}, ""};
}

/// Peaks as a journal would hold them, by default above what any case reaches. `curve`: bandwidths
/// by bytes of traffic.
inline nlohmann::ordered_json made_up_peaks(double flops = 1e15, double memory_bandwidth = 1e15,
                                            const std::map<int64_t, double>& curve = {
                                                {1 << 20, 1e15}}) {
  nlohmann::ordered_json measured;
  for (const char* type : {"f32", "bf16"})
    measured[type] = {{"flops_per_second", flops}, {"source", "made up"}};
  measured["memory_bandwidth"] = {{"bytes_per_second", memory_bandwidth}, {"source", "made up"}};
  for (const auto& [bytes, rate] : curve)
    measured["bandwidth_curve"].push_back(
        {{"bytes", bytes}, {"bytes_per_second", rate}, {"source", "made up"}});
  return {{"measured", measured}};
}

}  // namespace tinyllama::harness::testing
