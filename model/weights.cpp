#include "model/weights.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/digest.hpp"
#include "core/file_io.hpp"
#include "core/strict_json.hpp"

namespace tinyllama {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw std::invalid_argument(fmt::format("{}: {}", file.string(), what));
}

using Json = nlohmann::json;

constexpr int kDeepestNesting = 32;
// A config.json is a few kilobytes; a longer file is another one.
constexpr int64_t kMostConfigBytes = 1'000'000;
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
  return ConfigReader(file, read_text(file, kMostConfigBytes)).read();
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

namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr int64_t kMostIndexBytes = 100'000'000;
constexpr size_t kListedProblems = 5;

// What is wrong with a set of tensors; the first few in words.
class Problems {
 public:
  void add(const std::string& problem) {
    if (++count_ <= kListedProblems) listed_.push_back(problem);
  }
  // Throws if there are any.
  void report(const std::string& where) const {
    if (count_ == 0) return;
    const std::string more =
        count_ > kListedProblems ? fmt::format("; and {} more", count_ - kListedProblems) : "";
    throw std::invalid_argument(fmt::format("{}: {}{}", where, fmt::join(listed_, "; "), more));
  }

 private:
  std::vector<std::string> listed_;
  size_t count_ = 0;
};

struct Found {
  std::vector<int64_t> shape;
  bool is_floating;
};

// Throws, with `where` before the list, unless these are the model's parameters.
void check_parameters(const ModelConfig& config, const std::map<std::string, Found>& found,
                      const std::string& where) {
  // Before names are made for a layer count that may be nonsense.
  if (config.n_layers() > std::ssize(found)) {
    throw std::invalid_argument(fmt::format("{}: {} layers, but there are only {} tensors", where,
                                            config.n_layers(), found.size()));
  }
  Problems problems;
  std::set<std::string_view> known;
  const auto parameters = parameter_shapes(config);
  for (const auto& [name, shape] : parameters) {
    known.insert(name);
    const auto entry = found.find(name);
    if (entry == found.end()) {
      problems.add(fmt::format("tensor '{}' of shape {} is missing", name, to_text(shape)));
    } else if (entry->second.shape != shape) {
      problems.add(fmt::format("tensor '{}' has shape {}: must have {}", name,
                               to_text(entry->second.shape), to_text(shape)));
    } else if (!entry->second.is_floating) {
      problems.add(
          fmt::format("tensor '{}' holds integers: must hold floating-point numbers", name));
    }
  }
  for (const auto& [name, entry] : found) {
    if (!known.contains(name) && !name.ends_with(".self_attn.rotary_emb.inv_freq"))
      problems.add(fmt::format("tensor '{}' is not part of the model", printable(name)));
  }
  problems.report(where);
}

// A weight that is no number, or one that became infinite, would fail much later, as a wrong
// result.
void check_finite(const at::Tensor& values, const std::string& tensor,
                  const std::filesystem::path& file) {
  const at::Tensor wrong = at::isfinite(values).logical_not_();
  const auto count = wrong.sum().item<int64_t>();
  if (count == 0) return;
  const at::Tensor at = wrong.nonzero()[0].contiguous();
  fail(file, fmt::format("tensor '{}' holds {} at {}{}: weights must be finite", tensor,
                         values.masked_select(wrong)[0].item<double>(),
                         to_text({at.const_data_ptr<int64_t>(), static_cast<size_t>(at.numel())}),
                         count > 1 ? fmt::format(" and {} more such values", count - 1) : ""));
}

at::Tensor convert(const at::Tensor& values, c10::ScalarType type, const std::string& tensor,
                   const std::filesystem::path& file) {
  const at::Tensor converted = values.to(type);
  const bool holds_all = c10::promoteTypes(values.scalar_type(), type) == type;
  if (!holds_all && at::isinf(converted).any().item<bool>()) {
    fail(file, fmt::format("tensor '{}' holds a value of magnitude {}: too large for {}", tensor,
                           values.abs().max().item<double>(), c10::toString(type)));
  }
  return converted;
}

}  // namespace

std::vector<ParameterShape> parameter_shapes(const ModelConfig& config) {
  const int64_t width = config.hidden_dim();
  const int64_t inner = config.intermediate_dim();
  std::vector<ParameterShape> all = {{"model.embed_tokens.weight", {config.vocab_size(), width}}};
  for (int64_t layer = 0; layer < config.n_layers(); ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      all.push_back({fmt::format("model.layers.{}.{}.weight", layer, name), std::move(shape)});
    };
    add("input_layernorm", {width});
    add("self_attn.q_proj", {width, width});
    add("self_attn.k_proj", {config.kv_dim(), width});
    add("self_attn.v_proj", {config.kv_dim(), width});
    add("self_attn.o_proj", {width, width});
    add("post_attention_layernorm", {width});
    add("mlp.gate_proj", {inner, width});
    add("mlp.up_proj", {inner, width});
    add("mlp.down_proj", {width, inner});
  }
  all.push_back({"model.norm.weight", {width}});
  all.push_back({"lm_head.weight", {config.vocab_size(), width}});
  return all;
}

