#include "model/checkpoint_config.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "core/file_io.hpp"
#include "core/strict_json.hpp"

namespace tinyllama {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw std::invalid_argument(fmt::format("{}: {}", file.string(), what));
}

using Json = nlohmann::json;

constexpr int kDeepestNesting = 32;
// What LlamaConfig takes where a key is left out.
constexpr double kDefaultNormEps = 1e-6;
constexpr double kDefaultRopeTheta = 10000.0;

struct SizeKey {
  const char* key;
  const char* field;  // its name in ModelConfig's messages
  int64_t ModelDimensions::*size;
};
constexpr SizeKey kSizes[] = {
    {"vocab_size", "vocab_size", &ModelDimensions::vocab_size},
    {"hidden_size", "hidden_dim", &ModelDimensions::hidden_dim},
    {"num_hidden_layers", "n_layers", &ModelDimensions::n_layers},
    {"num_attention_heads", "n_heads", &ModelDimensions::n_heads},
    {"intermediate_size", "intermediate_dim", &ModelDimensions::intermediate_dim}};
constexpr SizeKey kKvHeads = {"num_key_value_heads", "n_kv_heads", &ModelDimensions::n_kv_heads};

Json parse_object(const std::filesystem::path& file, const std::string& text) {
  return parse_strict_json<Json>(text, file.string() + ":", {.depth = kDeepestNesting});
}

class ConfigReader {
 public:
  ConfigReader(const std::filesystem::path& file, const std::string& text)
      : file_(file), json_(parse_object(file, text)) {}

  ModelConfig read() const;

 private:
  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& rule) const {
    fail(file_, fmt::format("{} = {}: {}", key, printable_json(value), rule));
  }
  // Null stands for a key left out, as it does in Python.
  const Json* find(const Json& object, const char* key) const {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  void expect(const char* key, const Json& expected, const char* why) const {
    const Json* value = find(json_, key);
    if (value != nullptr && *value != expected)
      refuse(key, *value, fmt::format("must be {}: {}", expected.dump(), why));
  }
  int64_t integer(const char* key, const Json& value) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
      refuse(key, value, "must be an integer");
    }
    return value.get<int64_t>();
  }
  double real(const std::string& key, const Json& value) const {
    if (!value.is_number()) refuse(key, value, "must be a number");
    return value.get<double>();
  }
  void expect_plain_model() const;
  void expect_default_rope(const char* key) const;
  double rope_theta() const;
  int64_t padding_token(const Json& value, int64_t vocab_size) const;
  ModelConfig checked(const ModelDimensions& dimensions) const;

  const std::filesystem::path& file_;
  Json json_;
};

void ConfigReader::expect_plain_model() const {
  if (find(json_, "model_type") == nullptr)
    fail(file_, "model_type is missing: must be \"llama\"; is this a model's config.json?");
  expect("model_type", "llama", "no other model is implemented here");
  expect("tie_word_embeddings", false, "the LM head has weights of its own here");
  expect("attention_bias", false, "projections have no biases here");
  expect("mlp_bias", false, "projections have no biases here");
  expect("hidden_act", "silu", "no other activation is implemented here");
  expect("attention_dropout", 0, "dropout is not implemented here");
  expect("partial_rotary_factor", 1, "the rotary embedding rotates whole heads here");
  expect("quantization_config", nullptr, "weights must be stored as floating-point numbers");
  expect_default_rope("rope_scaling");
  expect_default_rope("rope_parameters");
}

// Older versions of transformers describe a scaled rotary embedding by rope_scaling, newer ones by
// rope_parameters, which also hold the plain embedding's theta.
void ConfigReader::expect_default_rope(const char* key) const {
  const Json* rope = find(json_, key);
  if (rope == nullptr) return;
  if (!rope->is_object()) refuse(key, *rope, "must be an object or null");
  for (const auto& [name, value] : rope->items()) {
    const bool is_plain = name == "rope_theta" || value.is_null() ||
                          ((name == "rope_type" || name == "type") && value == "default") ||
                          (name == "partial_rotary_factor" && value == 1);
    if (!is_plain) {
      refuse(fmt::format("{}.{}", key, printable(name)), value,
             "only the plain rotary embedding (rope_type \"default\") is implemented here");
    }
  }
}

double ConfigReader::rope_theta() const {
  const Json* top = find(json_, "rope_theta");
  const Json* parameters = find(json_, "rope_parameters");
  const Json* nested = parameters == nullptr ? nullptr : find(*parameters, "rope_theta");
  if (nested == nullptr) return top == nullptr ? kDefaultRopeTheta : real("rope_theta", *top);
  const double theta = real("rope_parameters.rope_theta", *nested);
  if (top != nullptr && real("rope_theta", *top) != theta)
    refuse("rope_theta", *top, fmt::format("must be rope_parameters.rope_theta = {}", theta));
  return theta;
}

