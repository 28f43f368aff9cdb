#include "model/weights.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
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
// Read, checked and converted at a time: large enough for all threads, small beside a layer.
constexpr int64_t kPieceBytes = int64_t{64} << 20;
// To read more takes longer than to measure; what is taken of it is read in a second or so.
constexpr int64_t kMostBytesOfFingerprint = int64_t{1} << 30;
constexpr int64_t kSamplePieces = 16;
constexpr int64_t kSampleBytes = 4096;

// What is wrong with a set of tensors; the first few in words.
class Problems {
 public:
  void add(const std::string& problem) {
    if (++count_ <= kListedProblems) listed_.push_back(problem);
  }
  void add(const Problems& others) {
    for (const std::string& problem : others.listed_) add(problem);
    count_ += others.count_ - others.listed_.size();
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

constexpr const char* kTable = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kBase = "model.";

struct Found {
  std::vector<int64_t> shape;
  bool is_floating;
  std::string as;  // for messages: its name where it is stored
};

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes shapes_by_name(const ModelConfig& config) {
  Shapes shapes;
  for (auto& [name, shape] : parameter_shapes(config)) shapes[name] = std::move(shape);
  return shapes;
}

// Throws before names are made for a layer count that may be nonsense.
void check_layer_count(const ModelConfig& config, size_t tensors, const std::string& where) {
  if (std::cmp_greater(config.n_layers(), tensors)) {
    throw std::invalid_argument(fmt::format("{}: {} layers, but there are only {} tensors", where,
                                            config.n_layers(), tensors));
  }
}

// What keeps these tensors, by LlamaForCausalLM's names, from being all the model's parameters.
void check_parameters(const ModelConfig& config, const std::map<std::string, Found>& found,
                      Problems& problems) {
  for (const auto& [name, shape] : parameter_shapes(config)) {
    const auto entry = found.find(name);
    if (entry == found.end()) {
      problems.add(fmt::format("tensor '{}' of shape {} is missing", name, to_text(shape)));
    } else if (entry->second.shape != shape) {
      problems.add(fmt::format("tensor {} has shape {}: must have {}", entry->second.as,
                               to_text(entry->second.shape), to_text(shape)));
    } else if (!entry->second.is_floating) {
      problems.add(fmt::format("tensor {} holds integers: must hold floating-point numbers",
                               entry->second.as));
    }
  }
}

std::string unknown_tensor(const std::string& as) {
  return fmt::format("tensor {} is not part of the model", as);
}

// What versions of transformers before 4.32 stored: it follows from config.json.
bool is_rotary_buffer(std::string_view name) {
  constexpr std::string_view buffer = "rotary_emb.inv_freq";
  return name == buffer || name.ends_with(fmt::format(".{}", buffer));
}

// The dimension in which the ranks of a tensor-parallel model divide this parameter; none where
// each has all of it.
std::optional<size_t> divided_dimension(std::string_view name) {
  static constexpr std::string_view kByRows[] = {"embed_tokens", "lm_head",   "q_proj", "k_proj",
                                                 "v_proj",       "gate_proj", "up_proj"};
  static constexpr std::string_view kByColumns[] = {"o_proj.weight", "down_proj.weight"};
  const auto ends_name = [&](std::string_view end) { return name.ends_with(end); };
  if (std::ranges::any_of(kByColumns, ends_name)) return 1;
  if (std::ranges::any_of(kByRows, [&](std::string_view module) {
        return ends_name(fmt::format("{}.weight", module)) ||
               ends_name(fmt::format("{}.bias", module));
      }))
    return 0;
  return std::nullopt;
}

// A weight that is no number, or one that became infinite, would fail much later, as a wrong
// result. Looks at the values of one tensor piece by piece.
class ValueCheck {
 public:
  // `types`: those that the values are converted to, one after the other.
  explicit ValueCheck(std::vector<c10::ScalarType> types) : types_(std::move(types)) {}

  /// The rows of the tensor from `first_row` on.
  void add(const at::Tensor& rows, int64_t first_row) {
    // Takes one reading and no memory; where there is a NaN, both are one.
    const auto [least, largest] = at::aminmax(rows);
    for (const at::Tensor& extreme : {least, largest}) {
      const auto value = extreme.item<double>();
      if (!std::isfinite(value)) return count_wrong(rows, first_row);
      magnitude_ = std::max(magnitude_, std::abs(value));
      at::Tensor converted = extreme;
      for (const c10::ScalarType type : types_) {
        converted = converted.to(type);
        if (!too_large_for_ && !std::isfinite(converted.item<double>())) too_large_for_ = type;
      }
    }
  }

  /// In words; empty where nothing is wrong.
  std::string problem() const {
    if (wrong_ > 0) {
      return fmt::format("holds {} at {}{}: weights must be finite", first_wrong_, to_text(place_),
                         wrong_ > 1 ? fmt::format(" and {} more such values", wrong_ - 1) : "");
    }
    if (!too_large_for_) return {};
    return fmt::format("holds a value of magnitude {}: too large for {}", magnitude_,
                       c10::toString(*too_large_for_));
  }

 private:
  void count_wrong(const at::Tensor& rows, int64_t first_row) {
    const at::Tensor wrong = at::isfinite(rows).logical_not_();
    if (wrong_ == 0) {
      const at::Tensor at = wrong.nonzero()[0].contiguous();
      place_ = {at.const_data_ptr<int64_t>(), at.const_data_ptr<int64_t>() + at.numel()};
      place_[0] += first_row;
      first_wrong_ = rows.masked_select(wrong)[0].item<double>();
    }
    wrong_ += wrong.sum().item<int64_t>();
  }

  std::vector<c10::ScalarType> types_;
  int64_t wrong_ = 0;
  double first_wrong_ = 0;
  std::vector<int64_t> place_;
  double magnitude_ = 0;
  std::optional<c10::ScalarType> too_large_for_;
};

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
  find_parameters();
}

void Weights::open_files() {
  if (!has_entry(folder_, kSingleFile)) return open_shards(folder_ / kIndexFile);
  files_.emplace_back(folder_ / kSingleFile);
}

// The index maps each tensor to its file: {"weight_map": {name: file name}}.
void Weights::open_shards(const std::filesystem::path& index) {
  const auto json = parse_object(index, read_text(index, kMostIndexBytes));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object())
    fail(index, "weight_map must be an object that maps tensors to files");
  std::map<std::string, size_t> opened;
  std::map<std::string, size_t> file_of;
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
    file_of[name] = entry->second;
    if (!files_[entry->second].contains(name))
      problems.add(fmt::format("tensor '{}' is not in {}", printable(name), printable(file)));
  }
  for (const auto& [file, i] : opened) {
    for (const auto& tensor : files_[i].tensors()) {
      const auto entry = file_of.find(tensor.name);
      if (entry == file_of.end() || entry->second != i)
        problems.add(fmt::format("tensor '{}' of {} is not listed", printable(tensor.name), file));
    }
  }
  problems.report(fmt::format("{} does not fit its files", index.string()));
}

