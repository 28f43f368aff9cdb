#include "benchmarks/training/run_document.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/memory_prediction.hpp"
#include "benchmarks/training/component_costs.hpp"

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

Json configuration_json(const TrainOptions& options, const std::string& data) {
  const ModelDimensions& d = options.dimensions;
  return {{"size", options.size},
          {"batch_size", options.batch_size},
          {"seq_len", options.seq_len},
          {"num_steps", options.num_steps},
          {"gradient_accumulation_steps", options.gradient_accumulation_steps},
          {"learning_rate", options.learning_rate},
          {"dtype", to_string(options.dtype)},
          {"variant", options.variant.name()},
          {"switches", options.variant.switch_names()},
          {"seed", options.seed},
          {"deterministic", options.deterministic},
          {"data", data},
          {"vocab_size", d.vocab_size},
          {"hidden_dim", d.hidden_dim},
          {"n_layers", d.n_layers},
          {"n_heads", d.n_heads},
          {"n_kv_heads", d.n_kv_heads},
          {"intermediate_dim", d.intermediate_dim}};
}

Json model_json(const TrainOptions& options, c10::DeviceType device) {
  const Workload workload = options.workload();
  const Cost cost = step_cost(workload, options.gradient_accumulation_steps);
  return {
      {"total_parameters", cost.parameters},
      {"model_size_bytes", cost.parameters * storage_bytes(options.dtype)},
      {"flops_per_step", cost.model_flops},
      {"causal_flops_per_step", cost.causal_flops},
      {"bytes_per_step", cost.bytes},
      {"predicted_peak_memory_bytes", instruments::predict_step_memory(workload, device).peak()}};
}

std::string utc_now() {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

}  // namespace

Json run_header(const TrainOptions& options, const instruments::Device& device,
                const std::vector<std::string>& command, const std::string& data) {
  return {{"schema_version", 1},
          {"program", "tiny_llama_train"},
          {"command", command},
          {"started", utc_now()},
          {"context", instruments::machine_context(device)},
          {"configuration", configuration_json(options, data)},
          {"model", model_json(options, device.torch().type())}};
}

Json distributed_json(const TrainOptions& options, const distributed::ProcessGroup& group) {
  return {{"world_size", group.size()},
          {"backend", group.backend_name()},
          {"started_by", to_string(group.where().launcher)},
          {"bucket_MiB", options.bucket_MiB},
          {"overlap", options.overlap},
          {"shard_optimizer", options.shard_optimizer}};
}

Json sampling_json(const instruments::SystemSamples& samples) {
  Json readings = Json::object();
  for (const auto& [name, r] : samples.readings) {
    readings[name] = {
        {"minimum", r.minimum}, {"mean", r.mean}, {"maximum", r.maximum}, {"samples", r.samples}};
  }
  return {{"interval_seconds", samples.interval_seconds},
          {"source", samples.source},
          {"readings", readings}};
}

}  // namespace tinyllama::training
