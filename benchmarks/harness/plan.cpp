#include "benchmarks/harness/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <stdexcept>

#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/console/size_options.hpp"
#include "model/checkpoint_config.hpp"

namespace tinyllama::harness {

using Json = nlohmann::ordered_json;

namespace {

// Beside the size's own where operators of a plug-in are proved: no multiple of any tile's width.
const std::vector<int64_t> kOddSequences = {5, 33};

bool proves_plugins(const Options& options) {
  return options.verify == Verify::only && !options.plugins.empty();
}

// With plug-ins each operator alone, and all in the fastest variant.
std::vector<std::string> default_variants(const Options& options) {
  if (options.plugins.empty()) return {"baseline", "optimized"};
  std::vector<std::string> variants;
  for (const Plugin& plugin : options.plugins)
    variants.insert(variants.end(), plugin.operators.begin(), plugin.operators.end());
  for (const Plugin& plugin : options.plugins) {
    std::set<Slot> slots;
    for (const std::string& name : plugin.operators) slots.insert(SlotOperator::find(name).slot());
    // Of several for one slot each has a row of its own.
    if (slots.size() == plugin.operators.size())
      variants.push_back(with_operators_of({&plugin, 1}, "optimized+plugin"));
    else
      for (const std::string& name : plugin.operators) variants.push_back("optimized+" + name);
  }
  if (!proves_plugins(options)) variants.insert(variants.begin(), {"baseline", "optimized"});
  return variants;
}

class PlanBuilder {
 public:
  PlanBuilder(const Options& options, const console::NamedSizes& sizes, const DeviceTraits& traits)
      : options_(options), sizes_(sizes), traits_(traits) {
    if (options.custom_size) {
      sizes_.add({"custom", ModelConfig(*options.custom_size), console::kCustomBatch,
                  console::kCustomSeq, options.config_text});
    }
  }

  /// Or one rank's share of it.
  ProblemSize size(const std::string& name) {
    const ProblemSize whole = sizes_.find("--sizes", name);
    ProblemSize share = shared(whole);
    if (options_.ranks.divides()) wholes_.insert_or_assign(share.name, whole.config);
    return share;
  }

  // The GEMMs of a training step at every size, batch and sequence of the axes.
  std::set<GemmShape> gemms(const AxisOptions& axes) {
    std::set<GemmShape> found;
    for (const auto& name : axes.sizes.empty() ? std::vector<std::string>{"tiny"} : axes.sizes) {
      const ProblemSize problem = size(name);
      for (const int64_t batch : axes.batches.empty() ? std::vector{problem.batch} : axes.batches) {
        for (const int64_t seq : axes.seqs.empty() ? std::vector{problem.seq} : axes.seqs) {
          const Workload workload{problem.config, Variant(), Dtype::f32, batch, seq, device()};
          check_workload(workload);
          found.merge(step_gemms(workload));
        }
      }
    }
    return found;
  }

  // Adds the cases of a component at every batch, sequence, dtype and variant; passes it does not
  // have make no case.
  void add(const Component& component, const ProblemSize& problem, const AxisOptions& axes) {
    config_texts_[problem.name] = problem.config_text;
    const auto batches = axes.batches.empty() ? std::vector{problem.batch} : axes.batches;
    auto seqs = axes.seqs.empty() ? std::vector{problem.seq} : axes.seqs;
    if (proves_plugins(options_) && options_.axes.seqs.empty())
      seqs.insert(seqs.end(), kOddSequences.begin(), kOddSequences.end());
    for (const int64_t batch : batches) {
      for (const int64_t seq : seqs) {
        for (const Dtype dtype : axes.dtypes) {
          for (const auto& variant : axes.variants) {
            Workload workload{problem.config, Variant::parse(variant), dtype, batch, seq, device()};
            check_workload(workload);
            workload.variant = resolved(workload.variant, workload.dtype, traits_);
            if (makes_no_case(component, workload)) continue;
            add_passes(component, problem.name, workload, axes.passes);
          }
        }
      }
    }
  }

  ProblemSize shared(const ProblemSize& whole) const {
    if (!options_.ranks.divides()) return whole;
    try {
      return {whole.name + share_suffix(options_.ranks), share_of(whole.config, options_.ranks),
              whole.batch, whole.seq, whole.config_text};
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(fmt::format("--{} (size {})", error.what(), whole.name));
    }
  }

