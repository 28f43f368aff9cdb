#include "benchmarks/instruments/host_allocator.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "benchmarks/instruments/block_pool.hpp"
#include "benchmarks/instruments/host_machine.hpp"

namespace tinyllama::instruments {
namespace {

/// live, peak and number of allocations, exact for any number of threads.
class Counters {
 public:
  /// Adds `bytes` unless that exceeds `limit` (0: none); says whether it did.
  bool try_add(int64_t bytes, int64_t limit) {
    const int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (limit > 0 && live > limit) {
      remove(bytes);
      return false;
    }
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
    allocations_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void remove(int64_t bytes) { live_.fetch_sub(bytes, std::memory_order_relaxed); }
  void reset_peak() { peak_.store(live(), std::memory_order_relaxed); }
  int64_t live() const { return live_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  int64_t allocations() const { return allocations_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> allocations_{0};
};

class HostAllocator final : public c10::Allocator {
 public:
  /// The one instance. Never destroyed, because tensors with static lifetime outlive every
  /// destructor of ours.
  static HostAllocator& instance() {
    static HostAllocator& allocator = *new HostAllocator;
    return allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &HostAllocator::deallocate, cpu};
    void* data = allocate_block(bytes);
    report(data, static_cast<int64_t>(bytes));
    return {data, data, &HostAllocator::deallocate, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &HostAllocator::deallocate; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  HostMemory read() const {
    return {counters_.live(), counters_.peak(), counters_.allocations(), pool_.cached_bytes()};
  }
  void reset_peak() { counters_.reset_peak(); }
  void release_cached() { pool_.release(); }
  void set_limit(int64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }

 private:
  // Live and cached bytes together stay below nine tenths of the memory that was free at the start:
  // Linux promises more memory than it has, so an allocation would not fail in time for the cache
  // to be given back.
  HostAllocator() : ceiling_(host_machine::memory().available_bytes / 10 * 9) {}

  void* allocate_block(size_t bytes) {
    const int64_t limit = limit_.load(std::memory_order_relaxed);
    // Sizes that do not fit 64 signed bits are negative numbers gone astray.
    if (bytes > (size_t{1} << 62) || !counters_.try_add(static_cast<int64_t>(bytes), limit)) {
      throw_out_of_memory(bytes, limit);
    }
    BlockHeader* block =
        bytes < BlockPool::smallest_bytes ? small_block(bytes) : pooled_block(bytes);
    if (block == nullptr) {
      counters_.remove(static_cast<int64_t>(bytes));
      throw_out_of_memory(bytes, limit);
    }
    return block->data();
  }

  BlockHeader* pooled_block(size_t bytes) {
    const int64_t limit = limit_.load(std::memory_order_relaxed);
    const int64_t ceiling = limit > 0 ? std::min(limit, ceiling_) : ceiling_;
    return pool_.take(bytes, counters_.live(), ceiling);
  }

  static BlockHeader* small_block(size_t bytes) {
    void* address = nullptr;
    if (posix_memalign(&address, alignof(BlockHeader), sizeof(BlockHeader) + bytes) != 0) {
      return nullptr;
    }
    return new (address) BlockHeader{bytes};
  }

  static void deallocate(void* data) {
    if (data == nullptr) return;
    HostAllocator& self = instance();
    BlockHeader* block = BlockHeader::of(data);
    const auto bytes = static_cast<int64_t>(block->data_bytes);
    self.counters_.remove(bytes);
    self.report(data, -bytes);
    if (block->mapped_bytes == 0) {
      std::free(block);
    } else {
      self.pool_.give_back(block);
    }
  }

  /// What libtorch's own allocator does for its profiler's memory events.
  void report(void* data, int64_t bytes) const {
    if (!c10::memoryProfilingEnabled()) return;
    const auto live = static_cast<size_t>(counters_.live());
    c10::reportMemoryUsageToProfiler(data, bytes, live,
                                     live + static_cast<size_t>(pool_.cached_bytes()),
                                     c10::Device(c10::DeviceType::CPU));
  }

  [[noreturn]] void throw_out_of_memory(size_t bytes, int64_t limit) {
    pool_.release();
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU memory: no room for ", bytes, " bytes; ",
                     counters_.live(), " bytes are live, the limit is ",
                     limit > 0 ? std::to_string(limit) + " bytes" : "the system's memory");
    std::abort();  // not reached: the check above always throws
  }

  Counters counters_;
  BlockPool pool_;
  std::atomic<int64_t> limit_{0};
  int64_t ceiling_;
};

}  // namespace

namespace host_allocator {

void install() {
  // libtorch's own allocator has priority 0.
  constexpr uint8_t above_default = 1;
  c10::SetCPUAllocator(&HostAllocator::instance(), above_default);
}

HostMemory read() {
  return HostAllocator::instance().read();
}

void reset_peak() {
  HostAllocator::instance().reset_peak();
}

void release_cached() {
  HostAllocator::instance().release_cached();
}

void set_limit(int64_t bytes) {
  HostAllocator::instance().set_limit(bytes);
}

}  // namespace host_allocator
}  // namespace tinyllama::instruments
