// Sizes of a LLaMA model, checked when constructed, and the named problem sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tinyllama {

/// How the rotary embedding's frequencies are stretched for sequences that are longer than those of
/// the first training: not at all, all by `factor`, or as Llama 3.1 does, low frequencies by
/// `factor`, high ones not, and those between by a share of it.
struct RopeScaling {
  enum class Type : uint8_t { none, linear, llama3 };
  Type type = Type::none;
  double factor = 1;
  // llama3: a frequency is low (high) where the positions of the first training hold fewer (more)
  // of its turns than this.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 8192;

  auto operator<=>(const RopeScaling&) const = default;
};

/// The sizes as a user writes them; nothing is checked yet. The defaults are the workshop's `tiny`,
/// which has none of the features below: those of published families of models.
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
  /// Of its own; else hidden_dim / n_heads.
  std::optional<int64_t> own_head_dim{};
  /// The LM head multiplies by the embedding's table: one parameter, whose gradients are summed.
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  /// RMSNorm of each head of q and of k before the rotation.
  bool qk_norm = false;
  /// So many positions a query looks at, its own and those before it; else at all before it.
  std::optional<int64_t> sliding_window{};
  RopeScaling rope_scaling{};
  /// One rank's share of a model whose vocabulary is divided: how many tokens the whole has;
  /// vocab_size of them, the first, are the rank's.
  std::optional<int64_t> whole_vocab{};
  /// How many ranks have each KV head, of which there are fewer than ranks.
  int64_t kv_head_ranks = 1;
  /// A stage between others of a pipeline: layers alone, no embedding, final norm or LM head.
  bool only_layers = false;

  auto operator<=>(const ModelDimensions&) const = default;
};

/// Dimensions that keep the model's rules: all positive, KV heads divide heads, an even head_dim,
/// and heads divide D where head_dim is not given.
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

  bool tied_embeddings() const { return dimensions_.tied_embeddings; }
  bool qkv_bias() const { return dimensions_.qkv_bias; }
  bool o_bias() const { return dimensions_.o_bias; }
  bool mlp_bias() const { return dimensions_.mlp_bias; }
  bool qk_norm() const { return dimensions_.qk_norm; }
  const RopeScaling& rope_scaling() const { return dimensions_.rope_scaling; }
  int64_t kv_head_ranks() const { return dimensions_.kv_head_ranks; }
  bool only_layers() const { return dimensions_.only_layers; }

  int64_t head_dim() const { return dimensions_.own_head_dim.value_or(hidden_dim() / n_heads()); }
  /// Width of the Q projection, and of what the heads give: head_dim x heads.
  int64_t q_dim() const { return head_dim() * n_heads(); }
  /// Width of the K and of the V projection: head_dim x KV heads.
  int64_t kv_dim() const { return head_dim() * n_kv_heads(); }
  /// Query heads that share one KV head.
  int64_t n_groups() const { return n_heads() / n_kv_heads(); }
  /// Tokens are drawn from so many.
  int64_t token_count() const { return dimensions_.whole_vocab.value_or(vocab_size()); }
  bool has_vocabulary_share() const { return token_count() > vocab_size(); }
  /// Positions that a query looks at in a sequence of `seq` tokens, at most; `seq` where no window
  /// hides any.
  int64_t window(int64_t seq) const {
    return std::min(seq, dimensions_.sliding_window.value_or(seq));
  }

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
  /// Of the config.json that states it; empty where none does.
  std::string config_text{};
};

/// Reads the sizes in the file's order. Throws std::invalid_argument that names the file, the size,
/// the key, its value and the rule when the file is missing, not JSON, lacks a key, has an unknown
/// one, or holds a value of the wrong type or range.
std::vector<ProblemSize> load_problem_sizes(const std::filesystem::path& file);

}  // namespace tinyllama
