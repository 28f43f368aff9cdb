#include "benchmarks/distributed/gradient_hooks.hpp"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <stdexcept>
#include <utility>

namespace tinyllama::distributed {
namespace {

class Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(size_t index, const std::function<void(size_t)>& on_gradient)
      : index_(index), on_gradient_(on_gradient) {}
  void operator()(const at::Tensor&) override { on_gradient_(index_); }

 private:
  size_t index_;
  const std::function<void(size_t)>& on_gradient_;  // of the GradientHooks, which outlives it
};

}  // namespace

GradientHooks::GradientHooks(NamedTensors parameters, std::function<void(size_t)> on_gradient)
    : parameters_(std::move(parameters)), on_gradient_(std::move(on_gradient)) {}

GradientHooks::~GradientHooks() {
  detach();
}

void GradientHooks::attach() {
  for (size_t index = 0; index < parameters_.size(); ++index) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[index].second,
                                                   std::make_unique<Hook>(index, on_gradient_));
  }
  is_attached_ = true;
}

void GradientHooks::detach() {
  if (!is_attached_) return;
  for (const auto& [name, parameter] : parameters_)
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  is_attached_ = false;
}

at::Tensor dense_values(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense())
    throw std::logic_error("a tensor with gaps cannot be sent as it is");
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

}  // namespace tinyllama::distributed
