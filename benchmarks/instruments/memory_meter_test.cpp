#include "benchmarks/instruments/memory_meter.hpp"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "benchmarks/instruments/host_allocator.hpp"

namespace tinyllama::instruments {
namespace {

TEST(MemoryMeterTest, ReadsPeakAndAllocationsSinceStart) {
  host_allocator::install();
  const Device cpu = Device::select("cpu");
  const at::Tensor before = at::empty({1'000}, at::kByte);
  MemoryMeter meter(cpu);
  const int64_t live_at_start = meter.read().live_bytes;
  EXPECT_EQ(meter.read().peak_bytes, live_at_start);
  EXPECT_EQ(meter.read().allocations, 0);

  at::empty({200'000}, at::kByte).reset();
  const at::Tensor kept = at::empty({3'000}, at::kByte);
  EXPECT_EQ(meter.read().live_bytes, live_at_start + 3'000);
  EXPECT_EQ(meter.read().peak_bytes, live_at_start + 200'000);
  EXPECT_EQ(meter.read().allocations, 2);

  meter.start();
  EXPECT_EQ(meter.read().peak_bytes, live_at_start + 3'000);
  EXPECT_EQ(meter.read().allocations, 0);
}

TEST(MemoryMeterTest, ReleasesCachedMemory) {
  host_allocator::install();
  at::empty({1 << 20}, at::kByte).reset();
  EXPECT_GT(host_allocator::read().cached_bytes, 0);
  release_cached_memory(Device::select("cpu"));
  EXPECT_EQ(host_allocator::read().cached_bytes, 0);
}

TEST(MemoryMeterTest, SourceSaysWhatIsLeftOut) {
  const char* apart = at::hasMKLDNN() ? "counted apart (library_scratch_MiB)" : "in it";
  EXPECT_NE(memory_source(Device::select("cpu")).find(apart), std::string::npos);
}

}  // namespace
}  // namespace tinyllama::instruments
