// Published models by their names, as fixtures/models.json states them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/config.hpp"

namespace tinyllama {

struct PublishedModel {
  ProblemSize size;
  std::string source;  ///< address of its config.json
  int64_t parameters;  ///< the published count, tied embeddings once
};

/// The file, read and checked once: that every entry has its keys, in their types and ranges. What
/// a model's config says is checked when the model is asked for.
class PublishedModels {
 public:
  /// Throws std::invalid_argument that names the file, the model, the key, its value and the rule.
  explicit PublishedModels(const std::filesystem::path& file);

  /// In the file's order.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  /// Throws std::out_of_range for an unknown name, and what parse_checkpoint_config() throws.
  PublishedModel read(const std::string& name) const;

 private:
  struct Entry {
    std::string name;
    std::string source;
    int64_t parameters;
    int64_t batch;
    int64_t seq;
    std::string config_text;
  };
  std::filesystem::path file_;
  std::vector<Entry> entries_;
};

}  // namespace tinyllama
