// libtorch's caching allocator in small, with the rules that decide how much a program may hold
// (c10/cuda/CUDACachingAllocator.cpp of 2.13): sizes are rounded to 512 bytes; what is at most 1
// MiB comes from segments of 2 MiB, what is below 10 MiB from segments of 20 MiB, the rest from
// segments of its own, of whole 2 MiB; the best fit of the same stream and pool is taken, and
// split unless the rest is small; free neighbours are joined; cached segments go back only where
// memory is short and nothing is captured. Statistics count blocks, rounding included.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "tests/fakes/gpu/fake_gpu.hpp"

namespace fake_gpu {
namespace {

constexpr size_t kRounding = 512, kSmall = 1 << 20, kSmallSegment = 2 << 20,
                 kLargeSegment = 20 << 20, kOwnSegment = 10 << 20, kSegmentRounding = 2 << 20;
constexpr c10::MempoolId_t kNoPool = {0, 0};
// NaN in every floating-point type, -1 in every integer.
constexpr int kUnwritten = 0xFF;

size_t rounded_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

struct Pool {
  c10::DeviceIndex device;
  c10::StreamId stream;
  c10::MempoolId_t id;
  bool is_small;
  auto operator<=>(const Pool&) const = default;
};

struct Segment {
  Pool pool;
  size_t bytes;
  std::unique_ptr<std::byte, FreeMemory> memory;
};

struct Block {
  Segment* segment;
  size_t bytes;
  size_t requested = 0;
  bool is_free = true;
};

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    check_alive();
    const c10::DeviceIndex device = current_device();
    const c10::Device where(c10::kCUDA, device);
    if (bytes == 0) return {nullptr, where};
    std::byte* const at = take(bytes, device);
    std::memset(at, kUnwritten, bytes);
    return {at, at, raw_deleter(), where};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* at) { static_cast<Allocator&>(allocator()).give_back(at); };
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {
    refuse_in_capture("emptying the cache");
    check_alive();
    const std::lock_guard lock(mutex_);
    release_cached();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return stats_[device];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return {settings().memory_bytes - reserved(device), settings().memory_bytes};
  }

  void keep(c10::MempoolId_t pool) {
    const std::lock_guard lock(mutex_);
    kept_.insert(pool);
  }
  void let_go(c10::MempoolId_t pool) {
    const std::lock_guard lock(mutex_);
    kept_.erase(pool);
  }

 private:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;
  static constexpr size_t kAll = 0;

  int64_t reserved(c10::DeviceIndex device) { return stats_[device].reserved_bytes[kAll].current; }

  template <class Body>
  void for_each_stat(c10::DeviceIndex device, const Body& body) {
    const std::lock_guard lock(mutex_);
    Stats& stats = stats_[device];
    for (auto* stat : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes,
                       &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      body((*stat)[kAll]);
    }
  }

  std::byte* take(size_t bytes, c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    const size_t size = rounded_up(bytes, kRounding);
    const c10::Stream stream = current_stream(device);
    const Pool pool = {device, stream.id(), is_captured(stream) ? pool_of_capture() : kNoPool,
                       size <= kSmall};
    Stats& stats = stats_[device];
    std::byte* at = best_fit(pool, size);
    if (at == nullptr) at = new_segment(pool, size);
    if (at == nullptr && !is_capturing()) {
      ++stats.num_alloc_retries;
      release_cached();
      at = new_segment(pool, size);
    }
    if (at == nullptr || ++counts().allocations == settings().refused_allocation) {
      ++stats.num_ooms;
      TORCH_CHECK_WITH(OutOfMemoryError, false, settings().is_nvidia ? "CUDA" : "HIP",
                       " out of memory. Tried to allocate ", size, " bytes; of ",
                       settings().memory_bytes, " bytes of device ", int{device}, " ",
                       stats.allocated_bytes[kAll].current, " are in tensors, ", reserved(device),
                       " reserved");
    }
    Block& block = blocks_.at(at);
    cached_.erase({pool, block.bytes, at});
    const size_t rest = block.bytes - size;
    if (pool.is_small ? rest >= kRounding : rest > kSmall) {
      blocks_[at + size] = {.segment = block.segment, .bytes = rest};
      cached_.insert({pool, rest, at + size});
      block.bytes = size;
    }
    block.is_free = false;
    block.requested = bytes;
    stats.allocation[kAll].increase(1);
    stats.active[kAll].increase(1);
    stats.allocated_bytes[kAll].increase(block.bytes);
    stats.active_bytes[kAll].increase(block.bytes);
    stats.requested_bytes[kAll].increase(bytes);
    report(at, static_cast<int64_t>(block.bytes), device);
    return at;
  }

