#include "benchmarks/training/tensor_names.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/attention.hpp"
#include "model/loss.hpp"

namespace tinyllama::training {
namespace {

// What libtorch's allocator of a GPU rounds to, and the largest remainder of a block that it does
// not split off (kMinBlockSize, kSmallSize in c10/cuda/CUDACachingAllocator.h).
constexpr int64_t kGpuGranule = 512;
constexpr int64_t kGpuRemainder = int64_t{1} << 20;

int64_t wide_bytes(Dtype dtype) {
  return std::max<int64_t>(4, compute_bytes(dtype));
}

}  // namespace

TensorNames::TensorNames(const Workload& workload, bool on_gpu)
    : workload_(workload), on_gpu_(on_gpu) {
  add_layers();
  add_attention();
  add_loss();
  add_weights();
}

// For a tensor of a component the first entry decides whose operator and bytes fit.
void TensorNames::add_layers() {
  const ModelConfig& config = workload_.config;
  const int64_t T = workload_.tokens();
  const int64_t hidden = T * config.hidden_dim();
  const int64_t inner = T * config.intermediate_dim();
  const int64_t c = compute_bytes(workload_.dtype);
  const int64_t s = storage_bytes(workload_.dtype);
  const int64_t w = wide_bytes(workload_.dtype);
  const auto add = [&](std::string_view component, int64_t bytes, std::string_view name) {
    entries_.push_back({component, bytes, name});
  };
  add("data_loading", T * kTokenBytes, "tokens [B,S]");
  add("embedding", hidden * s, "embedded tokens [B,S,D]");
  add("residual", hidden * s, "residual stream [B,S,D]");
  for (const int64_t element : {s, w}) {
    add("rms_norm", hidden * element, "norm intermediate [B,S,D]");
    add("rms_norm", T * element, "norm factors [B,S,1]");
  }
  add("ffn/gate_up_proj", inner * c, "ffn intermediate [B,S,D_ff]");
  add("ffn/gate_up_proj", 2 * inner * c, "ffn intermediate [B,S,2 D_ff]");
  add("ffn/gate_up_proj", hidden * c, "ffn input [B,S,D]");
  add("ffn/swiglu", inner * c, "ffn intermediate [B,S,D_ff]");
  add("ffn/swiglu", 2 * inner * c, "ffn intermediate [B,S,2 D_ff]");
  add("ffn/down_proj", hidden * c, "ffn output [B,S,D]");
  // In a backward: the gradient of what the product read.
  add("ffn/down_proj", inner * c, "ffn intermediate [B,S,D_ff]");
}

void TensorNames::add_attention() {
  const ModelConfig& config = workload_.config;
  const int64_t T = workload_.tokens();
  const int64_t c = compute_bytes(workload_.dtype);
  const int64_t queries = T * config.hidden_dim() * c;
  const int64_t keys = T * config.kv_dim() * c;
  const int64_t scores = workload_.batch * config.n_heads() * workload_.seq * workload_.seq;
  const auto add = [&](std::string_view component, int64_t bytes, std::string_view name,
                       std::string_view operation = {}, Direction direction = Direction::any) {
    entries_.push_back({component, bytes, name, operation, direction});
  };
  constexpr std::string_view core = "attention/core";
  constexpr std::string_view score_name = "attention_scores [B,H,S,S]";
  constexpr std::string_view softmax_name = "attention_probabilities [B,H,S,S]";
  const bool keeps_scores = has_score_matrix(workload_.variant);
  for (const int64_t element : {c, wide_bytes(workload_.dtype)}) {
    if (!keeps_scores) break;
    const int64_t bytes = scores * element;
    add(core, bytes, score_name, "aten::bmm", Direction::forward);
    add(core, bytes, softmax_name, "aten::bmm", Direction::backward);
    add(core, bytes, softmax_name, "aten::_softmax");
    add(core, bytes, softmax_name, "aten::_to_copy");
    add(core, bytes, score_name, "aten::_softmax_backward_data");
  }
  add(core, queries, "attended values or queries [B,S,D]");
  add(core, keys, "keys or values [B,S,KV,D/H]");
  // Of any other operator, unless it is as large as the queries.
  if (keeps_scores) add(core, scores * c, score_name);
  add("attention/qkv_proj", queries + 2 * keys, "queries, keys and values [B,S,(H+2KV) D/H]");
  add("attention/qkv_proj", queries, "queries or attention input [B,S,D]");
  add("attention/qkv_proj", keys, "keys or values [B,S,KV,D/H]");
  add("attention/rotary", queries, "rotated queries [B,S,H,D/H]");
  add("attention/rotary", keys, "rotated keys [B,S,KV,D/H]");
  add("attention/o_proj", queries, "attention output [B,S,D]");
}

void TensorNames::add_loss() {
  const int64_t T = workload_.tokens();
  const int64_t V = workload_.config.vocab_size();
  const int64_t hidden = T * workload_.config.hidden_dim();
  const int64_t c = compute_bytes(workload_.dtype);
  const int64_t w = wide_bytes(workload_.dtype);
  const auto add = [&](std::string_view component, int64_t bytes, std::string_view name,
                       std::string_view operation = {}) {
    entries_.push_back({component, bytes, name, operation});
  };
  add("loss/lm_head", T * V * c, "logits [B,S,V]");
  add("loss/lm_head", hidden * c, "final hidden states [B,S,D]");
  add("loss/cross_entropy", T * V * w, "log-probabilities [B,S,V]", "aten::_log_softmax");
  add("loss/cross_entropy", T * V * w, "log-probabilities [B,S,V]", "aten::nll_loss_backward");
  for (const int64_t element : {w, c}) add("loss/cross_entropy", T * V * element, "logits [B,S,V]");
  const int64_t chunk = fused_loss_chunk(T, V);
  add("loss/fused", chunk * V * c, "logits of a chunk of tokens");
  add("loss/fused", hidden * c, "final hidden states [B,S,D]");
}

// Casts of weights under autocast, gradients on their way to a parameter, and what an update
// computes for one parameter.
void TensorNames::add_weights() {
  const ModelConfig& config = workload_.config;
  const int64_t c = compute_bytes(workload_.dtype);
  const int64_t s = storage_bytes(workload_.dtype);
  const int64_t D = config.hidden_dim();
  const auto add = [&](std::string_view component, int64_t elements, std::string_view name) {
    for (const int64_t element : {s, c}) entries_.push_back({component, elements * element, name});
  };
  add("embedding", config.vocab_size() * D, "embedding weight [V,D]");
  add("loss/lm_head", config.vocab_size() * D, "LM head weight [V,D]");
  add("loss/fused", config.vocab_size() * D, "LM head weight [V,D]");
  add("rms_norm", D, "norm weight [D]");
  add("attention/qkv_proj", D * D, "query projection weight [D,D]");
  add("attention/qkv_proj", config.kv_dim() * D, "key or value projection weight [KV D/H,D]");
  add("attention/o_proj", D * D, "output projection weight [D,D]");
  for (const auto component : {"ffn/gate_up_proj", "ffn/down_proj"})
    add(component, config.intermediate_dim() * D, "ffn weight [D_ff,D]");
  add("optimizer", config.vocab_size() * D, "AdamW intermediate [V,D]");
  add("optimizer", config.intermediate_dim() * D, "AdamW intermediate [D_ff,D]");
  add("optimizer", D * D, "AdamW intermediate [D,D]");
}

bool TensorNames::matches(int64_t bytes, int64_t expected) const {
  if (!on_gpu_) return bytes == expected;
  const int64_t rounded = (expected + kGpuGranule - 1) / kGpuGranule * kGpuGranule;
  return bytes == rounded ||
         (rounded > kGpuRemainder && bytes > rounded && bytes - rounded <= kGpuRemainder);
}

const TensorNames::Entry* TensorNames::find(const TensorOrigin& origin, int64_t bytes) const {
  const auto direction = origin.phase == Phase::backward ? Direction::backward : Direction::forward;
  const auto entry = std::ranges::find_if(entries_, [&](const Entry& candidate) {
    return candidate.component == origin.component && matches(bytes, candidate.bytes) &&
           (candidate.operation.empty() || candidate.operation == origin.operation) &&
           (candidate.direction == Direction::any || candidate.direction == direction);
  });
  return entry == entries_.end() ? nullptr : &*entry;
}

std::string TensorNames::name(const TensorOrigin& origin, int64_t bytes) const {
  if (const Entry* entry = find(origin, bytes)) {
    return fmt::format("{}{}", origin.phase == Phase::backward ? "gradient of " : "", entry->name);
  }
  return fmt::format("{}: {}", origin.component,
                     origin.operation.empty() ? "outside operators" : origin.operation);
}

bool TensorNames::is_score_matrix(const TensorOrigin& origin, int64_t bytes) const {
  const Entry* entry = find(origin, bytes);
  return entry != nullptr && entry->name.ends_with("[B,H,S,S]");
}

}  // namespace tinyllama::training
