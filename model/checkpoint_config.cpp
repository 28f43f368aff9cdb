#include "model/checkpoint_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "core/file_io.hpp"
#include "core/strict_json.hpp"
#include "model/checkpoint_families.hpp"

namespace tinyllama {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw std::invalid_argument(fmt::format("{}: {}", file.string(), what));
}

using Json = nlohmann::json;
using namespace checkpoint;

constexpr int kDeepestNesting = 32;
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

struct ScalingKey {
  const char* key;
  double RopeScaling::*value;
};
constexpr ScalingKey kScalingKeys[] = {{"factor", &RopeScaling::factor},
                                       {"low_freq_factor", &RopeScaling::low_freq_factor},
                                       {"high_freq_factor", &RopeScaling::high_freq_factor}};
constexpr const char* kOriginalPositions = "original_max_position_embeddings";

// Those that a scaling has, of kScalingKeys.
size_t count_scaling_keys(RopeScaling::Type type) {
  switch (type) {
    case RopeScaling::Type::none:
      return 0;
    case RopeScaling::Type::linear:
      return 1;
    default:
      return std::size(kScalingKeys);
  }
}

const char* name_of(RopeScaling::Type type) {
  switch (type) {
    case RopeScaling::Type::none:
      return "default";
    case RopeScaling::Type::linear:
      return "linear";
    default:
      return "llama3";
  }
}

bool is_one_of(std::string_view names, std::string_view name) {
  return name.find(' ') == std::string_view::npos &&
         fmt::format(" {} ", names).find(fmt::format(" {} ", name)) != std::string::npos;
}

Json parse_object(const std::filesystem::path& file, const std::string& text) {
  return parse_strict_json<Json>(text, file.string() + ":", {.depth = kDeepestNesting});
}

const Family* find_family(const Json& model_type) {
  const auto* found = std::ranges::find_if(
      kFamilies, [&](const Family& family) { return model_type == family.model_type; });
  return found == std::end(kFamilies) ? nullptr : found;
}

class ConfigReader {
 public:
  ConfigReader(const std::filesystem::path& file, const std::string& text)
      : file_(file), json_(parse_object(file, text)), family_(family()) {}

  ModelConfig read() const;

 private:
  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& rule) const {
    fail(file_, fmt::format("{} = {}: {}", key, printable_json(value), rule));
  }
  // Null is a value of its own where a class gives it a meaning: Python's None.
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  static const Json* find_stated(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  const Json* find_stated(const char* key) const { return find_stated(json_, key); }

  int64_t integer(const std::string& key, const Json& value) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
      refuse(key, value, "must be an integer");
    }
    return value.get<int64_t>();
  }
  int64_t integer_or(const char* key, int64_t otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise : integer(key, *value);
  }
  double real(const std::string& key, const Json& value) const {
    if (!value.is_number()) refuse(key, value, "must be a number");
    return value.get<double>();
  }
  bool flag(const char* key) const {
    const Json* value = find_stated(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(key, *value, "must be true or false");
    return value->get<bool>();
  }

  const Family& family() const;
  void refuse_other_computations() const;
  void read_sizes(ModelDimensions& dimensions) const;
  std::optional<int64_t> padding_token(int64_t vocab_size) const;
  std::optional<int64_t> own_head_dim(const ModelDimensions& dimensions) const;
  std::optional<int64_t> stated_window() const;
  bool layers_have_window(int64_t n_layers, bool has_window) const;
  std::optional<std::string> layer_type(int64_t n_layers) const;
  std::string rope_type(const std::string& key, const Json& rope) const;
  RopeScaling rope_scaling(const char* key) const;
  RopeScaling rope_scaling() const;
  double rope_theta() const;
  ModelConfig checked(const ModelDimensions& dimensions) const;

  const std::filesystem::path& file_;
  Json json_;
  const Family& family_;
};

const Family& ConfigReader::family() const {
  const Json* type = find_stated("model_type");
  if (type == nullptr)
    fail(file_, fmt::format("model_type is missing: must be {}; is this a model's config.json?",
                            kOurTypes));
  if (const Family* known = find_family(*type)) return *known;
  const char* why = "no other model is implemented here";
  for (const OtherType& other : kOtherTypes) {
    if (type->is_string() && is_one_of(other.model_types, type->get<std::string>()))
      why = other.why;
  }
  refuse("model_type", *type,
         fmt::format("must be {}: {}; to measure the shapes alone, state them under one of these "
                     "types",
                     kOurTypes, why));
}

