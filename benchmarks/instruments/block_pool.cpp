#include "benchmarks/instruments/block_pool.hpp"

#include <sys/mman.h>

#include <bit>
#include <new>

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

}  // namespace

size_t BlockPool::size_class_of(size_t data_bytes) {
  // The class is the position of the first `classes_per_doubling` step at or above the size:
  // exponent and next four bits.
  const size_t exponent = std::bit_width(data_bytes - 1) - 1;
  const size_t base = size_t{1} << exponent;
  if (data_bytes <= smallest_bytes) return 0;
  const size_t step = base / classes_per_doubling;
  return (exponent - first_exponent) * classes_per_doubling + (data_bytes - base + step - 1) / step;
}

size_t BlockPool::bytes_of_class(size_t size_class) {
  const size_t base = size_t{1} << (first_exponent + size_class / classes_per_doubling);
  return base + base / classes_per_doubling * (size_class % classes_per_doubling);
}

BlockHeader* BlockPool::pop(size_t size_class) {
  BlockHeader* block = free_[size_class];
  if (block != nullptr) {
    free_[size_class] = block->next;
    cached_bytes_ -= static_cast<int64_t>(block->mapped_bytes);
  }
  return block;
}

BlockHeader* BlockPool::take(size_t data_bytes, int64_t live_bytes, int64_t ceiling_bytes) {
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

void BlockPool::give_back(BlockHeader* block) {
  const std::scoped_lock lock(mutex_);
  block->next = free_[block->size_class];
  free_[block->size_class] = block;
  cached_bytes_ += static_cast<int64_t>(block->mapped_bytes);
}

void BlockPool::release() {
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

int64_t BlockPool::cached_bytes() const {
  const std::scoped_lock lock(mutex_);
  return cached_bytes_;
}

}  // namespace tinyllama::instruments
