// The allocator that serves every CPU tensor: it counts to the byte, and it keeps freed blocks for
// the next request. Scratch memory that oneDNN takes from it is counted apart: its amount depends
// on the processor, the library's version and earlier calls, and cannot be predicted from the sizes
// of tensors.
//
// Why it caches: glibc maps and unmaps every large tensor, so that a step pays for page faults
// (10-35 % of a tiny step), which vary from run to run. GPU tensors come from a caching allocator
// as well; here the host gets the same.
#pragma once

#include <cstdint>

namespace tinyllama::instruments {

struct HostMemory {
  int64_t live_bytes = 0;          ///< sum of the bytes that tensors asked for and did not yet free
  int64_t peak_bytes = 0;          ///< largest live_bytes since the last reset_peak
  int64_t allocations = 0;         ///< tensors of more than 0 bytes since the process started
  int64_t cached_bytes = 0;        ///< bytes kept for later requests
  int64_t scratch_live_bytes = 0;  ///< what oneDNN keeps now; in none of the above
  int64_t scratch_peak_bytes = 0;  ///< largest scratch_live_bytes since the last reset_peak
};

namespace host_allocator {
/// Makes it libtorch's CPU allocator; call once, before the first tensor. Further calls do nothing.
void install();
HostMemory read();
/// Whether oneDNN's scratch memory is counted apart; where not, it is counted with the tensors.
bool tells_scratch_apart();
/// Sets both peaks to what is live now.
void reset_peak();
/// Gives cached blocks back to the system.
void release_cached();
/// An allocation that would raise tensors and scratch together above `bytes` throws
/// c10::OutOfMemoryError, after cached blocks were released; 0: no limit of our own. Returns the
/// limit until now.
int64_t set_limit(int64_t bytes);

/// While it lives, every block is handed out filled with NaN (in every floating-point type), so
/// that reading memory that was not written shows. Not nested.
class NanFill {
 public:
  NanFill();
  ~NanFill();
  NanFill(const NanFill&) = delete;
  NanFill& operator=(const NanFill&) = delete;
};
}  // namespace host_allocator

}  // namespace tinyllama::instruments
