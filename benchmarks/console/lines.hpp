// A conversation in lines: requests from a descriptor, answers alone on standard output.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/file_io.hpp"

namespace tinyllama::console {

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
  FileDescriptor output_;
};

}  // namespace tinyllama::console