// ModelConfig speaks of its own fields: translates its message into the file's keys.
ModelConfig ConfigReader::checked(const ModelDimensions& dimensions) const {
  try {
    return ModelConfig(dimensions);
  } catch (const std::invalid_argument& error) {
    std::string message = error.what();
    std::vector<SizeKey> sizes(std::begin(kSizes), std::end(kSizes));
    sizes.push_back(kKvHeads);
    for (const auto& [key, field, size] : sizes) {
      for (size_t at = 0; (at = message.find(field, at)) != std::string::npos;
           at += std::string_view(key).size()) {
        message.replace(at, std::string_view(field).size(), key);
      }
    }
    fail(file_, message);
  }
}

// As torch.nn.Embedding reads its padding_idx: a negative one counts from the end.
int64_t ConfigReader::padding_token(const Json& value, int64_t vocab_size) const {
  const int64_t token = integer("pad_token_id", value);
  if (token < -vocab_size || token >= vocab_size)
    refuse("pad_token_id", value,
           fmt::format("must be from {} to {}", -vocab_size, vocab_size - 1));
  return token < 0 ? token + vocab_size : token;
}

ModelConfig ConfigReader::read() const {
  expect_plain_model();
  ModelDimensions dimensions;
  for (const auto& [key, field, size] : kSizes) {
    const Json* value = find(json_, key);
    if (value == nullptr) fail(file_, fmt::format("{} is missing: must be an integer", key));
    dimensions.*size = integer(key, *value);
  }
  const Json* kv_heads = find(json_, kKvHeads.key);
  dimensions.n_kv_heads =
      kv_heads == nullptr ? dimensions.n_heads : integer(kKvHeads.key, *kv_heads);
  const Json* eps = find(json_, "rms_norm_eps");
  dimensions.norm_eps = eps == nullptr ? kDefaultNormEps : real("rms_norm_eps", *eps);
  dimensions.rope_theta = rope_theta();
  if (const Json* token = find(json_, "pad_token_id"))
    dimensions.padding_token = padding_token(*token, dimensions.vocab_size);
  const ModelConfig config = checked(dimensions);
  const Json* head_dim = find(json_, "head_dim");
  if (head_dim != nullptr && integer("head_dim", *head_dim) != config.head_dim()) {
    refuse("head_dim", *head_dim,
           fmt::format("must be hidden_size / num_attention_heads = {} / {} = {}",
                       config.hidden_dim(), config.n_heads(), config.head_dim()));
  }
  return config;
}

std::string python_name(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

}  // namespace

ModelConfig read_checkpoint_config(const std::filesystem::path& file) {
  return parse_checkpoint_config(file, read_text(file, kMostConfigBytes));
}

ModelConfig parse_checkpoint_config(const std::filesystem::path& file, const std::string& text) {
  return ConfigReader(file, text).read();
}

std::string longer_than_made_for(const std::string& config_text, int64_t seq) {
  const Json json = parse_object("config.json", config_text);
  const auto longest = json.find("max_position_embeddings");
  if (longest == json.end() || !longest->is_number_integer() || *longest >= seq) return {};
  return fmt::format(
      "sequences of {} tokens are longer than max_position_embeddings = {} of the model's "
      "config.json: it was not made for them; the computation is the same",
      seq, longest->dump());
}

std::string checkpoint_config_text(const ModelConfig& config, c10::ScalarType type,
                                   const std::string& original) {
  Json json = {{"architectures", {"LlamaForCausalLM"}},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"bos_token_id", 1},
               {"dtype", python_name(type)},
               {"eos_token_id", 2},
               {"head_dim", config.head_dim()},
               {"hidden_act", "silu"},
               {"hidden_size", config.hidden_dim()},
               {"initializer_range", 0.02},
               {"intermediate_size", config.intermediate_dim()},
               {"max_position_embeddings", 2048},
               {"mlp_bias", false},
               {"model_type", "llama"},
               {"num_attention_heads", config.n_heads()},
               {"num_hidden_layers", config.n_layers()},
               {"num_key_value_heads", config.n_kv_heads()},
               {"pretraining_tp", 1},
               {"rms_norm_eps", config.norm_eps()},
               {"rope_scaling", nullptr},
               {"rope_theta", config.rope_theta()},
               {"tie_word_embeddings", false},
               {"use_cache", true},
               {"vocab_size", config.vocab_size()}};
  if (!original.empty()) json.update(parse_object("config.json", original));
  json.erase("torch_dtype");  // what older versions call dtype
  json["dtype"] = python_name(type);
  return json.dump(2) + "\n";
}

}  // namespace tinyllama