// Which stored tensor each parameter is. Throws where they are not the model's.
void Weights::find_parameters() {
  const bool is_sharded = files_.size() != 1;
  const auto& file = is_sharded ? folder_ / kIndexFile : files_.front().path();
  const std::string where =
      fmt::format("{} does not hold the model of its {}", file.string(), kConfigFile);
  size_t tensors = 0;
  for (const auto& one : files_) tensors += one.tensors().size();
  check_layer_count(config_, tensors, where);

  const Shapes shapes = shapes_by_name(config_);
  const auto shown = [&](size_t of_file, const std::string& name) {
    return fmt::format(
        "'{}'{}", printable(name),
        is_sharded ? " of " + printable(files_[of_file].path().filename().string()) : "");
  };
  std::map<std::string, Found> found;
  Problems unknown;
  const auto take = [&](const std::string& parameter, size_t of_file, const TensorLayout& tensor) {
    const std::string as = shown(of_file, tensor.name);
    const auto [entry, is_new] =
        found.try_emplace(parameter, Found{tensor.shape, c10::isFloatingType(tensor.type), as});
    if (is_new) {
      places_[parameter] = {of_file, tensor.name};
    } else {
      unknown.add(fmt::format("tensor {} is stored as {}, too", as, entry->second.as));
    }
  };
  std::optional<Place> tied_head;
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const auto& tensor : files_[i].tensors()) {
      if (shapes.contains(tensor.name)) {
        take(tensor.name, i, tensor);
      } else if (shapes.contains(kBase + tensor.name)) {
        take(kBase + tensor.name, i, tensor);
      } else if (config_.tied_embeddings() && tensor.name == kHead) {
        tied_head = {i, tensor.name};
      } else if (is_rotary_buffer(tensor.name)) {
        not_read_.insert(tensor.name);
      } else {
        unknown.add(unknown_tensor(shown(i, tensor.name)));
      }
    }
  }
  if (tied_head) {
    const TensorLayout& head = files_[tied_head->file].tensor(kHead);
    if (found.contains(kTable)) {
      not_read_.insert(kHead);
      if (head.shape != shapes.at(kTable)) {
        unknown.add(fmt::format("tensor {} has shape {}: must have {}, for it is tied to {}",
                                shown(tied_head->file, kHead), to_text(head.shape),
                                to_text(shapes.at(kTable)), kTable));
      }
    } else {
      take(kTable, tied_head->file, head);
    }
  }
  Problems problems;
  check_parameters(config_, found, problems);
  problems.add(unknown);
  problems.report(where);
  if (config_.tied_embeddings()) places_[kHead] = places_.at(kTable);
}

