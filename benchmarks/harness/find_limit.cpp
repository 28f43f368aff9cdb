#include "benchmarks/harness/find_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/metering.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "core/text.hpp"
#include "core/version.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::ordered_json;

// Gradients and the optimizer's lists exist from the first iteration on.
constexpr int kIterations = 2;

Case moved(const Case& test_case, LimitAxis axis, int64_t value) {
  Case other = test_case;
  (axis == LimitAxis::batch ? other.workload.batch : other.workload.seq) = value;
  other.known_memory.reset();
  return other;
}

std::string_view name_of(LimitAxis axis) {
  return axis == LimitAxis::batch ? "batch" : "seq";
}

// component/pass/variant/size/dtype, and what is not searched.
std::string row_name(const Case& test_case, LimitAxis axis) {
  const std::string name = test_case.name();
  const std::string stem = name.substr(0, name.find("/batch:"));
  return axis == LimitAxis::batch ? fmt::format("{}/seq:{}", stem, test_case.workload.seq)
                                  : fmt::format("{}/batch:{}", stem, test_case.workload.batch);
}

// The smallest value that the component takes: a loss needs two tokens.
int64_t smallest(const Case& test_case, LimitAxis axis) {
  const auto refused = [&](int64_t value) {
    const auto& refusal = test_case.component->refusal;
    return refusal && !refusal(moved(test_case, axis, value).workload, test_case.pass).empty();
  };
  return refused(1) ? 2 : 1;
}

// The next value to try, between one that fits and one that does not, whose needs are `low` and
// `high`: where a straight line between these meets the limit. Memory may grow with the square of
// the sequence.
int64_t on_the_line(int64_t fits, int64_t beyond, int64_t low, int64_t high, int64_t limit_bytes) {
  if (high <= low) return fits + (beyond - fits) / 2;
  const double share = static_cast<double>(limit_bytes - low) / static_cast<double>(high - low);
  const auto value = fits + static_cast<int64_t>(share * static_cast<double>(beyond - fits));
  return std::clamp(value, fits + 1, beyond - 1);
}

FoundLimit search(const Case& test_case, LimitAxis axis, int64_t limit_bytes) {
  struct Need {
    int64_t bytes;
    bool fits;
  };
  std::map<int64_t, Need> known;
  const auto need = [&](int64_t value) {
    const auto [found, is_new] = known.try_emplace(value);
    if (is_new) {
      const Case there = moved(test_case, axis, value);
      found->second = {there.memory().peak(), there.memory().fits(limit_bytes)};
    }
    return found->second;
  };
  const auto needs = [&](int64_t value) { return need(value).bytes; };
  // Where the search ends, as if that did not fit.
  constexpr int64_t end = kLargestSearched + 1;
  const auto is_beyond = [&](int64_t value) { return value == end || !need(value).fits; };
  int64_t fits = smallest(test_case, axis);
  int64_t largest = 0;
  int64_t beyond = fits;
  while (!is_beyond(beyond)) {
    fits = largest = beyond;
    // The end is reached by kLargestSearched alone.
    beyond = fits == kLargestSearched ? end : std::min(4 * fits, kLargestSearched);
  }
  bool middle = false;
  while (largest > 0 && beyond - fits > 1) {
    // Every other time the middle: a line alone may come closer by one at a time.
    const int64_t value = middle
                              ? fits + (beyond - fits) / 2
                              : on_the_line(fits, beyond, needs(fits), needs(beyond), limit_bytes);
    middle = !middle;
    if (is_beyond(value)) {
      beyond = value;
    } else {
      fits = largest = value;
      // A line between neighbours ends right below the limit: most often one more is too much.
      if (beyond - fits > 1 && is_beyond(fits + 1)) beyond = fits + 1;
    }
  }
  const bool has_beyond = largest > 0 && beyond < end;
  return {moved(test_case, axis, fits), largest, needs(fits), has_beyond ? needs(beyond) : 0};
}

// The work is built without the limit: values are drawn in float64, which the prediction leaves
// out.
LimitTry run_within(const Case& test_case, const MemoryBudget& budget,
                    const instruments::Device& device, uint64_t seed) {
  LimitTry tried;
  CaseWork work;
  tried.failure =
      failure_of(device, 0, [&] { work = build_work(device, test_case, seed, nullptr); });
  if (tried.failure.empty()) {
    instruments::MemoryMeter memory(device);
    instruments::host_machine::reset_peak_resident_bytes();
    tried.failure = failure_of(device, work.other_bytes + budget.bytes, [&] {
      for (int i = 0; i < kIterations; ++i) {
        work.item->prepare();
        work.item->run();
      }
      device.synchronize();
    });
    if (tried.failure.empty()) {
      tried.peak_bytes =
          std::max(memory.read().peak_bytes - work.other_bytes, work.capture_peak_bytes);
      tried.process_bytes = instruments::host_machine::peak_resident_bytes();
    }
  }
  tried.fits = tried.failure.empty() && tried.peak_bytes <= budget.bytes;
  work.item.reset();
  instruments::release_cached_memory(device);
  return tried;
}

bool contradicts(const FoundLimit& found) {
  return (found.tried && !found.tried->fits) || (found.tried_beyond && found.tried_beyond->fits);
}

std::string verdict(const std::optional<LimitTry>& tried) {
  if (!tried) return "";
  if (!tried->failure.empty()) return tried->failure.substr(0, tried->failure.find(':'));
  const std::string process =
      tried->process_bytes ? fmt::format(", process {}", format_bytes(*tried->process_bytes)) : "";
  return fmt::format("{} {}{}", format_bytes(tried->peak_bytes),
                     tried->fits ? "fits" : "does not fit", process);
}

