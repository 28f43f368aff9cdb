#include "benchmarks/instruments/host_allocator.hpp"

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "benchmarks/instruments/host_machine.hpp"

namespace tinyllama::instruments {
namespace {

constexpr size_t page_bytes = 4096;
constexpr size_t huge_page_bytes = size_t{2} << 20;
// Measured on a two-core EPYC: huge pages make the first touch of large blocks five times faster
// and give a triad in memory a quarter more bandwidth; below one huge page there is nothing to
// gain.
constexpr size_t smallest_with_huge_pages = huge_page_bytes;

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

void* map(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

/// `bytes` at an address that huge pages can serve: maps one huge page too many and gives the ends
/// back.
void* map_for_huge_pages(size_t bytes) {
  auto* base = static_cast<std::byte*>(map(bytes + huge_page_bytes));
  if (base == nullptr) return nullptr;
  const size_t front =
      (huge_page_bytes - std::bit_cast<uintptr_t>(base) % huge_page_bytes) % huge_page_bytes;
  if (front > 0) munmap(base, front);
  munmap(base + front + bytes, huge_page_bytes - front);
  // Advice: a kernel without transparent huge pages refuses it, and nothing is lost.
  static_cast<void>(madvise(base + front, bytes, MADV_HUGEPAGE));
  return base + front;
}

/// In front of every tensor's data; as long as the data's alignment, so that it does not disturb
/// it.
struct alignas(64) BlockHeader {
  size_t data_bytes = 0;  ///< bytes the tensor asked for
  /// Of the block with this header; 0: the block did not come from a pool.
  size_t mapped_bytes = 0;
  BlockHeader* next = nullptr;  ///< in the list of free blocks
  size_t size_class = 0;
  bool is_scratch = false;  ///< asked for by a library, not by a tensor

  void* data() { return this + 1; }
  static BlockHeader* of(void* data) { return static_cast<BlockHeader*>(data) - 1; }
};
static_assert(sizeof(BlockHeader) == 64);

/// Blocks of memory for large tensors, by size class, kept for the next request of their class.
/// Thread-safe: one mutex, held for a few instructions unless memory goes back to the system.
class BlockPool {
 public:
  /// Requests from this size on belong to the pool.
  static constexpr size_t smallest_bytes = size_t{64} << 10;

  /// A block for `data_bytes` >= smallest_bytes; its header is filled in. A cached one comes
  /// without a system call. Where a new one is needed and `live_bytes` (this request included) plus
  /// what is cached exceed `ceiling_bytes`, the pool releases its cache first. nullptr when the
  /// system has no memory left even so.
  BlockHeader* take(size_t data_bytes, int64_t live_bytes, int64_t ceiling_bytes) {
    const size_t size_class = size_class_of(data_bytes);
    if (size_class >= free_.size()) return nullptr;
    // The header comes on top, so that a power of two fits its class exactly.
    const size_t mapped_bytes =
        round_up(bytes_of_class(size_class) + sizeof(BlockHeader), page_bytes);
    bool crowded = false;
    {
      const std::scoped_lock lock(mutex_);
      if (BlockHeader* block = pop(size_class)) {
        block->data_bytes = data_bytes;
        return block;
      }
      crowded = live_bytes + cached_bytes_ > ceiling_bytes;
    }
    if (crowded) release();
    const auto map_block = mapped_bytes < smallest_with_huge_pages ? map : map_for_huge_pages;
    void* address = map_block(mapped_bytes);
    if (address == nullptr) {
      release();
      address = map_block(mapped_bytes);
    }
    if (address == nullptr) return nullptr;
    return new (address) BlockHeader{data_bytes, mapped_bytes, nullptr, size_class};
  }
  void give_back(BlockHeader* block) {
    const std::scoped_lock lock(mutex_);
    block->next = free_[block->size_class];
    free_[block->size_class] = block;
    cached_bytes_ += static_cast<int64_t>(block->mapped_bytes);
  }
  /// Unmaps every cached block.
  void release() {
    const std::scoped_lock lock(mutex_);
    for (BlockHeader*& head : free_) {
      while (head != nullptr) {
        BlockHeader* block = head;
        head = block->next;
        cached_bytes_ -= static_cast<int64_t>(block->mapped_bytes);
        munmap(block, block->mapped_bytes);
      }
    }
  }
  int64_t cached_bytes() const {
    const std::scoped_lock lock(mutex_);
    return cached_bytes_;
  }

 private:
  // 16 classes to a doubling of the size: at most 1/16 of a block is waste. 2^16 ... 2^47 bytes.
  static constexpr size_t classes_per_doubling = 16;
  static constexpr size_t first_exponent = 16;
  static constexpr size_t doublings = 32;

  static size_t size_class_of(size_t data_bytes) {
    // The class is the position of the first `classes_per_doubling` step at or above the size:
    // exponent and next four bits.
    const size_t exponent = std::bit_width(data_bytes - 1) - 1;
    const size_t base = size_t{1} << exponent;
    if (data_bytes <= smallest_bytes) return 0;
    const size_t step = base / classes_per_doubling;
    return (exponent - first_exponent) * classes_per_doubling +
           (data_bytes - base + step - 1) / step;
  }
  static size_t bytes_of_class(size_t size_class) {
    const size_t base = size_t{1} << (first_exponent + size_class / classes_per_doubling);
    return base + base / classes_per_doubling * (size_class % classes_per_doubling);
  }
  BlockHeader* pop(size_t size_class) {
    BlockHeader* block = free_[size_class];
    if (block != nullptr) {
      free_[size_class] = block->next;
      cached_bytes_ -= static_cast<int64_t>(block->mapped_bytes);
    }
    return block;
  }

  mutable std::mutex mutex_;
  std::array<BlockHeader*, classes_per_doubling * doublings> free_{};
  int64_t cached_bytes_ = 0;
};

/// live, peak and number of allocations, exact for any number of threads.
class Counters {
 public:
  /// Adds `bytes` unless with `others` that exceeds `limit` (0: none); says whether it did.
  bool try_add(int64_t bytes, int64_t others, int64_t limit) {
    const int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (limit > 0 && live + others > limit) {
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

// libtorch's own allocator has priority 0.
constexpr uint8_t kAboveDefault = 1;

/// Serves requests of one size while it is installed, and notes who made them: the address that
/// the last call returned to.
class CallerProbe final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == watched_bytes) caller = __builtin_return_address(0);
    void* data = std::aligned_alloc(alignment, round_up(bytes, alignment));
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "CPU memory: no room for ", bytes,
                     " bytes");
    return {data, data, &std::free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  static constexpr int64_t watched_elements = 4099;  // floats; nothing else asks for as many
  static constexpr size_t watched_bytes = watched_elements * sizeof(float);
  const void* caller = nullptr;

 private:
  static constexpr size_t alignment = 64;
};

/// oneDNN's scratch comes through the same virtual call as the memory of tensors, so that only the
/// caller tells them apart: libtorch registers one function that asks for all of oneDNN's. It is
/// found by having a tensor converted to oneDNN's own kind, whose data that function asks for.
/// nullptr where there is no oneDNN, or no such function.
const void* find_scratch_caller() {
  if (!at::hasMKLDNN()) return nullptr;
  static CallerProbe probe;
  c10::Allocator* const before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&probe, kAboveDefault);
  const at::Tensor tensor = at::ones({CallerProbe::watched_elements});
  const void* of_tensors = std::exchange(probe.caller, nullptr);
  static_cast<void>(tensor.to_mkldnn());
  // who only reads counters installs no other
  c10::SetCPUAllocator(before, kAboveDefault);
  return probe.caller == of_tensors ? nullptr : probe.caller;
}

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &deallocate, cpu};
    const bool is_scratch = __builtin_return_address(0) == scratch_caller;
    void* data = allocate_block(bytes, is_scratch);
    if (!is_scratch) report(data, static_cast<int64_t>(bytes));
    return {data, data, &deallocate, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  /// Of oneDNN's scratch; null where it cannot be told from tensors.
  const void* const scratch_caller = find_scratch_caller();
  Counters tensors;
  Counters scratch;
  BlockPool pool;
  std::atomic<int64_t> limit{0};
  std::atomic<bool> fills_with_nan{false};

 private:
  Counters& counters(bool is_scratch) { return is_scratch ? scratch : tensors; }
  int64_t live_bytes() const { return tensors.live() + scratch.live(); }

  void* allocate_block(size_t bytes, bool is_scratch) {
    const int64_t most = limit.load(std::memory_order_relaxed);
    Counters& mine = counters(is_scratch);
    const int64_t others = counters(!is_scratch).live();
    // Sizes that do not fit 64 signed bits are negative numbers gone astray.
    if (bytes > (size_t{1} << 62) || !mine.try_add(static_cast<int64_t>(bytes), others, most))
      throw_out_of_memory(bytes, most);
    BlockHeader* block = nullptr;
    if (bytes >= BlockPool::smallest_bytes) {
      block = pool.take(bytes, live_bytes(), most > 0 ? std::min(most, ceiling_) : ceiling_);
    } else if (void* address = nullptr;
               posix_memalign(&address, alignof(BlockHeader), sizeof(BlockHeader) + bytes) == 0) {
      block = new (address) BlockHeader{bytes};
    }
    if (block == nullptr) {
      mine.remove(static_cast<int64_t>(bytes));
      throw_out_of_memory(bytes, most);
    }
    block->is_scratch = is_scratch;
    constexpr int every_bit = 0xff;  // NaN, whatever the floating-point type
    if (fills_with_nan.load(std::memory_order_relaxed))
      std::memset(block->data(), every_bit, bytes);
    return block->data();
  }

  static void deallocate(void* data);

  /// What libtorch's own allocator does for its profiler's memory events, for tensors alone.
  void report(void* data, int64_t bytes) const {
    if (!c10::memoryProfilingEnabled()) return;
    const auto live = static_cast<size_t>(tensors.live());
    c10::reportMemoryUsageToProfiler(data, bytes, live,
                                     live + static_cast<size_t>(pool.cached_bytes()),
                                     c10::Device(c10::DeviceType::CPU));
  }

  [[noreturn]] void throw_out_of_memory(size_t bytes, int64_t most) {
    pool.release();
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU memory: no room for ", bytes, " bytes; ",
                     live_bytes(), " bytes are live, the limit is ",
                     most > 0 ? std::to_string(most) + " bytes" : "the system's memory");
    std::abort();  // not reached: the check above always throws
  }

