// Every reader of what others wrote, by name, for whatever bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tinyllama::fuzzing {

std::vector<std::string> reader_names();

/// Lets the reader of this name read these bytes. What is wrong with how it refused them, or with
/// what it read; empty where nothing is. Throws std::out_of_range for an unknown name.
std::string read_with(const std::string& reader, std::string_view bytes);

}  // namespace tinyllama::fuzzing
