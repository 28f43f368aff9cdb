#include "model/block.hpp"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "model/dtype.hpp"

namespace tinyllama {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a graph node can keep: the layer as a value of libtorch's own, and the state of autocast,
// which the backward does not inherit from the forward.
struct Recipe : torch::CustomClassHolder {
  Recipe(std::function<at::Tensor(const at::Tensor&)> layer_,
         std::optional<c10::ScalarType> autocast_)
      : layer(std::move(layer_)), autocast(autocast_) {}
  std::function<at::Tensor(const at::Tensor&)> layer;
  std::optional<c10::ScalarType> autocast;
};

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  // Function::apply runs this without recording gradients.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<Recipe>& recipe) {
    context->save_for_backward({x});
    context->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    return recipe->layer(x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto recipe =
        c10::static_intrusive_pointer_cast<Recipe>(context->saved_data["recipe"].toCapsule());
    at::Tensor x = context->get_saved_variables()[0].detach();
    x.set_requires_grad(true);
    at::Tensor output;
    {
      const at::AutoGradMode recording(true);
      const AutocastScope autocast(recipe->autocast, x.device().type());
      output = recipe->layer(x);
    }
    torch::autograd::backward({output}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

// Activation checkpointing: layer(x) without keeping what its backward needs but x; the backward
// calls the layer once more (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
// Gradients of the layer's parameters are added to them, as its own backward would. Where no
// gradients are recorded, just layer(x). The layer must compute the same both times.
at::Tensor checkpointed(std::function<at::Tensor(const at::Tensor&)> layer, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return layer(x);
  TORCH_CHECK_VALUE(x.requires_grad(),
                    "checkpoint: the layer's input must require gradients, or its backward is "
                    "never called");
  const auto recipe =
      c10::make_intrusive<Recipe>(std::move(layer), autocast_type(x.device().type()));
  return Checkpoint::apply(x, recipe);
}

}  // namespace

Block::Block(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer)
    : attention_norm_(config.hidden_dim(), config.norm_eps(), variant, initializer),
      attention_(config, variant, initializer),
      feed_forward_norm_(config.hidden_dim(), config.norm_eps(), variant, initializer),
      feed_forward_(config, variant, initializer),
      checkpoint_(variant.has(Switch::checkpoint)) {}

at::Tensor Block::forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                          const at::Tensor& mask, ModelHooks* hooks) const {
  if (!checkpoint_) return run(hidden_states, rotary, mask, hooks);
  // Copies of tensor handles, so that the backward needs nothing else to be alive.
  return checkpointed([block = *this, rotary, mask,
                       hooks](const at::Tensor& x) { return block.run(x, rotary, mask, hooks); },
                      hidden_states);
}

at::Tensor Block::run(const at::Tensor& hidden_states, const RotaryTable& rotary,
                      const at::Tensor& mask, ModelHooks* hooks) const {
  const auto to_shares = [&](const at::Tensor& x) { return hooks ? hooks->to_shares(x) : x; };
  const auto from_shares = [&](const at::Tensor& x) { return hooks ? hooks->from_shares(x) : x; };
  const auto [attended, normalized] = feed_forward_norm_.add_and_normalize(
      hidden_states, from_shares(attention_.forward(
                         to_shares(attention_norm_.forward(hidden_states)), rotary, mask)));
  return add_residual(attended, from_shares(feed_forward_.forward(to_shares(normalized))));
}

NamedTensors Block::parameters(const std::string& prefix) const {
  NamedTensors all = attention_norm_.parameters(prefix + "input_layernorm.");
  append(all, attention_.parameters(prefix + "self_attn."));
  append(all, feed_forward_norm_.parameters(prefix + "post_attention_layernorm."));
  append(all, feed_forward_.parameters(prefix + "mlp."));
  return all;
}

namespace {

// The matrix multiplications of `again`, run but not asked for, and its all-reduces.
Cost recomputed(const Cost& again) {
  return {.hardware_flops = again.hardware_flops,
          .comm_calls = again.comm_calls,
          .comm_bytes = again.comm_bytes,
          .opaque_flops = again.opaque_flops};
}

}  // namespace

Cost block_cost(const Workload& workload, Pass pass) {
  const int64_t elements = workload.tokens() * workload.config.hidden_dim();
  // A residual addition reads the stream once more; its backward adds the two branches' gradients.
  const Cost residual = with_traffic({}, elements, elements * storage_bytes(workload.dtype));
  Cost cost = 2 * rms_norm_cost(workload, pass) + attention_cost(workload, pass) +
              feed_forward_cost(workload, pass) + 2 * select_halves(pass, 0, {residual, residual});
  if (workload.variant.has(Switch::checkpoint) && has_backward(pass)) {
    cost += recomputed(attention_cost(workload, Pass::forward) +
                       feed_forward_cost(workload, Pass::forward));
  }
  return cost;
}

}  // namespace tinyllama
