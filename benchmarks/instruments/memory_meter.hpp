// Peak memory and allocation count of a stretch of work, from the allocator that served its
// tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments {

struct MemoryReading {
  int64_t live_bytes = 0;      ///< bytes of live tensors now
  int64_t peak_bytes = 0;      ///< largest live_bytes since start()
  int64_t allocations = 0;     ///< tensors allocated since start()
  int64_t reserved_bytes = 0;  ///< what the allocator has taken from the system, in use or cached
  /// Largest scratch memory of libraries since start(), in none of the above; nothing where it is
  /// counted with the tensors.
  std::optional<int64_t> scratch_peak_bytes{};
};

class MemoryMeter {
 public:
  explicit MemoryMeter(const Device& device);
  /// Resets the peak to what is live and starts counting allocations.
  void start();
  MemoryReading read() const;

 private:
  c10::Device device_;
  int64_t allocations_at_start_ = 0;
};

/// Multiplies a few matrices, on this thread and on autograd's: libtorch keeps a workspace of the
/// BLAS for each thread's handle and stream, of some to 100 MiB in its allocator, which would count
/// in the first case that needs it. Nothing on a CPU.
void take_library_workspaces(const Device& device);

/// Of tensors on this device now.
int64_t live_tensor_bytes(c10::Device device);

/// What the caching allocator holds without a tensor in it: ours to use again, or given back when
/// memory runs short.
int64_t cached_memory_bytes(c10::Device device);

/// Where the numbers come from and what they leave out, for the context of a result.
std::string memory_source(const Device& device);
/// Gives memory that the device's caching allocator holds, but no tensor uses, back to the system.
void release_cached_memory(const Device& device);

}  // namespace tinyllama::instruments
