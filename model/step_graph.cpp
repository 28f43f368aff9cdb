#include "model/step_graph.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define TINYLLAMA_HAS_GRAPHS
#endif

namespace tinyllama {

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

bool can_capture(c10::DeviceType device) {
  return at::has_graph_impl(device);
}

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
bool can_capture(c10::DeviceType /*device*/) {
  return false;
}

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

}  // namespace tinyllama
