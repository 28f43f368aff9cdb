#include "benchmarks/harness/suite.hpp"

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/progress.hpp"
#include "benchmarks/harness/case_counters.hpp"
#include "benchmarks/harness/formats.hpp"
#include "benchmarks/harness/interleaved.hpp"
#include "benchmarks/harness/journal.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/run_context.hpp"
#include "benchmarks/harness/runner.hpp"
#include "benchmarks/harness/sum_of_parts.hpp"
#include "benchmarks/harness/tables.hpp"
#include "benchmarks/harness/trace.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/instruments/host_load.hpp"
#include "core/data_folder.hpp"
#include "core/file_io.hpp"
#include "core/text.hpp"

namespace tinyllama::harness {
namespace {

/// Why cases, or their later repetitions, are skipped once a signal has come.
constexpr const char* kInterrupted = "interrupted";

// Learns from Google Benchmark that a case is over. The rows are not made from what it reports,
// which is one iteration for each repetition, but from the engine's samples.
class CaseReporter final : public benchmark::BenchmarkReporter {
 public:
  explicit CaseReporter(std::function<void(const Run&)> on_runs) : on_runs_(std::move(on_runs)) {}
  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    if (!runs.empty()) on_runs_(runs.front());
  }

 private:
  std::function<void(const Run&)> on_runs_;
};

// A row of the plan, and what became of it.
struct Planned {
  std::string name;
  // What it is expected to take, in proportion to others of its kind (console::Progress).
  std::string kind;
  double weight;
  Outcome outcome{};                   // as far as it got
  std::optional<CaseResult> result{};  // now, or from the journal
};

std::string describe(const CaseResult& result) {
  if (!result.failure().empty()) return "FAILED: " + result.failure();
  if (!result.skip().empty()) return "skipped: " + result.skip();
  const Json& entry = *result.median();
  const std::string label = entry.value("label", "");
  const size_t fault = std::min(label.find(kNoTrace), label.find(kNoExecutionTrace));
  return fmt::format("{:.4g} {}{}", entry.value("real_time", 0.0), entry.value("time_unit", ""),
                     fault == std::string::npos ? "" : "  " + label.substr(fault));
}

// One run of a plan, from the first message to the last.
class SuiteRun {
 public:
  SuiteRun(const Options& options, const Plan& plan, const instruments::Device& device,
           const PartsOfStep& step)
      : options_(options),
        plan_(plan),
        device_(device),
        step_(step),
        peaks_(device, options.cold_cache) {
    document_.context = run_context(options, device);
    document_.context["goals"] = goals_of(options);
    document_.context["sizes"] = sizes_of(options, plan);
    for (const PeakCase& peak : plan.peak_cases)
      planned_.push_back({peak.name, "peak", peak.shape ? 0.2 : 5.0});
    for (const Case& test_case : plan.cases) {
      // Half a second of preparation, and about ten times the GEMMs at 100 GFLOP/s: only the
      // proportions matter, and only within a kind. bfloat16 may be fifteen times as slow.
      const Workload& w = test_case.workload;
      planned_.push_back({test_case.name(),
                          fmt::format("{} {}", w.variant.name(), to_string(w.dtype)),
                          0.5 + static_cast<double>(test_case.cost().model_flops) * 1e-10});
    }
    // Read before anything is measured: a malformed fixture must not cost a run.
    peaks_.set_datasheet(
        instruments::find_datasheet_peaks(device_peaks_file(), device.description()));
  }

  console::ExitCode run() {
    // a run that was stopped before its journal had a first line is run anew
    continues_ = options_.resume && Journal::is_begun(options_.journal_file);
    if (continues_) take_over_journal();
    check_output_file("--benchmark_out", options_.out_file);
    check_output_folder("--trace", options_.trace_folder);
    check_output_folder("--execution-trace", options_.execution_trace_folder);
    console::Progress progress("case");
    for (const Planned& planned : planned_)
      if (!planned.result) progress.expect(planned.kind, planned.weight);
    const bool has_work = done() < planned_.size();
    announce(progress);
    open_journal();
    if (options_.verify != Verify::only) measure_peaks(progress);
    journal_peaks();
    if (options_.verify == Verify::only) return verify_all(progress);
    Runner runner(device_, peaks_, options_, sensors());
    runner.on_hang([&](const auto& name, const auto& reason) { end_hanging_case(name, reason); });
    for (const PeakCase& peak : plan_.peak_cases) add_case(peak.name, peak, runner, progress);
    for (const Case& test_case : plan_.cases)
      add_case(test_case.name(), test_case, runner, progress);
    CaseReporter reporter([&](const auto& run) { finish_case(run, progress); });
    if (has_work) benchmark::RunSpecifiedBenchmarks(&reporter, nullptr, ".");
    benchmark::ClearRegisteredBenchmarks();
    runner.close();
    return finish(progress, has_work);
  }

