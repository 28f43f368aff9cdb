#include "model/cost.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace tinyllama {
namespace {

constexpr std::array<std::string_view, 6> kPassNames = {
    "forward", "backward", "forward_backward", "forward_loss", "update", "train"};

constexpr int64_t Cost::*kFigures[] = {
    &Cost::parameters,        &Cost::model_flops, &Cost::causal_flops, &Cost::hardware_flops,
    &Cost::elementwise_flops, &Cost::bytes,       &Cost::lookup_flops, &Cost::comm_calls,
    &Cost::comm_bytes,        &Cost::opaque_flops};
static_assert(sizeof(kFigures) / sizeof(kFigures[0]) == sizeof(Cost) / sizeof(int64_t));

bool runs_forward(Pass pass) {
  return pass != Pass::backward && pass != Pass::update;
}

}  // namespace

std::string_view to_string(Pass pass) {
  return kPassNames[static_cast<size_t>(pass)];
}

Pass parse_pass(std::string_view text) {
  const auto found = std::find(kPassNames.begin(), kPassNames.end(), text);
  if (found == kPassNames.end()) {
    throw std::invalid_argument(
        fmt::format("pass '{}': must be one of {}", text, fmt::join(kPassNames, ", ")));
  }
  return static_cast<Pass>(found - kPassNames.begin());
}

bool has_backward(Pass pass) {
  return pass == Pass::backward || pass == Pass::forward_backward || pass == Pass::train;
}

Cost& Cost::operator+=(const Cost& other) {
  for (const auto figure : kFigures) this->*figure += other.*figure;
  return *this;
}

Cost operator+(Cost a, const Cost& b) {
  return a += b;
}

Cost operator*(int64_t n, Cost cost) {
  for (const auto figure : kFigures) cost.*figure *= n;
  return cost;
}

Cost select_halves(Pass pass, int64_t parameters, Halves halves) {
  Cost cost;
  if (runs_forward(pass)) cost += halves.forward;
  if (has_backward(pass)) cost += halves.backward;
  cost.parameters = parameters;
  return cost;
}

Cost gemm_cost(int64_t flops) {
  return {.model_flops = flops, .causal_flops = flops, .hardware_flops = flops};
}

Cost comm_cost(int64_t calls, int64_t bytes) {
  return {.comm_calls = calls, .comm_bytes = calls * bytes};
}

Cost all_reduces_of_a_layer(const Workload& workload, Pass pass) {
  const int64_t elements = workload.tokens() * workload.config.hidden_dim();
  // What they read is a norm's output, in the type of the stream, and its gradient too.
  return select_halves(pass, 0,
                       {comm_cost(1, elements * compute_bytes(workload.dtype)),
                        comm_cost(1, elements * storage_bytes(workload.dtype))});
}

Cost with_traffic(Cost cost, int64_t elementwise_flops, int64_t bytes) {
  cost.elementwise_flops = elementwise_flops;
  cost.bytes = bytes;
  return cost;
}

int64_t attention_parameters(const ModelConfig& config) {
  const int64_t D = config.hidden_dim();
  const int64_t projected = config.q_dim() + 2 * config.kv_dim();
  return D * (projected + config.q_dim()) + (config.qkv_bias() ? projected : 0) +
         (config.o_bias() ? D : 0) + (config.qk_norm() ? 2 * config.head_dim() : 0);
}

int64_t feed_forward_parameters(const ModelConfig& config) {
  const int64_t D = config.hidden_dim();
  const int64_t F = config.intermediate_dim();
  return 3 * D * F + (config.mlp_bias() ? 2 * F + D : 0);
}

int64_t count_parameters(const ModelConfig& config) {
  const int64_t D = config.hidden_dim();
  const int64_t layers =
      config.n_layers() * (2 * D + attention_parameters(config) + feed_forward_parameters(config));
  if (config.only_layers()) return layers;
  return layers + (config.tied_embeddings() ? 1 : 2) * config.vocab_size() * D + D;
}

}  // namespace tinyllama
