#include "benchmarks/scaling/rows.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/run_context.hpp"
#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/timer.hpp"
#include "core/file_io.hpp"
#include "core/statistics.hpp"
#include "core/text.hpp"

namespace tinyllama::scaling {
namespace {

using harness::Json;
using Values = std::vector<double>;

// The median over the iterations of what `combine` makes of the ranks that took part.
template <typename Combine>
double median_over_iterations(const RoundSamples& round, Combine combine) {
  Values combined;
  for (size_t iteration = 0;; ++iteration) {
    Values times;
    for (const Values& rank : round) {
      if (iteration < rank.size()) times.push_back(rank[iteration]);
    }
    if (times.empty()) break;
    combined.push_back(combine(times));
  }
  if (combined.empty()) throw std::invalid_argument("a round without a sample");
  return median(combined);
}

// Hosts become numbers: their names are nobody else's business.
Json describe_ranks(ProcessGroup& group) {
  const auto hosts = group.gather_texts("host", instruments::host_word());
  const auto cores = group.gather_texts("cores", instruments::host_machine::allowed_processors());
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
          {"share", to_string(options.share)},
          {"bucket_MiB", options.bucket_MiB},
          {"bucket_bytes", bucket_bytes},
          {"compress", distributed::compression_name(options)},
          {"parameter_bytes", bytes},
          {"gradient_bytes", bytes},
          {"ranks", describe_ranks(group)}};
}

Json milliseconds(Values seconds) {
  for (double& value : seconds) value *= 1e3;
  return seconds;
}

Json waits_json(const CollectiveWaits& round) {
  return {{"wait_ms", milliseconds(round.wait_seconds)},
          {"transfer_ms", milliseconds(round.transfer_seconds)},
          {"collectives", round.late_seconds.size()},
          {"times_last", round.times_last},
          {"late_ms", median(round.late_seconds) * 1e3},
          {"clock_uncertainty_ms", round.clock_uncertainty_seconds * 1e3}};
}

std::string median_cell(const Json& entry, const char* key, int digits) {
  if (!entry.contains(key)) return "";
  return fmt::format("{:.{}f}", entry.at(key).get<double>(), digits);
}

}  // namespace

RankTimes time_together(ProcessGroup& group, const RankWork& work, int64_t iterations) {
  RankTimes times;
  if (!group.is_first() && work.first_rank_only) {
    for (int64_t iteration = 0; iteration <= iterations; ++iteration) group.barrier();
    return times;
  }
  std::clock_t ticks = 0;
  std::optional<std::clock_t> first_tick;
  const auto count_ticks = [&] {
    if (first_tick) ticks += std::clock() - *first_tick;
  };
  const auto prepare = [&] {
    count_ticks();
    work.prepare();
    group.device().synchronize();
    // All start together, so that an iteration's time is that of its slowest rank; and no rank
    // waits for more than an iteration of another.
    group.barrier();
    first_tick = std::clock();
  };
  if (!group.device().is_gpu()) group.record_operations(&times.operations);
  const auto record_no_more = c10::make_scope_exit([&] { group.record_operations(nullptr); });
  const auto run = [&] {
    for (int64_t call = 0; call < work.calls; ++call) work.run();
  };
  times.seconds = instruments::time_iterations(group.device(), iterations, prepare, run);
  count_ticks();
  group.barrier();
  const auto calls = static_cast<double>(work.calls);
  for (double& seconds : times.seconds) seconds /= calls;
  if (!times.seconds.empty()) {
    times.cpu_seconds = static_cast<double>(ticks) / CLOCKS_PER_SEC / calls /
                        static_cast<double>(times.seconds.size());
  }
  return times;
}

int64_t agreed_iterations(ProcessGroup& group, double wanted_seconds, double seconds) {
  const double mine = std::ceil(wanted_seconds / std::max(seconds, 1e-7));
  return static_cast<int64_t>(group.number_of_first(std::clamp(mine, 1.0, 1e6)));
}

RoundSamples gather_samples(ProcessGroup& group, const Values& mine) {
  const auto count = static_cast<int64_t>(mine.size());
  const Values counts = group.gather_numbers(static_cast<double>(count));
  const auto most = static_cast<int64_t>(*std::max_element(counts.begin(), counts.end()));
  const auto kind = at::TensorOptions(c10::ScalarType::Double);
  const at::Tensor share = at::full({std::max<int64_t>(most, 1)}, 0.0, kind);
  if (count > 0) share.narrow(0, 0, count).copy_(at::tensor(mine, kind));
  const at::Tensor sent = share.to(group.device().torch());
  const at::Tensor whole = at::full({sent.numel() * group.size()}, 0.0, sent.options());
  group.all_gather(whole, sent).wait();
  const at::Tensor here = whole.cpu();
  RoundSamples round;
  for (int rank = 0; rank < group.size(); ++rank) {
    const double* const begin = here.const_data_ptr<double>() + rank * sent.numel();
    round.emplace_back(begin, begin + static_cast<int64_t>(counts[static_cast<size_t>(rank)]));
  }
  return round;
}

