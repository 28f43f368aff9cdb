#include "benchmarks/training/memory_recording.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/TensorOperators.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "benchmarks/instruments/host_allocator.hpp"
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

TEST(ComponentTrackerTest, FollowsRangesButNotThoseOfStepsAndPhases) {
  const ComponentTracker tracker;
  EXPECT_EQ(tracker.current(), "other");
  {
    const ComponentRange outer("evaluation");
    const ComponentRange inner("attention/core");
    const ComponentRange step("ProfilerStep#3");
    const ComponentRange phase("forward");
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
  const auto node = [] { return leaf() * 2; };
  {
    const ComponentRange outer("residual");
    const at::Tensor before = node();
    { const ComponentRange without_nodes("embedding"); }
    {
      const ComponentRange inner("rms_norm");
      const at::Tensor within = node();
    }
    const at::Tensor after = node();
  }
  const at::Tensor outside = node();
  const uint64_t here = at::RecordFunction::currentThreadId();
  const std::vector<std::string> expected = {"other", "residual", "rms_norm", "residual", "other"};
  for (int64_t i = 0; i < 5; ++i)
    EXPECT_EQ(tracker.of_node(here, first - 1 + i), expected[static_cast<size_t>(i)]) << i;
  EXPECT_EQ(tracker.of_node(here + 1, first), "other");
  EXPECT_EQ(tracker.of_node(here, -1), "other") << "a node without a number";
  const ComponentRange open("ffn/swiglu");
  const auto next = static_cast<int64_t>(at::sequence_number::peek());
  tracker.clear();
  EXPECT_EQ(tracker.of_node(here, first), "other");
  EXPECT_EQ(tracker.of_node(here, next), "ffn/swiglu") << "open ranges stay";
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

TEST(ComponentTrackerTest, OneLivesAtATimeAndIgnoresRangesFromBeforeIt) {
  std::optional<ComponentRange> early(std::in_place, "embedding");
  std::optional<ComponentTracker> tracker(std::in_place);
  EXPECT_THROW(ComponentTracker(), std::logic_error);
  early.reset();
  EXPECT_EQ(tracker->current(), "other");
  tracker.reset();
  EXPECT_NO_THROW(ComponentTracker());
}

/// Takes ranges in a GPU's place while it lives.
class FakeRanges final : public torch::profiler::impl::ProfilerStubs {
 public:
  FakeRanges() : before_(torch::profiler::impl::cudaStubs()) {
    torch::profiler::impl::registerCUDAMethods(this);
  }
  ~FakeRanges() override {
    torch::profiler::impl::registerCUDAMethods(
        const_cast<torch::profiler::impl::ProfilerStubs*>(before_));
  }
  FakeRanges(const FakeRanges&) = delete;
  FakeRanges& operator=(const FakeRanges&) = delete;

  /// The ranges since the last call: `name{` and `}`.
  std::string taken() { return std::exchange(seen_, ""); }

  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*,
              int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void rangePush(const char* name) const override { seen_ += std::string(name) + "{"; }
  void rangePop() const override { seen_ += "}"; }
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

 private:
  const torch::profiler::impl::ProfilerStubs* before_;
  mutable std::string seen_;
};

at::Tensor in_ffn(const at::Tensor& x) {
  const ComponentRange range("ffn/swiglu");
  return x * 2;
}

TEST(RangeEmitterTest, ABackwardHasTheRangesOfItsForward) {
  FakeRanges ranges;
  const RangeEmitter emitter(true);
  const at::Tensor loss = (in_ffn(leaf()) + 1).sum();
  EXPECT_EQ(ranges.taken(), "ffn/swiglu{}");
  loss.backward();
  EXPECT_EQ(ranges.taken(), "ffn/swiglu{}ffn/swiglu{}") << "the product's and its leaf's nodes";
}

TEST(RangeEmitterTest, NodesBeforeTheNextBatchAreForgotten) {
  FakeRanges ranges;
  const RangeEmitter emitter(true);
  const at::Tensor loss = in_ffn(leaf()).sum();
  { const ComponentRange range("data_loading"); }
  ranges.taken();
  loss.backward();
  EXPECT_EQ(ranges.taken(), "");
}

TEST(RangeEmitterTest, BesideAProfilersTrackerItEmitsTheForwardAlone) {
  FakeRanges ranges;
  const ComponentTracker of_a_profiler;
  EXPECT_THROW(RangeEmitter(true), std::logic_error);
  const RangeEmitter emitter(false);
  in_ffn(leaf()).sum().backward();
  EXPECT_EQ(ranges.taken(), "ffn/swiglu{}");
}

class MemoryRecorderTest : public ::testing::Test {
 protected:
  void SetUp() override { instruments::host_allocator::install(); }
  static int64_t live() { return instruments::host_allocator::read().live_bytes; }
};

int64_t sum_of_bytes(const MemoryRecording& recording) {
  int64_t sum = 0;
  for (const MemoryEvent& event : recording.events) sum += event.bytes;
  return sum;
}

TEST_F(MemoryRecorderTest, RecordsAllocationAndReleaseToTheByte) {
  const int64_t before = live();
  MemoryRecorder recorder(c10::kCPU, {});
  at::Tensor kept = at::empty({12'345}, at::kByte);
  const void* data = kept.data_ptr();
  kept.reset();
  const at::Tensor other = at::empty({77}, at::kByte);
  const MemoryRecording recording = recorder.finish();
  EXPECT_EQ(recording.live_bytes_before, before);
  EXPECT_FALSE(recording.on_gpu);
  ASSERT_EQ(recording.events.size(), 3u);
  EXPECT_EQ(recording.events[0].bytes, 12'345);
  EXPECT_EQ(recording.events[0].data, data);
  EXPECT_EQ(recording.events[1].bytes, -12'345);
  EXPECT_EQ(recording.events[1].data, data);
  EXPECT_EQ(recording.events[2].bytes, 77);
  EXPECT_LE(recording.events[0].seconds, recording.events[2].seconds);
  EXPECT_EQ(before + sum_of_bytes(recording), live());
}

TEST_F(MemoryRecorderTest, NotesStepPhaseComponentAndOperator) {
  const at::Tensor x = at::ones({64, 64}, at::kFloat);
  MemoryRecorder recorder(c10::kCPU, {});
  recorder.begin_step(7);
  recorder.begin_phase(Phase::forward);
  at::Tensor y;
  {
    const ComponentRange range("attention/core");
    y = x.matmul(x);
  }
  recorder.begin_phase(Phase::optimizer);
  const at::Tensor z = y.clone();
  recorder.end_step();
  const MemoryRecording recording = recorder.finish();

  ASSERT_EQ(recording.events.size(), 2u);
  const MemoryEvent& multiplied = recording.events[0];
  EXPECT_EQ(multiplied.phase, Phase::forward);
  EXPECT_EQ(recording.names[multiplied.component], "attention/core");
  EXPECT_EQ(recording.names[multiplied.operation], "aten::mm");
  const MemoryEvent& copy = recording.events[1];
  EXPECT_EQ(copy.phase, Phase::optimizer);
  EXPECT_EQ(recording.names[copy.component], "optimizer");
  EXPECT_EQ(recording.names[copy.operation], "aten::clone");
  EXPECT_NE(multiplied.operator_call, copy.operator_call);

  ASSERT_EQ(recording.steps.size(), 1u);
  EXPECT_EQ(recording.steps[0].step, 7);
  EXPECT_EQ(recording.steps[0].end_event, 2u);
  ASSERT_EQ(recording.phases.size(), 2u);
  EXPECT_EQ(recording.phases[0].end_event, 1u);
  EXPECT_EQ(recording.phases[1].first_event, 1u);
  EXPECT_EQ(recording.phases[1].step, 7);
  EXPECT_LE(recording.phases[0].end_seconds, recording.phases[1].begin_seconds);
  ASSERT_EQ(recording.resident_samples.size(), 2u);
  EXPECT_GT(recording.resident_samples[0].bytes, 64 * 64 * 4);
}

TEST_F(MemoryRecorderTest, ABackwardsBytesBelongToTheComponentOfItsForward) {
  const at::Tensor x = at::ones({64, 64}, at::kFloat).set_requires_grad(true);
  MemoryRecorder recorder(c10::kCPU, {});
  recorder.begin_step(1);
  recorder.begin_phase(Phase::forward);
  at::Tensor loss;
  {
    const ComponentRange range("ffn/down_proj");
    loss = x.matmul(x);
  }
  loss = loss.sum();
  recorder.begin_phase(Phase::backward);
  loss.backward();
  recorder.mark_gradients({{"x", x}});
  recorder.end_step();
  const MemoryRecording recording = recorder.finish();

  std::multiset<std::string> of_gradients;
  for (const MemoryEvent& event : recording.events) {
    if (event.phase == Phase::backward && event.bytes == 64 * 64 * 4)
      of_gradients.insert(recording.names[event.component]);
  }
  EXPECT_GE(of_gradients.count("ffn/down_proj"), 2u) << "one for each operand";
  ASSERT_EQ(recording.marks.size(), 1u);
  EXPECT_EQ(recording.marks[0].tensor.data, x.grad().data_ptr());
  EXPECT_EQ(recording.marks[0].tensor.kind, TensorKind::gradient);
  EXPECT_EQ(recording.marks[0].tensor.bytes, 64 * 64 * 4);
}

TEST_F(MemoryRecorderTest, SeesEveryByteOfThreadsThatInheritLibtorchsState) {
  const int64_t before = live();
  std::vector<at::Tensor> kept[4];
  MemoryRecorder recorder(c10::kCPU, {});
  const at::ThreadLocalState state;
  std::vector<std::thread> threads;
  for (auto& tensors : kept) {
    threads.emplace_back([&] {
      const at::ThreadLocalStateGuard guard(state);
      for (int64_t i = 1; i <= 500; ++i) {
        const at::Tensor passing = at::ones({i}, at::kFloat) + 1;
        if (i % 10 == 0) tensors.push_back(passing);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const MemoryRecording recording = recorder.finish();
  EXPECT_EQ(before + sum_of_bytes(recording), live());
  EXPECT_GE(recording.events.size(), 4u * 500 * 2);
  double last = 0;
  for (const MemoryEvent& event : recording.events) {
    EXPECT_GE(event.seconds, last);
    last = event.seconds;
  }
}

TEST_F(MemoryRecorderTest, ListensToItsOwnDeviceUntilItIsFinished) {
  MemoryRecorder recorder(c10::kCPU, {});
  int memory = 0;
  // What the allocator of a GPU says of a tensor of its own.
  c10::reportMemoryUsageToProfiler(&memory, 512, 512, 1024, c10::Device(c10::kCUDA, 0));
  const MemoryRecording recording = recorder.finish();
  const at::Tensor after = at::ones({5}, at::kFloat);
  EXPECT_TRUE(recording.events.empty());
  EXPECT_FALSE(c10::memoryProfilingEnabled());
}

TEST_F(MemoryRecorderTest, RefusesToDisturbAnotherProfiler) {
  struct OtherProfiler : c10::DebugInfoBase {};
  const c10::DebugInfoGuard other(c10::DebugInfoKind::PROFILER_STATE,
                                  std::make_shared<OtherProfiler>());
  EXPECT_THROW(MemoryRecorder(c10::kCPU, {}), std::logic_error);
}

TEST_F(MemoryRecorderTest, KnowsEachStorageOnce) {
  const at::Tensor storage = at::ones({8, 4}, at::kFloat);
  const NamedTensors parameters = {{"a", storage.narrow(0, 0, 4)}, {"b", storage.narrow(0, 4, 4)}};
  const AdamW optimizer(parameters, Variant());
  std::map<TensorKind, int64_t> bytes;
  for (const KnownTensor& tensor : known_tensors(optimizer)) bytes[tensor.kind] += tensor.bytes;
  EXPECT_EQ(bytes[TensorKind::parameter], 8 * 4 * 4);
  EXPECT_EQ(bytes[TensorKind::optimizer_state], 2 * 8 * 4 * 4);
  EXPECT_EQ(bytes.count(TensorKind::gradient), 0u);
}

}  // namespace
}  // namespace tinyllama::training
