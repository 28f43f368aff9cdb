// The allocator that serves every CPU tensor: it counts to the byte, and it keeps freed blocks for
// the next request.
//
// Why it caches: glibc maps and unmaps every large tensor, so that a step pays for page faults
// (10-35 % of a tiny step) and a benchmark measures the kernel's mood. GPU tensors come from a
// caching allocator as well; here the host gets the same.
#pragma once

#include <cstdint>

namespace tinyllama::instruments {

struct HostMemory {
  int64_t live_bytes = 0;    ///< sum of the bytes asked for and not yet freed
  int64_t peak_bytes = 0;    ///< largest live_bytes since the last reset_peak
  int64_t allocations = 0;   ///< requests of more than 0 bytes since the process started
  int64_t cached_bytes = 0;  ///< bytes kept for later requests
};

namespace host_allocator {
/// Makes it libtorch's CPU allocator; call once, before the first tensor. Further calls do nothing.
void install();
HostMemory read();
/// Makes peak_bytes equal live_bytes.
void reset_peak();
/// Gives cached blocks back to the system.
void release_cached();
/// An allocation that would raise live_bytes above `bytes` throws c10::OutOfMemoryError, after
/// cached blocks were released; 0: no limit of our own.
void set_limit(int64_t bytes);
}  // namespace host_allocator

}  // namespace tinyllama::instruments
