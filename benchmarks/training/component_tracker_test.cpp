#include "benchmarks/training/component_tracker.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/TensorOperators.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <stdexcept>
#include <thread>

#include "benchmarks/training/component_names.hpp"
#include "model/component_range.hpp"

namespace tinyllama::training {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Where a backward ran: what the tracker said inside it.
struct Witness {
  const ComponentTracker* tracker;
  std::string component;
};

/// y = x, whose backward asks the tracker where it is.
class Asking : public torch::autograd::Function<Asking> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t witness) {
    context->saved_data["witness"] = witness;
    return x * 1;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto* witness = reinterpret_cast<Witness*>(context->saved_data["witness"].toInt());
    witness->component = witness->tracker->current();
    return {gradients[0], at::Tensor()};
  }
};

at::Tensor ask(const at::Tensor& x, Witness& witness) {
  return Asking::apply(x, reinterpret_cast<int64_t>(&witness));
}

at::Tensor leaf() {
  return at::ones({3}, at::kFloat).set_requires_grad(true);
}

TEST(ComponentTrackerTest, FollowsRangesOfTheForward) {
  const ComponentTracker tracker;
  EXPECT_EQ(tracker.current(), "other");
  {
    const ComponentRange outer("evaluation");
    const ComponentRange inner("attention/core");
    EXPECT_EQ(tracker.current(), "attention/core");
  }
  EXPECT_EQ(tracker.current(), "other");
}

TEST(ComponentTrackerTest, ABackwardBelongsToTheRangeOfItsForward) {
  ComponentTracker tracker;
  Witness in_range{&tracker, ""};
  Witness outside{&tracker, ""};
  at::Tensor x = leaf();
  {
    const ComponentRange range("ffn/swiglu");
    x = ask(x, in_range);
  }
  ask(x, outside).sum().backward();
  EXPECT_EQ(in_range.component, "ffn/swiglu");
  EXPECT_EQ(outside.component, "other");
}

TEST(ComponentTrackerTest, AfterANodeItsGradientsAreAddedUpInItsName) {
  ComponentTracker tracker;
  Witness witness{&tracker, ""};
  at::Tensor y;
  {
    const ComponentRange range("embedding");
    y = ask(leaf(), witness);
  }
  y.sum().backward();
  EXPECT_EQ(tracker.current(), "embedding");
  tracker.end_backward();
  EXPECT_EQ(tracker.current(), "other");
}

TEST(ComponentTrackerTest, FindsNodesByThreadAndSequenceNumber) {
  ComponentTracker tracker;
  const auto first = static_cast<int64_t>(at::sequence_number::peek());
  {
    const ComponentRange range("residual");
    const at::Tensor y = leaf() * 2;
  }
  const uint64_t here = at::RecordFunction::currentThreadId();
  EXPECT_EQ(tracker.of_node(here, first), "residual");
  EXPECT_EQ(tracker.of_node(here + 1, first), "other");
  tracker.clear();
  EXPECT_EQ(tracker.of_node(here, first), "other");
}

TEST(ComponentTrackerTest, RunsAlongToThreadsThatInheritLibtorchsState) {
  ComponentTracker tracker;
  Witness of_main{&tracker, ""};
  Witness of_other{&tracker, ""};
  at::Tensor y;
  {
    const ComponentRange range("attention/rotary");
    y = ask(leaf(), of_main);
  }
  std::string in_range;
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    {
      const ComponentRange range("loss/lm_head");
      in_range = tracker.current();
      y = ask(y, of_other);
    }
    y.sum().backward();
  }).join();
  EXPECT_EQ(in_range, "loss/lm_head");
  EXPECT_EQ(of_other.component, "loss/lm_head");
  EXPECT_EQ(of_main.component, "attention/rotary");
}

TEST(ComponentTrackerTest, StepsAndPhasesAreNoComponents) {
  const ComponentTracker tracker;
  const ComponentRange component("rms_norm");
  const ComponentRange step("ProfilerStep#3");
  const ComponentRange phase("forward");
  EXPECT_EQ(tracker.current(), "rms_norm");
}

TEST(ComponentTrackerTest, OneLivesAtATime) {
  std::optional<ComponentTracker> first(std::in_place);
  EXPECT_THROW(ComponentTracker(), std::logic_error);
  first.reset();
  EXPECT_NO_THROW(ComponentTracker());
}

TEST(ComponentTrackerTest, IgnoresRangesThatWereOpenBeforeIt) {
  std::optional<ComponentRange> early(std::in_place, "embedding");
  const ComponentTracker tracker;
  early.reset();
  EXPECT_EQ(tracker.current(), "other");
}

}  // namespace
}  // namespace tinyllama::training
