// The weights of a model in a folder, as LlamaForCausalLM.save_pretrained writes it: config.json
// and model.safetensors, or shards of it with model.safetensors.index.json.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/checkpoint_config.hpp"
#include "model/config.hpp"
#include "model/parameters.hpp"
#include "model/safetensors.hpp"

namespace tinyllama {

struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
};
/// Names and shapes of TinyLlama's parameters, in their order, without allocating any.
std::vector<ParameterShape> parameter_shapes(const ModelConfig& config);

/// A folder of weights. It is checked as a whole when it is opened, of which config.json, the index
/// and the files' headers are read: every parameter of the model that config.json describes is
/// there in its shape and a floating-point type, of which any mixture will do, and nothing else but
/// what not_read() tells of. The values stay on the disk until they are asked for; a file replaced
/// meanwhile does not matter.
///
/// Names are those of LlamaForCausalLM, or the same without the leading `model.`, as a LlamaModel
/// alone is saved. A model with tied embeddings may have its one table as
/// `model.embed_tokens.weight`, as `lm_head.weight`, or as both: the first of them is read then.
class Weights {
 public:
  /// `folder` may also be a model's in Hugging Face's cache of downloads (models--OWNER--NAME).
  /// Throws std::invalid_argument that names the file, the tensor or key, and the rule; of tensors
  /// that do not fit it lists the first five, and of a folder without a model it says what is there
  /// and where the nearest model is.
  explicit Weights(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  /// config.json as it is, for save_weights() to keep what a ModelConfig does not hold.
  const std::string& config_text() const { return config_text_; }
  /// How many tensors are no parameters and not read, and the first of them, in words; empty where
  /// there are none. These are the rotary embedding's inv_freq, which older versions stored, and
  /// the LM head beside the table that it is tied to.
  std::string not_read() const;
  /// 16 hexadecimal digits that differ between weights of other values, types or names, however
  /// they are cut into shards. Reads every value of up to 1 GiB of them; of more, a sample, which
  /// may miss a change of single values. Not cryptographic.
  std::string fingerprint() const;
  /// Of what each tensor gives the fingerprint, in words; empty where it is of every value.
  std::string fingerprint_sample() const;

  /// One parameter on the CPU in the stored type, by LlamaForCausalLM's name for it. Throws
  /// std::invalid_argument for an unknown name, std::runtime_error where it cannot be read.
  at::Tensor read(const std::string& name) const;
  /// Every parameter, in the order of TinyLlama::parameters().
  NamedTensors read_all() const;

  /// Overwrites each parameter by the weights of its name, converted to its type; with `rounding`
  /// through that type first, so that a wider model has the values that a narrower one gets. With
  /// `share`, the shapes of one rank of a tensor-parallel model, a parameter that such a model
  /// divides takes the first rank's part of the stored tensor: the first rows of q, k, v, gate, up,
  /// the embedding and the LM head, of which no others are read, the first columns of o and down.
  ///
  /// Needs 64 MiB beside the parameters; autograd does not see it. Throws as read() does;
  /// std::invalid_argument naming file and tensor where the shapes differ otherwise, a weight is
  /// not finite or too large for the type, and then may have overwritten others.
  void copy_to(const NamedTensors& parameters,
               std::optional<c10::ScalarType> rounding = std::nullopt,
               const ModelConfig* share = nullptr) const;
  /// What copy_to() first found wrong with the files' values, for those who go on after it threw;
  /// empty so far where it found nothing.
  const std::string& fault() const { return fault_; }

 private:
  // Where a parameter is stored.
  struct Place {
    size_t file;
    std::string name;
  };

  void open_files();
  void open_shards(const std::filesystem::path& index);
  void find_parameters();
  const Place& place_of(const std::string& parameter) const;
  void check_shape(const std::string& name, const at::Tensor& parameter,
                   const ModelConfig* share) const;
  int64_t bytes() const;

  std::filesystem::path folder_;
  std::string config_text_;
  ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_;  // by LlamaForCausalLM's names
  std::set<std::string> not_read_;
  mutable std::string fault_;
};

/// Writes config.json and model.safetensors into `folder`, which is created where it is missing;
/// LlamaForCausalLM.from_pretrained loads it. `original_config`: Weights::config_text() of weights
/// that were read; its further keys are kept. Throws std::invalid_argument that names the tensor
/// where the tensors are not the parameters of `config`, and std::runtime_error naming file and
/// cause where a file cannot be written.
void save_weights(const std::filesystem::path& folder, const ModelConfig& config,
                  const NamedTensors& tensors, const std::string& original_config = {});

}  // namespace tinyllama
