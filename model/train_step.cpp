#include "model/train_step.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <stdexcept>
#include <vector>

#include "model/component_range.hpp"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define TINYLLAMA_HAS_GRAPHS
#endif

namespace tinyllama {

TokenBatch random_token_batch(const ModelConfig& config, int64_t batch, int64_t seq,
                              TensorInitializer& initializer) {
  const at::Tensor tokens = initializer.tokens({batch, seq}, config.token_count());
  return {tokens, next_token_targets(tokens)};
}

std::string lacks_gradients(const NamedTensors& parameters) {
  std::vector<std::string> without;
  for (const auto& [name, parameter] : parameters)
    if (!parameter.grad().defined()) without.push_back(name);
  if (without.empty()) return {};
  return fmt::format(
      "{} of {} parameters have no gradient after the backward, the first of them {}: an operator "
      "of the variant is hidden from autograd, so that the step leaves work out; "
      "tiny_llama_bench --verify only says which",
      without.size(), parameters.size(), without.front());
}

TrainStep::TrainStep(const TinyLlama& model, AdamW& optimizer)
    : model_(model),
      optimizer_(optimizer),
      device_type_(model.parameters().front().second.device().type()) {
  if (model.dtype() == Dtype::amp_f16) scaler_.emplace(model.parameters().front().second.device());
}

at::Tensor TrainStep::forward(const TokenBatch& batch, int64_t accumulation_steps) const {
  const AutocastScope autocast(model_.dtype(), device_type_);
  const at::Tensor loss = model_.loss(batch.tokens, batch.targets);
  return accumulation_steps == 1 ? loss : loss / static_cast<double>(accumulation_steps);
}

void TrainStep::backward(const at::Tensor& loss) const {
  (scaler_ ? scaler_->scale(loss) : loss).backward();
}

void TrainStep::reset_scale() {
  if (scaler_) scaler_->begin_anew();
}

bool TrainStep::update() {
  const ComponentRange range("optimizer");
  if (scaler_) return scaler_->unscale_and_step(optimizer_);
  optimizer_.step();
  return true;
}

at::Tensor TrainStep::run(std::span<const TokenBatch> micro_batches) {
  if (micro_batches.empty()) {
    throw std::invalid_argument("micro_batches = 0: a step needs at least one");
  }
  at::Tensor total;
  for (const TokenBatch& batch : micro_batches) {
    const at::Tensor loss = forward(batch, static_cast<int64_t>(micro_batches.size()));
    backward(loss);
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  update();
  return total;
}

namespace {

// Defaults of torch.amp.GradScaler.
constexpr double kInitialScale = 65536.0;
constexpr double kGrowthFactor = 2.0;
constexpr double kBackoffFactor = 0.5;
constexpr int64_t kGrowthInterval = 2000;

}  // namespace

LossScaler::LossScaler(c10::Device device)
    : scale_(at::full({}, kInitialScale,
                      at::TensorOptions().dtype(c10::ScalarType::Float).device(device))),
      growth_tracker_(
          at::zeros({}, at::TensorOptions().dtype(c10::ScalarType::Int).device(device))) {}

void LossScaler::begin_anew() {
  scale_.fill_(kInitialScale);
  growth_tracker_.zero_();
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  return loss * scale_;
}

bool LossScaler::unscale_and_step(AdamW& optimizer) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : optimizer.parameters()) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  at::Tensor found_non_finite = at::zeros({}, scale_.options());
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_non_finite, scale_.reciprocal());
  // On meta there is no value to look at: as if all were finite, for that step takes more memory.
  const bool finite = found_non_finite.is_meta() || found_non_finite.item<float>() == 0.0f;
  if (finite) optimizer.step();
  at::_amp_update_scale_(scale_, growth_tracker_, found_non_finite, kGrowthFactor, kBackoffFactor,
                         kGrowthInterval);
  return finite;
}

double LossScaler::current_scale() const {
  return scale_.item<float>();
}

