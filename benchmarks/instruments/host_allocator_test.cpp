#include "benchmarks/instruments/host_allocator.hpp"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "benchmarks/instruments/memory_meter.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

class HostAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    host_allocator::install();
    host_allocator::release_cached();
    live_before_ = host_allocator::read().live_bytes;
  }
  void TearDown() override { host_allocator::set_limit(0); }
  int64_t live() const { return host_allocator::read().live_bytes - live_before_; }
  int64_t live_before_ = 0;
};

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

TEST_F(HostAllocatorTest, CountsToTheByte) {
  const int64_t before = host_allocator::read().allocations;
  const at::Tensor odd = bytes(12'345);
  at::Tensor large = at::empty({1000, 777}, at::kDouble);
  const at::Tensor nothing = bytes(0);
  EXPECT_EQ(live(), 12'345 + 1000 * 777 * 8);
  EXPECT_EQ(host_allocator::read().allocations, before + 2) << "an empty tensor is none";
  large.resize_({2000, 777});
  EXPECT_EQ(live(), 12'345 + 2000 * 777 * 8);
}

TEST_F(HostAllocatorTest, AgreesWithLiveTensorsAcrossThreads) {
  constexpr int thread_count = 4;
  std::vector<std::vector<at::Tensor>> kept(thread_count);
  std::vector<std::thread> threads;
  for (int index = 0; index < thread_count; ++index) {
    threads.emplace_back([&tensors = kept[index], index] {
      std::mt19937 random(index);
      std::uniform_int_distribution<int64_t> sizes(1, 300'000);
      for (int step = 0; step < 500; ++step) {
        tensors.push_back(bytes(sizes(random)));
        if (step % 3 == 0) tensors.erase(tensors.begin() + random() % tensors.size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t sum = 0;
  for (const auto& tensors : kept) {
    for (const at::Tensor& tensor : tensors) sum += static_cast<int64_t>(tensor.storage().nbytes());
  }
  EXPECT_GT(sum, 0);
  EXPECT_EQ(live(), sum);
  // Freed by another thread than the one that allocated.
  kept.clear();
  EXPECT_EQ(live(), 0);
}

TEST_F(HostAllocatorTest, BlocksOfManySizesAreAlignedAndDoNotOverlap) {
  std::vector<at::Tensor> tensors;
  for (int64_t size = 1; size < (int64_t{24} << 20); size = size * 5 / 4 + 1) {
    tensors.push_back(at::full({size}, static_cast<int64_t>(tensors.size() % 251), at::kByte));
  }
  for (size_t index = 0; index < tensors.size(); ++index) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors[index].data_ptr()) % 64, 0U);
    const auto expected = static_cast<int64_t>(index % 251);
    EXPECT_EQ(tensors[index].min().item().toLong(), expected);
    EXPECT_EQ(tensors[index].max().item().toLong(), expected);
  }
}

TEST_F(HostAllocatorTest, AFreedBlockIsReusedUntilItIsReleasedOrALimitNeedsIt) {
  const auto cached = [] { return host_allocator::read().cached_bytes; };
  at::Tensor first = bytes(10'000'000);
  const void* address = first.data_ptr();
  first.reset();
  EXPECT_GE(cached(), 10'000'000);
  at::Tensor second = bytes(10'000'000);
  EXPECT_EQ(second.data_ptr(), address);
  EXPECT_EQ(cached(), 0);
  second.reset();
  host_allocator::set_limit(host_allocator::read().live_bytes + 4'000'000);
  const at::Tensor other_size = bytes(3'000'000);
  EXPECT_EQ(cached(), 0);
  host_allocator::set_limit(0);
  bytes(1 << 20).reset();
  EXPECT_GT(cached(), 0);
  release_cached_memory(Device::select("cpu"));
  EXPECT_EQ(cached(), 0);
}

TEST_F(HostAllocatorTest, WastesLittle) {
  for (int64_t size = 64 << 10; size < (int64_t{64} << 20); size = size * 11 / 10) {
    bytes(size).reset();
    const int64_t block = host_allocator::read().cached_bytes;
    EXPECT_GE(block, size);
    // A sixteenth, the header and the last page.
    EXPECT_LE(block, size + size / 16 + 64 + 4096);
    host_allocator::release_cached();
    EXPECT_EQ(host_allocator::read().cached_bytes, 0);
  }
}

TEST_F(HostAllocatorTest, LimitThrowsNamingTheFiguresAndRecovers) {
  const at::Tensor held = bytes(1'000'000);
  host_allocator::set_limit(host_allocator::read().live_bytes + 500'000);
  bytes(400'000).reset();
  const HostMemory before = host_allocator::read();
  EXPECT_THROW(bytes(600'000), c10::OutOfMemoryError);
  testing::expect_mentions(testing::error_of([] { bytes(600'000); }),
                           {"600000 bytes", std::to_string(before.live_bytes),
                            std::to_string(before.live_bytes + 500'000)});
  EXPECT_EQ(host_allocator::read().live_bytes, before.live_bytes);
  EXPECT_EQ(host_allocator::read().peak_bytes, before.peak_bytes);
  EXPECT_EQ(host_allocator::read().cached_bytes, 0) << "the cache goes before an error";
  EXPECT_NO_THROW(bytes(400'000));
}

TEST_F(HostAllocatorTest, RawInterfaceWorksAndImpossibleSizesAreOutOfMemory) {
  auto* allocator = c10::GetCPUAllocator();
  for (const size_t size : {size_t{100}, size_t{100'000}, size_t{10'000'000}}) {
    void* data = allocator->raw_allocate(size);
    EXPECT_EQ(live(), static_cast<int64_t>(size));
    allocator->raw_deallocate(data);
  }
  EXPECT_THROW(allocator->allocate(size_t{1} << 60), c10::OutOfMemoryError);
  EXPECT_THROW(allocator->allocate(~size_t{0}), c10::OutOfMemoryError);
  EXPECT_EQ(live(), 0);
}

TEST_F(HostAllocatorTest, ScratchOfOnednnIsCountedApart) {
  if (!at::hasMKLDNN()) GTEST_SKIP() << "this libtorch has no oneDNN";
  ASSERT_TRUE(host_allocator::tells_scratch_apart());
  const at::Tensor tensor = at::zeros({1000}, at::kFloat);
  const HostMemory before = host_allocator::read();
  host_allocator::reset_peak();
  at::Tensor of_onednn = tensor.to_mkldnn();
  const HostMemory during = host_allocator::read();
  EXPECT_EQ(during.scratch_live_bytes - before.scratch_live_bytes, 4000);
  EXPECT_EQ(during.live_bytes, before.live_bytes);
  EXPECT_EQ(during.allocations, before.allocations);
  of_onednn.reset();
  EXPECT_EQ(host_allocator::read().scratch_live_bytes, before.scratch_live_bytes);
  EXPECT_EQ(host_allocator::read().scratch_peak_bytes - before.scratch_live_bytes, 4000);
  EXPECT_EQ(host_allocator::read().peak_bytes, before.live_bytes);
}

TEST_F(HostAllocatorTest, TheLimitIsOfTensorsAndScratchTogether) {
  if (!at::hasMKLDNN()) GTEST_SKIP() << "this libtorch has no oneDNN";
  const at::Tensor tensor = at::zeros({250'000}, at::kFloat);
  const HostMemory before = host_allocator::read();
  host_allocator::set_limit(before.live_bytes + before.scratch_live_bytes + 1'500'000);
  const at::Tensor of_onednn = tensor.to_mkldnn();
  EXPECT_THROW(tensor.to_mkldnn(), c10::OutOfMemoryError);
  EXPECT_THROW(bytes(600'000), c10::OutOfMemoryError);
  EXPECT_NO_THROW(bytes(400'000));
}

TEST_F(HostAllocatorTest, MemoryMeterReadsPeakAndAllocationsSinceStart) {
  const at::Tensor before = bytes(1'000);
  MemoryMeter meter(Device::select("cpu"));
  const int64_t live_at_start = meter.read().live_bytes;
  EXPECT_EQ(meter.read().peak_bytes, live_at_start);
  EXPECT_EQ(meter.read().allocations, 0);
  bytes(200'000).reset();
  const at::Tensor kept = bytes(3'000);
  EXPECT_EQ(meter.read().live_bytes, live_at_start + 3'000);
  EXPECT_EQ(meter.read().peak_bytes, live_at_start + 200'000);
  EXPECT_EQ(meter.read().allocations, 2);
  meter.start();
  EXPECT_EQ(meter.read().peak_bytes, live_at_start + 3'000);
  EXPECT_EQ(meter.read().allocations, 0);
}

}  // namespace
}  // namespace tinyllama::instruments
