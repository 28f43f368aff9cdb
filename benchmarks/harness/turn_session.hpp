// The conversation of the resident program with its client: lines of JSON over two pipes.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/plan.hpp"
#include "benchmarks/instruments/device.hpp"
#include "model/weights.hpp"

namespace tinyllama::harness {

/// Lines of a file descriptor. Waits without using the processor, and stops waiting when the
/// program is interrupted.
class LineInput {
 public:
  explicit LineInput(int descriptor) : descriptor_(descriptor) {}
  /// The next line without its end; nothing at the end of input or after an interrupt. A last line
  /// without an end is none. Of a line longer than kLongestLine only its beginning is kept.
  std::optional<std::string> next();

  static constexpr size_t kLongestLine = size_t{1} << 16;

 private:
  bool read_more();

  int descriptor_;
  std::string pending_;
};

/// Writes lines to what was standard output, at once; what others print there goes to standard
/// error from now on.
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
console::ExitCode serve_turns(const Options& options, const Plan& plan,
                              const instruments::Device& device, const Weights* weights);

}  // namespace tinyllama::harness