double slowest_seconds(const RoundSamples& round) {
  return median_over_iterations(
      round, [](const Values& times) { return *std::max_element(times.begin(), times.end()); });
}

double mean_seconds(const RoundSamples& round) {
  return median_over_iterations(round, mean);
}

std::vector<size_t> random_order(size_t count, uint64_t seed, uint64_t round) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 draw(seed + 0x9e3779b97f4a7c15ULL * (round + 1));
  // std::shuffle may differ between libraries; a remainder's bias does not matter for so few.
  for (size_t left = count; left > 1; --left) std::swap(order[left - 1], order[draw() % left]);
  return order;
}

bool any_rank_interrupted(ProcessGroup& group) {
  return group.largest_number(console::interrupted() ? 1 : 0) > 0;
}

void add_waits(RowRecord& record, ProcessGroup& group, const RankTimes& mine, int64_t iterations) {
  if (group.size() == 1 || group.device().is_gpu()) return;
  CollectiveWaits waits = gather_waits(group, mine.operations, iterations);
  if (!waits.late_seconds.empty()) record.waits.push_back(std::move(waits));
}

harness::Counters wait_counters(const RowRecord& record) {
  if (record.waits.empty()) return {};
  const CollectiveWaits& round = record.waits.back();
  return {{"wait_ms", mean(round.wait_seconds) * 1e3},
          {"transfer_ms", mean(round.transfer_seconds) * 1e3}};
}

harness::CaseResult to_case_result(const RowRecord& record) {
  harness::Outcome outcome;
  outcome.repetitions = record.repetitions;
  outcome.label = record.label;
  outcome.add_to_label(last_rank_words(record.waits));
  const auto repetitions = static_cast<int64_t>(record.repetitions.size());
  return harness::to_rows({record.name, 0, repetitions, record.unit}, outcome);
}

ScalingResults::ScalingResults(const ScalingOptions& options, ProcessGroup& group,
                               const std::vector<int64_t>& bucket_bytes)
    : options_(options), is_first_(group.is_first()) {
  context_ = harness::benchmark_context();
  context_["executable"] = "tiny_llama_scaling";  // Google Benchmark's own key
  context_["schema_version"] = harness::kSchemaVersion;
  context_.update(instruments::machine_context(group.device(), options.plugins));
  context_["seed"] = options.seed;
  context_["verify"] = options.verify ? "before" : "off";
  context_["distributed"] = describe_run(options, group, bucket_bytes);
}

Json ScalingResults::document() const {
  Json root;
  root["context"] = context_;
  root["benchmarks"] = Json::array();
  root["rank_samples"] = Json::object();
  for (const RowRecord& row : rows_) {
    for (const Json& entry : to_case_result(row).entries) root["benchmarks"].push_back(entry);
    root["rank_samples"][row.name] = row.samples;
    for (const CollectiveWaits& round : row.waits)
      root["rank_waits"][row.name].push_back(waits_json(round));
  }
  return root;
}

void ScalingResults::keep(const RowRecord& record) {
  if (!is_first_ || record.repetitions.empty()) return;
  auto known = std::ranges::find(rows_, record.name, &RowRecord::name);
  if (known == rows_.end()) known = rows_.emplace(rows_.end());
  *known = record;
}

void ScalingResults::write() const {
  if (is_first_ && !options_.out_file.empty())
    write_file_atomically(options_.out_file, document().dump(1) + "\n");
}

std::string ScalingResults::text() const {
  if (options_.format == "json") return document().dump(1) + "\n";
  std::vector<std::vector<std::string>> cells;
  std::string waited_for;
  for (const RowRecord& row : rows_) {
    const harness::CaseResult result = to_case_result(row);
    const Json& entry = *result.median();
    const std::string efficiency = median_cell(entry, "weak_efficiency_percent", 1) +
                                   median_cell(entry, "strong_efficiency_percent", 1);
    cells.push_back(
        {row.name, median_cell(entry, "real_time", 3) + " " + entry.value("time_unit", ""),
         median_cell(entry, "samples_per_second", 2), efficiency,
         median_cell(entry, "loss_communication_percent", 1),
         median_cell(entry, "overlap_percent", 1), median_cell(entry, "wait_ms", 3),
         median_cell(entry, "transfer_ms", 3), median_cell(entry, "bus_GB_per_second", 3)});
    const std::string words = last_rank_words(row.waits);
    if (row.name.starts_with("full_step/") && !words.empty())
      waited_for += fmt::format("{}: {}\n", row.name.substr(row.name.rfind('/') + 1), words);
  }
  return format_table({"medians", "time", "samples/s", "efficiency %", "communication %",
                       "hidden %", "wait ms", "transfer ms", "bus GB/s"},
                      cells) +
         waited_for;
}

}  // namespace tinyllama::scaling
