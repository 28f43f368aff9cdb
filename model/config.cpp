#include "model/config.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace tinyllama {
namespace {

// Larger sizes would let products of three sizes overflow 64 bits in the cost formulas.
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
  check_divides("n_heads", d.n_heads, "hidden_dim", d.hidden_dim);
  check_divides("n_kv_heads", d.n_kv_heads, "n_heads", d.n_heads);
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

}  // namespace tinyllama