const Weights::Place& Weights::place_of(const std::string& parameter) const {
  const auto found = places_.find(parameter);
  if (found == places_.end())
    fail(folder_, fmt::format("has no tensor '{}'", printable(parameter)));
  return found->second;
}

std::string Weights::not_read() const {
  if (not_read_.empty()) return {};
  return fmt::format(
      "{}: {} that the model does not have {} not read: '{}'{}", folder_.string(),
      not_read_.size() == 1 ? "a tensor" : fmt::format("{} tensors", not_read_.size()),
      not_read_.size() == 1 ? "is" : "are", *not_read_.begin(),
      not_read_.size() == 1 ? "" : " is the first");
}

int64_t Weights::bytes() const {
  int64_t all = 0;
  for (const auto& [name, shape] : parameter_shapes(config_)) {
    const Place& place = place_of(name);
    all += files_[place.file].tensor(place.name).bytes();
  }
  return all;
}

std::string Weights::fingerprint_sample() const {
  if (bytes() <= kMostBytesOfFingerprint) return {};
  return fmt::format("{} pieces of {} bytes, evenly spread over each tensor", kSamplePieces,
                     kSampleBytes);
}

std::string Weights::fingerprint() const {
  const bool is_sample = bytes() > kMostBytesOfFingerprint;
  Digest digest;
  for (const auto& [name, shape] : parameter_shapes(config_)) {
    const Place& place = place_of(name);
    const SafetensorsFile& file = files_[place.file];
    const TensorLayout& tensor = file.tensor(place.name);
    std::string heading = fmt::format("{} {}", name, c10::toString(tensor.type));
    if (is_sample) heading += " sample of " + to_text(shape);
    digest.add(heading.data(), heading.size());
    std::vector<char> piece;
    const auto add = [&](int64_t first, int64_t count) {
      piece.resize(static_cast<size_t>(count));
      file.read_bytes(place.name, first, count, piece.data());
      digest.add(piece.data(), piece.size());
    };
    if (!is_sample || tensor.bytes() <= kSamplePieces * kSampleBytes) {
      add(0, tensor.bytes());
      continue;
    }
    // The first bytes and the last ones are among them.
    const int64_t last = tensor.bytes() - kSampleBytes;
    for (int64_t i = 0; i < kSamplePieces; ++i)
      add(i + 1 < kSamplePieces ? last / (kSamplePieces - 1) * i : last, kSampleBytes);
  }
  return digest.text();
}

at::Tensor Weights::read(const std::string& name) const {
  const Place& place = place_of(name);
  return files_[place.file].read(place.name);
}

NamedTensors Weights::read_all() const {
  NamedTensors all;
  for (const auto& [name, shape] : parameter_shapes(config_)) all.emplace_back(name, read(name));
  return all;
}