namespace {

// A model in the cache of Hugging Face's downloads, models--OWNER--NAME, keeps its files in
// snapshots/HASH, and the hash of what was asked for in refs/main.
std::filesystem::path folder_of_files(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr int64_t longest_hash = 100;
  const fs::path snapshots = folder / "snapshots";
  std::error_code unknown;
  if (fs::exists(folder / kConfigFile, unknown) || !fs::is_directory(snapshots, unknown))
    return folder;
  if (fs::exists(folder / "refs/main", unknown)) {
    const std::string hash = read_text(folder / "refs/main", longest_hash);
    const fs::path chosen = snapshots / hash.substr(0, hash.find_last_not_of(" \n\r") + 1);
    if (fs::is_directory(chosen, unknown)) return chosen;
  }
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(snapshots))
    found.push_back(entry.path().string());
  if (found.size() == 1) return found.front();
  std::ranges::sort(found);
  fail(snapshots, fmt::format("holds {} snapshots and refs/main names none of them: name one{}",
                              found.size(), found.empty() ? "" : ", such as " + found.front()));
}

// Whether a link is there counts, too, whose file is missing: the reader says so then.
bool has(const std::filesystem::path& folder, const char* name) {
  std::error_code unknown;
  return std::filesystem::exists(std::filesystem::symlink_status(folder / name, unknown));
}

bool holds_model(const std::filesystem::path& folder) {
  return has(folder, kConfigFile) && (has(folder, kSingleFile) || has(folder, kIndexFile));
}

// What there is in the place of a model's folder, in words.
std::string what_is_there(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr size_t most = 4;
  std::error_code unknown;
  if (!fs::exists(folder, unknown)) return "there is no such folder";
  if (!fs::is_directory(folder, unknown)) return "is a file";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, unknown))
    names.push_back(entry.path().filename().string() + (entry.is_directory(unknown) ? "/" : ""));
  if (names.empty()) return unknown ? unknown.message() : "is empty";
  std::ranges::sort(names);
  const size_t more = names.size() - std::min(names.size(), most);
  names.resize(names.size() - more);
  for (std::string& name : names) name = printable(name);
  return fmt::format("holds {}{}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

// A folder with a model in it that may have been meant: of those below `folder`, as deep as Hugging
// Face nests its cache (hub/models--OWNER--NAME/snapshots/HASH), the first; where `folder` is none,
// its parent, or the folder beside it whose name begins most like its own. Empty where none is.
std::filesystem::path nearest_model(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr int deepest = 3;
  constexpr int most_looked_at = 2000;
  std::error_code unknown;
  const bool is_folder = fs::is_directory(folder, unknown);
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : ".";
  if (!is_folder && holds_model(parent)) return parent;
  const std::string wanted = is_folder ? "" : folder.filename().string();
  const auto rank = [&](const fs::path& path) {
    const std::string name = path.filename().string();
    const auto alike = std::ranges::mismatch(wanted, name).in1 - wanted.begin();
    return std::pair(-alike, path);
  };
  fs::path nearest;
  fs::recursive_directory_iterator entries(is_folder ? folder : parent,
                                           fs::directory_options::skip_permission_denied, unknown);
  for (int i = 0; i < most_looked_at && entries != fs::end(entries); ++i) {
    const fs::path path = entries->path();
    if (entries.depth() >= (is_folder ? deepest : 0)) entries.disable_recursion_pending();
    if (holds_model(path) && (nearest.empty() || rank(path) < rank(nearest))) nearest = path;
    entries.increment(unknown);
  }
  return nearest;
}

std::filesystem::path checked_folder(const std::filesystem::path& folder) {
  const std::filesystem::path found = folder_of_files(folder);
  if (holds_model(found)) return found;
  const std::filesystem::path nearest = nearest_model(found);
  fail(found,
       fmt::format("{}: name a folder with {} and {} (or {} and the files that it lists), such "
                   "as save_pretrained(safe_serialization=True) writes, or a snapshot folder of "
                   "Hugging Face's cache{}",
                   what_is_there(found), kConfigFile, kSingleFile, kIndexFile,
                   nearest.empty() ? "" : "; the nearest is " + nearest.string()));
}

}  // namespace

