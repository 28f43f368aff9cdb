// Sizes of a LLaMA model, checked when constructed, and the named problem sizes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tinyllama {

/// The sizes as a user writes them; nothing is checked yet. The defaults are the workshop's `tiny`.
struct ModelDimensions {
  int64_t vocab_size = 1000;       ///< V
  int64_t hidden_dim = 256;        ///< D
  int64_t n_layers = 4;            ///< L
  int64_t n_heads = 8;             ///< H
  int64_t n_kv_heads = 4;          ///< KV heads; H / KV query heads share one
  int64_t intermediate_dim = 512;  ///< D_ff
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  /// The token whose row of the embedding gets no gradient (pad_token_id); none of the named sizes
  /// has one.
  std::optional<int64_t> padding_token{};

  auto operator<=>(const ModelDimensions&) const = default;
};

/// Dimensions that keep the model's rules: all positive, heads divide D, KV heads divide heads, an
/// even head_dim.
class ModelConfig {
 public:
  /// Throws std::invalid_argument that names the field, its value and the rule.
  explicit ModelConfig(const ModelDimensions& dimensions = {});

  int64_t vocab_size() const { return dimensions_.vocab_size; }
  int64_t hidden_dim() const { return dimensions_.hidden_dim; }
  int64_t n_layers() const { return dimensions_.n_layers; }
  int64_t n_heads() const { return dimensions_.n_heads; }
  int64_t n_kv_heads() const { return dimensions_.n_kv_heads; }
  int64_t intermediate_dim() const { return dimensions_.intermediate_dim; }
  double norm_eps() const { return dimensions_.norm_eps; }
  double rope_theta() const { return dimensions_.rope_theta; }
  std::optional<int64_t> padding_token() const { return dimensions_.padding_token; }

  int64_t head_dim() const { return hidden_dim() / n_heads(); }
  /// Width of the K and of the V projection: head_dim x KV heads.
  int64_t kv_dim() const { return head_dim() * n_kv_heads(); }
  /// Query heads that share one KV head.
  int64_t n_groups() const { return n_heads() / n_kv_heads(); }

  const ModelDimensions& dimensions() const { return dimensions_; }
  auto operator<=>(const ModelConfig&) const = default;

 private:
  ModelDimensions dimensions_;
};

/// Throws std::invalid_argument unless batch and seq are at least 1.
void check_batch_and_seq(int64_t batch, int64_t seq);

/// One of the named sizes (tiny, small, ...) that fixtures/problem_sizes.json holds.
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
