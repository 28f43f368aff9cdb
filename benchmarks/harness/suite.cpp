#include "benchmarks/harness/suite.hpp"

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/harness/interleaved.hpp"
#include "benchmarks/harness/journal.hpp"
#include "benchmarks/harness/measured_peaks.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/harness/parity_gate.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/runner.hpp"
#include "benchmarks/harness/speedups.hpp"
#include "benchmarks/harness/sum_of_parts.hpp"
#include "benchmarks/harness/tables.hpp"
#include "benchmarks/harness/trace.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/host_load.hpp"

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

// A case that is still to come.
struct Work {
  std::string name;
  std::string kind;  ///< cases of one kind take as many times their `seconds` as each other
  double seconds;
};

// Progress on standard error: on a terminal a status line with the time left, elsewhere a plain
// line a case.
class Progress {
 public:
  explicit Progress(const std::vector<Work>& work);
  ~Progress();

  void say(const std::string& text);
  void start(const std::string& name);
  /// `text`: what to say of it, empty where that is said elsewhere.
  void finish(const std::string& name, const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  struct Kind {
    double left = 0;  ///< of the seconds that its cases were expected to take
    double done = 0;
    double taken = 0;
  };
  double seconds_left() const;
  void erase_status();
  bool terminal_;
  size_t total_;
  size_t done_ = 0;
  std::map<std::string, Work> work_;
  std::map<std::string, Kind> kinds_;
  Clock::time_point last_ = Clock::now();  // when what is being done began
};

std::string describe(const CaseResult& result) {
  const Json& entry = result.entries.front();
  if (entry.contains("error_occurred")) return "FAILED: " + entry.value("error_message", "");
  if (entry.contains("skipped")) return "skipped: " + entry.value("skip_message", "");
  const Json* chosen = &entry;
  for (const auto& candidate : result.entries) {
    if (candidate.value("aggregate_name", "") == "median") chosen = &candidate;
  }
  const std::string label = entry.value("label", "");
  const size_t fault = label.find(kNoTrace);
  return fmt::format("{:.4g} {}{}", chosen->value("real_time", 0.0), chosen->value("time_unit", ""),
                     fault == std::string::npos ? "" : "  " + label.substr(fault));
}

std::string format_duration(double seconds) {
  constexpr double minute = 60;
  constexpr double hour = 60 * minute;
  if (seconds < 1.5 * minute) return fmt::format("{:.0f} s", seconds);
  if (seconds < 1.5 * hour) return fmt::format("{:.0f} min", seconds / minute);
  return fmt::format("{:.1f} h", seconds / hour);
}

Progress::Progress(const std::vector<Work>& work)
    : terminal_(isatty(STDERR_FILENO) == 1), total_(work.size()) {
  for (const Work& one : work) {
    work_[one.name] = one;
    kinds_[one.kind].left += one.seconds;
  }
}

// Estimated from the time that cases of the same kind took so far or, for a kind without any, that
// all took.
double Progress::seconds_left() const {
  Kind all;
  for (const auto& [name, kind] : kinds_) {
    all.done += kind.done;
    all.taken += kind.taken;
  }
  double left = 0;
  for (const auto& [name, kind] : kinds_) {
    const Kind& known = kind.done > 0 ? kind : all;
    left += kind.left * known.taken / std::max(known.done, 1e-9);
  }
  return left;
}

Progress::~Progress() {
  erase_status();
}

void Progress::say(const std::string& text) {
  erase_status();
  fmt::print(stderr, "{}\n", text);
}

void Progress::start(const std::string& name) {
  last_ = Clock::now();
  if (!terminal_) return;
  erase_status();
  const std::string left = done_ == 0 ? "" : ", about " + format_duration(seconds_left()) + " left";
  // what is measured before and after the cases is none of them
  const std::string place =
      work_.contains(name) ? fmt::format("case {} of {}{}: ", done_ + 1, total_, left) : "";
  // A line that wraps could not be erased.
  winsize window = {};
  const size_t columns =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col : 80;
  const std::string line = fmt::format("{}{} ...", place, name);
  fmt::print(stderr, "{}", line.substr(0, columns - 1));
  std::fflush(stderr);
}

void Progress::finish(const std::string& name, const std::string& text) {
  ++done_;
  Kind& kind = kinds_[work_[name].kind];
  kind.left -= work_[name].seconds;
  kind.done += work_[name].seconds;
  const auto now = Clock::now();
  kind.taken += std::chrono::duration<double>(now - last_).count();
  last_ = now;
  if (text.empty()) return erase_status();
  say(fmt::format("[{}/{}] {}  {}", done_, total_, name, text));
}

void Progress::erase_status() {
  if (terminal_) fmt::print(stderr, "\r\033[K");
}

// The dimensions behind each name, of which `custom` says none.
Json sizes_of(const std::vector<Case>& cases) {
  Json sizes = Json::object();
  for (const Case& test_case : cases) {
    sizes[test_case.size] = dimensions_of(test_case.workload.config);
  }
  return sizes;
}

// One run of a plan, from the first message to the last.
class SuiteRun {
 public:
  SuiteRun(const Options& options, const Plan& plan, const instruments::Device& device,
           const PartsOfStep& step, const Weights* weights)
      : options_(options),
        plan_(plan),
        device_(device),
        step_(step),
        weights_(weights),
        peaks_(device, options.cold_cache) {
    document_.context = run_context(options, device, weights);
    document_.context["goals"] = goals_of(options);
    document_.context["sizes"] = sizes_of(plan.cases);
    for (const PeakCase& peak : plan.peak_cases) places_.emplace(peak.name, places_.size());
    for (const Case& test_case : plan.cases) places_.emplace(test_case.name(), places_.size());
    // Read before anything is measured: a malformed fixture must not cost a run.
    peaks_.set_datasheet(
        instruments::find_datasheet_peaks(device_peaks_file(), device.description()));
  }