std::string limits_table(const std::vector<FoundLimit>& limits, LimitAxis axis,
                         const Options& options, const MemoryBudget& budget) {
  std::vector<std::string> header = {"case", fmt::format("largest {}", name_of(axis)), "needs",
                                     "one more needs"};
  if (options.confirm) header.insert(header.end(), {"tried", "one more tried"});
  std::vector<std::vector<std::string>> cells;
  for (const FoundLimit& found : limits) {
    std::vector<std::string> row = {row_name(found.at, axis)};
    if (!found.at.skip_reason.empty()) {
      row.insert(row.end(), {"no: " + found.at.skip_reason, "", ""});
    } else {
      const bool at_end = found.largest > 0 && found.needed_bytes_beyond == 0;
      row.insert(row.end(),
                 {found.largest == 0 ? "none"
                                     : fmt::format("{}{}", found.largest, at_end ? " or more" : ""),
                  format_bytes(found.needed_bytes),
                  found.needed_bytes_beyond == 0 ? "" : format_bytes(found.needed_bytes_beyond)});
    }
    if (options.confirm) row.insert(row.end(), {verdict(found.tried), verdict(found.tried_beyond)});
    cells.push_back(std::move(row));
  }
  return format_table(header, cells) +
         fmt::format(
             "{} cases; limit of tensors {} ({}), by their predicted memory; a process takes "
             "more\n",
             limits.size(), format_bytes(budget.bytes), budget.source);
}

Json to_json(const std::optional<LimitTry>& tried) {
  if (!tried) return nullptr;
  Json json = {
      {"fits", tried->fits}, {"peak_bytes", tried->peak_bytes}, {"failure", tried->failure}};
  if (tried->process_bytes) json["process_bytes"] = *tried->process_bytes;
  return json;
}

Json limits_document(const std::vector<FoundLimit>& limits, LimitAxis axis,
                     const MemoryBudget& budget, const instruments::Device& device) {
  Json rows = Json::array();
  for (const FoundLimit& found : limits) {
    const Workload& w = found.at.workload;
    rows.push_back(
        {{"component", found.at.component->name},
         {"pass", to_string(found.at.pass)},
         {"variant", w.variant.name()},
         {"switches", w.variant.switch_names()},
         {"size", found.at.size},
         {"dtype", to_string(w.dtype)},
         {axis == LimitAxis::batch ? "seq" : "batch", axis == LimitAxis::batch ? w.seq : w.batch},
         {"largest", found.largest},
         {"predicted_memory_bytes", found.needed_bytes},
         {"predicted_memory_bytes_beyond", found.needed_bytes_beyond},
         {"skip_reason", found.at.skip_reason},
         {"tried", to_json(found.tried)},
         {"tried_beyond", to_json(found.tried_beyond)}});
  }
  return {{"device", instruments::describe_device(device)},
          {"git_commit", source_version().commit},
          {"memory_limit_bytes", budget.bytes},
          {"memory_limit_source", budget.source},
          {"searched", name_of(axis)},
          {"limits", std::move(rows)}};
}

}  // namespace

std::vector<FoundLimit> find_limits(const std::vector<Case>& cases, LimitAxis axis,
                                    const MemoryBudget& budget) {
  std::vector<FoundLimit> limits;
  std::set<std::string> seen;
  for (const Case& test_case : cases) {
    if (!seen.insert(row_name(test_case, axis)).second) continue;
    if (test_case.skip_reason.empty())
      limits.push_back(search(test_case, axis, budget.bytes));
    else
      limits.push_back({test_case});
  }
  return limits;
}

void confirm(FoundLimit& found, LimitAxis axis, const MemoryBudget& budget,
             const instruments::Device& device, uint64_t seed) {
  if (!found.at.skip_reason.empty()) return;
  if (found.largest > 0) found.tried = run_within(found.at, budget, device, seed);
  // Where none fits, the smallest is the one that must not.
  const int64_t beyond = found.largest > 0 ? found.largest + 1 : smallest(found.at, axis);
  if (found.largest == 0 || found.needed_bytes_beyond > 0)
    found.tried_beyond = run_within(moved(found.at, axis, beyond), budget, device, seed);
}

console::ExitCode run_find_limit(const Options& options, const Plan& plan,
                                 const instruments::Device& device) {
  const LimitAxis axis = *options.find_limit;
  const MemoryBudget budget = memory_budget(device, options.memory_limit_bytes, 0);
  std::vector<FoundLimit> limits = find_limits(plan.cases, axis, budget);
  if (options.confirm) {
    console::install_interrupt_handler();
    instruments::start_computing();
    for (size_t i = 0; i < limits.size() && !console::interrupted(); ++i) {
      fmt::print(stderr, "[{}/{}] confirming {}: {} {}, and one more\n", i + 1, limits.size(),
                 row_name(limits[i].at, axis), name_of(axis), limits[i].largest);
      confirm(limits[i], axis, budget, device, options.seed);
    }
  }
  std::cout << (options.format == "json"
                    ? limits_document(limits, axis, budget, device).dump(1) + "\n"
                    : limits_table(limits, axis, options, budget));
  if (console::interrupted()) return console::ExitCode::interrupted;
  return std::any_of(limits.begin(), limits.end(), contradicts) ? console::ExitCode::failed
                                                                : console::ExitCode::ok;
}

}  // namespace tinyllama::harness
