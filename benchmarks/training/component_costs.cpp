#include "benchmarks/training/component_costs.hpp"

#include "model/train_step.hpp"

namespace tinyllama::training {
namespace {

using CostFormula = Cost (*)(const Workload&, Pass);

class CostList {
 public:
  CostList(const Workload& workload, int64_t micro_batches)
      : workload_(workload), micro_batches_(micro_batches) {}

  /// A component that occurs `count` times in the model.
  void add(const char* name, CostFormula formula, int64_t count) {
    const Cost forward = micro_batches_ * (count * formula(workload_, Pass::forward));
    const Cost backward = micro_batches_ * (count * formula(workload_, Pass::backward));
    costs_.push_back({name, count * formula(workload_, Pass::forward).parameters,
                      forward.model_flops, backward.model_flops,
                      forward.elementwise_flops + backward.elementwise_flops,
                      forward.bytes + backward.bytes});
  }

  /// A product with a weight of [out, in], `count` times; backward runs two such products.
  void add_projection(const char* name, int64_t in, int64_t out, int64_t count) {
    const int64_t flops = micro_batches_ * count * 2 * workload_.tokens() * in * out;
    costs_.push_back({name, count * in * out, flops, 2 * flops});
  }

  void add_rest(ComponentCost cost) { costs_.push_back(std::move(cost)); }
  std::vector<ComponentCost> take() { return std::move(costs_); }

 private:
  const Workload& workload_;
  int64_t micro_batches_;
  std::vector<ComponentCost> costs_;
};

}  // namespace

Cost step_cost(const Workload& workload, int64_t micro_batches) {
  Cost cost = micro_batches * model_cost(workload, Pass::forward_backward);
  cost += optimizer_cost(workload);
  cost.parameters = count_parameters(workload.config);
  return cost;
}

std::vector<ComponentCost> component_costs(const Workload& workload, int64_t micro_batches) {
  const ModelConfig& config = workload.config;
  const int64_t D = config.hidden_dim();
  const int64_t L = config.n_layers();
  CostList list(workload, micro_batches);
  list.add("embedding", embedding_cost, 1);
  list.add("rms_norm", rms_norm_cost, 2 * L + 1);
  list.add("attention", attention_cost, L);
  list.add_projection("attention/qkv_proj", D, D + 2 * config.kv_dim(), L);
  list.add("attention/rotary", rotary_cost, L);
  // q k^T and probabilities x v, scores in full
  const int64_t scores = micro_batches * L * 4 * workload.batch * config.n_heads() * workload.seq *
                         workload.seq * config.head_dim();
  list.add_rest({"attention/core", 0, scores, 2 * scores});
  list.add_projection("attention/o_proj", D, D, L);
  list.add("ffn", feed_forward_cost, L);
  list.add_projection("ffn/gate_up_proj", D, 2 * config.intermediate_dim(), L);
  list.add_projection("ffn/down_proj", config.intermediate_dim(), D, L);
  list.add("loss", loss_cost, 1);
  list.add_projection("loss/lm_head", D, config.vocab_size(), 1);
  const Cost update = optimizer_cost(workload);
  list.add_rest({"optimizer", 0, update.model_flops, 0, update.elementwise_flops, update.bytes});
  return list.take();
}

}  // namespace tinyllama::training