void ConfigReader::refuse_other_computations() const {
  for (const auto& [key, neutral, why, model_types] : kRefusedKeys) {
    if (!model_types.empty() && !is_one_of(model_types, family_.model_type)) continue;
    const Json* value = find_stated(key);
    if (value == nullptr || *value == Json::parse(neutral)) continue;
    refuse(key, *value,
           fmt::format("must be {}: {}; remove the key to measure the model without it", neutral,
                       why));
  }
  // A head of classes or tags in the place of the LM head; a bare model's weights have none.
  if (const Json* classes = find("architectures"); classes != nullptr && classes->is_array()) {
    for (const Json& name : *classes) {
      const std::string text = name.is_string() ? name.get<std::string>() : "";
      if (text.find("For") != std::string::npos && !text.ends_with("ForCausalLM"))
        refuse("architectures", *classes,
               "must be of a class ...ForCausalLM: no other head is implemented here; remove the "
               "key to measure the model with an LM head");
    }
  }
  // The two names of one function.
  if (const Json* activation = find("hidden_act");
      activation != nullptr && *activation != "silu" && *activation != "swish") {
    refuse("hidden_act", *activation,
           "must be \"silu\": no other activation is implemented here; remove the key to measure "
           "the model with it");
  }
}

void ConfigReader::read_sizes(ModelDimensions& dimensions) const {
  dimensions.vocab_size = family_.vocab_size;
  dimensions.hidden_dim = kDefaultHiddenSize;
  dimensions.n_layers = kDefaultLayers;
  dimensions.n_heads = kDefaultHeads;
  dimensions.intermediate_dim = family_.intermediate_size;
  for (const auto& [key, field, size] : kSizes)
    dimensions.*size = integer_or(key, dimensions.*size);
  const Json* kv_heads = find(kKvHeads.key);
  if (kv_heads == nullptr) {
    dimensions.n_kv_heads = family_.kv_heads.value_or(dimensions.n_heads);
  } else {
    dimensions.n_kv_heads =
        kv_heads->is_null() ? dimensions.n_heads : integer(kKvHeads.key, *kv_heads);
  }
}

// As torch.nn.Embedding reads its padding_idx: a negative one counts from the end.
std::optional<int64_t> ConfigReader::padding_token(int64_t vocab_size) const {
  const Json* value = find_stated("pad_token_id");
  if (value == nullptr) return std::nullopt;
  const int64_t token = integer("pad_token_id", *value);
  if (token < -vocab_size || token >= vocab_size)
    refuse("pad_token_id", *value,
           fmt::format("must be from {} to {}", -vocab_size, vocab_size - 1));
  return token < 0 ? token + vocab_size : token;
}

// None where it is hidden_size / num_attention_heads, so that equal models compare equal.
std::optional<int64_t> ConfigReader::own_head_dim(const ModelDimensions& dimensions) const {
  const Json* stated = find("head_dim");
  std::optional<int64_t> head_dim = stated == nullptr ? family_.head_dim : kDerived;
  if (stated != nullptr && !(stated->is_null() && family_.head_dim_may_be_null)) {
    if (stated->is_null())
      refuse("head_dim", *stated,
             fmt::format("must be an integer: {} fails on null; remove the key for its default",
                         family_.architecture));
    head_dim = integer("head_dim", *stated);
  }
  // Dimensions that are out of range are refused when they are checked.
  const bool divides = head_dim && dimensions.n_heads > 0 &&
                       dimensions.hidden_dim % dimensions.n_heads == 0 &&
                       dimensions.hidden_dim / dimensions.n_heads == *head_dim;
  return divides ? kDerived : head_dim;
}

// What the layers with a window have; none where the class would give none to any.
std::optional<int64_t> ConfigReader::stated_window() const {
  const bool has_flag = find_stated("use_sliding_window") != nullptr;
  const bool used = flag("use_sliding_window");
  const Json* value = find("sliding_window");
  const bool is_null = value != nullptr && value->is_null();
  switch (family_.window) {
    case Window::none:
      if (used || (value != nullptr && !is_null && !has_flag)) {
        refuse(used ? "use_sliding_window" : "sliding_window", used ? Json(true) : *value,
               fmt::format("must be {}: {} has no sliding window; remove the key, or state "
                           "model_type \"mistral\"",
                           used ? "false" : "null", family_.architecture));
      }
      return std::nullopt;
    case Window::all_layers:
      if (is_null) return std::nullopt;
      if (has_flag && !used)
        refuse("use_sliding_window", false,
               fmt::format("must be true: {} does not read it; set sliding_window to null for none",
                           family_.architecture));
      break;
    case Window::by_flag:
      if (!used || is_null) return std::nullopt;
  }
  return integer_or("sliding_window", kDefaultWindow);
}

