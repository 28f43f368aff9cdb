#include <fmt/format.h>

#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/console/text_table.hpp"
#include "benchmarks/harness/admission.hpp"
#include "benchmarks/harness/suite.hpp"

namespace tinyllama::harness {

std::string dry_run_table(const Options& options, const Plan& plan,
                          const instruments::Device& device) {
  const auto budget = memory_budget(device, options.memory_limit_bytes.value_or(0), 0);
  std::vector<std::vector<std::string>> rows;
  for (const Case& planned : plan.cases) {
    const Cost cost = planned.cost();
    std::string fits = planned.skip_reason;
    if (fits.empty()) fits = refuse_for_memory(planned, budget);
    rows.push_back({planned.name(), fmt::format("{}", cost.parameters),
                    console::format_count(static_cast<double>(cost.model_flops)),
                    console::format_count(static_cast<double>(cost.elementwise_flops)),
                    console::format_bytes(cost.bytes),
                    console::format_bytes(planned.memory().peak()),
                    fits.empty() ? "yes" : "no: " + fits});
  }
  return console::format_table(
             {"case", "parameters", "model FLOPs", "elementwise", "bytes", "peak memory", "fits"},
             rows) +
         fmt::format("{} cases; memory budget {} ({})\n", rows.size(),
                     console::format_bytes(budget.bytes), budget.source);
}

}  // namespace tinyllama::harness
