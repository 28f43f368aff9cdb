// Live bytes over time: memory_timeline.json and memory_timeline.svg.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/training/memory_recording.hpp"

namespace tinyllama::training {

/// Live bytes from an event on until the next.
struct TimelinePoint {
  double seconds = 0;
  int64_t live_bytes = 0;
  size_t event = 0;  ///< index in MemoryRecording::events
};

/// One point an event. Where there are more than `most`, time is cut into equal instants of which
/// each keeps its highest and its lowest point, in order; first, last and the highest of all stay
/// in any case. `most` is at least 4.
std::vector<TimelinePoint> timeline_points(const MemoryRecording& recording, size_t most);

/// The text of memory_timeline.json (docs/training_files.md).
std::string memory_timeline_json(const MemoryRecording& recording);

/// The text of memory_timeline.svg, a self-contained picture: live MiB over ms, phases as labelled
/// bands, the peak marked with its bytes and component; readable without colours. Throws
/// std::invalid_argument for a recording without events.
std::string memory_timeline_svg(const MemoryRecording& recording);

}  // namespace tinyllama::training