  /// To libtorch's profiler.
  void report(void* at, int64_t bytes, c10::DeviceIndex device) {
    c10::reportMemoryUsageToProfiler(at, bytes, stats_[device].allocated_bytes[kAll].current,
                                     stats_[device].reserved_bytes[kAll].current,
                                     c10::Device(c10::kCUDA, device));
  }

  std::byte* best_fit(const Pool& pool, size_t size) {
    const auto found = cached_.lower_bound({pool, size, nullptr});
    return found != cached_.end() && found->pool == pool ? found->at : nullptr;
  }

  /// Null where the device has no room for it.
  std::byte* new_segment(const Pool& pool, size_t size) {
    size_t bytes = rounded_up(size, kSegmentRounding);
    if (size <= kSmall) {
      bytes = kSmallSegment;
    } else if (size < kOwnSegment) {
      bytes = kLargeSegment;
    }
    Stats& stats = stats_[pool.device];
    if (reserved(pool.device) + static_cast<int64_t>(bytes) > settings().memory_bytes)
      return nullptr;
    auto segment = std::make_unique<Segment>();
    segment->pool = pool;
    segment->bytes = bytes;
    segment->memory.reset(static_cast<std::byte*>(std::aligned_alloc(kRounding, bytes)));
    std::byte* const at = segment->memory.get();
    if (at == nullptr) return nullptr;
    blocks_[at] = {.segment = segment.get(), .bytes = bytes};
    cached_.insert({pool, bytes, at});
    segments_[at] = std::move(segment);
    stats.segment[kAll].increase(1);
    stats.reserved_bytes[kAll].increase(bytes);
    ++counts().segments;
    return at;
  }

  void give_back(void* pointer) {
    const std::lock_guard lock(mutex_);
    auto block = blocks_.find(static_cast<std::byte*>(pointer));
    Segment* const segment = block->second.segment;
    Stats& stats = stats_[segment->pool.device];
    stats.allocation[kAll].decrease(1);
    stats.active[kAll].decrease(1);
    stats.allocated_bytes[kAll].decrease(block->second.bytes);
    stats.active_bytes[kAll].decrease(block->second.bytes);
    stats.requested_bytes[kAll].decrease(block->second.requested);
    report(block->first, -static_cast<int64_t>(block->second.bytes), segment->pool.device);
    block->second.is_free = true;
    const auto join = [&](auto first, auto second) {  // returns the first
      if (!first->second.is_free || !second->second.is_free ||
          first->second.segment != second->second.segment) {
        return second;
      }
      cached_.erase({segment->pool, first->second.bytes, first->first});
      cached_.erase({segment->pool, second->second.bytes, second->first});
      first->second.bytes += second->second.bytes;
      blocks_.erase(second);
      return first;
    };
    if (const auto next = std::next(block); next != blocks_.end()) {
      if (next->second.is_free && next->second.segment == segment) join(block, next);
    }
    if (block != blocks_.begin()) block = join(std::prev(block), block);
    cached_.insert({segment->pool, block->second.bytes, block->first});
  }

  /// Segments of which nothing is in use, but for those that a graph replays on.
  void release_cached() {
    for (auto it = segments_.begin(); it != segments_.end();) {
      const Segment& segment = *it->second;
      const auto block = blocks_.find(it->first);
      const bool is_idle = block->second.is_free && block->second.bytes == segment.bytes;
      if (!is_idle || kept_.contains(segment.pool.id)) {
        ++it;
        continue;
      }
      Stats& stats = stats_[segment.pool.device];
      stats.segment[kAll].decrease(1);
      stats.reserved_bytes[kAll].decrease(segment.bytes);
      cached_.erase({segment.pool, segment.bytes, it->first});
      blocks_.erase(block);
      it = segments_.erase(it);
    }
  }

  struct Cached {
    Pool pool;
    size_t bytes;
    std::byte* at;
    auto operator<=>(const Cached&) const = default;
  };

  std::mutex mutex_;
  std::map<std::byte*, std::unique_ptr<Segment>> segments_;
  std::map<std::byte*, Block> blocks_;
  std::set<Cached> cached_;
  std::set<c10::MempoolId_t> kept_;
  std::map<c10::DeviceIndex, Stats> stats_;
};

struct Install {
  Install() { c10::SetAllocator(c10::kCUDA, &allocator(), /*priority=*/1); }
} const install;

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto& only = *new Allocator;  // outlives what other destructors still free
  return only;
}

int64_t free_memory_bytes(c10::DeviceIndex device) {
  return static_cast<int64_t>(allocator().getMemoryInfo(device).first);
}

void begin_pool(c10::MempoolId_t pool) {
  static_cast<Allocator&>(allocator()).keep(pool);
}

void end_pool(c10::MempoolId_t pool) {
  static_cast<Allocator&>(allocator()).let_go(pool);
}

}  // namespace fake_gpu
