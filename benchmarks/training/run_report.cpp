#include "benchmarks/training/run_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <map>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/size_options.hpp"
#include "benchmarks/instruments/context.hpp"
#include "core/statistics.hpp"
#include "core/text.hpp"
#include "model/memory_prediction.hpp"
#include "model/train_step.hpp"

namespace tinyllama::training {
namespace {

constexpr size_t kOperatorsShown = 10;
constexpr size_t kWidestShapes = 60;
constexpr const char* kRule = "==========================================\n";
// PyTorch's habitual "MB".
constexpr double kMebibyte = 1048576.0;

/// A figure of the values; null where there are none.
template <typename Figure>
Json figure_of(Figure figure, const std::vector<double>& values) {
  return values.empty() ? Json(nullptr) : Json(figure(values));
}

Json overhead_percent(const std::vector<double>& profiled, const std::vector<double>& plain) {
  if (profiled.empty() || plain.empty()) return nullptr;
  return 100.0 * (median(profiled) / median(plain) - 1.0);
}

// JSON has no NaN.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

bool is_part_of_launch(Phase phase) {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::optimizer;
}

double mebibytes(double bytes) {
  return bytes / kMebibyte;
}

// `12.3`; what frees as much as it allocates is 0.0, and not -0.0.
std::string mebibytes_text(double bytes) {
  return fmt::format("{:.1f}", std::round(mebibytes(bytes) * 10) / 10 + 0.0);
}

std::string titled(const std::string& title) {
  return fmt::format("{}{}\n{}", kRule, title, kRule);
}

// 2873600 -> "2,873,600".
std::string with_commas(int64_t value) {
  return value < 1000 ? std::to_string(value)
                      : fmt::format("{},{:03}", with_commas(value / 1000), value % 1000);
}

std::string seconds_text(const Json& seconds) {
  return seconds.is_null() ? "unknown" : fmt::format("{:.4f} seconds", seconds.get<double>());
}

std::string performance_summary_text(const Json& document) {
  const Json& s = document.at("summary");
  std::string text = fmt::format("\n{}", titled("Performance Summary:"));
  text += fmt::format("Average time per step: {} (first step, not in any average: {})\n",
                      seconds_text(s.at("average_step_seconds")),
                      seconds_text(s.at("first_step_seconds")));
  if (!s.at("samples_per_second").is_null()) {
    const auto samples = s.at("samples_per_second").get<double>();
    text += fmt::format("Training speed: {:.1f} samples/sec\n", samples);
    // The second and third words are what the workshop's loops print.
    text += fmt::format("Throughput: {:.1f} samples/sec ({:.0f} tokens/sec)\n", samples,
                        s.at("tokens_per_second").get<double>());
  }
  text += fmt::format("Peak memory usage: {:.0f} MB\n",
                      mebibytes(s.at("peak_memory_bytes").get<double>()));
  for (const char* phase : {"forward", "backward", "optimizer"}) {
    text += fmt::format("Avg time per {}: {}\n", phase,
                        seconds_text(s.at(fmt::format("average_{}_seconds", phase))));
  }
  text += "Breakdown of a step:";
  const char* separator = " ";
  for (const auto& [phase, share] : s.at("breakdown").items()) {
    if (share.at("percent").is_null()) continue;
    text += fmt::format("{}{} {:.1f} %", separator, phase, share.at("percent").get<double>());
    separator = ", ";
  }
  text += "\n";
  std::vector<std::string> overheads;
  for (const char* profiler : {"operator", "memory"}) {
    const Json& percent = s.at(fmt::format("{}_profiling_overhead_percent", profiler));
    if (!percent.is_null())
      overheads.push_back(
          fmt::format("{} profiler {:+.1f} % of a step", profiler, percent.get<double>()));
  }
  if (!overheads.empty()) text += fmt::format("Overhead: {}\n", fmt::join(overheads, ", "));
  for (const auto& [name, reading] : document.at("device_sampling").at("readings").items()) {
    if (const std::string limit = "limited_by_"; name.starts_with(limit)) {
      if (reading.at("maximum").get<double>() > 0)
        text += fmt::format("Device clock held down by {}: {:.0f} % of the looks\n",
                            name.substr(limit.size()), 100 * reading.at("mean").get<double>());
      continue;
    }
    // clock_MHz, power_watts, ...
    const size_t unit = name.rfind('_');
    text += fmt::format("Device {} ({}): minimum {:.1f}, mean {:.1f}, maximum {:.1f}\n",
                        name.substr(0, unit), name.substr(unit + 1),
                        reading.at("minimum").get<double>(), reading.at("mean").get<double>(),
                        reading.at("maximum").get<double>());
  }
  return text + kRule;
}

std::string memory_summary_text(const Json& memory) {
  // Nothing was allocated where a step is one launch.
  if (memory.is_null() || memory.at("peak_phase").is_null()) return {};
  const auto size = [&](const char* key) {
    return memory.at(key).is_null() ? 0.0 : mebibytes(memory.at(key).get<double>());
  };
  const auto word = [&](const char* key) { return memory.at(key).get<std::string>(); };
  std::string text = titled("Memory Analysis Summary:");
  text += fmt::format(
      "Peak Memory Usage: {:.1f} MB (in {}: {}, {})\nAverage Memory Usage: {:.1f} MB\n"
      "Memory at Forward Pass: {:.1f} MB\nMemory at Backward Pass: {:.1f} MB\n"
      "Memory at Optimizer Step: {:.1f} MB\nNumber of Allocations: {:.0f} per step\n",
      size("peak_bytes"), word("peak_phase"), word("peak_component"), word("peak_operator"),
      size("average_bytes"), size("forward_peak_bytes"), size("backward_peak_bytes"),
      size("optimizer_peak_bytes"), memory.at("allocations_per_step").get<double>());
  if (const Json& tensors = memory.at("largest_tensors"); !tensors.empty()) {
    const Json& largest = tensors.front();
    text += fmt::format("Largest Tensor: {:.1f} MB ({})\n",
                        mebibytes(largest.at("bytes").get<double>()),
                        largest.at("name").get<std::string>());
  }
  text += "At the peak:";
  for (const auto& [part, bytes] : memory.at("breakdown_at_peak").items())
    text += fmt::format(" {} {:.1f} MB;", part, mebibytes(bytes.get<double>()));
  text.back() = '\n';
  return text + kRule;
}

std::string operator_summary_text(const Json& operators) {
  if (operators.is_null()) return {};
  const Json& table = operators.at("table");
  const bool has_shapes = !table.empty() && table.front().contains("input_shapes");
  std::vector<std::string> header = {"Operation", "Calls",   "CPU ms",   "CPU total ms",
                                     "GPU ms",    "Share %", "Memory MB"};
  if (has_shapes) header.emplace_back("Input shapes");
  std::vector<std::vector<std::string>> cells;
  for (const Json& row : table) {
    if (cells.size() == kOperatorsShown) break;
    const auto milliseconds = [&](const char* key) {
      return row.at(key).is_null() ? std::string("-")
                                   : fmt::format("{:.3f}", row.at(key).get<double>() * 1e3);
    };
    cells.push_back({row.at("name").get<std::string>(),
                     std::to_string(row.at("calls").get<int64_t>()),
                     milliseconds("cpu_self_seconds"), milliseconds("cpu_total_seconds"),
                     milliseconds("device_self_seconds"),
                     fmt::format("{:.1f}", row.at("share_percent").get<double>()),
                     mebibytes_text(row.at("self_memory_bytes").get<double>())});
    if (has_shapes) {
      std::string shapes = row.at("input_shapes");
      if (shapes.size() > kWidestShapes) shapes = shapes.substr(0, kWidestShapes - 3) + "...";
      cells.back().push_back(shapes);
    }
  }
  std::string hint;
  if (!table.empty() && !has_shapes)
    hint = fmt::format(
        "{} takes {:.1f} %: --profile-operators tells its calls apart by their shapes\n",
        table.front().at("name").get<std::string>(),
        table.front().at("share_percent").get<double>());
  const auto word = [&](const char* key) { return operators.at(key).get<std::string>(); };
  return fmt::format("Top Operations{} by {}, {} steps:\n{}{}",
                     operators.at("table_of") == "attention" ? " of attention" : "",
                     word("table_order"), operators.at("steps").get<int64_t>(),
                     format_table(header, cells), hint);
}

std::string flops_summary_text(const Json& flops) {
  if (flops.is_null()) return {};
  const Json& efficiency = flops.at("flops_profile").at("efficiency_metrics");
  const Json& intensity = flops.at("computational_intensity");
  const auto number = [](const Json& of, const char* key) { return of.at(key).get<double>(); };
  const auto word = [](const Json& of, const char* key) { return of.at(key).get<std::string>(); };
  return fmt::format(
      "{}Model FLOPS Utilization: {:.1f} %\nAchieved FLOPS/sec: {:.3e} of {:.3e} ({})\n"
      "Of the measured peak: {:.1f} %\nArithmetic Intensity: {:.2f} FLOPS/byte\n"
      "Memory Bandwidth Used: {:.1f} GB/s, {:.1f} % of {:.1f} GB/s\n{}",
      titled("FLOPS Analysis:"), number(efficiency, "mfu_percent"),
      number(efficiency, "achieved_flops_per_sec"), number(efficiency, "device_peak_flops"),
      word(efficiency, "device_peak_source"), number(efficiency, "measured_peak_percent"),
      number(intensity, "arithmetic_intensity_flops_per_byte"),
      number(intensity, "memory_bandwidth_used_gb_per_sec"),
      number(intensity, "memory_bandwidth_utilization_percent"),
      number(intensity, "device_memory_bandwidth_gb_per_sec"), kRule);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace

Json run_header(const TrainOptions& options, const instruments::Device& device,
                const std::vector<std::string>& command, const std::string& data) {
  const Workload workload = options.workload();
  const Cost cost = full_step_cost(workload, options.gradient_accumulation_steps);
  const ModelDimensions& d = options.dimensions;
  Json configuration = {{"size", options.size},
                        {"batch_size", options.batch},
                        {"seq_len", options.seq},
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
  configuration.update(console::features_of(workload.config));
  return {{"schema_version", 1},
          {"program", "tiny_llama_train"},
          {"command", command},
          {"started", utc_now()},
          {"context", instruments::machine_context(device, options.plugins)},
          {"configuration", std::move(configuration)},
          {"model",
           {{"total_parameters", cost.parameters},
            {"model_size_bytes", cost.parameters * storage_bytes(options.dtype)},
            {"flops_per_step", cost.model_flops},
            {"causal_flops_per_step", cost.causal_flops},
            {"bytes_per_step", cost.bytes},
            {"predicted_peak_memory_bytes",
             distributed::predict_rank_bytes(options, options.ranks, device.torch().type())}}}};
}

Json distributed_json(const TrainOptions& options, const distributed::ProcessGroup& group) {
  return {{"world_size", group.size()},
          {"backend", group.backend_name()},
          {"started_by", to_string(group.where().launcher)},
          {"bucket_MiB", options.bucket_MiB},
          {"overlap", options.overlap},
          {"compress", distributed::compression_name(options)},
          {"share", to_string(options.share)}};
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

Json summarize(const StepRecords& steps, int64_t samples, int64_t tokens, bool whole_steps) {
  int64_t peak = 0;
  Json scratch = nullptr;
  std::vector<double> totals;
  std::map<Phase, std::vector<double>> phases;
  std::map<Profiled, std::vector<double>> by_profiler;
  for (const StepRecord& step : steps) {
    peak = std::max(peak, step.peak_memory_bytes);
    if (step.library_scratch_bytes)
      scratch =
          std::max(scratch.is_null() ? 0 : scratch.get<int64_t>(), *step.library_scratch_bytes);
    // The first step loads libraries and fills caches: it is no step like the others, and counts
    // in averages only where there is no other.
    if (step.step == 1 && steps.size() > 1) continue;
    totals.push_back(step.times.total());
    for (const Phase phase : kPhases) phases[phase].push_back(step.times[phase]);
    // An evaluation is no part of the work that profilers may slow down.
    by_profiler[step.profiled].push_back(step.times.total() - step.times[Phase::evaluation]);
  }
  const double average = totals.empty() ? 0 : mean(totals);
  // One step that waited for a neighbour must not change the rates.
  const double middle = totals.empty() ? 0 : median(totals);
  const auto rate = [&](int64_t count) {
    return middle > 0 ? Json(static_cast<double>(count) / middle) : Json(nullptr);
  };
  Json summary = {
      {"steps_completed", steps.size()},
      {"first_step_seconds", steps.empty() ? Json(nullptr) : Json(steps.front().times.total())},
      {"steps_averaged", totals.size()},
      {"average_step_seconds", figure_of(mean, totals)},
      {"median_step_seconds", figure_of(median, totals)},
      {"stddev_step_seconds", figure_of(standard_deviation, totals)},
      {"samples_per_second", rate(samples)},
      {"tokens_per_second", rate(tokens)},
      {"peak_memory_bytes", peak},
      {"library_scratch_bytes", scratch},
      {"final_loss", steps.empty() ? Json(nullptr) : number(steps.back().loss)}};
  Json breakdown;
  for (const Phase phase : kPhases) {
    const bool unknown = whole_steps && is_part_of_launch(phase);
    const Json seconds = unknown ? Json(nullptr) : figure_of(mean, phases[phase]);
    breakdown[std::string(to_string(phase))] = {
        {"seconds", seconds},
        {"percent", seconds.is_null() || average == 0
                        ? Json(nullptr)
                        : Json(100.0 * seconds.get<double>() / average)}};
  }
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer}) {
    summary[fmt::format("average_{}_seconds", to_string(phase))] =
        breakdown[std::string(to_string(phase))]["seconds"];
  }
  summary["breakdown"] = breakdown;
  const auto& plain = by_profiler[Profiled::no];
  const auto& operators = by_profiler[Profiled::operators];
  const auto& memory = by_profiler[Profiled::memory];
  summary["plain_steps"] = plain.size();
  summary["plain_average_step_seconds"] = figure_of(mean, plain);
  summary["operator_profiled_average_step_seconds"] = figure_of(mean, operators);
  summary["memory_profiled_average_step_seconds"] = figure_of(mean, memory);
  summary["operator_profiling_overhead_percent"] = overhead_percent(operators, plain);
  summary["memory_profiling_overhead_percent"] = overhead_percent(memory, plain);
  return summary;
}

double plain_step_seconds(const StepRecords& steps) {
  std::vector<double> plain;
  std::vector<double> all;
  for (const StepRecord& step : steps) {
    if (step.step == 1 && steps.size() > 1) continue;
    all.push_back(step.times.total() - step.times[Phase::evaluation]);
    if (step.profiled == Profiled::no) plain.push_back(all.back());
  }
  return median(plain.empty() ? all : plain);
}

Json steps_json(const StepRecords& steps, bool whole_steps) {
  Json list = Json::array();
  for (const StepRecord& step : steps) {
    Json row = {
        {"step", step.step}, {"loss", number(step.loss)}, {"time_seconds", step.times.total()}};
    for (const Phase phase : kPhases) {
      const bool unknown = whole_steps && is_part_of_launch(phase);
      row[fmt::format("{}_seconds", to_string(phase))] =
          unknown ? Json(nullptr) : Json(step.times[phase]);
    }
    row["peak_memory_bytes"] = step.peak_memory_bytes;
    row["profiled"] = step.profiled != Profiled::no;
    row["evaluation_loss"] = step.evaluation_loss ? number(*step.evaluation_loss) : Json(nullptr);
    list.push_back(row);
  }
  return list;
}

std::string banner(const TrainOptions& options, const instruments::Device& device,
                   const std::string& data) {
  const ModelDimensions& d = options.dimensions;
  const int64_t parameters = count_parameters(ModelConfig(d));
  const auto& description = device.description();
  std::string text =
      titled(fmt::format("Tiny LLaMA - libtorch C++, variant {}{}", options.variant.name(),
                         options.any_profiler() ? " (Profiling Enabled)" : ""));
  text += fmt::format(
      "Configuration:\n  Batch Size: {}\n  Sequence Length: {}\n  Number of Steps: {}\n"
      "  Gradient Accumulation Steps: {}\n  Learning Rate: {:g}\n  Precision: {}\n  Data: {}\n"
      "  Seed: {}{}\n  Hidden Dim: {}\n  Num Layers: {}\n  Num Heads: {}\n"
      "  Num KV Heads: {}\n  Intermediate Dim: {}\n  Vocab Size: {}\n\n",
      options.batch, options.seq, options.num_steps, options.gradient_accumulation_steps,
      options.learning_rate, to_string(options.dtype), data, options.seed,
      options.deterministic ? " (deterministic)" : "", d.hidden_dim, d.n_layers, d.n_heads,
      d.n_kv_heads, d.intermediate_dim, d.vocab_size);
  const auto bytes = static_cast<double>(parameters * storage_bytes(options.dtype));
  text += fmt::format("Model Configuration:\n  Total Parameters: {}\n  Model Size: {:.1f} MB\n\n",
                      with_commas(parameters), mebibytes(bytes));
  text += fmt::format(
      "Using device: {}\n{}: {} ({}), {:.1f} GB; MB and GB are 2^20 and 2^30 bytes\n",
      instruments::to_string(device.backend()), device.is_gpu() ? "GPU" : "CPU", description.name,
      description.architecture, mebibytes(static_cast<double>(description.memory_bytes)) / 1024);
  const auto line = [&](const char* what, const StepRange& steps) {
    if (!steps.empty())
      text += fmt::format("{} enabled: Steps {}-{}\n", what, steps.first, steps.last);
  };
  line("Profiling", options.operator_steps());
  line("Memory Profiling", options.memory_steps());
  line("FLOPS profiling", options.flops_steps());
  if (options.any_profiler())
    text += fmt::format("Profile data will be saved to: {}/\n", options.profile_folder);
  return text;
}

std::string step_line(const StepRecord& step, int64_t num_steps) {
  std::string text = fmt::format(
      "Step {}/{}: Loss = {:.4f}, Time = {:.4f} seconds, Memory = {:.0f} MB", step.step, num_steps,
      step.loss, step.times.total(), mebibytes(static_cast<double>(step.peak_memory_bytes)));
  if (step.profiled != Profiled::no) text += " [PROFILING]";
  if (step.evaluation_loss)
    text +=
        fmt::format("\nEvaluation after step {}: Loss = {:.4f}", step.step, *step.evaluation_loss);
  return text + "\n";
}

std::string summary_text(const Json& document) {
  return performance_summary_text(document) + memory_summary_text(document.at("memory")) +
         operator_summary_text(document.at("operators")) + flops_summary_text(document.at("flops"));
}

Json read_compared_summary(const std::string& file) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(fmt::format(
        "--compare-with-v1 '{}': {}; it takes performance_summary.json of a run of this program, "
        "which --output-dir writes",
        file, why));
  };
  std::ifstream stream(file);
  if (!stream) refuse("cannot be read");
  Json found = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!found.is_object()) refuse("is not JSON");
  for (const char* part : {"configuration", "summary", "context"})
    if (!found.contains(part) || !found[part].is_object()) refuse(fmt::format("lacks '{}'", part));
  for (const char* figure : {"samples_per_second", "peak_memory_bytes"}) {
    const auto at = found["summary"].find(figure);
    if (at == found["summary"].end() || !at->is_number() || at->get<double>() <= 0)
      refuse(fmt::format("has no 'summary.{}' above 0", figure));
  }
  return found;
}