// Throws unless a parameter of this shape takes all of the stored tensor or, in a share, its part.
void Weights::check_shape(const std::string& name, const at::Tensor& parameter,
                          const ModelConfig* share) const {
  const Place& place = place_of(name);
  const SafetensorsFile& file = files_[place.file];
  const std::vector<int64_t>& stored = file.tensor(place.name).shape;
  const std::vector<int64_t> wanted = parameter.sizes().vec();
  if (wanted == stored) return;
  std::string of_share;
  if (share != nullptr) {
    // Beside a stage's layers the first and the last stage have embedding, final norm and LM head.
    ModelDimensions with_ends = share->dimensions();
    with_ends.only_layers = false;
    const Shapes shapes = shapes_by_name(ModelConfig(with_ends));
    const bool is_tied = config_.tied_embeddings() && name == kHead;
    const auto expected = shapes.find(is_tied ? kTable : name);
    if (expected == shapes.end()) {
      of_share = "; a rank's share of the model has none";
    } else {
      const auto divided = divided_dimension(name);
      std::vector<int64_t> part = stored;
      if (divided) part[*divided] = std::min(part[*divided], expected->second[*divided]);
      if (wanted == part && wanted == expected->second) return;
      of_share = fmt::format("; a rank's share of it has {}", to_text(expected->second));
    }
  }
  fail(file.path(), fmt::format("tensor '{}' has shape {}, but the parameter has {}{}", place.name,
                                to_text(stored), to_text(wanted), of_share));
}

namespace {

// The leading part of a stored tensor that a parameter has room for, piece by piece through
// `buffer`. Returns what is wrong with its values, in words.
std::string copy_leading_part(const SafetensorsFile& file, const TensorLayout& stored,
                              const at::Tensor& parameter, std::optional<c10::ScalarType> rounding,
                              at::Tensor& buffer) {
  const int64_t rows = parameter.size(0);
  const int64_t row_bytes = stored.bytes() / stored.shape.front();
  const int64_t most = std::clamp(kPieceBytes / row_bytes, int64_t{1}, rows);
  if (!buffer.defined() || buffer.numel() < most * row_bytes)
    buffer = at::empty({most * row_bytes}, c10::ScalarType::Byte);
  ValueCheck check({rounding.value_or(parameter.scalar_type()), parameter.scalar_type()});
  for (int64_t row = 0; row < rows; row += most) {
    const int64_t count = std::min(most, rows - row);
    file.read_bytes(stored.name, row * row_bytes, count * row_bytes, buffer.mutable_data_ptr());
    std::vector<int64_t> shape = stored.shape;
    shape.front() = count;
    at::Tensor values = buffer.narrow(0, 0, count * row_bytes).view(stored.type).view(shape);
    if (values.dim() > 1) values = values.narrow(1, 0, parameter.size(1));
    check.add(values, row);
    // Others may still be wrong: they are counted.
    if (!check.problem().empty()) continue;
    parameter.narrow(0, row, count).copy_(rounding ? values.to(*rounding) : values);
  }
  return check.problem();
}

}  // namespace

void Weights::copy_to(const NamedTensors& parameters, std::optional<c10::ScalarType> rounding,
                      const ModelConfig* share) const {
  const at::NoGradGuard no_grad;
  at::Tensor buffer;
  for (const auto& [name, parameter] : parameters) {
    check_shape(name, parameter, share);
    const Place& place = place_of(name);
    const SafetensorsFile& file = files_[place.file];
    try {
      const std::string problem =
          copy_leading_part(file, file.tensor(place.name), parameter, rounding, buffer);
      if (!problem.empty()) fail(file.path(), fmt::format("tensor '{}' {}", place.name, problem));
    } catch (const std::invalid_argument& error) {
      if (fault_.empty()) fault_ = error.what();
      throw;
    } catch (const std::runtime_error& error) {
      if (fault_.empty()) fault_ = error.what();
      throw;
    }
  }
}

void save_weights(const std::filesystem::path& folder, const ModelConfig& config,
                  const NamedTensors& tensors, const std::string& original_config) {
  const std::string where = fmt::format("{} cannot be written: the tensors are not the model's",
                                        (folder / kSingleFile).string());
  check_layer_count(config, tensors.size(), where);
  std::map<std::string, Found> found;
  const Shapes shapes = shapes_by_name(config);
  Problems unknown;
  for (const auto& [name, tensor] : tensors) {
    const std::string as = fmt::format("'{}'", printable(name));
    found[name] = {tensor.sizes().vec(), c10::isFloatingType(tensor.scalar_type()), as};
    if (!shapes.contains(name)) unknown.add(unknown_tensor(as));
  }
  Problems problems;
  check_parameters(config, found, problems);
  problems.add(unknown);
  problems.report(where);
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
