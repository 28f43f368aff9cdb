// The resident program (--serve): keeps cases open and times them for a short while on request.
// scripts/compare run interleaves two such programs. docs/serve.md has the protocol.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/measured_peaks.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/runner.hpp"

namespace tinyllama::harness {

struct ServeRequest {
  enum class Action { open, time, close };
  Action action = Action::open;
  std::string case_name;
  bool verify = false;  ///< open: prove the case first
  bool meter = false;   ///< open: answer with its fixed counters
  double seconds = 0;   ///< time: for how long
};

/// Reads one line. Throws std::invalid_argument, whose message names the value and the rule, for an
/// invalid request. `most_seconds`: the longest time that a request may ask for.
ServeRequest parse_serve_request(const std::string& line, double most_seconds);

class Server {
 public:
  /// Throws std::invalid_argument for a slowdown whose regular expression is malformed or matches
  /// no case. `cases` must outlive it. `settings.verify` is ignored: each request says whether to
  /// verify.
  Server(const instruments::Device& device, const std::vector<Case>& cases,
         const RunSettings& settings, const std::vector<KnownSlowdown>& slow = {});
  ~Server();

  /// The answer to one line: what was asked for, "skipped", "failed", or "error" for an invalid
  /// request. An exception of a case ends that case only.
  Json answer(const std::string& line);

 private:
  Json open(const ServeRequest& request);
  Json time(const ServeRequest& request);
  Json close(const ServeRequest& request);
  const Case& find_case(const std::string& name) const;
  CaseWork& find_open(const std::string& name);
  /// Bytes that open cases hold, which count against the user's limit.
  int64_t live_bytes() const;
  std::string refuse(const Case& test_case) const;
  Runner::Verdict verify(const Case& test_case);
  Json prepare(const ServeRequest& request, const Case& test_case);
  void drop(const std::string& name);

  instruments::Device device_;
  const std::vector<Case>& cases_;
  RunSettings settings_;
  MeasuredPeaks no_peaks_;
  std::unique_ptr<Runner> prover_;  // made when the first proof is asked for
  std::unique_ptr<CacheFlusher> flusher_;
  std::map<std::string, CaseWork> open_;
  std::map<std::string, double> slowed_;  // fractions, by case
};

/// Lines of a file descriptor. Waits without using the processor, and stops waiting when the
/// program is interrupted.
class LineInput {
 public:
  explicit LineInput(int descriptor) : descriptor_(descriptor) {}
  /// The next line without its end; nothing at the end of input or after an interrupt. A last line
  /// without a line break is dropped; a line longer than kLongestLine is cut.
  std::optional<std::string> next();

  static constexpr size_t kLongestLine = size_t{1} << 16;

 private:
  bool read_more();

  int descriptor_;
  std::string pending_;
};

/// Takes over standard output: lines are written at once, and whatever else the program prints
/// there goes to standard error.
class LineOutput {
 public:
  /// Throws std::system_error where the system refuses the descriptors.
  LineOutput();
  ~LineOutput();
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;
  /// False if nobody reads any more.
  bool write(const nlohmann::ordered_json& line);

 private:
  int descriptor_ = -1;
};

/// Says which cases there are and answers requests until its input ends (status 0), nobody reads
/// its answers (0), or a signal comes (130). Throws std::invalid_argument for a plan without cases.
console::ExitCode serve(const Options& options, const Plan& plan, const instruments::Device& device,
                        const Weights* weights);

}  // namespace tinyllama::harness
