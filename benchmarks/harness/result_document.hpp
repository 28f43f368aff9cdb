// The result file: Google Benchmark's own JSON with our context, written whole or not at all.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tinyllama::harness {

using Json = nlohmann::ordered_json;

/// Format of context and counters; results/schema.json describes it.
inline constexpr int kSchemaVersion = 2;

struct CaseResult {
  std::string name;              ///< the plan's name of the case
  Json entries = Json::array();  ///< Google Benchmark's objects: every repetition, aggregates, or
                                 ///< one skip or failure
};

struct ResultDocument {
  Json context;
  std::vector<CaseResult> results;
  std::string text() const;
};

/// Writes to a neighbour file and renames it. Throws std::runtime_error that names the file and the
/// system's reason.
void write_file_atomically(const std::filesystem::path& file, const std::string& text);

}  // namespace tinyllama::harness