Weights::Weights(std::filesystem::path folder)
    : folder_(checked_folder(folder)),
      config_text_(read_text(folder_ / kConfigFile, kMostConfigBytes)),
      config_(ConfigReader(folder_ / kConfigFile, config_text_).read()) {
  open_files();
  check_fit();
}

void Weights::open_files() {
  if (!has(folder_, kSingleFile)) return open_shards(folder_ / kIndexFile);
  files_.emplace_back(folder_ / kSingleFile);
  for (const auto& tensor : files_.front().tensors()) file_of_[tensor.name] = 0;
}

// The index maps each tensor to its file: {"weight_map": {name: file name}}.
void Weights::open_shards(const std::filesystem::path& index) {
  const auto json = parse_object(index, read_text(index, kMostIndexBytes));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object())
    fail(index, "weight_map must be an object that maps tensors to files");
  std::map<std::string, size_t> opened;
  Problems problems;
  for (const auto& [name, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
    // A path would lead out of the folder.
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        std::ranges::any_of(file, is_control))
      fail(index, fmt::format("tensor '{}' is in {}: must be the name of a file in this folder",
                              printable(name), printable_json(value)));
    const auto [entry, is_new] = opened.try_emplace(file, files_.size());
    if (is_new) files_.emplace_back(folder_ / file);
    file_of_[name] = entry->second;
    if (!files_[entry->second].contains(name))
      problems.add(fmt::format("tensor '{}' is not in {}", printable(name), printable(file)));
  }
  for (const auto& [file, i] : opened) {
    for (const auto& tensor : files_[i].tensors()) {
      const auto entry = file_of_.find(tensor.name);
      if (entry == file_of_.end() || entry->second != i)
        problems.add(fmt::format("tensor '{}' of {} is not listed", printable(tensor.name), file));
    }
  }
  problems.report(fmt::format("{} does not fit its files", index.string()));
}

void Weights::check_fit() const {
  std::map<std::string, Found> found;
  for (const auto& file : files_) {
    for (const auto& tensor : file.tensors())
      found[tensor.name] = {tensor.shape, c10::isFloatingType(tensor.type)};
  }
  const auto& file = files_.size() == 1 ? files_.front().path() : folder_ / kIndexFile;
  check_parameters(config_, found,
                   fmt::format("{} does not hold the model of its {}", file.string(), kConfigFile));
}

const SafetensorsFile& Weights::file_with(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) fail(folder_, fmt::format("has no tensor '{}'", printable(name)));
  return files_[found->second];
}

std::string Weights::fingerprint() const {
  Digest digest;
  for (const auto& [name, shape] : parameter_shapes(config_)) {
    const at::Tensor values = read(name);
    const std::string heading = fmt::format("{} {}", name, c10::toString(values.scalar_type()));
    digest.add(heading.data(), heading.size());
    digest.add(values.const_data_ptr(), values.nbytes());
  }
  return digest.text();
}

at::Tensor Weights::read(const std::string& name) const {
  return file_with(name).read(name);
}

NamedTensors Weights::read_all() const {
  NamedTensors all;
  for (const auto& [name, shape] : parameter_shapes(config_)) all.emplace_back(name, read(name));
  return all;
}

void Weights::copy_to(const NamedTensors& parameters,
                      std::optional<c10::ScalarType> rounding) const {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters) {
    const auto& file = file_with(name);
    const auto& stored = file.tensor(name);
    if (parameter.sizes() != c10::ArrayRef<int64_t>(stored.shape)) {
      fail(file.path(), fmt::format("tensor '{}' has shape {}, but the parameter has {}", name,
                                    to_text(stored.shape), to_text(parameter.sizes())));
    }
    const at::Tensor values = file.read(name);
    check_finite(values, name, file.path());
    const auto type = parameter.scalar_type();
    const at::Tensor rounded = convert(values, rounding.value_or(type), name, file.path());
    parameter.copy_(convert(rounded, type, name, file.path()));
  }
}

void save_weights(const std::filesystem::path& folder, const ModelConfig& config,
                  const NamedTensors& tensors, const std::string& original_config) {
  std::map<std::string, Found> found;
  for (const auto& [name, tensor] : tensors)
    found[name] = {tensor.sizes().vec(), c10::isFloatingType(tensor.scalar_type())};
  check_parameters(config, found,
                   fmt::format("{} cannot be written: the tensors are not the model's",
                               (folder / kSingleFile).string()));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw std::runtime_error(
        fmt::format("{}: cannot be created: {}", folder.string(), error.message()));
  }
  write_safetensors(folder / kSingleFile, tensors);
  const std::string text =
      checkpoint_config_text(config, tensors.front().second.scalar_type(), original_config);
  ReplacementFile file(folder / kConfigFile);
  file.write(text.data(), std::ssize(text));
  file.commit();
}

}  // namespace tinyllama
