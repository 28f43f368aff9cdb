// kernel_benchmark: each fused kernel of model/kernels/ beside the library's way to do the same,
// and beside the bandwidth of the machine.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/kernels/kernel_cases.hpp"
#include "model/file_io.hpp"
#include "model/kernels/launch.hpp"

namespace tinyllama::kernel_benchmark {
namespace {

using nlohmann::json;

struct Options {
  bool quick = false;
  std::string filter;
  std::string json_file;
};

// The first is quick.
constexpr std::string_view kSizes[] = {"tiny", "small"};

/// Medians over the rounds.
struct Timing {
  double seconds = 0;
  double ratio = 0;  ///< to ours, round by round
};

struct Row {
  KernelCase about;
  std::vector<Timing> timings;
  double triad_rate = 0;             ///< bytes per second
  std::optional<double> peak_share;  ///< of the cache's or the memory's bandwidth
  std::string peak;                  ///< which
  double rate() const { return static_cast<double>(about.bytes) / timings[0].seconds; }
};

/// In microseconds of turns what other load does to one contender it does to all.
std::vector<Timing> time_contenders(const instruments::Device& device, const KernelCase& one,
                                    int64_t rounds) {
  constexpr double unlimited = std::numeric_limits<double>::infinity();
  std::vector<harness::TimedWork> works;
  for (const Contender& contender : one.contenders) {
    works.push_back({contender.prepare, contender.run});
    // The first iterations fill the allocator's cache and wake the threads.
    harness::time_until(device, contender.prepare, contender.run,
                        {.min_seconds = unlimited, .most_iterations = 3});
  }
  const std::vector<harness::TimingGoal> slices(works.size(),
                                                {.min_seconds = unlimited, .most_iterations = 5});
  const auto seconds = harness::time_interleaved(device, works, slices, rounds);
  std::vector<Timing> timings;
  for (const auto& of_rounds : seconds) {
    std::vector<double> ratios;
    for (size_t round = 0; round < of_rounds.size(); ++round)
      ratios.push_back(of_rounds[round] / seconds[0][round]);
    timings.push_back({harness::median(of_rounds), harness::median(ratios)});
  }
  return timings;
}

/// The fastest contender but ours.
size_t best_rival(const Row& row) {
  size_t best = 1;
  for (size_t i = 2; i < row.timings.size(); ++i) {
    if (row.timings[i].seconds < row.timings[best].seconds) best = i;
  }
  return best;
}

void print(const Row& row) {
  const size_t rival = best_rival(row);
  const std::string share =
      row.peak_share ? fmt::format("{:.0f} % {}", 100 * *row.peak_share, row.peak) : "";
  fmt::print("{:<14} {:<17} {:<6} {:<5} {:>8.1f} {:>8.1f} {:>6.2f}  {:<23} {:>6.1f} {:>7.2f}  {}\n",
             row.about.kernel, row.about.pass, row.about.size, row.about.dtype,
             row.timings[0].seconds * 1e6, row.timings[rival].seconds * 1e6,
             row.timings[rival].ratio, row.about.contenders[rival].name, row.rate() / 1e9,
             row.triad_rate / row.rate(), share);
  std::fflush(stdout);
}

json as_json(const Row& row) {
  json result = json::object();
  result["kernel"] = row.about.kernel;
  result["pass"] = row.about.pass;
  result["size"] = row.about.size;
  result["dtype"] = row.about.dtype;
  result["bytes"] = row.about.bytes;
  result["bytes_per_second"] = row.rate();
  result["triad_bytes_per_second"] = row.triad_rate;
  if (row.peak_share) {
    result["peak"] = row.peak;
    result["peak_share"] = *row.peak_share;
  }
  for (size_t i = 0; i < row.timings.size(); ++i) {
    json one = json::object();
    one["name"] = row.about.contenders[i].name;
    one["seconds"] = row.timings[i].seconds;
    one["ratio_to_own"] = row.timings[i].ratio;
    result["contenders"].push_back(one);
  }
  return result;
}

std::vector<Row> measure(const instruments::Device& device, const Options& options,
                         const std::optional<instruments::Bandwidth>& bandwidth) {
  const int64_t rounds = options.quick ? 1 : 21;
  std::vector<Row> rows;
  for (const ProblemSize& size :
       load_problem_sizes(TINY_LLAMA_SOURCE_DIR "/fixtures/problem_sizes.json")) {
    const bool wanted = options.quick ? size.name == kSizes[0]
                                      : std::ranges::find(kSizes, size.name) != std::end(kSizes);
    if (!wanted) continue;
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      for (KernelCase& one : cases_of(size, dtype)) {
        const std::string name =
            fmt::format("{}/{}/{}/{}", one.kernel, one.pass, one.size, one.dtype);
        if (name.find(options.filter) == std::string::npos) continue;
        Row row{one,
                time_contenders(device, one, rounds),
                instruments::median_triad_rate(device, one.bytes, 5 * rounds),
                {},
                {}};
        if (bandwidth) {
          const bool cached = instruments::fits_into_cache(device.description(), one.bytes);
          row.peak = cached ? "cache" : "memory";
          row.peak_share = row.rate() / instruments::attainable_bandwidth(
                                            *bandwidth, device.description(), one.bytes);
        }
        print(row);
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

std::string document_of(const instruments::Device& device,
                        const std::optional<instruments::Bandwidth>& bandwidth,
                        const std::vector<Row>& rows) {
  json document = json::object();
  document["device"] = device.description().name;
  document["torch"] = instruments::torch_version();
  document["commit"] = instruments::source_version().commit;
  document["git_dirty"] = instruments::source_version().dirty;
  document["threads"] = at::get_num_threads();
  document["instruction_set"] = kernels::range_kernels().instruction_set;
  if (bandwidth) {
    document["memory_bytes_per_second"] = bandwidth->memory.per_second;
    document["cache_bytes_per_second"] = bandwidth->cache.per_second;
  }
  document["rows"] = json::array();
  for (const Row& row : rows) document["rows"].push_back(as_json(row));
  return document.dump(2) + "\n";
}

void run(const Options& options) {
  // Before minutes are spent: a path that cannot be written to must not cost them.
  std::optional<ReplacementFile> file;
  if (!options.json_file.empty()) file.emplace(options.json_file);
  const auto device = instruments::Device::select("cpu");
  std::optional<instruments::Bandwidth> bandwidth;
  if (!options.quick) bandwidth = instruments::measure_bandwidth(device);
  fmt::print("{}, {} threads, range kernels for {}\n", device.description().name,
             at::get_num_threads(), kernels::range_kernels().instruction_set);
  if (bandwidth) {
    fmt::print("memory {:.1f} GB/s ({}), cache {:.1f} GB/s ({})\n",
               bandwidth->memory.per_second / 1e9, bandwidth->memory.source,
               bandwidth->cache.per_second / 1e9, bandwidth->cache.source);
  }
  fmt::print(
      "Medians over turns; ratio: the best rival's time over ours; /triad: our time over that of a "
      "triad that moves as many bytes.\n\n"
      "{:<14} {:<17} {:<6} {:<5} {:>8} {:>8} {:>6}  {:<23} {:>6} {:>7}  {}\n",
      "kernel", "pass", "size", "dtype", "own us", "rival us", "ratio", "best rival", "GB/s",
      "/triad", "share of peak");
  at::manual_seed(1);
  const auto rows = measure(device, options, bandwidth);
  if (rows.empty()) {
    throw std::invalid_argument(
        fmt::format("--filter '{}': no case's kernel/pass/size/dtype contains it", options.filter));
  }
  if (!file) return;
  const std::string document = document_of(device, bandwidth, rows);
  file->write(document.data(), static_cast<int64_t>(document.size()));
  file->commit();
}

}  // namespace
}  // namespace tinyllama::kernel_benchmark

int main(int argc, char** argv) {
  tinyllama::instruments::pin_openmp_threads(argv);
  tinyllama::instruments::host_allocator::install();
  tinyllama::kernel_benchmark::Options options;
  CLI::App app("Our fused kernels against the library's operators, by turns");
  app.add_flag("--quick", options.quick, "one round at tiny, without peaks: that everything runs");
  app.add_option("--filter", options.filter,
                 "only cases whose kernel/pass/size/dtype contains this");
  app.add_option("--json", options.json_file, "also write the table to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return tinyllama::console::run_program("kernel_benchmark", [&] {
    tinyllama::instruments::start_autograd_threads();
    tinyllama::kernel_benchmark::run(options);
    return tinyllama::console::ExitCode::ok;
  });
}
