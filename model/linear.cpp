#include "model/linear.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/split_with_sizes.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

namespace tinyllama {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y = x W^T for one buffer W whose row ranges are the parameters `parts`.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList parts,
                            const at::Tensor& rows, const Gemm& gemm) {
    const auto type = gemm_type(x);
    const WithoutAutocast as_they_are;
    const at::Tensor flat = x.reshape({-1, x.size(-1)}).to(type);
    const at::Tensor weight = rows.to(type);
    context->save_for_backward({flat, weight});
    context->saved_data["gemm_path"] = static_cast<int64_t>(gemm.path());
    context->saved_data["x_sizes"] = x.sizes();
    context->saved_data["x_type"] = x.scalar_type();
    context->saved_data["parameter_type"] = rows.scalar_type();
    std::vector<int64_t> outs;
    for (const at::Tensor& part : parts) outs.push_back(part.size(0));
    context->saved_data["outs"] = outs;
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = rows.size(0);
    return gemm.forward(flat, weight).view(sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const Gemm gemm(static_cast<GemmPath>(context->saved_data["gemm_path"].toInt()));
    const at::Tensor gradient = gradients[0].reshape({-1, weight.size(0)});
    const auto outs = context->saved_data["outs"].toIntVector();
    variable_list result;
    if (context->needs_input_grad(0)) {
      result.push_back(gemm.input_gradient(gradient, weight)
                           .to(context->saved_data["x_type"].toScalarType())
                           .view(context->saved_data["x_sizes"].toIntVector()));
    } else {
      result.emplace_back();
    }
    const at::Tensor weight_gradient =
        gemm.weight_gradient(gradient, x, weight)
            .to(context->saved_data["parameter_type"].toScalarType());
    if (outs.size() == 1) {
      result.push_back(weight_gradient);
    } else {
      for (const at::Tensor& part : weight_gradient.split_with_sizes(outs)) result.push_back(part);
    }
    result.emplace_back();  // rows
    result.emplace_back();  // gemm
    return result;
  }
};

}  // namespace

c10::ScalarType gemm_type(const at::Tensor& x) {
  return autocast_type(x.device().type()).value_or(x.scalar_type());
}

Linear::Linear(int64_t in, int64_t out, const Variant& variant, TensorInitializer& initializer,
               bool has_bias)
    : Linear(in, {out}, /*merged=*/false, variant, initializer, has_bias) {}

Linear::Linear(const at::Tensor& weight, const Variant& variant)
    : buffers_({{weight.detach(), {weight}, {}}}),
      parts_({weight}),
      outs_({weight.size(0)}),
      gemm_(variant),
      operator_(copy_of(variant.filling(Slot::linear))) {}

Linear::Linear(int64_t in, at::IntArrayRef outs, bool merged, const Variant& variant,
               TensorInitializer& initializer, bool has_bias)
    : outs_(outs.vec()), gemm_(variant), operator_(copy_of(variant.filling(Slot::linear))) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> drawn;
  for (const int64_t out : outs) drawn.push_back(initializer.normal({out, in}, kInitialStd));
  const auto options = drawn.front().options();
  const auto add_buffer = [&](int64_t rows) {
    buffers_.push_back({variant.has(Switch::layout) ? at::empty({in, rows}, options).t()
                                                    : at::empty({rows, in}, options),
                        {},
                        {}});
  };
  if (merged) add_buffer(std::accumulate(outs_.begin(), outs_.end(), int64_t{0}));
  int64_t first = 0;
  for (const at::Tensor& weight : drawn) {
    if (!merged) {
      add_buffer(weight.size(0));
      first = 0;
    }
    at::Tensor part = buffers_.back().rows.narrow(0, first, weight.size(0)).detach();
    part.copy_(weight);
    parts_.push_back(part.requires_grad_(true));
    buffers_.back().parts.push_back(parts_.back());
    first += weight.size(0);
  }
  if (!has_bias) return;
  // Not zeros, as a training begins with: a bias that is left out must change the result.
  for (const int64_t out : outs) biases_.push_back(initializer.normal_parameter({out}));
  for (size_t part = 0; part < biases_.size(); ++part)
    buffers_[merged ? 0 : part].biases.push_back(biases_[part]);
}

NamedTensors Linear::parameters(const std::string& prefix, size_t part) const {
  NamedTensors all = {{prefix + "weight", parts_.at(part)}};
  if (!biases_.empty()) all.emplace_back(prefix + "bias", biases_[part]);
  return all;
}

namespace {

// y [.., sum of outs] plus the biases of its parts, in y's type.
at::Tensor with_bias(const at::Tensor& y, const std::vector<at::Tensor>& biases) {
  if (biases.empty()) return y;
  const at::Tensor all = biases.size() == 1 ? biases.front() : at::cat(biases);
  return y + all.to(y.scalar_type());
}

}  // namespace

at::Tensor Linear::multiply(const at::Tensor& x, const Buffer& buffer) const {
  if (operator_) {
    const auto type = gemm_type(x);
    return with_bias((*operator_)({x.to(type), buffer.parts.front().to(type)}).front(),
                     buffer.biases);
  }
  if (buffer.parts.size() == 1 && gemm_.path() == GemmPath::library) {
    return buffer.biases.empty() ? at::linear(x, buffer.parts.front())
                                 : at::linear(x, buffer.parts.front(), buffer.biases.front());
  }
  return with_bias(LinearFunction::apply(x, at::TensorList(buffer.parts), buffer.rows, gemm_),
                   buffer.biases);
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  TORCH_INTERNAL_ASSERT(buffers_.size() == 1, "one multiplication for weights that are not merged");
  return multiply(x, buffers_.front());
}

std::vector<at::Tensor> Linear::forward_parts(const at::Tensor& x) const {
  if (buffers_.size() == 1) return at::split_with_sizes(forward(x), outs_, -1);
  std::vector<at::Tensor> outputs;
  for (const Buffer& buffer : buffers_) outputs.push_back(multiply(x, buffer));
  return outputs;
}

}  // namespace tinyllama
