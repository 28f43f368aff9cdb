#include "benchmarks/training/flops_analysis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "model/step_gemms.hpp"
#include "model/train_step.hpp"

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

double ratio(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

// A component's time is that of everything below its path.
ComponentSeconds seconds_below(const std::map<std::string, ComponentSeconds>& components,
                               const std::string& path) {
  ComponentSeconds sum;
  for (const auto& [name, seconds] : components) {
    if (name != path && !name.starts_with(path + "/")) continue;
    sum.forward += seconds.forward;
    sum.backward += seconds.backward;
  }
  return sum;
}

Json or_null(int64_t value) {
  return value > 0 ? Json(value) : Json(nullptr);
}

class Analysis {
 public:
  Analysis(const Workload& workload, const FlopsMeasurement& measurement,
           const instruments::MeasuredPeaks& peaks)
      : m_(measurement),
        peaks_(peaks),
        type_(gemm_type_name(workload.dtype)),
        cost_(full_step_cost(workload, measurement.micro_batches)),
        costs_(component_costs(workload, measurement.micro_batches)),
        hardware_rate_(hardware_rate(workload, measurement)) {
    for (const auto& [name, seconds] : m_.times.components) profiled_seconds_ += seconds.total();
  }

  // Of the model's FLOPs, which MFU is made of.
  double achieved_flops() const {
    return ratio(static_cast<double>(cost_.model_flops), m_.step_seconds);
  }
  void refuse_above_peak() const {
    for (const auto& peak : {peaks_.measured(type_), peaks_.mfu_peak(type_)}) {
      if (hardware_rate_ <= instruments::kLargestShare * peak.per_second) continue;
      throw std::runtime_error(
          fmt::format("FLOPS profile: the step's {:.3g} FLOP/s are above the peak of {:.3g} ({}): "
                      "profile again on a quiet machine",
                      hardware_rate_, peak.per_second, peak.source));
    }
  }

  Json flops_profile() const {
    const auto model = static_cast<double>(cost_.model_flops);
    const double achieved = achieved_flops();
    const auto peak = peaks_.mfu_peak(type_);
    const double mfu = 100.0 * ratio(achieved, peak.per_second);
    const auto samples = static_cast<double>(m_.all_samples);
    return {{"step", m_.step},
            {"flops_analysis",
             {{"avg_flops_per_step", cost_.model_flops},
              {"flops_per_parameter", model / static_cast<double>(cost_.parameters)},
              {"model_flops", cost_.model_flops},
              {"causal_flops", cost_.causal_flops},
              {"hardware_flops", cost_.hardware_flops}}},
            {"performance_metrics",
             {{"flops_per_sec", achieved},
              {"throughput_samples_per_sec", ratio(samples, m_.step_seconds)}}},
            {"efficiency_metrics",
             {{"mfu_percent", mfu},
              {"achieved_flops_per_sec", achieved},
              {"device_peak_flops", peak.per_second},
              {"device_peak_source", peak.source},
              {"efficiency_ratio", mfu / 100.0},
              {"measured_peak_flops", measured_peak()},
              {"measured_peak_percent", 100.0 * ratio(hardware_rate_, measured_peak())}}},
            {"components", components()}};
  }

  Json computational_intensity() const {
    const double intensity = ratio(static_cast<double>(cost_.hardware_flops), bytes());
    const double used = ratio(bytes(), m_.step_seconds);
    const auto bandwidth = peaks_.memory_peak();
    return {{"arithmetic_intensity_flops_per_byte", intensity},
            {"memory_traffic_bytes_per_step", cost_.bytes},
            {"memory_bandwidth_used_gb_per_sec", used * 1e-9},
            {"memory_bandwidth_utilization_percent", 100.0 * ratio(used, bandwidth.per_second)},
            {"device_memory_bandwidth_gb_per_sec", bandwidth.per_second * 1e-9},
            {"device_memory_bandwidth_source", bandwidth.source},
            {"memory_bound_vs_compute_bound", classify_intensity(intensity)},
            {"roofline_metrics",
             {{"peak_flops", measured_peak()},
              {"peak_memory_bandwidth", peaks_.measured_bandwidth().memory.per_second},
              {"achieved_bandwidth", used}}}};
  }

  Json roofline_data() const {
    Json points = Json::array();
    points.push_back(roofline_point("step", static_cast<double>(cost_.hardware_flops), cost_.bytes,
                                    m_.step_seconds));
    for (const ComponentCost& cost : costs_) {
      const double seconds = seconds_below(m_.times.components, cost.name).total();
      const Cost both = cost.forward + cost.backward;
      const auto flops = static_cast<double>(both.intensity_flops());
      if (both.bytes == 0 || seconds <= 0 || flops == 0) continue;
      points.push_back(roofline_point(cost.name, flops, both.bytes, seconds));
    }
    const instruments::Bandwidth& bandwidth = peaks_.measured_bandwidth();
    Json curve = Json::array();
    for (const auto& [traffic, peak] : bandwidth.curve)
      curve.push_back({{"bytes", traffic}, {"bytes_per_second", peak.per_second}});
    return {{"peak_flops", measured_peak()},
            {"peak_memory_bandwidth", bandwidth.memory.per_second},
            {"bandwidth_curve", curve},
            {"ridge_point_flops_per_byte", ratio(measured_peak(), bandwidth.memory.per_second)},
            {"points", points}};
  }

 private:
  double bytes() const { return static_cast<double>(cost_.bytes); }
  double measured_peak() const { return peaks_.measured_flops(type_); }

  // `flops` and `bytes` of one point of the roofline, done in `seconds`.
  Json roofline_point(const std::string& name, double flops, int64_t bytes, double seconds) const {
    const double intensity = ratio(flops, static_cast<double>(bytes));
    const double bandwidth = peaks_.bandwidth(bytes);
    const double by_memory = intensity * bandwidth;
    const double attainable = std::min(measured_peak(), by_memory);
    const double achieved = ratio(flops, seconds);
    return {{"name", name},
            {"arithmetic_intensity_flops_per_byte", intensity},
            {"achieved_flops_per_sec", achieved},
            {"attainable_flops_per_sec", attainable},
            {"percent_of_attainable", 100.0 * ratio(achieved, attainable)},
            {"attainable_bandwidth", bandwidth},
            {"bound", by_memory < measured_peak() ? "memory" : "compute"}};
  }

  Json component(const ComponentCost& cost, const ComponentSeconds& seconds) const {
    const Cost both = cost.forward + cost.backward;
    const auto flops = static_cast<double>(both.model_flops);
    // a fused loss has its time, and neither LM head nor cross-entropy have one of their own
    const auto measured = [&](double value) {
      return seconds.total() > 0 ? Json(value) : Json(nullptr);
    };
    return {{"name", cost.name},
            {"parameters", cost.forward.parameters},
            {"forward_flops", cost.forward.model_flops},
            {"backward_flops", cost.backward.model_flops},
            {"elementwise_flops", or_null(both.elementwise_flops)},
            {"bytes", or_null(both.bytes)},
            {"forward_seconds", measured(seconds.forward)},
            {"backward_seconds", measured(seconds.backward)},
            {"percent", 100.0 * ratio(seconds.total(), profiled_seconds_)},
            {"flops_per_sec", flops > 0 ? measured(ratio(flops, seconds.total())) : Json(nullptr)},
            {"arithmetic_intensity_flops_per_byte",
             both.bytes > 0 ? Json(ratio(static_cast<double>(both.intensity_flops()),
                                         static_cast<double>(both.bytes)))
                            : Json(nullptr)}};
  }

  Json components() const {
    Json list = Json::array();
    for (const ComponentCost& cost : costs_)
      list.push_back(component(cost, seconds_below(m_.times.components, cost.name)));
    // What the formulas do not know of has its time alone.
    const auto add_rest = [&](const std::string& name, const ComponentSeconds& seconds) {
      list.push_back(component({.name = name}, seconds));
    };
    if (m_.times.softmax.total() > 0) add_rest("attention/softmax", m_.times.softmax);
    for (const auto& [name, seconds] : m_.times.components) {
      if (std::ranges::find(costs_, name, &ComponentCost::name) == costs_.end())
        add_rest(name, seconds);
    }
    return list;
  }

  const FlopsMeasurement& m_;
  const instruments::MeasuredPeaks& peaks_;
  std::string type_;
  Cost cost_;
  std::vector<ComponentCost> costs_;
  double hardware_rate_;
  double profiled_seconds_ = 0;
};

}  // namespace

