#include "model/share.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace tinyllama {
namespace {

constexpr const char* kTensor = "tensor-parallel";
constexpr const char* kPipeline = "pipeline-parallel";

void check_ranks(const char* kind, int64_t ranks) {
  if (ranks < 1) throw std::invalid_argument(fmt::format("{} {}: must be at least 1", kind, ranks));
}

int64_t divided(const char* name, int64_t value, int64_t ranks) {
  if (value % ranks != 0) {
    throw std::invalid_argument(fmt::format("{} {}: must divide {} = {}, but {} % {} = {}", kTensor,
                                            ranks, name, value, value, ranks, value % ranks));
  }
  return value / ranks;
}

// Of one rank; each KV head is on ranks / KV heads of them where there are more ranks.
int64_t kv_heads_of_a_rank(int64_t kv_heads, int64_t ranks) {
  if (ranks <= kv_heads) return divided("n_kv_heads", kv_heads, ranks);
  if (ranks % kv_heads == 0) return 1;
  throw std::invalid_argument(
      fmt::format("{} {}: must be a multiple of n_kv_heads = {}, each of which is then on several "
                  "ranks",
                  kTensor, ranks, kv_heads));
}

int64_t rounded_up(int64_t value, int64_t ranks) {
  return (value + ranks - 1) / ranks;
}

}  // namespace

ModelConfig share_of(const ModelConfig& whole, const Parallelism& ranks) {
  check_ranks(kTensor, ranks.tensor);
  check_ranks(kPipeline, ranks.pipeline);
  if (!ranks.divides()) return whole;
  ModelDimensions share = whole.dimensions();
  if (ranks.tensor > 1) {
    share.own_head_dim = whole.head_dim();
    share.n_heads = divided("n_heads", whole.n_heads(), ranks.tensor);
    share.n_kv_heads = kv_heads_of_a_rank(whole.n_kv_heads(), ranks.tensor);
    share.kv_head_ranks = share.n_kv_heads * ranks.tensor / whole.n_kv_heads();
    share.intermediate_dim = divided("intermediate_dim", whole.intermediate_dim(), ranks.tensor);
    share.vocab_size = rounded_up(whole.vocab_size(), ranks.tensor);
    share.whole_vocab = whole.vocab_size();
    if (share.padding_token && *share.padding_token >= share.vocab_size)
      share.padding_token.reset();
  }
  if (ranks.pipeline > 1) {
    if (ranks.pipeline > whole.n_layers()) {
      throw std::invalid_argument(fmt::format("{} {}: must be at most n_layers = {}", kPipeline,
                                              ranks.pipeline, whole.n_layers()));
    }
    share.n_layers = rounded_up(whole.n_layers(), ranks.pipeline);
    share.only_layers = true;
  }
  return ModelConfig(share);
}

std::string share_suffix(const Parallelism& ranks) {
  std::string suffix;
  if (ranks.tensor > 1) suffix += fmt::format("-tp{}", ranks.tensor);
  if (ranks.pipeline > 1) suffix += fmt::format("-pp{}", ranks.pipeline);
  return suffix;
}

}  // namespace tinyllama