  // Live and cached bytes together stay below nine tenths of the memory that was free at the start:
  // Linux promises more memory than it has, so an allocation would not fail in time for the cache
  // to be given back.
  const int64_t ceiling_ = host_machine::memory().available_bytes / 10 * 9;
};

/// The one instance. Never destroyed, because tensors with static lifetime outlive every destructor
/// of ours.
HostAllocator& the_allocator() {
  static HostAllocator& allocator = *new HostAllocator;
  return allocator;
}

void HostAllocator::deallocate(void* data) {
  if (data == nullptr) return;
  HostAllocator& self = the_allocator();
  BlockHeader* block = BlockHeader::of(data);
  const auto bytes = static_cast<int64_t>(block->data_bytes);
  self.counters(block->is_scratch).remove(bytes);
  if (!block->is_scratch) self.report(data, -bytes);
  if (block->mapped_bytes == 0) {
    std::free(block);
  } else {
    self.pool.give_back(block);
  }
}

}  // namespace

namespace host_allocator {

void install() {
  c10::SetCPUAllocator(&the_allocator(), kAboveDefault);
}

bool tells_scratch_apart() {
  return the_allocator().scratch_caller != nullptr;
}

HostMemory read() {
  const HostAllocator& from = the_allocator();
  return {from.tensors.live(),      from.tensors.peak(), from.tensors.allocations(),
          from.pool.cached_bytes(), from.scratch.live(), from.scratch.peak()};
}

void reset_peak() {
  the_allocator().tensors.reset_peak();
  the_allocator().scratch.reset_peak();
}

void release_cached() {
  the_allocator().pool.release();
}

int64_t set_limit(int64_t bytes) {
  return the_allocator().limit.exchange(bytes, std::memory_order_relaxed);
}

NanFill::NanFill() {
  the_allocator().fills_with_nan = true;
}

NanFill::~NanFill() {
  the_allocator().fills_with_nan = false;
}

}  // namespace host_allocator
}  // namespace tinyllama::instruments
