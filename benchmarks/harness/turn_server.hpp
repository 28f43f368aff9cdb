// Cases that stay open, and are timed a short turn at a time: what two programs that take turns on
// one machine are made of. docs/turns.md has the protocol.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/peak_book.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/runner.hpp"
#include "benchmarks/harness/turn_request.hpp"

namespace tinyllama::harness {

class TurnServer {
 public:
  /// `cases` must outlive it. Of the settings, `verify` is not looked at: the requests say it.
  TurnServer(const instruments::Device& device, const std::vector<Case>& cases,
             const RunSettings& settings);
  ~TurnServer();

  /// The answer to one line: what was asked for, "skipped", "failed", or "error" for a request that
  /// is none. What a case throws ends that case only.
  Json answer(const std::string& line);

 private:
  struct OpenCase;
  Json open(const TurnRequest& request);
  Json time(const TurnRequest& request);
  Json close(const TurnRequest& request);
  const Case& find_case(const std::string& name) const;
  OpenCase& find_open(const std::string& name);
  /// What open cases use: neither free nor left of the user's limit.
  int64_t live_bytes() const;
  std::string refuse(const Case& planned) const;
  Runner::Verdict verify(const Case& planned);
  void prepare(const TurnRequest& request, OpenCase& opened, Json& answer);
  void drop(const std::string& name);

  instruments::Device device_;
  const std::vector<Case>& cases_;
  RunSettings settings_;
  PeakBook no_peaks_;
  std::unique_ptr<Runner> prover_;  // made when the first proof is asked for
  std::unique_ptr<CacheFlusher> flusher_;
  std::map<std::string, OpenCase> open_;
};

}  // namespace tinyllama::harness
