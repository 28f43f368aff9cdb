#include "benchmarks/harness/memory_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "benchmarks/instruments/context.hpp"
#include "core/text.hpp"
#include "core/version.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::ordered_json;

struct DryRunRow {
  std::string name;
  Cost cost;
  int64_t predicted_bytes;
  std::string refusal;   ///< empty where it fits
  bool is_of_operators;  ///< the prediction; else it is of the model's own operations
};

std::string dry_run_table(const std::vector<DryRunRow>& rows, const MemoryBudget& budget) {
  std::vector<std::vector<std::string>> cells;
  std::vector<std::string> titles = {"case", "parameters", "model FLOPs", "elementwise", "bytes"};
  const bool of_shares =
      std::ranges::any_of(rows, [](const DryRunRow& row) { return row.cost.comm_calls > 0; });
  if (of_shares) titles.insert(titles.end(), {"comm calls", "comm bytes"});
  titles.insert(titles.end(), {"peak memory", "fits"});
  std::string note;
  for (const auto& [name, cost, predicted_bytes, refusal, is_of_operators] : rows) {
    if (!is_of_operators)
      note = "~: with the model's own operations; an operator has no Meta kernel\n";
    cells.push_back({name, fmt::format("{}", cost.parameters),
                     format_count(static_cast<double>(cost.model_flops)),
                     format_count(static_cast<double>(cost.elementwise_flops)),
                     format_bytes(cost.bytes)});
    if (of_shares) {
      cells.back().push_back(fmt::format("{}", cost.comm_calls));
      cells.back().push_back(format_bytes(cost.comm_bytes));
    }
    cells.back().push_back((is_of_operators ? "" : "~") + format_bytes(predicted_bytes));
    cells.back().push_back(refusal.empty() ? "yes" : "no: " + refusal);
  }
  return format_table(titles, cells) + note +
         fmt::format("{} cases; memory budget {} ({})\n", rows.size(), format_bytes(budget.bytes),
                     budget.source);
}

// With the device that things fit on and the commit of the formulas.
Json dry_run_document(const std::vector<DryRunRow>& rows, const MemoryBudget& budget,
                      const instruments::Device& device, Json sizes) {
  Json cases = Json::array();
  for (const auto& [name, cost, predicted_bytes, refusal, is_of_operators] : rows) {
    cases.push_back({{"name", name},
                     {"parameters", cost.parameters},
                     {"model_flops", cost.model_flops},
                     {"causal_flops", cost.causal_flops},
                     {"hardware_flops", cost.hardware_flops},
                     {"elementwise_flops", cost.elementwise_flops},
                     {"bytes", cost.bytes},
                     {"predicted_memory_bytes", predicted_bytes},
                     {"fits", refusal.empty()},
                     {"reason", refusal}});
    if (cost.comm_calls > 0) {
      cases.back()["comm_calls"] = cost.comm_calls;
      cases.back()["comm_bytes"] = cost.comm_bytes;
    }
    // Else its memory is that of the model's own operations.
    if (!is_of_operators) cases.back()["operators_predicted"] = false;
  }
  return {{"device", instruments::describe_device(device)},
          {"git_commit", source_version().commit},
          {"memory_budget_bytes", budget.bytes},
          {"memory_budget_source", budget.source},
          {"sizes", std::move(sizes)},
          {"cases", std::move(cases)}};
}

}  // namespace

MemoryBudget memory_budget(const instruments::Device& device, int64_t limit_bytes,
                           int64_t live_bytes) {
  const int64_t free = device.free_memory_bytes();
  const int64_t left = std::max<int64_t>(limit_bytes - live_bytes, 0);
  if (limit_bytes == 0 || left >= free) return {free, "free on the device"};
  return {left, live_bytes > 0 ? "left of --memory-limit" : "--memory-limit"};
}

std::string refuse_for_memory(const Case& test_case, const MemoryBudget& budget) {
  const PredictedMemory& memory = test_case.memory();
  if (memory.fits(budget.bytes)) return {};
  return fmt::format(
      "predicted peak memory {}{} {} {} ({})", format_bytes(memory.peak()),
      test_case.workload.variant.runs_on_meta() ? "" : ", with the model's own operations,",
      memory.peak() > budget.bytes ? "exceeds"
                                   : "does not fit, in the segments that the allocator takes, into",
      format_bytes(budget.bytes), budget.source);
}

std::string dry_run_text(const Options& options, const Plan& plan,
                         const instruments::Device& device) {
  const auto budget = memory_budget(device, options.memory_limit_bytes, 0);
  std::vector<DryRunRow> rows;
  for (const Case& test_case : plan.cases) {
    // What cannot be built has no memory to predict.
    const bool is_possible = test_case.skip_reason.empty();
    rows.push_back({test_case.name(), test_case.cost(), is_possible ? test_case.memory().peak() : 0,
                    is_possible ? refuse_for_memory(test_case, budget) : test_case.skip_reason,
                    test_case.workload.variant.runs_on_meta()});
  }
  return options.format == "json"
             ? dry_run_document(rows, budget, device, sizes_of(options, plan)).dump(1) + "\n"
             : dry_run_table(rows, budget);
}

}  // namespace tinyllama::harness
