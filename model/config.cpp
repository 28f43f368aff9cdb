#include "model/config.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/strict_json.hpp"

namespace tinyllama {
namespace {

// Larger sizes would let three sizes multiplied overflow 64 bits in the cost formulas.
constexpr int64_t kLargestSize = int64_t{1} << 20;

void check_positive(const char* field, int64_t value) {
  if (value < 1 || value > kLargestSize) {
    throw std::invalid_argument(
        fmt::format("{} = {}: must be between 1 and {}", field, value, kLargestSize));
  }
}

void check_divides(const char* divisor, int64_t d, const char* field, int64_t value) {
  if (value % d != 0) {
    throw std::invalid_argument(fmt::format("{} = {}: must divide {} = {}, but {} % {} = {}",
                                            divisor, d, field, value, value, d, value % d));
  }
}

void check_positive_real(const char* field, double value) {
  if (!(value > 0.0) || !std::isfinite(value)) {
    throw std::invalid_argument(fmt::format("{} = {}: must be positive and finite", field, value));
  }
}

void check_rope_scaling(const RopeScaling& scaling) {
  check_positive_real("rope_scaling.factor", scaling.factor);
  if (scaling.type != RopeScaling::Type::llama3) return;
  check_positive_real("rope_scaling.low_freq_factor", scaling.low_freq_factor);
  check_positive_real("rope_scaling.high_freq_factor", scaling.high_freq_factor);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    throw std::invalid_argument(
        fmt::format("rope_scaling.high_freq_factor = {}: must be larger than low_freq_factor = {}",
                    scaling.high_freq_factor, scaling.low_freq_factor));
  }
  if (scaling.original_positions < 1) {
    throw std::invalid_argument(
        fmt::format("rope_scaling.original_max_position_embeddings = {}: must be at least 1",
                    scaling.original_positions));
  }
}

}  // namespace

ModelConfig::ModelConfig(const ModelDimensions& dimensions) : dimensions_(dimensions) {
  const auto& d = dimensions_;
  check_positive("vocab_size", d.vocab_size);
  check_positive("hidden_dim", d.hidden_dim);
  check_positive("n_layers", d.n_layers);
  check_positive("n_heads", d.n_heads);
  check_positive("n_kv_heads", d.n_kv_heads);
  check_positive("intermediate_dim", d.intermediate_dim);
  check_positive_real("norm_eps", d.norm_eps);
  check_positive_real("rope_theta", d.rope_theta);
  check_divides("n_kv_heads", d.n_kv_heads, "n_heads", d.n_heads);
  if (d.sliding_window) check_positive("sliding_window", *d.sliding_window);
  if (d.whole_vocab) check_positive("whole_vocab", *d.whole_vocab);
  check_rope_scaling(d.rope_scaling);
  if (d.own_head_dim) {
    check_positive("head_dim", *d.own_head_dim);
    if (*d.own_head_dim % 2 != 0)
      throw std::invalid_argument(fmt::format(
          "head_dim = {}: must be even, because rotary embedding rotates pairs", *d.own_head_dim));
    return;
  }
  check_divides("n_heads", d.n_heads, "hidden_dim", d.hidden_dim);
  if (head_dim() % 2 != 0) {
    throw std::invalid_argument(
        fmt::format("hidden_dim / n_heads = {} / {} = {}: head_dim must be even, because rotary "
                    "embedding rotates pairs",
                    d.hidden_dim, d.n_heads, head_dim()));
  }
}

void check_batch_and_seq(int64_t batch, int64_t seq) {
  check_positive("batch", batch);
  check_positive("seq", seq);
}

namespace {

// Keeps the order of the file: it is the order in which sizes are listed and run.
using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw std::invalid_argument(fmt::format("problem sizes {}: {}", file.string(), what));
}

Json parse(const std::filesystem::path& file) {
  std::error_code unknown;
  if (std::filesystem::is_directory(file, unknown))
    fail(file, "is a directory; --problem-sizes names a JSON file");
  std::ifstream in(file);
  if (!in) fail(file, "cannot be read; --problem-sizes names a JSON file");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return parse_strict_json<Json>(text, fmt::format("problem sizes {}:", file.string()),
                                 {.depth = 2});
}

int64_t read_integer(const std::filesystem::path& file, const std::string& size,
                     const std::string& key, const Json& value) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
    fail(file, fmt::format("{}.{} = {}: must be an integer", size, key, printable_json(value)));
  }
  return value.get<int64_t>();
}

ProblemSize read_size(const std::filesystem::path& file, const std::string& name,
                      const Json& entry) {
  if (!entry.is_object())
    fail(file, fmt::format("{} = {}: must be an object", name, printable_json(entry)));
  ModelDimensions dimensions;
  int64_t batch = 0;
  int64_t seq = 0;
  std::map<std::string, int64_t*> fields = {{"vocab_size", &dimensions.vocab_size},
                                            {"hidden_dim", &dimensions.hidden_dim},
                                            {"n_layers", &dimensions.n_layers},
                                            {"n_heads", &dimensions.n_heads},
                                            {"n_kv_heads", &dimensions.n_kv_heads},
                                            {"intermediate_dim", &dimensions.intermediate_dim},
                                            {"batch", &batch},
                                            {"seq", &seq}};
  for (const auto& [key, value] : entry.items()) {
    const auto field = fields.find(key);
    if (field == fields.end()) fail(file, fmt::format("{}.{}: unknown key", name, printable(key)));
    *field->second = read_integer(file, name, key, value);
  }
  for (const auto& [key, field] : fields) {
    if (!entry.contains(key)) fail(file, fmt::format("{}: key {} is missing", name, key));
  }
  try {
    check_batch_and_seq(batch, seq);
    return {name, ModelConfig(dimensions), batch, seq};
  } catch (const std::invalid_argument& error) {
    fail(file, fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace

std::vector<ProblemSize> load_problem_sizes(const std::filesystem::path& file) {
  const Json root = parse(file);
  if (root.empty()) {
    fail(file, "must be an object that maps the name of each size to its dimensions");
  }
  std::vector<ProblemSize> sizes;
  for (const auto& [name, entry] : root.items())
    sizes.push_back(read_size(file, printable(name), entry));
  return sizes;
}

}  // namespace tinyllama