// The one that layer_types names for every layer, if it is stated.
std::optional<std::string> ConfigReader::layer_type(int64_t n_layers) const {
  const Json* types = find_stated("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || std::ssize(*types) != n_layers)
    refuse("layer_types", *types,
           fmt::format("must be an array of num_hidden_layers = {} names", n_layers));
  for (const Json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      refuse("layer_types", *types,
             fmt::format("must hold \"full_attention\" or \"sliding_attention\" alone, not {}: no "
                         "other is implemented here",
                         printable_json(type)));
    }
    if (type != types->front()) {
      refuse("layer_types", *types,
             "must be all \"full_attention\" or all \"sliding_attention\": layers that differ are "
             "not implemented here; measure each kind in a file of its own");
    }
  }
  return types->empty() ? std::nullopt : std::optional(types->front().get<std::string>());
}

bool ConfigReader::layers_have_window(int64_t n_layers, bool has_window) const {
  const auto type = layer_type(n_layers);
  if (type == "sliding_attention" && !has_window) {
    refuse("layer_types", *find("layer_types"),
           fmt::format("must be all \"full_attention\": the other keys give {} no sliding window",
                       family_.architecture));
  }
  if (!has_window) return false;
  if (family_.window == Window::all_layers) {
    if (type == "full_attention")
      refuse("layer_types", *find("layer_types"),
             fmt::format("must be all \"sliding_attention\": {} has a window in all layers; set "
                         "sliding_window to null for none",
                         family_.architecture));
    return true;
  }
  if (type) return type == "sliding_attention";
  const int64_t first = integer_or("max_window_layers", kDefaultMaxWindowLayers);
  if (first >= n_layers) return false;
  if (first > 0) {
    refuse("max_window_layers", first,
           fmt::format("must be 0 or at least num_hidden_layers = {}: layers with and without a "
                       "window in one model are not implemented here; measure each kind in a file "
                       "of its own",
                       n_layers));
  }
  return true;
}

std::string ConfigReader::rope_type(const std::string& key, const Json& rope) const {
  const Json* newer = find_stated(rope, "rope_type");
  const Json* older = find_stated(rope, "type");
  if (newer != nullptr && older != nullptr && *newer != *older)
    refuse(key + ".type", *older, fmt::format("must be rope_type = {}", printable_json(*newer)));
  const Json* type = newer != nullptr ? newer : older;
  if (type == nullptr) return "";
  if (*type != "default" && *type != "linear" && *type != "llama3") {
    refuse(fmt::format("{}.{}", key, newer != nullptr ? "rope_type" : "type"), *type,
           fmt::format("must be \"default\", \"linear\" or \"llama3\": no other scaled rotary "
                       "embedding is implemented here; set {} to null to measure the model with "
                       "the plain one",
                       key));
  }
  return type->get<std::string>();
}

// Older versions of transformers describe a scaled rotary embedding by rope_scaling, newer ones by
// rope_parameters, which also hold the plain embedding's theta.
RopeScaling ConfigReader::rope_scaling(const char* key) const {
  const Json* rope = find_stated(key);
  if (rope == nullptr) return {};
  if (!rope->is_object()) refuse(key, *rope, "must be an object or null");
  const std::string type = rope_type(key, *rope);
  RopeScaling scaling;
  if (type == "linear") scaling.type = RopeScaling::Type::linear;
  if (type == "llama3") scaling.type = RopeScaling::Type::llama3;
  const size_t count = count_scaling_keys(scaling.type);
  const bool is_llama3 = scaling.type == RopeScaling::Type::llama3;
  std::vector<std::string> known = {"rope_type", "type", "rope_theta"};
  const auto required = [&](const char* name) -> const Json& {
    known.emplace_back(name);
    const Json* value = find_stated(*rope, name);
    if (value == nullptr)
      fail(file_, fmt::format("{}.{} is missing: must be a number where rope_type is \"{}\"", key,
                              name, type));
    return *value;
  };
  for (size_t i = 0; i < count; ++i) {
    const auto& [name, value] = kScalingKeys[i];
    scaling.*value = real(fmt::format("{}.{}", key, name), required(name));
  }
  if (is_llama3)
    scaling.original_positions =
        integer(fmt::format("{}.{}", key, kOriginalPositions), required(kOriginalPositions));
  for (const auto& [name, value] : rope->items()) {
    const std::string full = fmt::format("{}.{}", key, printable(name));
    if (value.is_null() || std::ranges::find(known, name) != known.end()) continue;
    if (name == "partial_rotary_factor") {
      if (value != 1) refuse(full, value, fmt::format("must be 1: {}", kWholeHeads));
    } else if (type.empty()) {
      refuse(full, value,
             fmt::format("rope_type is missing in {}: must be \"default\", \"linear\" or "
                         "\"llama3\"; a rotary embedding for each kind of layer is not implemented "
                         "here",
                         key));
    } else {
      refuse(full, value, fmt::format("rope_type \"{}\" has no such key; remove it", type));
    }
  }
  return scaling;
}

