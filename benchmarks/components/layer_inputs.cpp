#include "benchmarks/components/layer_inputs.hpp"

#include <fmt/format.h>

namespace tinyllama::components {

void load_weights(const harness::BuildRequest& request, const NamedTensors& parameters) {
  if (request.weights == nullptr) return;
  request.weights->copy_to(parameters, request.weights_type, &request.workload.config);
}

at::Tensor hidden_states(const Workload& workload, TensorInitializer& initializer) {
  return initializer.normal({workload.batch, workload.seq, workload.config.hidden_dim()})
      .requires_grad_(true);
}

std::unique_ptr<harness::WorkItem> layer_work(const harness::BuildRequest& request,
                                              const NamedTensors& inputs,
                                              const NamedTensors& parameters, c10::ScalarType type,
                                              TensorInitializer& initializer,
                                              const std::function<at::Tensor()>& forward,
                                              const harness::TokenInputs& tokens) {
  const Workload& w = request.workload;
  std::vector<at::Tensor> gradients;
  if (has_backward(request.pass))
    gradients = {initializer.normal({w.batch, w.seq, w.config.hidden_dim()}).to(type)};
  const auto named = [forward] { return NamedTensors{{"output", forward()}}; };
  return std::make_unique<harness::LayerWork>(
      harness::Layer{inputs, parameters, named, gradients, tokens}, request.pass, w.dtype,
      request.device.type());
}

std::string missing_in_stages(const ModelConfig& config) {
  if (!config.only_layers()) return {};
  return "a stage between others of a pipeline has neither embedding nor loss: measure stage, and "
         "for the first and the last one embedding, rms_norm and loss";
}

std::string refuse_loss(const Workload& workload, Pass pass) {
  if (workload.seq < 2 && pass != Pass::forward) {
    return fmt::format("seq = {}: the next-token loss needs at least 2 tokens a sample",
                       workload.seq);
  }
  if (pass == Pass::backward && workload.variant.has(Switch::fused_loss))
    return "fused_loss computes the LM head's gradients in the forward: time forward_backward";
  return {};
}

}  // namespace tinyllama::components