#ifdef TINYLLAMA_HAS_GRAPHS
namespace {

// libtorch's advice: libraries allocate and choose on their first calls, which cannot be captured.
constexpr int kWarmUpSteps = 3;

// What a step changes, kept in the host's memory so that the device's peak is that of a step.
class SavedState {
 public:
  explicit SavedState(AdamW& optimizer) : optimizer_(optimizer), steps_(optimizer.steps_done()) {
    for_each([&](const at::Tensor& tensor) { values_.push_back(tensor.detach().cpu().clone()); });
  }
  // Copies on the device, which may throw: no work for a destructor.
  void put_back() const {
    const at::NoGradGuard no_grad;
    auto value = values_.begin();
    for_each([&](const at::Tensor& tensor) { tensor.copy_(*value++); });
    optimizer_.set_steps_done(steps_);
  }

 private:
  template <class Body>
  void for_each(const Body& body) const {
    for (const auto* tensors :
         {&optimizer_.parameters(), &optimizer_.first_moments(), &optimizer_.second_moments()}) {
      for (const auto& [name, tensor] : *tensors) body(tensor);
    }
  }

  AdamW& optimizer_;
  int64_t steps_;
  std::vector<at::Tensor> values_;
};

void synchronize(c10::Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

// A capture allocates from a pool of its own and cannot take back what the warm-up left cached:
// without this the step would need its memory twice.
void empty_cache(c10::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
}

// `end` comes after `work` also where that throws; its error is then the one that counts, for that
// of `end` only follows from it.
template <class Work, class End>
void run_to_the_end(const Work& work, const End& end) {
  try {
    work();
  } catch (...) {
    try {
      end();
    } catch (const std::exception&) {
    }
    throw;
  }
  end();
}

}  // namespace

StepGraph::StepGraph(TrainStep& step, AdamW& optimizer, const TokenBatch& batch)
    : optimizer_(optimizer), batch_(batch) {
  const c10::Device device = optimizer.parameters().front().second.device();
  std::shared_ptr<at::GraphImplInterface> graph = at::create_graph_impl(device.type());
  TORCH_CHECK(graph, "graph: this libtorch cannot capture the work of ", device);
  const c10::DeviceGuard on_device(device);
  TORCH_CHECK(optimizer.counts_on_device(),
              "graph: the optimizer's variant must have this switch, or every replay would be the "
              "captured step");
  synchronize(device);
  {
    // Not the default stream, which cannot be captured.
    const c10::StreamGuard on_stream(
        c10::impl::VirtualGuardImpl(device.type()).getNewStream(device));
    const SavedState before(optimizer);
    const auto warm_up_and_capture = [&] {
      for (int i = 0; i < kWarmUpSteps; ++i) {
        optimizer.clear_gradients();
        step.run({&batch_, 1});
      }
      // So that the captured backward writes gradients instead of adding to them.
      optimizer.clear_gradients();
      synchronize(device);
      empty_cache(device);
      graph->capture_begin();
      // A capture that failed must not leave the stream in it.
      run_to_the_end([&] { loss_ = step.run({&batch_, 1}); }, [&] { graph->capture_end(); });
    };
    run_to_the_end(warm_up_and_capture, [&] { before.put_back(); });
  }
  synchronize(device);
  replay_ = [graph] { graph->replay(); };
}
#else
StepGraph::StepGraph(TrainStep& /*step*/, AdamW& optimizer, const TokenBatch& /*batch*/)
    : optimizer_(optimizer) {
  TORCH_CHECK(false, "graph: this libtorch cannot capture work");
}
#endif

const at::Tensor& StepGraph::run() {
  replay_();
  optimizer_.note_replayed_step();
  return loss_;
}

Cost full_step_cost(const Workload& workload, int64_t micro_batches) {
  Cost cost =
      micro_batches * model_cost(workload, Pass::forward_backward) + optimizer_cost(workload);
  cost.parameters = count_parameters(workload.config);
  // Of a replayed step a profiler sees kernels, but no operators.
  if (workload.variant.has(Switch::graph)) cost.opaque_flops = cost.hardware_flops;
  return cost;
}

}  // namespace tinyllama
