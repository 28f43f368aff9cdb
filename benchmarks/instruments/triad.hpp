// The loop behind the bandwidth of a CPU: a = b + s c. Internal to the instruments.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace tinyllama::instruments {

/// All three spans are of one length, a multiple of 16, do not overlap, and start at a multiple of
/// 64 bytes.
using TriadLoop = void (*)(std::span<float> a, std::span<const float> b, std::span<const float> c,
                           float s);

struct Triad {
  std::string_view name;
  TriadLoop loop;
};

/// With the widest vectors that this processor has.
Triad triad_with_ordinary_stores();
/// The loops that compete for the bandwidth of memory: ordinary stores and, where the processor has
/// them, stores that do not read the line they overwrite.
std::vector<Triad> triads_for_memory();

}  // namespace tinyllama::instruments
