#include "model/caching_allocator.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

namespace tinyllama {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kRounding = 512;
// At most this much comes from small segments; a larger rest than this is split off in large ones.
constexpr int64_t kSmall = kMiB;
constexpr int64_t kSmallSegment = 2 * kMiB;
constexpr int64_t kLargeSegment = 20 * kMiB;
// From here on a segment is of one allocation's size, in whole steps.
constexpr int64_t kOwnSegment = 10 * kMiB;
constexpr int64_t kSegmentStep = 2 * kMiB;

int64_t rounded_up(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

class Segments {
 public:
  explicit Segments(int64_t limit) : limit_(limit) {}

  /// The address of a block; nothing where there is no room.
  std::optional<int64_t> take(int64_t bytes) {
    const int64_t size = rounded_up(bytes, kRounding);
    const bool is_small = size <= kSmall;
    const Pool pool = {is_small, is_capturing_};
    auto found = free_.lower_bound({pool, size, 0});
    if (found == free_.end() || std::get<Pool>(*found) != pool) {
      if (!add_segment(pool, size)) return {};
      found = free_.lower_bound({pool, size, 0});
    }
    const int64_t available = std::get<1>(*found), address = std::get<2>(*found);
    free_.erase(found);
    Block& block = blocks_.at(address);
    block.is_free = false;
    const int64_t rest = available - size;
    if (is_small ? rest >= kRounding : rest > kSmall) {
      block.bytes = size;
      blocks_[address + size] = {rest, block.segment, true};
      free_.insert({pool, rest, address + size});
    }
    return address;
  }

  void give_back(int64_t address) {
    auto block = blocks_.find(address);
    block->second.is_free = true;
    const Pool pool = segments_.at(block->second.segment).pool;
    const auto is_neighbour = [&](auto other) {
      return other->second.is_free && other->second.segment == block->second.segment;
    };
    if (const auto next = std::next(block); next != blocks_.end() && is_neighbour(next)) {
      free_.erase({pool, next->second.bytes, next->first});
      block->second.bytes += next->second.bytes;
      blocks_.erase(next);
    }
    if (block != blocks_.begin() && is_neighbour(std::prev(block))) {
      const auto before = std::prev(block);
      free_.erase({pool, before->second.bytes, before->first});
      before->second.bytes += block->second.bytes;
      blocks_.erase(block);
      block = before;
    }
    free_.insert({pool, block->second.bytes, block->first});
  }

  void begin_capture() {
    release_idle();
    is_capturing_ = true;
  }

  int64_t most() const { return most_; }

 private:
  struct Pool {
    bool is_small, is_of_capture;
    auto operator<=>(const Pool&) const = default;
  };
  struct Segment {
    int64_t bytes;
    Pool pool;
  };
  struct Block {
    int64_t bytes;
    int64_t segment;  ///< its address
    bool is_free;
  };

  bool add_segment(Pool pool, int64_t size) {
    int64_t bytes = size < kOwnSegment ? kLargeSegment : rounded_up(size, kSegmentStep);
    if (pool.is_small) bytes = kSmallSegment;
    if (bytes > limit_ - held_ && !is_capturing_) release_idle();
    if (bytes > limit_ - held_) return false;
    segments_[end_] = {bytes, pool};
    blocks_[end_] = {bytes, end_, true};
    free_.insert({pool, bytes, end_});
    end_ += bytes;
    held_ += bytes;
    most_ = std::max(most_, held_);
    return true;
  }

  void release_idle() {
    std::erase_if(segments_, [&](const auto& entry) {
      const auto& [address, segment] = entry;
      const Block& first = blocks_.at(address);
      if (!first.is_free || first.bytes != segment.bytes) return false;
      free_.erase({segment.pool, segment.bytes, address});
      blocks_.erase(address);
      held_ -= segment.bytes;
      return true;
    });
  }

  int64_t limit_;
  bool is_capturing_ = false;
  int64_t held_ = 0, most_ = 0;
  int64_t end_ = 0;  ///< of the addresses given out, which are not used twice
  std::map<int64_t, Segment> segments_;
  std::map<int64_t, Block> blocks_;
  /// Pool, bytes, address: the best fit is the first of the pool that is large enough.
  std::set<std::tuple<Pool, int64_t, int64_t>> free_;
};

}  // namespace

std::optional<int64_t> segment_bytes(const std::vector<AllocationEvent>& events,
                                     int64_t limit_bytes) {
  Segments segments(limit_bytes);
  std::unordered_map<int64_t, int64_t> addresses;
  for (const auto& [block, bytes] : events) {
    if (block == kCaptureBegins.block) {
      segments.begin_capture();
      continue;
    }
    if (bytes == 0) {
      segments.give_back(addresses.at(block));
      addresses.erase(block);
      continue;
    }
    const auto address = segments.take(bytes);
    if (!address) return {};
    addresses[block] = *address;
  }
  return segments.most();
}

}  // namespace tinyllama
