#include "benchmarks/harness/dry_trace.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/progress.hpp"
#include "benchmarks/harness/rank_on_meta.hpp"
#include "benchmarks/harness/trace.hpp"
#include "benchmarks/instruments/execution_trace.hpp"
#include "core/text.hpp"
#include "model/share_hooks.hpp"

namespace tinyllama::harness {
namespace {

// Empty where ranks can share the layers of the case.
std::string why_not_shared(const Workload& workload) {
  if (workload.variant.has(Switch::fused_loss) ||
      workload.variant.filling(Slot::linear_cross_entropy) != nullptr)
    return "with --world and --tensor-parallel the loss is of all ranks' logits, not one operator";
  try {
    refuse_tensor_parallel(workload.dtype);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

// Empty where the case can be traced.
std::string why_untraceable(const Options& options, const Case& test_case) {
  if (!test_case.skip_reason.empty()) return test_case.skip_reason;
  if (!test_case.workload.variant.runs_on_meta())
    return "an operator of --plugin has no Meta kernel, by which it would run without data";
  if (options.world > 1 && options.ranks.tensor > 1) {
    if (std::string reason = why_not_shared(test_case.workload); !reason.empty()) return reason;
  }
  if (test_case.is_beyond_any_device())
    return "needs more memory than any device has: choose a smaller batch or sequence";
  return {};
}

// One iteration of a case that is built on meta, alone or as one of several ranks.
class DryIteration {
 public:
  DryIteration(const Options& options, const Case& test_case) {
    if (options.world > 1) {
      rank_.emplace(PlaceInWorld{options.world, options.rank, options.ranks},
                    test_case.workload.config.token_count());
    }
    item_ = test_case.component->build({.workload = test_case.workload,
                                        .pass = test_case.pass,
                                        .seed = options.seed,
                                        .device = c10::Device(c10::DeviceType::Meta),
                                        .hooks = rank_ ? rank_->hooks() : nullptr});
    const Pass pass = test_case.pass;
    const bool has_gradients = has_backward(pass) || pass == Pass::train;
    const NamedTensors parameters = item_->parameters();
    if (rank_ && has_gradients && !parameters.empty()) rank_->sum_gradients(parameters);
  }
  void record(const std::filesystem::path& file) {
    item_->prepare();
    instruments::record_execution_trace(file, [&] {
      if (rank_) {
        rank_->describe_groups();
        rank_->begin_backward();
      }
      item_->run();
      if (rank_) rank_->end_backward();
    });
  }
  WorkOnMeta work() const { return {{}, item_->parameters(), item_->optimizer_state()}; }

 private:
  std::optional<RankOnMeta> rank_;  // outlives the work, which has its hooks
  std::shared_ptr<WorkItem> item_;
};

}  // namespace

std::string dry_trace_file_name(const Options& options, const Case& test_case) {
  std::string name = test_case.name();
  if (options.world > 1) name += fmt::format("/rank:{}-of-{}", options.rank, options.world);
  return execution_trace_file_name(name);
}

void check_world(const Options& options, const Plan& plan) {
  const int64_t stages = options.ranks.pipeline;
  if (options.world == 1) return;
  for (const auto& [size, whole] : plan.wholes) {
    if (whole.n_layers() % stages == 0) continue;
    throw std::invalid_argument(fmt::format(
        "--world {}: with --pipeline-parallel {} n_layers = {} of {} must be a multiple of the "
        "stages, or rank {} might have other layers than those that are traced",
        options.world, stages, whole.n_layers(), size, options.rank));
  }
  for (const auto& [size, whole] : plan.wholes) {
    try {
      static_cast<void>(tensor_share(whole, /*rank=*/0, options.ranks.tensor));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(
          fmt::format("--world {}: {}: {}", options.world, size, error.what()));
    }
  }
}

void write_dry_trace(const Options& options, const Case& test_case) {
  if (const std::string reason = why_untraceable(options, test_case); !reason.empty())
    throw std::invalid_argument(reason);
  const auto file = std::filesystem::path(options.execution_trace_folder) /
                    dry_trace_file_name(options, test_case);
  bool is_recorded = false;
  predict_memory(test_case.workload.device, [&] {
    const auto iteration = std::make_shared<DryIteration>(options, test_case);
    WorkOnMeta work = iteration->work();
    // of a GPU's memory two iterations are predicted
    work.iteration = [&, iteration] {
      if (!std::exchange(is_recorded, true)) iteration->record(file);
    };
    return work;
  });
}

console::ExitCode trace_dry_run(const Options& options, const Plan& plan) {
  // so that no half of a file is left
  console::install_interrupt_handler();
  console::Progress progress("trace");
  progress.expect("trace", 1, std::ssize(plan.cases));
  bool failed = false;
  for (const Case& test_case : plan.cases) {
    if (console::interrupted()) return console::ExitCode::interrupted;
    const std::string name = test_case.name();
    progress.start(name);
    std::string outcome = dry_trace_file_name(options, test_case);
    if (const std::string reason = why_untraceable(options, test_case); !reason.empty()) {
      outcome = fmt::format("{}  {}{}", name, kNoExecutionTrace, reason);
    } else {
      try {
        write_dry_trace(options, test_case);
      } catch (const std::exception& error) {
        outcome = fmt::format("{}  FAILED: {}{}", name, kNoExecutionTrace, message_of(error));
        failed = true;
      }
    }
    progress.finish("trace", 1, outcome);
  }
  return failed ? console::ExitCode::failed : console::ExitCode::ok;
}

}  // namespace tinyllama::harness
