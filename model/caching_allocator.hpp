// How much of a GPU's memory libtorch's caching allocator holds while tensors come and go: more
// than the tensors, because it takes memory in segments, keeps them, and cannot give back one in
// which anything lives. The rules are those of c10/cuda/CUDACachingAllocator.cpp (2.9 to 2.13,
// without expandable segments), for one stream.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace tinyllama {

/// Allocation number `block` of `bytes`, or, where bytes is 0, its end.
struct AllocationEvent {
  int64_t block;
  int64_t bytes;
};

/// The cache is emptied and a graph captured: what follows comes from segments of its own, and
/// nothing goes back to the device any more.
inline constexpr AllocationEvent kCaptureBegins = {-1, 0};

/// The most bytes held in segments over the events, in order, on a device that has `limit_bytes`;
/// nothing where it runs out of memory.
std::optional<int64_t> segment_bytes(const std::vector<AllocationEvent>& events,
                                     int64_t limit_bytes = std::numeric_limits<int64_t>::max());

}  // namespace tinyllama