RopeScaling ConfigReader::rope_scaling() const {
  const RopeScaling older = rope_scaling("rope_scaling");
  const RopeScaling newer = rope_scaling("rope_parameters");
  if (find_stated("rope_scaling") == nullptr) return newer;
  if (find_stated("rope_parameters") != nullptr && older != newer)
    refuse("rope_scaling", *find("rope_scaling"),
           fmt::format("must be the same as rope_parameters = {}; remove one of them",
                       printable_json(*find("rope_parameters"))));
  return older;
}

// Wherever it stands; all places must agree.
double ConfigReader::rope_theta() const {
  std::string place;
  std::optional<double> theta;
  for (const char* object : {"rope_parameters", "rope_scaling", ""}) {
    const std::string key = *object == '\0' ? "rope_theta" : fmt::format("{}.rope_theta", object);
    const Json* holder = *object == '\0' ? &json_ : find_stated(object);
    const Json* value = holder == nullptr ? nullptr : find_stated(*holder, "rope_theta");
    if (value == nullptr) continue;
    const double stated = real(key, *value);
    if (theta && stated != *theta)
      refuse(key, *value, fmt::format("must be {} = {}", place, *theta));
    theta = stated;
    place = key;
  }
  if (!theta && find("rope_theta") != nullptr)
    refuse("rope_theta", nullptr, "must be a number; remove the key for the default, 10000");
  return theta.value_or(kDefaultRopeTheta);
}

// ModelConfig speaks of its own fields: translates its message into the file's keys.
ModelConfig ConfigReader::checked(const ModelDimensions& dimensions) const {
  try {
    return ModelConfig(dimensions);
  } catch (const std::invalid_argument& error) {
    std::string message = error.what();
    std::vector<std::pair<std::string, std::string>> names = {{"norm_eps", "rms_norm_eps"}};
    for (const auto& size : kSizes) names.emplace_back(size.field, size.key);
    names.emplace_back(kKvHeads.field, kKvHeads.key);
    if (find_stated("rope_scaling") == nullptr)
      names.emplace_back("rope_scaling", "rope_parameters");
    for (const auto& [field, key] : names) {
      for (size_t at = 0; (at = message.find(field, at)) != std::string::npos; at += key.size())
        message.replace(at, field.size(), key);
    }
    fail(file_, message);
  }
}