  std::vector<Case> take() { return std::move(cases_); }
  const std::map<std::string, ModelConfig>& wholes() const { return wholes_; }

  /// Of each size whose sequences here are longer than its config.json says it was made for.
  std::vector<std::string> warnings_of(const std::vector<Case>& cases) const {
    std::map<std::string, int64_t> longest;
    for (const Case& test_case : cases) {
      int64_t& seq = longest[test_case.size];
      seq = std::max(seq, test_case.workload.seq);
    }
    std::vector<std::string> warnings;
    for (const auto& [name, seq] : longest) {
      const auto& config_text = config_texts_.at(name);
      const std::string warning =
          config_text.empty() ? config_text : longer_than_made_for(config_text, seq);
      if (!warning.empty())
        warnings.push_back(name == "custom" ? warning : fmt::format("{}: {}", name, warning));
    }
    return warnings;
  }

 private:
  // A switch that a component does not contain makes no extra case, unless the user named both; nor
  // does an operator of a plug-in, which may be there for another of several components.
  bool makes_no_case(const Component& component, const Workload& workload) const {
    const Variant& variant = workload.variant;
    if (options_.axes.components.empty() && !why_missing(component, workload).empty()) return true;
    const size_t named_components = options_.axes.components.size();
    const bool named = !options_.axes.variants.empty() && named_components > 0 &&
                       (variant.operators().empty() || named_components == 1);
    return changes_nothing(component, workload) && !named;
  }
  static bool changes_nothing(const Component& component, const Workload& workload) {
    const Variant& variant = workload.variant;
    const Parts parts = component.parts_in(workload.config);
    if (!variant.operators().empty()) return !variant.operators_change(parts);
    return !variant.is_baseline() && !variant.changes(parts);
  }

  static std::string why_missing(const Component& component, const Workload& workload) {
    return component.missing_in ? component.missing_in(workload.config) : std::string();
  }

  std::string skip_reason(const Component& component, const Workload& workload, Pass pass) const {
    const std::string missing = why_missing(component, workload);
    if (!missing.empty()) return missing;
    if (changes_nothing(component, workload)) {
      return fmt::format("{} changes nothing in {}", workload.variant.switch_names(),
                         component.name);
    }
    const std::string refused = refuse_variant(workload.variant, workload.dtype, traits_);
    if (!refused.empty()) return refused;
    const SlotOperator* attention = workload.variant.filling(Slot::causal_attention);
    const int64_t window = workload.config.window(workload.seq);
    if (attention != nullptr && component.parts.overlap(Part::attention) && window < workload.seq) {
      return fmt::format("the slot causal_attention has no sliding window, and the model's is {}",
                         window);
    }
    return component.refusal ? component.refusal(workload, pass) : std::string();
  }

  void add_passes(const Component& component, const std::string& size, const Workload& workload,
                  const std::vector<Pass>& passes) {
    for (const Pass pass : component.passes) {
      if (!passes.empty() && std::find(passes.begin(), passes.end(), pass) == passes.end())
        continue;
      Case added{&component, pass, size, workload, skip_reason(component, workload, pass)};
      if (names_.insert(added.name()).second) cases_.push_back(std::move(added));
    }
  }

  c10::DeviceType device() const {
    return traits_.is_gpu ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
  }

  // Sizes whose costs do not fit into 64 bits would give nonsense instead of an answer.
  static void check_workload(const Workload& workload) {
    check_batch_and_seq(workload.batch, workload.seq);
    const ModelConfig& c = workload.config;
    const double tokens = static_cast<double>(workload.batch) * static_cast<double>(workload.seq);
    const double width =
        static_cast<double>(c.hidden_dim() + c.intermediate_dim() + c.vocab_size());
    const double scores = tokens * static_cast<double>(workload.seq * c.hidden_dim());
    const double flops = 60.0 * static_cast<double>(c.n_layers() + 1) *
                         (tokens * width * static_cast<double>(c.hidden_dim()) + scores);
    if (flops > 4e18) {
      throw std::invalid_argument(fmt::format(
          "batch = {}, seq = {}, hidden_dim = {}, intermediate_dim = {}, n_layers = {}: a step "
          "would "
          "need more than 4e18 FLOPs, which the cost formulas do not count",
          workload.batch, workload.seq, c.hidden_dim(), c.intermediate_dim(), c.n_layers()));
    }
  }