std::string comparison_text(const Json& document, const Json& other, const std::string& file) {
  const Json& here = document.at("summary");
  const Json& there = other.at("summary");
  std::string text = titled(fmt::format("Comparison with {}:", file));
  if (!here.at("samples_per_second").is_null()) {
    const auto [now, before] = std::pair{here.at("samples_per_second").get<double>(),
                                         there.at("samples_per_second").get<double>()};
    text +=
        fmt::format("Speedup: {:.2f}x ({:.1f} -> {:.1f} samples/sec)\n", now / before, before, now);
  }
  const auto [bytes, bytes_before] = std::pair{here.at("peak_memory_bytes").get<double>(),
                                               there.at("peak_memory_bytes").get<double>()};
  text += fmt::format("Peak memory: {:+.1f} % ({:.0f} -> {:.0f} MB)\n",
                      100 * (bytes / bytes_before - 1), mebibytes(bytes_before), mebibytes(bytes));
  for (const auto& [key, value] : document.at("configuration").items()) {
    const Json was = other.at("configuration").value(key, Json(nullptr));
    if (value != was)
      text += fmt::format("Different: {}: {} -> {}\n", key, was.dump(), value.dump());
  }
  text += "One run each, at different times: scripts/compare run decides with an error rate.\n";
  return text + kRule;
}

std::string files_text(const std::string& folder, const std::vector<std::string>& files) {
  if (files.empty()) return {};
  std::string text = "Profile files generated:\n";
  for (const auto& file : files) text += fmt::format("  - {}/{}\n", folder, file);
  return text;
}

}  // namespace tinyllama::training
