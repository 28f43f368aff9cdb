#include "benchmarks/training/flops_analysis.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <vector>

#include "model/train_step.hpp"

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

const Workload kTiny{ModelConfig(), Variant(), Dtype::f32, 8, 128};

// `datasheet`: FLOP/s of f32, at 40 GB/s; 0 where there is none.
instruments::MeasuredPeaks made_up(double flops = 100e9, double datasheet = 0) {
  instruments::MeasuredPeaks peaks(instruments::Device::select("cpu"));
  // faster only far below what any part of a step moves
  peaks.restore(Json::parse(fmt::format(
      R"({{"measured": {{"f32": {{"flops_per_second": {}, "source": "made up"}},
           "memory_bandwidth": {{"bytes_per_second": 20e9, "source": "made up"}},
           "bandwidth_curve": [{{"bytes": 65536, "bytes_per_second": 800e9, "source": "made up"}},
                               {{"bytes": 1048576, "bytes_per_second": 20e9, "source": "made up"}}]}}}})",
      flops)));
  if (datasheet > 0) peaks.set_datasheet({{"a device", {{"f32", datasheet}}, 40e9, 0, "its page"}});
  return peaks;
}

TEST(ComponentCostsTest, PartsAddUpToTheirComponentAndComponentsToTheModel) {
  std::map<std::string, int64_t> wholes;
  std::map<std::string, int64_t> parts;
  int64_t model = 0;
  int64_t parameters = 0;
  for (const ComponentCost& cost : component_costs(kTiny, 1)) {
    const int64_t flops = cost.forward.model_flops + cost.backward.model_flops;
    const size_t slash = cost.name.find('/');
    if (slash != std::string::npos) {
      parts[cost.name.substr(0, slash)] += flops;
      continue;
    }
    wholes[cost.name] = flops;
    model += flops;
    parameters += cost.forward.parameters;
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
    for (const ComponentCost& cost : component_costs(workload, 3))
      flops += (cost.forward + cost.backward).hardware_flops;
    EXPECT_EQ(flops, 3 * model_cost(workload, Pass::forward_backward).hardware_flops)
        << to_string(form);
  }
}

TEST(ComponentCostsTest, MicroBatchesMultiplyWorkButNotParametersOrUpdates) {
  const auto one = component_costs(kTiny, 1);
  const auto three = component_costs(kTiny, 3);
  for (size_t i = 0; i < one.size(); ++i) {
    const int64_t factor = one[i].name == "optimizer" ? 1 : 3;
    EXPECT_EQ(three[i].forward.model_flops, factor * one[i].forward.model_flops) << one[i].name;
    EXPECT_EQ((three[i].forward + three[i].backward).bytes,
              factor * (one[i].forward + one[i].backward).bytes)
        << one[i].name;
    EXPECT_EQ(three[i].forward.parameters, one[i].forward.parameters) << one[i].name;
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
  const auto analysis = analyze_flops(kTiny, half_a_second(), made_up(100e9, 400e9));
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

TEST(FlopsAnalysisTest, AStepReachesWhatItReallyRan) {
  const Workload workload{ModelConfig(), Variant({Switch::checkpoint}), Dtype::f32, 8, 128};
  const Cost cost = full_step_cost(workload);
  ASSERT_GT(static_cast<double>(cost.hardware_flops), 1.2 * static_cast<double>(cost.model_flops));
  EXPECT_DOUBLE_EQ(hardware_rate(workload, half_a_second()),
                   static_cast<double>(cost.hardware_flops) / 0.5);
}

TEST(FlopsAnalysisTest, AStepAboveItsPeakIsAnError) {
  const double reached = hardware_rate(kTiny, half_a_second());
  const auto analyze = [](const instruments::MeasuredPeaks& peaks) {
    analyze_flops(kTiny, half_a_second(), peaks);
  };
  EXPECT_NO_THROW(analyze(made_up(reached / 1.04)));
  EXPECT_THROW(analyze(made_up(reached / 1.06)), std::runtime_error);
  EXPECT_THROW(analyze(made_up(100e9, reached / 2)), std::runtime_error);
}

TEST(FlopsAnalysisTest, WordsFollowTheNumbers) {
  EXPECT_EQ(classify_intensity(9.9), "memory-bound");
  EXPECT_EQ(classify_intensity(10), "mixed");
  EXPECT_EQ(classify_intensity(100), "mixed");
  EXPECT_EQ(classify_intensity(101), "compute-bound");
}

}  // namespace
}  // namespace tinyllama::training
