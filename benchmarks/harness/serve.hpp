// The resident program (--serve): keeps cases open and times them for a short while on request.
// scripts/compare run interleaves two such programs. docs/serve.md has the protocol.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/prepared_case.hpp"
#include "benchmarks/harness/rows.hpp"

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
  /// All references must outlive it.
  Server(const instruments::Device& device, const std::vector<Case>& cases, const Options& options);

  /// The answer to one line: what was asked for, "skipped", "failed", or "error" for an invalid
  /// request. An exception of a case ends that case only.
  Json answer(const std::string& line);

 private:
  Json open(const ServeRequest& request);
  Json time(const ServeRequest& request);
  Json close(const ServeRequest& request);
  const Case& find_case(const std::string& name) const;
  PreparedCase& find_open(const std::string& name);
  /// The answer says why, where the case itself is the reason.
  Json drop(const std::string& name);

  const std::vector<Case>& cases_;
  Preparation preparation_;
  std::map<std::string, PreparedCase> open_;
};

/// Says which cases there are and answers requests until its input ends (status 0), nobody reads
/// its answers (0), or a signal comes (130). Throws std::invalid_argument for a plan without cases.
console::ExitCode serve(const Options& options, const Plan& plan,
                        const instruments::Device& device);

}  // namespace tinyllama::harness
