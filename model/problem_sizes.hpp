// The named problem sizes (tiny, small, ...) that fixtures/problem_sizes.json holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/config.hpp"

namespace tinyllama {

struct ProblemSize {
  std::string name;
  ModelConfig config;
  int64_t batch;  ///< samples in a step, unless the user asks for others
  int64_t seq;    ///< tokens in a sample, likewise
};

/// Reads the sizes in the file's order. Throws std::invalid_argument that names the file, the size,
/// the key, its value and the rule when the file is missing, not JSON, lacks a key, has an unknown
/// one, or holds a value of the wrong type or range.
std::vector<ProblemSize> load_problem_sizes(const std::filesystem::path& file);

}  // namespace tinyllama