 private:
  static std::filesystem::path device_peaks_file() {
    return data_folder() / "fixtures/device_peaks.json";
  }

  std::optional<instruments::SystemReader> sensors() const {
    if (!device_.is_gpu() && !instruments::why_no_energy({}).empty()) return std::nullopt;
    instruments::SystemReader reader = instruments::system_reader(device_);
    reader.only_at_ends = !device_.is_gpu();
    return reader;
  }

  bool lacks_bf16_units() const {
    return !device_.is_gpu() && !device_traits(device_.torch()).fast_bf16_gemm &&
           std::ranges::any_of(plan_.cases, [](const Case& planned) {
             return gemm_type_name(planned.workload.dtype) == "bf16";
           });
  }

  void take_over_journal() {
    const JournalContents contents = Journal::read(options_.journal_file);
    std::vector<std::string> kept = circumstances_to_keep();
    for (const auto& size : document_.context.at("sizes").items())
      kept.push_back((Json::json_pointer("/sizes") / size.key()).to_string().substr(1));
    // A header without goals was written for another run of the same study (scripts/study).
    if (!contents.header.contains("goals")) std::erase(kept, "goals");
    check_same_circumstances(options_.journal_file, contents.header, document_.context, kept);
    // A run that was killed while it measured its peaks has none yet.
    if (contents.header.contains("peaks")) restore_peaks(contents.header.at("peaks"));
    for (const auto& result : contents.results) {
      // A case that was not asked for this time stays in the journal alone.
      const auto planned = find(result.name);
      if (planned != planned_.end() && !planned->result) planned->result = result;
    }
  }

  void restore_peaks(const Json& peaks) {
    try {
      peaks_.restore(peaks, plan_.peaks_needed().shapes);
      journaled_peaks_ = peaks;
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(fmt::format("journal {}: its peaks are malformed: {}",
                                              options_.journal_file, error.what()));
    }
  }

  // A run that continues this one needs the latest peaks: those that cases were compared with so
  // far.
  void journal_peaks() {
    const Json now = peaks_.to_json();
    if (!journal_ || now == journaled_peaks_) return;
    journal_->add_peaks(now);
    journaled_peaks_ = now;
  }

  std::vector<Planned>::iterator find(const std::string& name) {
    return std::ranges::find(planned_, name, &Planned::name);
  }

  size_t done() const {
    return static_cast<size_t>(std::ranges::count_if(
        planned_, [](const Planned& planned) { return planned.result.has_value(); }));
  }

  void announce(console::Progress& progress) const {
    const Json& context = document_.context;
    progress.say(fmt::format("{} ({}), {} threads, libtorch {}, commit {}{}",
                             device_.description().name, device_.description().architecture,
                             context.at("threads").dump(),
                             context.at("torch_version").get<std::string>(),
                             context.at("git_commit").get<std::string>().substr(0, 12),
                             context.at("git_dirty").get<bool>() ? " with changes" : ""));
    const std::string disturbs = instruments::what_disturbs(at::get_num_threads());
    if (!disturbs.empty()) progress.say("note: " + disturbs);
    if (lacks_bf16_units())
      progress.say(
          "note: this processor has no units for bfloat16 GEMMs: the library's (baseline) may take "
          "many times those of f32; the label of each row says which of oneDNN's ran");
    if (options_.cold_cache && device_.description().last_level_cache_bytes == 0) {
      progress.say("note: --cold-cache overwrites " + format_bytes(CacheFlusher(device_).bytes()) +
                   ", because the size of this device's last-level cache is unknown");
    }
    if (continues_) {
      progress.say(fmt::format("{} cases are in {} already", done(), options_.journal_file));
    }
  }

  void measure_peaks(console::Progress& progress) {
    const instruments::PeaksNeeded needed = plan_.peaks_needed();
    if (peaks_.has(needed)) return;
    progress.start("measuring the peaks of this device", false);
    const auto measure = [&] { peaks_.measure(needed); };
    const auto guard = CaseGuard::of(device_, options_);
    guard ? guard->run_beside_cases("the peaks of this device", measure) : measure();
    for (const auto& type : plan_.gemm_types) {
      const auto& peak = peaks_.measured(type);
      progress.say(fmt::format("measured peak {}: {}FLOP/s ({})", type,
                               format_count(peak.per_second), peak.source));
    }
    progress.say("measured bandwidth: " + bandwidth_text(peaks_.to_json().at("measured")));
  }

