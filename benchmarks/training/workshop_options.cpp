#include "benchmarks/training/workshop_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/console/option_grammar.hpp"

namespace tinyllama::training {
namespace {

constexpr const char* kGroup = "The workshop's versions 1 and 2 (docs/course.md)";

/// A fusion of version 2: its part of the options' names, and our switches for it.
struct Fusion {
  const char* name;
  std::initializer_list<Switch> switches;
};

const Fusion kFusions[] = {
    {"qkv-fusion", {Switch::qkv}},
    {"flash-attention", {Switch::sdpa, Switch::fused_attention}},
    {"swiglu-fusion", {Switch::gate_up, Switch::fused_swiglu}},
};
// Times of a device are the processor's where no GPU is.
const std::vector<std::pair<std::string, OperatorOrder>> kOrders = {
    {"self_device_time_total", OperatorOrder::own_time},
    {"self_cuda_time_total", OperatorOrder::own_time},
    {"device_time_total", OperatorOrder::time},
    {"cuda_time_total", OperatorOrder::time},
    {"self_cpu_time_total", OperatorOrder::own_cpu_time},
    {"cpu_time_total", OperatorOrder::cpu_time},
    {"self_memory_usage", OperatorOrder::own_memory},
    {"count", OperatorOrder::calls}};
constexpr const char* kCompile = "--enable-torch-compile";
constexpr const char* kAll = "--enable-all-fusion";
constexpr const char* kNone = "--disable-all-fusion";

std::string enabling(const Fusion& fusion) {
  return fmt::format("--enable-{}", fusion.name);
}

std::string disabling(const Fusion& fusion) {
  return fmt::format("--disable-{}", fusion.name);
}

bool given(const CLI::App& app, const std::string& option) {
  return app.count(option) > 0;
}

void refuse_both(const CLI::App& app, const std::string& one, const std::string& other,
                 const char* why) {
  if (given(app, one) && given(app, other))
    throw std::invalid_argument(fmt::format("{} with {}: {}; leave one out", one, other, why));
}

void refuse_contradictions(const CLI::App& app, const std::vector<std::string>& fusions) {
  for (const std::string& option : fusions)
    refuse_both(app, option, "--variant", "both choose the variant");
  for (const Fusion& fusion : kFusions) {
    refuse_both(app, enabling(fusion), disabling(fusion), "they contradict each other");
    refuse_both(app, enabling(fusion), kNone, "they contradict each other");
    refuse_both(app, disabling(fusion), kAll, "they contradict each other");
  }
  for (const char* option : {kCompile, kAll})
    refuse_both(app, option, kNone, "they contradict each other");
}

std::vector<std::string> fusion_options() {
  std::vector<std::string> names = {kAll, kNone, kCompile};
  for (const Fusion& fusion : kFusions) {
    names.push_back(enabling(fusion));
    names.push_back(disabling(fusion));
  }
  return names;
}

void choose_variant(const CLI::App& app, TrainOptions& options) {
  const std::vector<std::string> fusions = fusion_options();
  refuse_contradictions(app, fusions);
  if (std::ranges::none_of(fusions, [&](const auto& option) { return given(app, option); })) return;
  if (given(app, kNone)) {
    options.variant = Variant();
    return;
  }
  const bool compiled = given(app, kCompile) || given(app, kAll);
  if (compiled) {
    options.note = fmt::format(
        "{}: torch.compile is of Python; --variant optimized stands for it, and scripts/peers runs "
        "torch.compile itself",
        given(app, kCompile) ? kCompile : kAll);
  }
  options.variant = compiled ? Variant::unresolved_optimized() : Variant::fused();
  for (const Fusion& fusion : kFusions) {
    if (!given(app, disabling(fusion))) continue;
    for (const Switch one : fusion.switches) {
      if (compiled) {
        options.left_out.push_back(one);
      } else {
        options.variant = options.variant.without(one);
      }
    }
  }
}

}  // namespace

void WorkshopOptions::add_to(CLI::App& app, TrainOptions& options) {
  const auto add_flag = [&](const std::string& name, const char* help) {
    app.add_flag(name)->description(help)->group(kGroup);
  };
  for (const Fusion& fusion : kFusions) {
    add_flag(enabling(fusion), "version 2, whose fusions are all on: --variant fused");
    add_flag(disabling(fusion), "version 2 without it");
  }
  add_flag(kAll, "version 2 with torch.compile: --variant optimized");
  add_flag(kNone, "version 1: --variant baseline");
  add_flag(kCompile, "of Python; --variant optimized stands for it");
  app.add_flag("--enable-all-profiling", all_profiling_,
               "--enable-pytorch-profiler --profile-memory --enable-deepspeed-flops")
      ->group(kGroup);
  console::add_choice<OperatorOrder>(
      app, "--sort-by", options.operator_order, kOrders,
      "order of the operator table, as torch.profiler names it: self_device_time_total and so on, "
      "cuda for device as well, cpu, self_memory_usage or count")
      ->group(kGroup);
  app.add_flag("--profile-attention-only", options.profile_attention_only,
               "only attention's operators in the operator table")
      ->group(kGroup);
  app.add_option("--warmup-steps", options.warmup_steps,
                 "steps before those that the operator profiler records")
      ->transform(console::integer(0))
      ->group(kGroup)
      ->capture_default_str();
  app.add_option("--compare-with-v1", options.compared_summary,
                 "performance_summary.json of another run: its speed and memory beside this one's")
      ->group(kGroup);
  console::add_choice<Dtype>(app, "--amp-dtype", amp_dtype_,
                             {{"bfloat16", Dtype::amp_bf16}, {"float16", Dtype::amp_f16}},
                             "bfloat16 or float16: the narrow type of --use-amp")
      ->group(kGroup);
}

void WorkshopOptions::apply(const CLI::App& app, bool use_amp, TrainOptions& options) const {
  choose_variant(app, options);
  if (all_profiling_)
    options.profile_pytorch = options.profile_memory = options.profile_flops = true;
  if (!given(app, "--amp-dtype")) return;
  if (!use_amp)
    throw std::invalid_argument("--amp-dtype: has a meaning with --use-amp only; add it");
  refuse_both(app, "--amp-dtype", "--dtype", "both name the type of autocast");
  options.dtype = amp_dtype_;
}

}  // namespace tinyllama::training
