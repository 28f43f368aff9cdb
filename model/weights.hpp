// The weights of a model in a folder, as LlamaForCausalLM.save_pretrained writes it: config.json
// and model.safetensors, or shards of it with model.safetensors.index.json.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <map>
#include <optional>
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

/// A folder of weights, checked as a whole when it is opened: every parameter of the model that
/// config.json describes is there in its shape and a floating-point type, and nothing else but the
/// rotary embedding's inv_freq, which older versions stored and which is not read. The values stay
/// on the disk until they are asked for; a file replaced meanwhile does not matter.
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
  /// 16 hexadecimal digits that differ between weights of other values, types or names, however
  /// they are cut into shards. Reads every value. Not cryptographic.
  std::string fingerprint() const;

  /// One parameter on the CPU in the stored type, by LlamaForCausalLM's name for it. Throws
  /// std::invalid_argument for an unknown name, std::runtime_error where it cannot be read.
  at::Tensor read(const std::string& name) const;
  /// Every parameter, in the order of TinyLlama::parameters().
  NamedTensors read_all() const;

  /// Overwrites each parameter by the weights of its name, converted to its type; with `rounding`
  /// through that type first, so that a wider model has the values that a narrower one gets.
  /// Autograd does not see it. Throws as read() does; std::invalid_argument naming file and tensor
  /// where the shapes differ, a weight is not finite or too large for the type.
  void copy_to(const NamedTensors& parameters,
               std::optional<c10::ScalarType> rounding = std::nullopt) const;

 private:
  void open_files();
  void open_shards(const std::filesystem::path& index);
  void check_fit() const;
  const SafetensorsFile& file_with(const std::string& name) const;

  std::filesystem::path folder_;
  std::string config_text_;
  ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> file_of_;
};

/// Writes config.json and model.safetensors into `folder`, which is created where it is missing;
/// LlamaForCausalLM.from_pretrained loads it. `original_config`: Weights::config_text() of weights
/// that were read; its further keys are kept. Throws std::invalid_argument that names the tensor
/// where the tensors are not the parameters of `config`, and std::runtime_error naming file and
/// cause where a file cannot be written.
void save_weights(const std::filesystem::path& folder, const ModelConfig& config,
                  const NamedTensors& tensors, const std::string& original_config = {});

}  // namespace tinyllama
