// Live bytes over a recording, and the life of every tensor in it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "benchmarks/training/memory_recording.hpp"

namespace tinyllama::training {

/// One allocation from its begin to its release. Instants count events: instant i is the state
/// after i events.
struct MemoryBlock {
  static constexpr size_t kToTheEnd = std::numeric_limits<size_t>::max();

  int64_t bytes = 0;
  size_t begin = 0;        ///< first instant at which it is alive; 0: from before
  size_t end = kToTheEnd;  ///< first instant at which it no longer is
  std::optional<TensorKind> kind = std::nullopt;
  std::string name = {};  ///< where the kind is known

  bool alive_at(size_t instant) const { return begin <= instant && instant < end; }
};

class MemoryHistory {
 public:
  /// The recording must outlive it.
  explicit MemoryHistory(const MemoryRecording& recording);

  /// Bytes alive at each instant, 0 to number of events.
  const std::vector<int64_t>& live() const { return live_; }
  /// Allocations of the recording, and the tensors known from before. What else was alive before is
  /// in live() alone.
  const std::vector<MemoryBlock>& blocks() const { return blocks_; }
  /// The first instant of the highest live bytes in the stretches; nothing where there are none.
  std::optional<size_t> peak(const std::vector<Stretch>& stretches) const;
  /// Mean of the live bytes over the time of the stretches; nothing where that is no time.
  std::optional<double> average(const std::vector<Stretch>& stretches) const;

 private:
  void add_event(size_t index);
  void apply(const TensorMark& mark);

  const MemoryRecording& recording_;
  std::vector<int64_t> live_;
  std::vector<MemoryBlock> blocks_;
  std::unordered_map<const void*, size_t> alive_;  // address -> index in blocks_
};

}  // namespace tinyllama::training