std::vector<ComponentCost> component_costs(const Workload& workload, int64_t micro_batches) {
  const ModelConfig& config = workload.config;
  const int64_t D = config.hidden_dim();
  const int64_t L = config.n_layers();
  std::vector<ComponentCost> costs;
  const int64_t runs_of_a_layer = workload.variant.has(Switch::checkpoint) ? 2 : 1;
  // A component that occurs `count` times in the model; `runs` of its forward in a step.
  const auto add = [&](const char* name, Cost (*formula)(const Workload&, Pass), int64_t count,
                       int64_t runs = 1) {
    Cost forward = micro_batches * count * formula(workload, Pass::forward);
    forward.parameters /= micro_batches;
    forward.hardware_flops *= runs;
    costs.push_back({name, forward, micro_batches * count * formula(workload, Pass::backward)});
  };
  const auto add_gemms = [&](const char* name, int64_t parameters, int64_t flops) {
    costs.push_back({name,
                     {.parameters = parameters, .model_flops = micro_batches * flops},
                     {.model_flops = 2 * micro_batches * flops}});
  };
  // A matrix multiplication with a weight of [out, in]; backward runs two as large.
  const auto add_projection = [&](const char* name, int64_t in, int64_t out, int64_t count) {
    add_gemms(name, count * in * out, count * 2 * workload.tokens() * in * out);
  };
  add("embedding", embedding_cost, 1);
  add("rms_norm", rms_norm_cost, 2 * L + 1);
  add("attention", attention_cost, L, runs_of_a_layer);
  add_projection("attention/qkv_proj", D, config.q_dim() + 2 * config.kv_dim(), L);
  add("attention/rotary", rotary_cost, L);
  // q k^T and probabilities x v, scores in full
  add_gemms(
      "attention/core", 0,
      L * 4 * workload.batch * config.n_heads() * workload.seq * workload.seq * config.head_dim());
  add_projection("attention/o_proj", config.q_dim(), D, L);
  add("ffn", feed_forward_cost, L, runs_of_a_layer);
  add_projection("ffn/gate_up_proj", D, 2 * config.intermediate_dim(), L);
  add_projection("ffn/down_proj", config.intermediate_dim(), D, L);
  add("loss", loss_cost, 1);
  add_projection("loss/lm_head", D, config.vocab_size(), 1);
  Cost update = optimizer_cost(workload);
  update.parameters = 0;  // counted where they are used
  costs.push_back({"optimizer", update});
  return costs;
}

