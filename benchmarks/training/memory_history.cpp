#include "benchmarks/training/memory_history.hpp"

namespace tinyllama::training {

MemoryHistory::MemoryHistory(const MemoryRecording& recording) : recording_(recording) {
  for (const KnownTensor& tensor : recording.known_before) {
    alive_[tensor.data] = blocks_.size();
    blocks_.push_back({.bytes = tensor.bytes, .kind = tensor.kind, .name = tensor.name});
  }
  live_.reserve(recording.events.size() + 1);
  live_.push_back(recording.live_bytes_before);
  auto mark = recording.marks.begin();
  const auto apply_marks_at = [&](size_t instant) {
    for (; mark != recording.marks.end() && mark->event <= instant; ++mark) apply(*mark);
  };
  for (size_t i = 0; i < recording.events.size(); ++i) {
    apply_marks_at(i);
    add_event(i);
  }
  apply_marks_at(recording.events.size());
}

void MemoryHistory::add_event(size_t index) {
  const MemoryEvent& event = recording_.events[index];
  live_.push_back(live_.back() + event.bytes);
  if (event.bytes > 0) {
    alive_[event.data] = blocks_.size();
    blocks_.push_back({.bytes = event.bytes, .begin = index + 1});
    return;
  }
  const auto released = alive_.find(event.data);
  // Tensors from before that nobody knows are in live_ alone.
  if (released == alive_.end()) return;
  blocks_[released->second].end = index + 1;
  alive_.erase(released);
}

void MemoryHistory::apply(const TensorMark& mark) {
  const auto [alive, is_new] = alive_.try_emplace(mark.tensor.data, blocks_.size());
  // Not seen so far, so it was there before the recording.
  if (is_new) blocks_.push_back({.bytes = mark.tensor.bytes});
  MemoryBlock& block = blocks_[alive->second];
  block.kind = mark.tensor.kind;
  block.name = mark.tensor.name;
}

std::optional<size_t> MemoryHistory::peak(const std::vector<Stretch>& stretches) const {
  std::optional<size_t> peak;
  for (const Stretch& stretch : stretches) {
    for (size_t instant = stretch.first_event; instant <= stretch.end_event; ++instant) {
      if (!peak || live_[instant] > live_[*peak]) peak = instant;
    }
  }
  return peak;
}

std::optional<double> MemoryHistory::average(const std::vector<Stretch>& stretches) const {
  double byte_seconds = 0;
  double seconds = 0;
  for (const Stretch& stretch : stretches) {
    double since = stretch.begin_seconds;
    for (size_t i = stretch.first_event; i < stretch.end_event; ++i) {
      const double now = recording_.events[i].seconds;
      byte_seconds += static_cast<double>(live_[i]) * (now - since);
      since = now;
    }
    byte_seconds += static_cast<double>(live_[stretch.end_event]) * (stretch.end_seconds - since);
    seconds += stretch.end_seconds - stretch.begin_seconds;
  }
  if (seconds <= 0) return std::nullopt;
  return byte_seconds / seconds;
}

}  // namespace tinyllama::training
