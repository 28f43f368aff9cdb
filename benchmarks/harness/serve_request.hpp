// A request to the resident program (--serve): one line, one JSON object; docs/serve.md has the
// protocol.
#pragma once

#include <string>

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

}  // namespace tinyllama::harness
