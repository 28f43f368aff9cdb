#include "model/checkpoint.hpp"

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

}  // namespace

at::Tensor checkpointed(std::function<at::Tensor(const at::Tensor&)> layer, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return layer(x);
  TORCH_CHECK_VALUE(x.requires_grad(),
                    "checkpoint: the layer's input must require gradients, or its backward is "
                    "never called");
  const auto recipe =
      c10::make_intrusive<Recipe>(std::move(layer), autocast_type(x.device().type()));
  return Checkpoint::apply(x, recipe);
}

}  // namespace tinyllama