  console::ExitCode run() {
    // a run that was stopped before its journal had a first line is run anew
    continues_ = options_.resume && Journal::is_begun(options_.journal_file);
    if (continues_) take_over_journal();
    console::check_output_file("--benchmark_out", options_.out_file);
    if (!options_.trace_folder.empty()) prepare_trace_folder(options_.trace_folder);
    const std::vector<Work> work = work_left();
    Progress progress(work);
    announce(progress);
    open_journal();
    if (options_.verify != Verify::only) measure_peaks(progress);
    journal_peaks();
    const RunSettings settings = run_settings();
    Runner runner(device_, peaks_, settings);
    runner.on_start([&](const Case& test_case) { progress.start(test_case.name()); });
    if (options_.verify == Verify::only) return verify_all(runner, progress);
    register_cases(runner);
    CaseReporter reporter([&](const auto& run) { finish_case(run, progress); });
    if (!work.empty()) benchmark::RunSpecifiedBenchmarks(&reporter, nullptr, ".");
    benchmark::ClearRegisteredBenchmarks();
    runner.close();
    return finish(settings, progress, !work.empty());
  }

 private:
  static std::filesystem::path device_peaks_file() {
    return std::filesystem::path(TINY_LLAMA_SOURCE_DIR) / "fixtures/device_peaks.json";
  }

  std::optional<instruments::SystemReader> sensors() const {
    if (!device_.is_gpu()) return std::nullopt;
    return instruments::system_reader(device_);
  }

  RunSettings run_settings() const {
    return {options_.verify,
            options_.seed,
            options_.memory_limit_bytes.value_or(0),
            options_.admit,
            options_.max_seconds_per_case,
            options_.cold_cache,
            weights_,
            options_.timing,
            options_.trace_folder,
            sensors()};
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
      if (places_.contains(result.name)) results_.emplace(places_.at(result.name), result);
    }
  }