  void open_journal() {
    if (options_.journal_file.empty()) return;
    if (continues_) {
      journal_ = Journal::append_to(options_.journal_file);
      return;
    }
    journal_ = Journal::create(options_.journal_file, document_.context);
  }

  // Google Benchmark calls this once for each repetition, and counts one iteration. `measured`: a
  // case or a peak.
  template <typename Measured>
  void add_case(const std::string& name, const Measured& measured, Runner& runner,
                console::Progress& progress) {
    Planned& planned = *find(name);
    if (planned.result) return;
    const auto call = [&](benchmark::State& state) {
      Outcome& outcome = planned.outcome;
      const size_t before = outcome.repetitions.size();
      outcome.interrupted = outcome.interrupted || console::interrupted();
      if (!outcome.interrupted) {
        if (before == 0) progress.start(planned.name);
        runner.repeat(measured, outcome);
        if (!outcome.failure.empty()) ask_for_fault_of_device(planned.name);
      }
      if (!outcome.failure.empty()) return state.SkipWithError(outcome.failure);
      if (outcome.repetitions.size() <= before)
        return state.SkipWithMessage(outcome.interrupted ? kInterrupted : outcome.skip);
      while (state.KeepRunning()) state.SetIterationTime(outcome.repetitions.back().seconds);
    };
    benchmark::RegisterBenchmark(name, call)->UseManualTime()->Unit(benchmark::kMillisecond);
  }

  // After an error that sticks no case can be measured, and none of the others is to blame: they
  // are left for another process.
  void ask_for_fault_of_device(const std::string& case_name) {
    const std::string fault = device_.fault();
    if (fault.empty()) return;
    device_fault_ = fmt::format("device {} computes no more since {}: {}", device_.torch().str(),
                                case_name, fault);
    console::request_interrupt();
  }

  // Comes with the repetitions of a case, and once more with Google Benchmark's aggregates of them.
  void finish_case(const benchmark::BenchmarkReporter::Run& run, console::Progress& progress) {
    // Without what Google Benchmark appends (/manual_time): that goes for every row.
    const auto planned = find(run.run_name.function_name);
    if (planned == planned_.end() || planned->result) return;
    const Outcome outcome = std::exchange(planned->outcome, {});
    // Cases that an interrupt kept from starting, or from their later repetitions, are no results:
    // a resumed run measures them anew.
    if (outcome.interrupted && outcome.failure.empty()) return;
    const CaseResult& result = planned->result.emplace(
        to_rows({planned->name, run.family_index, run.repetitions}, outcome));
    if (write_fault_.empty() && journal_) {
      try {
        journal_peaks();
        journal_->add(result);
      } catch (const std::exception& error) {
        // Throwing through Google Benchmark would lose what was measured; end the run instead.
        write_fault_ = error.what();
        console::request_interrupt();
      }
    }
    progress.finish(planned->kind, planned->weight,
                    fmt::format("{}  {}", planned->name, describe(result)));
  }

  console::ExitCode verify_all(console::Progress& progress) {
    Preparation preparation(device_, options_, &peaks_);
    size_t proofs = 0;
    size_t failures = 0;
    for (const Case& test_case : plan_.cases) {
      if (!device_fault_.empty()) {
        progress.say(device_fault_);
        return console::ExitCode::failed;
      }
      if (console::interrupted()) return console::ExitCode::interrupted;
      progress.start(test_case.name());
      const PreparedCase proved(preparation, test_case,
                                {.proof = Steps::Proof::results_and_new_inputs, .times = false});
      const Remarks& remarks = proved.remarks();
      failures += remarks.failure.empty() ? 0 : 1;
      if (!remarks.failure.empty()) ask_for_fault_of_device(test_case.name());
      proofs += remarks.failure.empty() && remarks.skip.empty() ? 1 : 0;
      const std::string outcome = !remarks.failure.empty() ? "FAILED: " + remarks.failure
                                  : !remarks.skip.empty()  ? "skipped: " + remarks.skip
                                                           : "proved";
      const auto planned = find(test_case.name());
      progress.finish(planned->kind, planned->weight);
      progress.clear();
      fmt::print("{:<70} {:>9.2e} of {:.2e} allowed  {}\n", test_case.name(),
                 proved.comparison().error, proved.comparison().allowed, outcome);
      // The next case may end the process.
      std::fflush(stdout);
    }
    progress.say(fmt::format("{} proved, {} failed, {} skipped", proofs, failures,
                             plan_.cases.size() - proofs - failures));
    return exit_code(failures > 0);
  }