  const Options& options_;
  console::NamedSizes sizes_;
  DeviceTraits traits_;
  std::vector<Case> cases_;
  std::set<std::string> names_;
  std::map<std::string, std::string> config_texts_;  // by the names of cases' sizes
  std::map<std::string, ModelConfig> wholes_;
};

// Baseline and optimized in f32 and bf16: every component at its default sizes, and some over batch
// x sequence.
std::vector<Case> default_grid(PlanBuilder& builder, const Options& options,
                               const std::vector<Component>& components) {
  AxisOptions axes;
  axes.variants = default_variants(options);
  axes.dtypes = {Dtype::f32, Dtype::bf16};
  // Left out: backward, which is forward_backward less forward, and forward_loss, which full_step
  // contains.
  axes.passes = {Pass::forward, Pass::forward_backward, Pass::update, Pass::train};
  for (const Component& component : components) {
    // An operator is proved at the shapes of tiny: those of the large sizes would take an hour.
    const bool proves = proves_plugins(options);
    for (const std::string& size :
         proves ? std::vector<std::string>{"tiny"} : component.default_sizes)
      builder.add(component, builder.size(size), axes);
  }
  axes.batches = {4, 8, 16};
  axes.seqs = {64, 128, 256, 512};
  for (const Component& component : components) {
    if (component.in_default_grid) builder.add(component, builder.size("tiny"), axes);
  }
  return builder.take();
}

std::vector<Case> chosen_cases(PlanBuilder& builder, const Options& options,
                               const std::vector<Component>& components) {
  AxisOptions axes = options.axes;
  if (axes.variants.empty()) axes.variants = default_variants(options);
  if (axes.sizes.empty()) axes.sizes = {"tiny"};
  if (axes.dtypes.empty()) axes.dtypes = {Dtype::f32};
  for (const auto& name : axes.sizes) builder.size(name);
  for (const Component& component : components) {
    const auto& chosen = options.axes.components;
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), component.name) == chosen.end())
      continue;
    for (const auto& name : axes.sizes) builder.add(component, builder.size(name), axes);
  }
  return builder.take();
}

// Of components that an operator of a plug-in changes.
void keep_changed_components(std::vector<Case>& cases) {
  std::set<const Component*> changed;
  for (const Case& test_case : cases)
    if (!test_case.workload.variant.operators().empty()) changed.insert(test_case.component);
  std::erase_if(cases, [&](const Case& one) { return !changed.contains(one.component); });
}

std::string why_none(const Options& options, const std::vector<Component>& components,
                     const std::vector<Case>& by_the_axes) {
  if (!by_the_axes.empty())
    return fmt::format(
        "{} by the axes, none after --benchmark_filter '{}'{}", by_the_axes.size(), options.filter,
        options.exclude.empty() ? "" : fmt::format(" and --exclude '{}'", options.exclude));
  std::vector<std::string> passes;
  for (const Component& component : components) {
    const auto& chosen = options.axes.components;
    if (!chosen.empty() && std::ranges::count(chosen, component.name) == 0) continue;
    passes.push_back(fmt::format("{} has {}", component.name,
                                 fmt::join(component.passes | std::views::transform([](Pass pass) {
                                             return to_string(pass);
                                           }),
                                           ", ")));
  }
  return fmt::format("none by the axes; of --passes, {}", fmt::join(passes, "; "));
}

