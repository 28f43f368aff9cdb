#include "benchmarks/distributed/scaling_rows.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/text_table.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/instruments/context.hpp"
#include "model/file_io.hpp"

namespace tinyllama::distributed {
namespace {

using harness::Json;

// "0", "0-3,8": the processors that this process may use, as taskset writes them.
std::string allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "unknown";
  std::string text;
  for (int first = 0; first < CPU_SETSIZE; ++first) {
    if (!CPU_ISSET(first, &set)) continue;
    int last = first;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
    first = last;
  }
  return text;
}

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Hosts become numbers: their names are nobody else's business.
Json describe_ranks(ProcessGroup& group) {
  const auto hosts = group.gather_texts("host", host_name());
  const auto cores = group.gather_texts("cores", allowed_cores());
  const auto local = group.gather_texts("local rank", std::to_string(group.where().local_rank));
  std::vector<std::string> known;
  Json ranks = Json::array();
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    auto found = std::find(known.begin(), known.end(), hosts[rank]);
    const auto node = found - known.begin();
    if (found == known.end()) known.push_back(hosts[rank]);
    ranks.push_back({{"rank", rank},
                     {"local_rank", std::stoi(local[rank])},
                     {"node", node},
                     {"cores", cores[rank]}});
  }
  return ranks;
}

Json describe_run(const ScalingOptions& options, ProcessGroup& group,
                  const std::vector<int64_t>& bucket_bytes) {
  const ModelConfig config(options.dimensions);
  const int64_t bytes = count_parameters(config) * storage_bytes(options.dtype);
  return {{"world_size", group.size()},
          {"backend", group.backend_name()},
          {"started_by", to_string(group.where().launcher)},
          {"scaling", options.global_batch ? "strong" : "weak"},
          {"bucket_MiB", options.bucket_MiB},
          {"bucket_bytes", bucket_bytes},
          {"parameter_bytes", bytes},
          {"gradient_bytes", bytes},
          {"ranks", describe_ranks(group)}};
}

std::string median_cell(const Json& entry, const char* key, int digits) {
  if (!entry.contains(key)) return "";
  return fmt::format("{:.{}f}", entry.at(key).get<double>(), digits);
}

// The median of a row, or its only repetition.
const Json& typical(const harness::CaseResult& row) {
  for (const Json& entry : row.entries) {
    if (entry.value("aggregate_name", "") == "median") return entry;
  }
  return row.entries.front();
}

}  // namespace

harness::CaseResult to_case_result(const RowRecord& record) {
  harness::Outcome outcome;
  outcome.repetitions = record.repetitions;
  const auto repetitions = static_cast<int64_t>(record.repetitions.size());
  return harness::to_rows(record.name, {record.name, 0, repetitions, record.unit}, outcome);
}

ScalingResults::ScalingResults(const ScalingOptions& options, ProcessGroup& group,
                               const std::vector<int64_t>& bucket_bytes)
    : options_(options), is_first_(group.is_first()) {
  context_ = harness::benchmark_context();
  context_["schema_version"] = harness::kSchemaVersion;
  context_.update(instruments::machine_context(group.device()));
  context_["seed"] = options.seed;
  context_["verify"] = options.verify ? "before" : "off";
  context_["distributed"] = describe_run(options, group, bucket_bytes);
}

Json ScalingResults::document() const {
  Json root;
  root["context"] = context_;
  root["benchmarks"] = Json::array();
  root["rank_samples"] = Json::object();
  for (const auto& [result, samples] : rows_) {
    for (const Json& entry : result.entries) root["benchmarks"].push_back(entry);
    root["rank_samples"][result.name] = samples;
  }
  return root;
}

void ScalingResults::keep(const RowRecord& record) {
  if (!is_first_ || record.repetitions.empty()) return;
  auto known = std::find_if(rows_.begin(), rows_.end(),
                            [&](const Row& other) { return other.result.name == record.name; });
  if (known == rows_.end()) known = rows_.emplace(rows_.end());
  *known = {to_case_result(record), record.samples};
}

void ScalingResults::write() const {
  if (is_first_ && !options_.out_file.empty())
    write_file_atomically(options_.out_file, document().dump(1) + "\n");
}

std::string ScalingResults::text() const {
  if (options_.format == "json") return document().dump(1) + "\n";
  std::vector<std::vector<std::string>> cells;
  for (const Row& row : rows_) {
    const Json& entry = typical(row.result);
    const std::string efficiency = median_cell(entry, "weak_efficiency_percent", 1) +
                                   median_cell(entry, "strong_efficiency_percent", 1);
    cells.push_back(
        {row.result.name, median_cell(entry, "real_time", 3) + " " + entry.value("time_unit", ""),
         median_cell(entry, "samples_per_second", 2), efficiency,
         median_cell(entry, "communication_percent", 1), median_cell(entry, "overlap_percent", 1),
         median_cell(entry, "bus_GB_per_second", 3)});
  }
  return console::format_table(
      {"medians", "time", "samples/s", "efficiency %", "communication %", "hidden %", "bus GB/s"},
      cells);
}

}  // namespace tinyllama::distributed
