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
#include "model/checkpoint_folder.hpp"

namespace tinyllama {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw std::invalid_argument(fmt::format("{}: {}", file.string(), what));
}

using Json = nlohmann::json;

constexpr int kDeepestNesting = 32;

Json parse_object(const std::filesystem::path& file, const std::string& text) {
  return parse_strict_json<Json>(text, file.string() + ":", {.depth = kDeepestNesting});
}

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
  std::vector<ParameterShape> all;
  if (!config.only_layers())
    all.push_back({"model.embed_tokens.weight", {config.vocab_size(), width}});
  for (int64_t layer = 0; layer < config.n_layers(); ++layer) {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      all.push_back({fmt::format("model.layers.{}.{}", layer, name), std::move(shape)});
    };
    const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool has_bias) {
      add(name + ".weight", {out, in});
      if (has_bias) add(name + ".bias", {out});
    };
    add("input_layernorm.weight", {width});
    add_linear("self_attn.q_proj", config.q_dim(), width, config.qkv_bias());
    add_linear("self_attn.k_proj", config.kv_dim(), width, config.qkv_bias());
    add_linear("self_attn.v_proj", config.kv_dim(), width, config.qkv_bias());
    add_linear("self_attn.o_proj", width, config.q_dim(), config.o_bias());
    if (config.qk_norm()) {
      add("self_attn.q_norm.weight", {config.head_dim()});
      add("self_attn.k_norm.weight", {config.head_dim()});
    }
    add("post_attention_layernorm.weight", {width});
    add_linear("mlp.gate_proj", inner, width, config.mlp_bias());
    add_linear("mlp.up_proj", inner, width, config.mlp_bias());
    add_linear("mlp.down_proj", width, inner, config.mlp_bias());
  }
  if (config.only_layers()) return all;
  all.push_back({"model.norm.weight", {width}});
  if (!config.tied_embeddings()) all.push_back({"lm_head.weight", {config.vocab_size(), width}});
  return all;
}

namespace {

bool holds_model(const std::filesystem::path& folder) {
  return has_entry(folder, kConfigFile) &&
         (has_entry(folder, kSingleFile) || has_entry(folder, kIndexFile));
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
      config_(parse_checkpoint_config(folder_ / kConfigFile, config_text_)) {
  open_files();
  check_fit();
}

void Weights::open_files() {
  if (!has_entry(folder_, kSingleFile)) return open_shards(folder_ / kIndexFile);
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
