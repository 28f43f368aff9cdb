// The operators of a trace that somebody recorded: an execution trace of libtorch's observer
// (Chakra), or a Chrome trace of its profiler with shapes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tinyllama::harness {

struct RecordedInput {
  std::vector<int64_t> sizes{};
  std::vector<int64_t> strides{};  ///< empty where the trace has none
  std::string type{};              ///< of a tensor's elements, as libtorch names it: "float"
  std::string value{};             ///< of what is no tensor, as text: "true", "0.5"
  bool is_tensor() const { return !type.empty(); }
};

struct RecordedOperator {
  std::string name;
  std::vector<RecordedInput> inputs;
  int64_t caller = -1;  ///< the operator that called it, an index into the trace's; -1: none
  double seconds = 0;   ///< 0 where the trace has no times
};

struct RecordedTrace {
  std::string format;  ///< "Chakra 1.1.1-chakra.0.0.4", "Chrome"
  std::vector<RecordedOperator> operators;
  /// Of a Chrome trace, from the first operator's beginning to the last one's end; else 0.
  double seconds = 0;
  /// Kernels of a GPU ran: then an operator's time is only that of its launch.
  bool has_kernels = false;
};

/// Throws std::invalid_argument that names the file and what is wrong: it cannot be read, is empty,
/// no JSON or cut off, no such trace, of another schema, has a malformed operator, none at all, or
/// none with shapes. Memory holds the operators and never the whole text.
RecordedTrace read_recorded_trace(const std::filesystem::path& file);

}  // namespace tinyllama::harness
