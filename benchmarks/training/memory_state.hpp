// What the allocator and the kernel say about memory now.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace tinyllama::training {

/// Bytes of the live tensors on the device, as its allocator counts them; on a CPU the suite's
/// (instruments::host_allocator), 0 where that is not installed.
int64_t live_tensor_bytes(c10::Device device);
/// Bytes of this process that lie in memory; nothing where the kernel does not say.
std::optional<int64_t> resident_set_bytes();

}  // namespace tinyllama::training