void add_unique(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

NameFilter::NameFilter(const Options& options)
    : inverted_(options.filter.starts_with('-')),
      finds_(
          console::parse_pattern("--benchmark_filter", options.filter.substr(inverted_ ? 1 : 0))) {
  if (!options.exclude.empty()) excludes_ = console::parse_pattern("--exclude", options.exclude);
}

Plan make_plan(const Options& options, const std::vector<Component>& components,
               const console::NamedSizes& sizes, const DeviceTraits& traits) {
  PlanBuilder builder(options, sizes, traits);
  const NameFilter filter(options);
  const auto& chosen = options.axes.components;
  const bool only_peaks = chosen == std::vector<std::string>{kPeakComponent};
  const bool with_peaks =
      chosen.empty() || std::find(chosen.begin(), chosen.end(), kPeakComponent) != chosen.end();

  std::vector<Case> all = options.axes.any() ? chosen_cases(builder, options, components)
                                             : default_grid(builder, options, components);
  if (!options.plugins.empty() && options.axes.variants.empty()) keep_changed_components(all);
  std::vector<std::string> peak_types;
  for (const Case& test_case : all)
    add_unique(peak_types, gemm_type_name(test_case.workload.dtype));
  if (only_peaks) {
    const std::vector<Dtype> f32_and_bf16 = {Dtype::f32, Dtype::bf16};
    for (const Dtype dtype : options.axes.dtypes.empty() ? f32_and_bf16 : options.axes.dtypes) {
      add_unique(peak_types, gemm_type_name(dtype));
    }
  }

  Plan plan;
  std::vector<PeakCase> peaks;
  for (const auto& type : peak_types) peaks.push_back({"peak/gemm/" + type, type});
  peaks.push_back({"peak/bandwidth", ""});
  const AxisOptions& axes = options.axes;
  const bool has_shape = !(axes.sizes.empty() && axes.batches.empty() && axes.seqs.empty());
  if (with_peaks && !chosen.empty() && has_shape) {
    const auto gemms = builder.gemms(axes);
    for (const auto& type : peak_types) {
      for (const auto& shape : gemms)
        peaks.push_back({fmt::format("peak/gemm/{}/{}", type, to_string(shape)), type, shape});
    }
  }
  for (PeakCase& peak : peaks) {
    if (with_peaks && filter.keeps(peak.name)) plan.peak_cases.push_back(std::move(peak));
  }
  for (Case& test_case : all) {
    if (filter.keeps(test_case.name())) plan.cases.push_back(std::move(test_case));
  }
  for (const Case& test_case : plan.cases) {
    if (test_case.cost().hardware_flops > 0)
      add_unique(plan.gemm_types, gemm_type_name(test_case.workload.dtype));
  }
  for (const PeakCase& peak : plan.peak_cases) {
    if (!peak.type.empty()) add_unique(plan.gemm_types, peak.type);
  }
  if (plan.cases.empty() && plan.peak_cases.empty())
    throw std::invalid_argument("no case is left to run: " + why_none(options, components, all));
  plan.warnings = builder.warnings_of(plan.cases);
  plan.wholes = builder.wholes();
  return plan;
}

Json dimensions_of(const ModelConfig& config) {
  const ModelDimensions& d = config.dimensions();
  Json described = {{"vocab_size", d.vocab_size}, {"hidden_dim", d.hidden_dim},
                    {"n_layers", d.n_layers},     {"n_heads", d.n_heads},
                    {"n_kv_heads", d.n_kv_heads}, {"intermediate_dim", d.intermediate_dim},
                    {"norm_eps", d.norm_eps},     {"rope_theta", d.rope_theta}};
  described.update(console::features_of(config));
  return described;
}

Json sizes_of(const Options& options, const Plan& plan) {
  Json sizes = Json::object();
  for (const Case& test_case : plan.cases) {
    Json& size = sizes[test_case.size] = dimensions_of(test_case.workload.config);
    const auto whole = plan.wholes.find(test_case.size);
    if (whole == plan.wholes.end()) continue;
    size["share"] = {{"tensor_parallel", options.ranks.tensor},
                     {"pipeline_parallel", options.ranks.pipeline},
                     {"of", dimensions_of(whole->second)}};
  }
  return sizes;
}

instruments::PeaksNeeded Plan::peaks_needed() const {
  std::set<GemmShape> shapes;
  int64_t traffic = 1;
  for (const Case& test_case : cases) {
    const Cost cost = test_case.cost();
    if (cost.model_flops > 0) shapes.merge(linear_gemms(test_case.workload));
    traffic = std::max(traffic, cost.bytes);
  }
  const auto is_of_bandwidth = [](const PeakCase& peak) { return peak.type.empty(); };
  if (std::ranges::any_of(peak_cases, is_of_bandwidth)) traffic = instruments::kTrafficOfMemory;
  return {gemm_types, {shapes.begin(), shapes.end()}, traffic};
}

}  // namespace tinyllama::harness
