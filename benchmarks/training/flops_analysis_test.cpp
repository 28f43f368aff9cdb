#include "benchmarks/training/flops_analysis.hpp"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <vector>

#include "model/train_step.hpp"

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

const Workload kTiny{ModelConfig(), Variant(), Dtype::f32, 8, 128};

Denominators made_up() {
  Denominators d;
  d.measured_flops = {100e9, "made up"};
  // faster only far below what any part of a step moves
  d.bandwidth = {{{1 << 16, {800e9, "made up"}}, {1 << 20, {20e9, "made up"}}}, {20e9, "made up"}};
  d.gemm_type = "f32";
  return d;
}

TEST(ComponentCostsTest, PartsAddUpToTheirComponentAndComponentsToTheModel) {
  std::map<std::string, int64_t> wholes;
  std::map<std::string, int64_t> parts;
  int64_t model = 0;
  int64_t parameters = 0;
  for (const ComponentCost& cost : component_costs(kTiny, 1)) {
    const int64_t flops = cost.forward_flops + cost.backward_flops;
    const size_t slash = cost.name.find('/');
    if (slash != std::string::npos) {
      parts[cost.name.substr(0, slash)] += flops;
      continue;
    }
    wholes[cost.name] = flops;
    model += flops;
    parameters += cost.parameters;
  }
  EXPECT_EQ(model, model_cost(kTiny, Pass::forward_backward).model_flops);
  EXPECT_EQ(parameters, 2873600);
  EXPECT_EQ(parts.size(), 3u);
  for (const auto& [component, flops] : parts) EXPECT_EQ(flops, wholes[component]) << component;
}

TEST(ComponentCostsTest, FlopsThatReallyRanAddUpToThoseOfTheModel) {
  for (const Switch form :
       {Switch::sdpa, Switch::fused_attention, Switch::checkpoint, Switch::fused_loss}) {
    Workload workload = kTiny;
    workload.variant = Variant({form});
    int64_t flops = 0;
    for (const ComponentCost& cost : component_costs(workload, 3)) flops += cost.hardware_flops;
    EXPECT_EQ(flops, 3 * model_cost(workload, Pass::forward_backward).hardware_flops)
        << to_string(form);
  }
}

TEST(ComponentCostsTest, MicroBatchesMultiplyWorkButNotParametersOrUpdates) {
  const auto one = component_costs(kTiny, 1);
  const auto three = component_costs(kTiny, 3);
  for (size_t i = 0; i < one.size(); ++i) {
    const int64_t factor = one[i].name == "optimizer" ? 1 : 3;
    EXPECT_EQ(three[i].forward_flops, factor * one[i].forward_flops) << one[i].name;
    EXPECT_EQ(three[i].bytes, factor * one[i].bytes) << one[i].name;
    EXPECT_EQ(three[i].parameters, one[i].parameters) << one[i].name;
  }
}

FlopsMeasurement half_a_second() {
  return {
      10,
      0.5,
      1,
      {{{"attention/core", {0.1, 0.2}}, {"ffn/down_proj", {0.05, 0.05}}, {"residual", {0.01, 0.0}}},
       {0.05, 0.07}},
      8};
}

TEST(FlopsAnalysisTest, ADatasheetsPeakComesBeforeTheMeasuredOne) {
  Denominators d = made_up();
  d.datasheet = {{"a device", {{"f32", 400e9}}, 40e9, 0, "its page"}};
  const auto analysis = analyze_flops(kTiny, half_a_second(), d);
  const Json& efficiency = analysis.at("flops_profile").at("efficiency_metrics");
  EXPECT_DOUBLE_EQ(efficiency.at("device_peak_flops"), 400e9);
  EXPECT_DOUBLE_EQ(efficiency.at("measured_peak_flops"), 100e9);
  EXPECT_DOUBLE_EQ(analysis.at("computational_intensity").at("device_memory_bandwidth_gb_per_sec"),
                   40);
  EXPECT_EQ(analyze_flops(kTiny, half_a_second(), made_up())
                .at("flops_profile")
                .at("efficiency_metrics")
                .at("device_peak_source"),
            "measured: made up");
  EXPECT_DOUBLE_EQ(
      analysis.at("flops_profile").at("performance_metrics").at("throughput_samples_per_sec"), 16)
      << "of all ranks";
  // The roofline stays that of what can be reached.
  EXPECT_DOUBLE_EQ(analysis.at("roofline_data").at("peak_flops"), 100e9);
}

