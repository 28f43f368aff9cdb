#include "benchmarks/training/memory_timeline.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostRows = 20'000;
// JSON's readers lose nothing at this; more digits would be noise of the clock.
constexpr double kSecondsResolution = 1e-9;

double rounded(double seconds) {
  return std::round(seconds / kSecondsResolution) * kSecondsResolution;
}

std::vector<TimelinePoint> all_points(const MemoryRecording& recording) {
  std::vector<TimelinePoint> points;
  points.reserve(recording.events.size());
  int64_t live = recording.live_bytes_before;
  for (size_t i = 0; i < recording.events.size(); ++i) {
    live += recording.events[i].bytes;
    points.push_back({recording.events[i].seconds, live, i});
  }
  return points;
}

bool is_lower(const TimelinePoint& a, const TimelinePoint& b) {
  return a.live_bytes < b.live_bytes;
}

}  // namespace

std::vector<TimelinePoint> timeline_points(const MemoryRecording& recording, size_t most) {
  std::vector<TimelinePoint> points = all_points(recording);
  if (points.size() <= most) return points;
  // The first and the last point besides two an instant.
  const size_t instants = (most - 2) / 2;
  const double begin = points.front().seconds;
  const double width = (points.back().seconds - begin) / static_cast<double>(instants);
  const auto instant_of = [&](const TimelinePoint& point) {
    if (width <= 0) return size_t{0};
    return std::min(instants - 1, static_cast<size_t>((point.seconds - begin) / width));
  };
  std::vector<TimelinePoint> kept = {points.front()};
  const auto keep = [&](const TimelinePoint& point) {
    if (point.event > kept.back().event) kept.push_back(point);
  };
  for (auto first = points.begin(); first != points.end();) {
    const auto end = std::find_if(first, points.end(), [&](const TimelinePoint& point) {
      return instant_of(point) != instant_of(*first);
    });
    const auto [lowest, highest] = std::minmax_element(first, end, is_lower);
    keep(*std::min(lowest, highest));
    keep(*std::max(lowest, highest));
    first = end;
  }
  keep(points.back());
  return kept;
}

std::string memory_timeline_json(const MemoryRecording& recording) {
  Json document;
  document["unit"] = "bytes";
  document["first_step"] =
      recording.steps.empty() ? Json(nullptr) : Json(recording.steps.front().step);
  document["last_step"] =
      recording.steps.empty() ? Json(nullptr) : Json(recording.steps.back().step);
  document["columns"] = {"seconds", "live_bytes", "phase", "component"};
  Json rows = Json::array();
  for (const TimelinePoint& point : timeline_points(recording, kMostRows)) {
    const MemoryEvent& event = recording.events[point.event];
    rows.push_back({rounded(point.seconds), point.live_bytes, to_string(event.phase),
                    recording.names[event.component]});
  }
  document["events"] = std::move(rows);
  Json phases = Json::array();
  for (const Stretch& stretch : recording.phases) {
    phases.push_back({{"step", stretch.step},
                      {"phase", to_string(stretch.phase)},
                      {"begin_seconds", rounded(stretch.begin_seconds)},
                      {"end_seconds", rounded(stretch.end_seconds)}});
  }
  document["phases"] = std::move(phases);
  return document.dump() + "\n";
}

}  // namespace tinyllama::training