  void restore_peaks(const Json& peaks) {
    try {
      peaks_.restore(peaks, plan_.cases);
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

  bool is_done(const std::string& name) const { return results_.contains(places_.at(name)); }

  std::vector<Work> work_left() const {
    std::vector<Work> work;
    for (const PeakCase& peak : plan_.peak_cases) {
      if (!is_done(peak.name)) work.push_back({peak.name, "peak", peak.shape ? 0.2 : 5.0});
    }
    for (const Case& test_case : plan_.cases) {
      if (is_done(test_case.name())) continue;
      // Half a second of preparation, and about ten times the GEMMs at 100 GFLOP/s: only the
      // proportions matter, and only within a kind. bfloat16 may be fifteen times as slow.
      const Workload& w = test_case.workload;
      work.push_back({test_case.name(), fmt::format("{} {}", w.variant.name(), to_string(w.dtype)),
                      0.5 + static_cast<double>(test_case.cost().model_flops) * 1e-10});
    }
    return work;
  }

  void announce(Progress& progress) const {
    const Json& context = document_.context;
    progress.say(fmt::format("{} ({}), {} threads, libtorch {}, commit {}{}",
                             device_.description().name, device_.description().architecture,
                             context.at("threads").dump(),
                             context.at("torch_version").get<std::string>(),
                             context.at("git_commit").get<std::string>().substr(0, 12),
                             context.at("git_dirty").get<bool>() ? " with changes" : ""));
    const std::string disturbs = instruments::what_disturbs(at::get_num_threads());
    if (!disturbs.empty()) progress.say("note: " + disturbs);
    if (continues_) {
      progress.say(
          fmt::format("{} cases are in {} already", results_.size(), options_.journal_file));
    }
  }

  void measure_peaks(Progress& progress) {
    if (peaks_.has(plan_)) return;
    progress.start("measuring the peaks of this device");
    peaks_.measure(plan_);
    for (const auto& type : plan_.gemm_types) {
      const auto& peak = peaks_.measured(type);
      progress.say(fmt::format("measured peak {}: {}FLOP/s ({})", type,
                               console::format_count(peak.per_second), peak.source));
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

  void register_cases(Runner& runner) {
    for (const PeakCase& peak : plan_.peak_cases)
      add_case(peak.name,
               [&](Outcome& outcome) { measure_peak_case(peak, peaks_, device_, outcome); });
    for (const Case& test_case : plan_.cases)
      add_case(test_case.name(), [&](Outcome& outcome) { runner.repeat(test_case, outcome); });
  }

  // Google Benchmark calls this once for each repetition, and counts one iteration.
  void add_case(const std::string& name, const std::function<void(Outcome&)>& repeat) {
    if (is_done(name)) return;
    const auto call = [&outcome = outcomes_[name], repeat](benchmark::State& state) {
      const size_t before = outcome.repetitions.size();
      repeat(outcome);
      if (!outcome.failure.empty()) return state.SkipWithError(outcome.failure);
      if (outcome.repetitions.size() <= before)
        return state.SkipWithMessage(outcome.interrupted ? kInterrupted : outcome.skip);
      while (state.KeepRunning()) state.SetIterationTime(outcome.repetitions.back().seconds);
    };
    benchmark::RegisterBenchmark(name, call)->UseManualTime()->Unit(benchmark::kMillisecond);
  }

  // Comes with the repetitions of a case, and once more with Google Benchmark's aggregates of them.
  void finish_case(const benchmark::BenchmarkReporter::Run& run, Progress& progress) {
    const auto found = outcomes_.find(run.run_name.function_name);
    if (found == outcomes_.end()) return;
    const Outcome outcome = std::move(found->second);
    outcomes_.erase(found);
    // Cases that an interrupt kept from starting, or from their later repetitions, are no results:
    // a resumed run measures them anew.
    if (outcome.interrupted && outcome.failure.empty()) return;
    // Without what Google Benchmark appends (/manual_time): that goes for every row.
    const std::string& name = run.run_name.function_name;
    CaseResult result = to_rows(name, {name, run.family_index, run.repetitions}, outcome);
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
    progress.finish(result.name, describe(result));
    const size_t place = places_.at(result.name);
    results_.emplace(place, std::move(result));
  }

  console::ExitCode verify_all(Runner& runner, Progress& progress) {
    bool failed = false;
    for (const Case& test_case : plan_.cases) {
      if (console::interrupted()) return console::ExitCode::interrupted;
      const auto verdict = runner.verify(test_case);
      failed = failed || !verdict.failure.empty();
      const std::string outcome = !verdict.failure.empty() ? "FAILED: " + verdict.failure
                                  : !verdict.skip.empty()  ? "skipped: " + verdict.skip
                                                           : "proved";
      progress.finish(test_case.name(), "");
      fmt::print("{:<70} {:>9.2e} of {:.2e} allowed  {}\n", test_case.name(),
                 verdict.comparison.error, verdict.comparison.allowed, outcome);
    }
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

  // `has_measured`: it is no run that shows again what a journal has, which is to take no time.
  console::ExitCode finish(const RunSettings& settings, Progress& progress, bool has_measured) {
    document_.context["peaks"] = peaks_.to_json();
    // in the plan's order, whether they were measured now or came from the journal
    for (auto& [place, result] : results_) document_.results.push_back(std::move(result));
    add_all_shares(plan_.cases, peaks_, document_.results);
    // before what is measured again for the speedups, and after that for the sums of parts
    write_result(document_.text(options_.writes_aggregates_only));
    const auto measure = [&](const std::vector<const Case*>& cases) {
      if (console::interrupted()) return SecondsOfRounds();
      progress.start("interleaved: " + cases.back()->name());
      return time_cases_interleaved(device_, cases, settings);
    };
    add_speedups(plan_.cases, document_.results,
                 has_measured ? MeasureInterleaved(measure) : MeasureInterleaved());
    write_result(document_.text(options_.writes_aggregates_only));
    if (options_.format == "json") {
      std::cout << document_.text(options_.writes_aggregates_only ||
                                  options_.shows_aggregates_only);
    } else {
      std::cout << result_tables(options_, plan_.cases, document_, step_, measure) << std::flush;
    }
    if (!write_fault_.empty()) throw std::runtime_error(write_fault_);
    // Last, so that no line of success precedes a result that could not be written.
    if (options_.figures_of_merit) {
      const size_t all = plan_.cases.size() + plan_.peak_cases.size();
      std::cout << figures_of_merit(plan_.cases, document_.results, console::interrupted(), all)
                << std::flush;
    }
    if (console::interrupted()) {
      fmt::print(stderr, "interrupted: {} of {} cases done{}\n", document_.results.size(),
                 plan_.cases.size() + plan_.peak_cases.size(),
                 options_.journal_file.empty()
                     ? ""
                     : "; continue with --resume --journal " + options_.journal_file);
      return console::ExitCode::interrupted;
    }
    const bool failed = std::any_of(
        document_.results.begin(), document_.results.end(),
        [](const auto& result) { return result.entries.front().contains("error_occurred"); });
    return failed ? console::ExitCode::failed : console::ExitCode::ok;
  }

  const Options& options_;
  const Plan& plan_;
  const instruments::Device& device_;
  const PartsOfStep& step_;
  const Weights* weights_;
  MeasuredPeaks peaks_;
  ResultDocument document_;                  // which gets its results at the end
  std::map<std::string, size_t> places_;     // of all cases by name, in the plan
  std::map<size_t, CaseResult> results_;     // so far, by place
  std::map<std::string, Outcome> outcomes_;  // of cases that are not over
  std::optional<Journal> journal_;
  bool continues_ = false;
  Json journaled_peaks_;
  std::string write_fault_;
};

}  // namespace

console::ExitCode run_suite(const Options& options, const Plan& plan,
                            const instruments::Device& device, const PartsOfStep& step,
                            const Weights* weights) {
  console::install_interrupt_handler();
  instruments::host_allocator::install();
  return SuiteRun(options, plan, device, step, weights).run();
}

}  // namespace tinyllama::harness
