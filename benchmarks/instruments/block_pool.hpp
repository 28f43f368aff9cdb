// Blocks of memory for large tensors, by size class, kept for the next request of their class.
// Internal to the host allocator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tinyllama::instruments {

/// In front of every tensor's data; as long as the data's alignment, so that it does not disturb
/// it.
struct alignas(64) BlockHeader {
  size_t data_bytes = 0;  ///< bytes the tensor asked for
  size_t mapped_bytes =
      0;  ///< of the block with this header; 0: the block did not come from a pool
  BlockHeader* next = nullptr;  ///< in the list of free blocks
  size_t size_class = 0;
  bool is_scratch = false;  ///< asked for by a library, not by a tensor

  void* data() { return this + 1; }
  static BlockHeader* of(void* data) { return static_cast<BlockHeader*>(data) - 1; }
};
static_assert(sizeof(BlockHeader) == 64);

/// Thread-safe: one mutex, held for a few instructions unless memory goes back to the system.
class BlockPool {
 public:
  /// Requests from this size on belong to the pool.
  static constexpr size_t smallest_bytes = size_t{64} << 10;

  /// A block for `data_bytes` >= smallest_bytes; its header is filled in. A cached one comes
  /// without a system call. Where a new one is needed and `live_bytes` (this request included) plus
  /// what is cached exceed `ceiling_bytes`, the pool releases its cache first. nullptr when the
  /// system has no memory left even so.
  BlockHeader* take(size_t data_bytes, int64_t live_bytes, int64_t ceiling_bytes);
  void give_back(BlockHeader* block);
  /// Unmaps every cached block.
  void release();
  int64_t cached_bytes() const;

 private:
  // 16 classes to a doubling of the size: at most 1/16 of a block is waste. 2^16 ... 2^47 bytes.
  static constexpr size_t classes_per_doubling = 16;
  static constexpr size_t first_exponent = 16;
  static constexpr size_t doublings = 32;

  static size_t size_class_of(size_t data_bytes);
  static size_t bytes_of_class(size_t size_class);
  BlockHeader* pop(size_t size_class);

  mutable std::mutex mutex_;
  std::array<BlockHeader*, classes_per_doubling * doublings> free_{};
  int64_t cached_bytes_ = 0;
};

}  // namespace tinyllama::instruments