ModelConfig ConfigReader::read() const {
  refuse_other_computations();
  ModelDimensions dimensions;
  read_sizes(dimensions);
  const Json* eps = find("rms_norm_eps");
  dimensions.norm_eps = eps == nullptr ? kDefaultNormEps : real("rms_norm_eps", *eps);
  dimensions.rope_scaling = rope_scaling();
  dimensions.rope_theta = rope_theta();
  dimensions.own_head_dim = own_head_dim(dimensions);
  dimensions.tied_embeddings = flag("tie_word_embeddings");
  dimensions.o_bias = family_.attention_bias == AttentionBias::by_key && flag("attention_bias");
  dimensions.qkv_bias = dimensions.o_bias || family_.attention_bias == AttentionBias::qkv;
  dimensions.mlp_bias = family_.mlp_bias && flag("mlp_bias");
  dimensions.qk_norm = family_.qk_norm;
  const std::optional<int64_t> window = stated_window();
  if (layers_have_window(dimensions.n_layers, window.has_value()))
    dimensions.sliding_window = window;
  dimensions.padding_token = padding_token(dimensions.vocab_size);
  return checked(dimensions);
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

bool can_state(const Family& family, const ModelDimensions& dimensions) {
  const bool biases_fit =
      family.attention_bias == AttentionBias::by_key
          ? dimensions.qkv_bias == dimensions.o_bias
          : !dimensions.o_bias &&
                dimensions.qkv_bias == (family.attention_bias == AttentionBias::qkv);
  return biases_fit && dimensions.qk_norm == family.qk_norm &&
         (family.mlp_bias || !dimensions.mlp_bias) &&
         (family.window != Window::none || !dimensions.sliding_window);
}

// The original's, where it can state the features.
const Family& family_of(const ModelDimensions& dimensions, const Json& original) {
  if (dimensions.whole_vocab || dimensions.only_layers)
    throw std::invalid_argument(
        fmt::format("config.json: {}: a share of a model has no configuration of its own",
                    dimensions.whole_vocab ? "whole_vocab is set" : "only_layers = true"));
  if (original.contains("model_type")) {
    const Family* family = find_family(original.at("model_type"));
    if (family != nullptr && can_state(*family, dimensions)) return *family;
  }
  for (const Family& family : kFamilies) {
    if (can_state(family, dimensions)) return family;
  }
  std::string features;
  for (const auto& [name, is_set] :
       {std::pair("qkv_bias", dimensions.qkv_bias), std::pair("o_bias", dimensions.o_bias),
        std::pair("mlp_bias", dimensions.mlp_bias), std::pair("qk_norm", dimensions.qk_norm),
        std::pair("sliding_window", dimensions.sliding_window.has_value())}) {
    if (is_set) features += (features.empty() ? "" : " and ") + std::string(name);
  }
  throw std::invalid_argument(
      fmt::format("config.json: {} and no other feature: model_type must be {}, and none of them "
                  "is such a model",
                  features, kOurTypes));
}

Json scaling_json(const RopeScaling& scaling) {
  if (scaling.type == RopeScaling::Type::none) return nullptr;
  Json json = {{"rope_type", name_of(scaling.type)}};
  for (size_t i = 0; i < count_scaling_keys(scaling.type); ++i)
    json[kScalingKeys[i].key] = scaling.*kScalingKeys[i].value;
  if (scaling.type == RopeScaling::Type::llama3)
    json[kOriginalPositions] = scaling.original_positions;
  return json;
}

// What the family states in keys that not all have.
void add_features(Json& json, const Family& family, const ModelDimensions& dimensions) {
  if (family.attention_bias == AttentionBias::by_key) json["attention_bias"] = dimensions.qkv_bias;
  if (family.mlp_bias) json["mlp_bias"] = dimensions.mlp_bias;
  if (family.window == Window::none) return;
  json["sliding_window"] = dimensions.sliding_window ? Json(*dimensions.sliding_window) : Json();
  if (family.window == Window::all_layers) return;
  json["use_sliding_window"] = dimensions.sliding_window.has_value();
  if (dimensions.sliding_window) json["max_window_layers"] = 0;
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
  const Json kept = original.empty() ? Json::object() : parse_object("config.json", original);
  const Family& family = family_of(config.dimensions(), kept);
  const std::optional<int64_t> padding = config.padding_token();
  Json json = {{"architectures", {family.architecture}},
               {"attention_dropout", 0.0},
               {"bos_token_id", 1},
               {"eos_token_id", 2},
               {"head_dim", config.head_dim()},
               {"hidden_act", "silu"},
               {"hidden_size", config.hidden_dim()},
               {"initializer_range", 0.02},
               {"intermediate_size", config.intermediate_dim()},
               {"max_position_embeddings", 2048},
               {"model_type", family.model_type},
               {"num_attention_heads", config.n_heads()},
               {"num_hidden_layers", config.n_layers()},
               {"num_key_value_heads", config.n_kv_heads()},
               {"pretraining_tp", 1},
               {"rms_norm_eps", config.norm_eps()},
               {"rope_scaling", scaling_json(config.rope_scaling())},
               {"rope_theta", config.rope_theta()},
               {"tie_word_embeddings", config.tied_embeddings()},
               {"use_cache", true},
               {"vocab_size", config.vocab_size()}};
  if (padding) json["pad_token_id"] = *padding;
  add_features(json, family, config.dimensions());
  json.update(kept);
  json.erase("torch_dtype");  // what older versions call dtype
  json["dtype"] = python_name(type);
  const std::string text = json.dump(2) + "\n";
  if (parse_checkpoint_config("config.json", text) != config)
    throw std::invalid_argument(
        "config.json: the original states another model than the one to be written");
  return text;
}

}  // namespace tinyllama
