#include "benchmarks/training/memory_recorder.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <thread>

#include "benchmarks/instruments/host_allocator.hpp"
#include "model/component_range.hpp"

namespace tinyllama::training {
namespace {

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
  const MemoryEvent& product = recording.events[0];
  EXPECT_EQ(product.phase, Phase::forward);
  EXPECT_EQ(recording.names[product.component], "attention/core");
  EXPECT_EQ(recording.names[product.operation], "aten::mm");
  const MemoryEvent& copy = recording.events[1];
  EXPECT_EQ(copy.phase, Phase::optimizer);
  EXPECT_EQ(recording.names[copy.component], "optimizer");
  EXPECT_EQ(recording.names[copy.operation], "aten::clone");
  EXPECT_NE(product.operator_call, copy.operator_call);

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

  std::multiset<std::string> of_products;
  for (const MemoryEvent& event : recording.events) {
    if (event.phase == Phase::backward && event.bytes == 64 * 64 * 4)
      of_products.insert(recording.names[event.component]);
  }
  EXPECT_GE(of_products.count("ffn/down_proj"), 2u) << "one product for each operand";
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

TEST_F(MemoryRecorderTest, StopsWhenItIsFinished) {
  MemoryRecorder recorder(c10::kCPU, {});
  const MemoryRecording recording = recorder.finish();
  const at::Tensor after = at::ones({5}, at::kFloat);
  EXPECT_TRUE(recording.events.empty());
  EXPECT_FALSE(c10::memoryProfilingEnabled());
}

TEST_F(MemoryRecorderTest, ListensToItsOwnDeviceAlone) {
  MemoryRecorder recorder(c10::kCPU, {});
  int memory = 0;
  // What the allocator of a GPU says of a tensor of its own.
  c10::reportMemoryUsageToProfiler(&memory, 512, 512, 1024, c10::Device(c10::kCUDA, 0));
  EXPECT_TRUE(recorder.finish().events.empty());
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