  // Throws std::invalid_argument where the files of --weights are what made cases fail.
  console::ExitCode exit_code(bool failed) const {
    if (failed && options_.weights && !options_.weights->fault().empty())
      throw std::invalid_argument(fmt::format("--weights: {}", options_.weights->fault()));
    return failed ? console::ExitCode::failed : console::ExitCode::ok;
  }

  void write_result(const std::string& text) {
    if (options_.out_file.empty()) return;
    try {
      write_file_atomically(options_.out_file, text);
    } catch (const std::exception& error) {
      // What was measured is still shown.
      if (write_fault_.empty()) write_fault_ = error.what();
    }
  }

  // A run that continues this one goes past the case. The thread that else changes results is the
  // one that hangs.
  void end_hanging_case(const std::string& name, const std::string& reason) {
    const auto hanging = find(name);
    if (hanging != planned_.end() && !hanging->result) {
      Outcome outcome;
      outcome.failure = reason;
      const CaseResult& result = hanging->result.emplace(
          to_rows({name, hanging - planned_.begin(), options_.timing.repetitions}, outcome));
      if (journal_) journal_->add(result);
    }
    ResultDocument so_far = document_;
    so_far.context["peaks"] = peaks_.to_json();
    for (const Planned& planned : planned_)
      if (planned.result) so_far.results.push_back(*planned.result);
    add_all_shares(plan_.cases, peaks_, so_far.results);
    write_result(so_far.text(options_.writes_aggregates_only));
  }

  // `has_measured`: it is no run that shows again what a journal has, which is to take no time.
  console::ExitCode finish(console::Progress& progress, bool has_measured) {
    document_.context["peaks"] = peaks_.to_json();
    // in the plan's order, whether they were measured now or came from the journal
    for (Planned& planned : planned_)
      if (planned.result) document_.results.push_back(std::move(*planned.result));
    add_all_shares(plan_.cases, peaks_, document_.results);
    // before what is measured again for the speedups, and after that for the sums of parts
    write_result(document_.text(options_.writes_aggregates_only));
    const auto measure = [&](const std::vector<const Case*>& cases) {
      if (console::interrupted()) return SecondsOfRounds();
      progress.start("interleaved: " + cases.back()->name(), false);
      return time_cases_interleaved(device_, cases, options_);
    };
    add_speedups(plan_.cases, document_.results,
                 has_measured ? MeasureInterleaved(measure) : MeasureInterleaved());
    write_result(document_.text(options_.writes_aggregates_only));
    const std::string shown = options_.format == "console"
                                  ? result_tables(options_, plan_.cases, document_, step_, measure)
                                  : formatted(options_, document_);
    progress.clear();
    std::cout << shown << std::flush;
    if (!write_fault_.empty()) throw std::runtime_error(write_fault_);
    // Last, so that no line of success precedes a result that could not be written.
    if (options_.figures_of_merit)
      std::cout << figures_of_merit(plan_.cases, document_.results, console::interrupted(),
                                    planned_.size())
                << std::flush;
    if (console::interrupted()) {
      fmt::print(stderr, "{}: {} of {} cases done{}\n",
                 device_fault_.empty() ? "interrupted" : device_fault_, document_.results.size(),
                 planned_.size(),
                 options_.journal_file.empty()
                     ? ""
                     : "; continue with --resume --journal " + options_.journal_file);
      return device_fault_.empty() ? console::ExitCode::interrupted : console::ExitCode::failed;
    }
    const bool failed = std::ranges::any_of(
        document_.results, [](const CaseResult& result) { return !result.failure().empty(); });
    return exit_code(failed);
  }

  const Options& options_;
  const Plan& plan_;
  const instruments::Device& device_;
  const PartsOfStep& step_;
  instruments::MeasuredPeaks peaks_;
  ResultDocument document_;       // which gets its results at the end
  std::vector<Planned> planned_;  // peaks and cases, in the plan's order
  std::optional<Journal> journal_;
  bool continues_ = false;
  Json journaled_peaks_;
  std::string write_fault_;
  std::string device_fault_;
};

}  // namespace

console::ExitCode run_suite(const Options& options, const Plan& plan,
                            const instruments::Device& device, const PartsOfStep& step) {
  console::install_interrupt_handler();
  instruments::start_computing();
  return SuiteRun(options, plan, device, step).run();
}

}  // namespace tinyllama::harness
