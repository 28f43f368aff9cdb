// Every reader of what others wrote, by name, for whatever bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tinyllama::fuzzing {

std::vector<std::string> reader_names();

struct Reading {
  bool is_refused = false;
  std::string fault;  ///< of how it was refused, or of what was read; empty where there is none
};

/// Lets the reader of this name read these bytes. Throws std::out_of_range for an unknown name.
Reading read_with(const std::string& reader, std::string_view bytes);

}  // namespace tinyllama::fuzzing