TEST(FlopsAnalysisTest, PointsOfTheRooflineAreOfTheFlopsThatReallyRan) {
  const Workload workload{ModelConfig(), Variant({Switch::sdpa}), Dtype::f32, 2, 512};
  const int64_t flops =
      workload.config.n_layers() * attention_cost(workload, Pass::forward_backward).hardware_flops;
  const auto analysis = analyze_flops(workload, half_a_second(), made_up());
  bool found = false;
  for (const Json& point : analysis.at("roofline_data").at("points")) {
    if (point.at("name") != "attention") continue;
    found = true;
    EXPECT_DOUBLE_EQ(point.at("achieved_flops_per_sec"), static_cast<double>(flops) / 0.3);
    EXPECT_DOUBLE_EQ(point.at("attainable_bandwidth"), 20e9) << "that of its traffic";
  }
  EXPECT_TRUE(found);
}

TEST(FlopsAnalysisTest, WhatHasNoTimeOrNoFlopsOfItsOwnIsNullAndNot0) {
  const auto analysis = analyze_flops(kTiny, half_a_second(), made_up());
  std::map<std::string, Json> rows;
  for (const Json& row : analysis.at("flops_profile").at("components")) rows[row.at("name")] = row;
  for (const char* key : {"forward_seconds", "backward_seconds", "flops_per_sec"}) {
    EXPECT_TRUE(rows.at("embedding").at(key).is_null()) << key;  // no time was recorded
    EXPECT_TRUE(rows.at("ffn/down_proj").at(key).is_number()) << key;
  }
  EXPECT_TRUE(rows.at("residual").at("forward_seconds").is_number());
  EXPECT_TRUE(rows.at("residual").at("flops_per_sec").is_null());
}

TEST(FlopsAnalysisTest, APeakBelowWhatTheStepReallyRanIsMeasuredAgain) {
  // Recomputes its forward: between the model's rate and the one that ran is no peak.
  const Workload workload{ModelConfig(), Variant({Switch::checkpoint}), Dtype::f32, 8, 128};
  const Cost cost = step_cost(workload, 1);
  ASSERT_GT(static_cast<double>(cost.hardware_flops), 1.2 * static_cast<double>(cost.model_flops));
  const double rate = static_cast<double>(cost.hardware_flops) / 0.5;
  std::vector<double> measured = {0.9 * rate, 1.1 * rate, 2 * rate};
  const auto next = [&] {
    const instruments::MeasuredPeak peak{measured.front(), "made up"};
    measured.erase(measured.begin());
    return peak;
  };
  EXPECT_DOUBLE_EQ(peak_of_step(workload, half_a_second(), next).per_second, 1.1 * rate);
  measured = {0.7 * rate, 0.9 * rate, 0.8 * rate, 2 * rate};
  EXPECT_DOUBLE_EQ(peak_of_step(workload, half_a_second(), next).per_second, 0.9 * rate);
}

TEST(FlopsAnalysisTest, AStepAboveItsPeakIsAnError) {
  Denominators d = made_up();
  const auto flops =
      static_cast<double>(model_cost(kTiny, Pass::forward_backward).model_flops) / 0.5;
  d.measured_flops.per_second = flops / 1.04;
  EXPECT_NO_THROW(analyze_flops(kTiny, half_a_second(), d));
  d.measured_flops.per_second = flops / 1.06;
  EXPECT_THROW(analyze_flops(kTiny, half_a_second(), d), std::runtime_error);
  d = made_up();
  d.datasheet = {{"a device", {{"f32", flops / 2}}, 40e9, 0, "its page"}};
  EXPECT_THROW(analyze_flops(kTiny, half_a_second(), d), std::runtime_error);
}

TEST(FlopsAnalysisTest, WordsFollowTheNumbers) {
  EXPECT_EQ(classify_intensity(9.9), "memory-bound");
  EXPECT_EQ(classify_intensity(10), "mixed");
  EXPECT_EQ(classify_intensity(100), "mixed");
  EXPECT_EQ(classify_intensity(101), "compute-bound");
}

}  // namespace
}  // namespace tinyllama::training