double hardware_rate(const Workload& workload, const FlopsMeasurement& measurement) {
  const Cost cost = full_step_cost(workload, measurement.micro_batches);
  return ratio(static_cast<double>(cost.hardware_flops), measurement.step_seconds);
}

instruments::MeasuredPeaks measure_peaks(const instruments::Device& device,
                                         const Workload& workload,
                                         const FlopsMeasurement& measurement,
                                         const std::filesystem::path& device_peaks) {
  const std::string type = gemm_type_name(workload.dtype);
  const std::set<GemmShape> shapes = linear_gemms(workload);
  instruments::MeasuredPeaks peaks(device);
  peaks.set_datasheet(instruments::find_datasheet_peaks(device_peaks, device.description()));
  peaks.measure({.types = {type}, .shapes = {shapes.begin(), shapes.end()}});
  peaks.measure_flops_below(type, hardware_rate(workload, measurement));
  return peaks;
}

Json analyze_flops(const Workload& workload, const FlopsMeasurement& measurement,
                   const instruments::MeasuredPeaks& peaks) {
  const Analysis analysis(workload, measurement, peaks);
  analysis.refuse_above_peak();
  return {{"flops_profile", analysis.flops_profile()},
          {"computational_intensity", analysis.computational_intensity()},
          {"roofline_data", analysis.roofline_data()}};
}

std::string classify_intensity(double flop_per_byte) {
  if (flop_per_byte < 10) return "memory-bound";
  return flop_per_byte > 100 ? "compute-bound" : "mixed";
}

}  // namespace tinyllama::training
