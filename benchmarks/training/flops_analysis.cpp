#include "benchmarks/training/flops_analysis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "model/step_gemms.hpp"
#include "model/train_step.hpp"

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecondsForPeak = 3.0;
constexpr int kPeakMeasurements = 3;
// As in the suite: what a peak may be exceeded by before it is an error.
constexpr double kTolerance = 1.05;

double ratio(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

// The datasheet's figure where one is known, as the suite's MFU has it.
instruments::MeasuredPeak device_peak(const Denominators& d) {
  if (d.datasheet && d.datasheet->flops.contains(d.gemm_type))
    return {d.datasheet->flops.at(d.gemm_type), "datasheet: " + d.datasheet->source};
  return {d.measured_flops.per_second, "measured: " + d.measured_flops.source};
}

instruments::MeasuredPeak device_bandwidth(const Denominators& d) {
  if (d.datasheet && d.datasheet->memory_bandwidth > 0)
    return {d.datasheet->memory_bandwidth, "datasheet: " + d.datasheet->source};
  return {d.bandwidth.memory.per_second, "measured: " + d.bandwidth.memory.source};
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

// `flops` and `bytes` of one point of the roofline, done in `seconds`.
Json roofline_point(const std::string& name, double flops, int64_t bytes, double seconds,
                    const Denominators& d) {
  const double intensity = ratio(flops, static_cast<double>(bytes));
  const double bandwidth = instruments::attainable_bandwidth(d.bandwidth, bytes);
  const double by_memory = intensity * bandwidth;
  const double attainable = std::min(d.measured_flops.per_second, by_memory);
  const double achieved = ratio(flops, seconds);
  return {{"name", name},
          {"arithmetic_intensity_flops_per_byte", intensity},
          {"achieved_flops_per_sec", achieved},
          {"attainable_flops_per_sec", attainable},
          {"percent_of_attainable", 100.0 * ratio(achieved, attainable)},
          {"attainable_bandwidth", bandwidth},
          {"bound", by_memory < d.measured_flops.per_second ? "memory" : "compute"}};
}

class Analysis {
 public:
  Analysis(const Workload& workload, const FlopsMeasurement& measurement, Denominators d)
      : workload_(workload),
        m_(measurement),
        d_(std::move(d)),
        cost_(step_cost(workload, measurement.micro_batches)),
        costs_(component_costs(workload, measurement.micro_batches)) {
    for (const auto& [name, seconds] : m_.times.components) profiled_seconds_ += seconds.total();
  }

  // Of the model's FLOPs, which MFU is made of.
  double achieved_flops() const {
    return ratio(static_cast<double>(cost_.model_flops), m_.step_seconds);
  }
  // Of the FLOPs that really ran, which alone no peak allows to be exceeded.
  double hardware_rate() const {
    return ratio(static_cast<double>(cost_.hardware_flops), m_.step_seconds);
  }

  void refuse_above_peak() const {
    for (const auto& peak : {d_.measured_flops, device_peak(d_)}) {
      if (hardware_rate() <= kTolerance * peak.per_second) continue;
      throw std::runtime_error(
          fmt::format("FLOPS profile: the step's {:.3g} FLOP/s are above the peak of {:.3g} ({}): "
                      "profile again on a quiet machine",
                      hardware_rate(), peak.per_second, peak.source));
    }
  }

  Json flops_profile() const {
    const auto model = static_cast<double>(cost_.model_flops);
    const double achieved = achieved_flops();
    const auto peak = device_peak(d_);
    const double mfu = 100.0 * ratio(achieved, peak.per_second);
    const auto samples = static_cast<double>(m_.all_samples);
    return {
        {"step", m_.step},
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
          {"measured_peak_flops", d_.measured_flops.per_second},
          {"measured_peak_percent", 100.0 * ratio(hardware_rate(), d_.measured_flops.per_second)}}},
        {"components", components()}};
  }

  Json computational_intensity() const {
    const double intensity = ratio(static_cast<double>(cost_.hardware_flops), bytes());
    const double used = ratio(bytes(), m_.step_seconds);
    const auto bandwidth = device_bandwidth(d_);
    return {{"arithmetic_intensity_flops_per_byte", intensity},
            {"memory_traffic_bytes_per_step", cost_.bytes},
            {"memory_bandwidth_used_gb_per_sec", used * 1e-9},
            {"memory_bandwidth_utilization_percent", 100.0 * ratio(used, bandwidth.per_second)},
            {"device_memory_bandwidth_gb_per_sec", bandwidth.per_second * 1e-9},
            {"device_memory_bandwidth_source", bandwidth.source},
            {"memory_bound_vs_compute_bound", classify_intensity(intensity)},
            {"roofline_metrics",
             {{"peak_flops", d_.measured_flops.per_second},
              {"peak_memory_bandwidth", d_.bandwidth.memory.per_second},
              {"achieved_bandwidth", used}}}};
  }

  Json roofline_data() const {
    Json points = Json::array();
    points.push_back(roofline_point("step", static_cast<double>(cost_.hardware_flops), cost_.bytes,
                                    m_.step_seconds, d_));
    for (const ComponentCost& cost : costs_) {
      const double seconds = seconds_below(m_.times.components, cost.name).total();
      const auto flops = static_cast<double>(intensity_flops(cost));
      if (cost.bytes == 0 || seconds <= 0 || flops == 0) continue;
      points.push_back(roofline_point(cost.name, flops, cost.bytes, seconds, d_));
    }
    const double bandwidth = d_.bandwidth.memory.per_second;
    Json curve = Json::array();
    for (const auto& [traffic, peak] : d_.bandwidth.curve)
      curve.push_back({{"bytes", traffic}, {"bytes_per_second", peak.per_second}});
    return {{"peak_flops", d_.measured_flops.per_second},
            {"peak_memory_bandwidth", bandwidth},
            {"bandwidth_curve", curve},
            {"ridge_point_flops_per_byte", ratio(d_.measured_flops.per_second, bandwidth)},
            {"points", points}};
  }

 private:
  double bytes() const { return static_cast<double>(cost_.bytes); }

  // Components without matrix multiplications are described by what else they compute.
  static int64_t intensity_flops(const ComponentCost& cost) {
    return cost.hardware_flops > 0 ? cost.hardware_flops : cost.elementwise_flops;
  }

  Json component(const ComponentCost& cost, const ComponentSeconds& seconds) const {
    const auto flops = static_cast<double>(cost.forward_flops + cost.backward_flops);
    // a fused loss has its time, and neither LM head nor cross-entropy have one of their own
    const auto measured = [&](double value) {
      return seconds.total() > 0 ? Json(value) : Json(nullptr);
    };
    return {{"name", cost.name},
            {"parameters", cost.parameters},
            {"forward_flops", cost.forward_flops},
            {"backward_flops", cost.backward_flops},
            {"elementwise_flops", or_null(cost.elementwise_flops)},
            {"bytes", or_null(cost.bytes)},
            {"forward_seconds", measured(seconds.forward)},
            {"backward_seconds", measured(seconds.backward)},
            {"percent", 100.0 * ratio(seconds.total(), profiled_seconds_)},
            {"flops_per_sec", flops > 0 ? measured(ratio(flops, seconds.total())) : Json(nullptr)},
            {"arithmetic_intensity_flops_per_byte",
             cost.bytes > 0 ? Json(ratio(static_cast<double>(intensity_flops(cost)),
                                         static_cast<double>(cost.bytes)))
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

  const Workload& workload_;
  const FlopsMeasurement& m_;
  Denominators d_;
  Cost cost_;
  std::vector<ComponentCost> costs_;
  double profiled_seconds_ = 0;
};

}  // namespace

Cost step_cost(const Workload& workload, int64_t micro_batches) {
  Cost cost = micro_batches * model_cost(workload, Pass::forward_backward);
  cost += optimizer_cost(workload);
  cost.parameters = count_parameters(workload.config);
  return cost;
}

std::vector<ComponentCost> component_costs(const Workload& workload, int64_t micro_batches) {
  const ModelConfig& config = workload.config;
  const int64_t D = config.hidden_dim();
  const int64_t L = config.n_layers();
  std::vector<ComponentCost> costs;
  const int64_t runs_of_a_layer = workload.variant.has(Switch::checkpoint) ? 2 : 1;
  // A component that occurs `count` times in the model; `runs` of its forward in a step.
  const auto add = [&](const char* name, Cost (*formula)(const Workload&, Pass), int64_t count,
                       int64_t runs = 1) {
    const Cost forward = count * formula(workload, Pass::forward);
    const Cost backward = count * formula(workload, Pass::backward);
    costs.push_back({name, count * formula(workload, Pass::forward).parameters,
                     micro_batches * forward.model_flops, micro_batches * backward.model_flops,
                     micro_batches * (forward.elementwise_flops + backward.elementwise_flops),
                     micro_batches * (forward.bytes + backward.bytes),
                     micro_batches * (runs * forward.hardware_flops + backward.hardware_flops)});
  };
  // A matrix multiplication with a weight of [out, in]; backward runs two as large.
  const auto add_projection = [&](const char* name, int64_t in, int64_t out, int64_t count) {
    const int64_t flops = micro_batches * count * 2 * workload.tokens() * in * out;
    costs.push_back({name, count * in * out, flops, 2 * flops});
  };
  add("embedding", embedding_cost, 1);
  add("rms_norm", rms_norm_cost, 2 * L + 1);
  add("attention", attention_cost, L, runs_of_a_layer);
  add_projection("attention/qkv_proj", D, D + 2 * config.kv_dim(), L);
  add("attention/rotary", rotary_cost, L);
  // q k^T and probabilities x v, scores in full
  const int64_t scores = micro_batches * L * 4 * workload.batch * config.n_heads() * workload.seq *
                         workload.seq * config.head_dim();
  costs.push_back({"attention/core", 0, scores, 2 * scores});
  add_projection("attention/o_proj", D, D, L);
  add("ffn", feed_forward_cost, L, runs_of_a_layer);
  add_projection("ffn/gate_up_proj", D, 2 * config.intermediate_dim(), L);
  add_projection("ffn/down_proj", config.intermediate_dim(), D, L);
  add("loss", loss_cost, 1);
  add_projection("loss/lm_head", D, config.vocab_size(), 1);
  const Cost update = optimizer_cost(workload);
  costs.push_back({"optimizer", 0, update.model_flops, 0, update.elementwise_flops, update.bytes});
  return costs;
}

instruments::MeasuredPeak peak_of_step(const Workload& workload,
                                       const FlopsMeasurement& measurement,
                                       const std::function<instruments::MeasuredPeak()>& measure) {
  const double reached = Analysis(workload, measurement, {}).hardware_rate();
  instruments::MeasuredPeak best;
  for (int i = 0; i < kPeakMeasurements && best.per_second <= reached; ++i) {
    const auto peak = measure();
    if (peak.per_second > best.per_second) best = peak;
  }
  return best;
}

Denominators measure_denominators(const instruments::Device& device, const Workload& workload,
                                  const FlopsMeasurement& measurement,
                                  const std::filesystem::path& device_peaks) {
  const std::string type = gemm_type_name(workload.dtype);
  const c10::ScalarType scalar = compute_type(workload.dtype);
  const auto paths = gemm_paths(scalar, device.torch().type());
  std::vector<instruments::GemmShape> shapes;
  for (const auto& [batch, m, n, k] : linear_gemms(workload)) shapes.push_back({batch, m, n, k});
  const auto peak = peak_of_step(workload, measurement, [&] {
    return instruments::measure_gemm_peak(device, scalar, paths, shapes, kSecondsForPeak);
  });
  return {peak, instruments::measure_bandwidth(device),
          instruments::find_datasheet_peaks(device_peaks, device.description()), type};
}

Json analyze_flops(const Workload& workload, const FlopsMeasurement& measurement,
                   const Denominators& denominators) {
  const Analysis analysis(workload, measurement, denominators);
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
