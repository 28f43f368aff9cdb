#include "benchmarks/training/memory_timeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <stdexcept>

#include "benchmarks/training/memory_testing.hpp"

namespace tinyllama::training {
namespace {

using testing::RecordingBuilder;
using Json = nlohmann::json;

constexpr int64_t kMiB = 1 << 20;

// `pairs` allocations and releases of 1 MiB, and one of 9 MiB amid them.
MemoryRecording many_events(size_t pairs) {
  RecordingBuilder recording(5 * kMiB);
  recording.step(2).phase(Phase::forward).in("ffn/swiglu", "aten::silu");
  for (size_t i = 0; i < pairs; ++i) {
    const int64_t bytes = i == pairs / 3 ? 9 * kMiB : kMiB;
    recording.wait(1e-5).allocate(1, bytes).wait(1e-5).release(1, bytes);
    if (i == pairs / 2) recording.phase(Phase::backward).in("loss/lm_head", "aten::mm");
  }
  return recording.finish();
}

TEST(MemoryTimelineTest, KeepsEveryEventWhereThereAreFew) {
  const auto points = timeline_points(many_events(10), 20);
  ASSERT_EQ(points.size(), 20u);
  EXPECT_EQ(points[0].live_bytes, 6 * kMiB);
  EXPECT_EQ(points[1].live_bytes, 5 * kMiB);
  EXPECT_NEAR(points[19].seconds, 20e-5, 1e-12);
}

TEST(MemoryTimelineTest, ThinsToTheHighestAndLowestOfEachInstant) {
  const MemoryRecording recording = many_events(5000);
  const auto points = timeline_points(recording, 400);
  EXPECT_LE(points.size(), 400u);
  EXPECT_GE(points.size(), 300u);
  EXPECT_EQ(points.front().event, 0u);
  EXPECT_EQ(points.back().event, 9999u);
  EXPECT_TRUE(std::ranges::is_sorted(points, {}, &TimelinePoint::event));
  std::set<int64_t> levels;
  for (const TimelinePoint& point : points) levels.insert(point.live_bytes);
  EXPECT_EQ(levels, (std::set<int64_t>{5 * kMiB, 6 * kMiB, 14 * kMiB}));
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_LT(points[i].seconds - points[i - 1].seconds, 3 * 0.1 / 199) << "no hole at " << i;
  }
}

TEST(MemoryTimelineTest, ThinsEventsOfOneInstant) {
  RecordingBuilder recording;
  recording.step(1);
  for (int i = 0; i < 100; ++i) recording.allocate(1, 8);
  const auto points = timeline_points(recording.finish(), 10);
  EXPECT_LE(points.size(), 10u);
  EXPECT_EQ(points.back().live_bytes, 800);
}

TEST(MemoryTimelineTest, JsonFollowsTheContract) {
  const Json document = Json::parse(memory_timeline_json(many_events(3)));
  EXPECT_EQ(document["unit"], "bytes");
  EXPECT_EQ(document["first_step"], 2);
  EXPECT_EQ(document["last_step"], 2);
  EXPECT_EQ(document["columns"], Json({"seconds", "live_bytes", "phase", "component"}));
  ASSERT_EQ(document["events"].size(), 6u);
  EXPECT_EQ(document["events"][0], Json({1e-5, 6 * kMiB, "forward", "ffn/swiglu"}));
  EXPECT_EQ(document["events"][4][2], "backward");
  ASSERT_EQ(document["phases"].size(), 2u);
  EXPECT_EQ(document["phases"][0]["step"], 2);
  EXPECT_EQ(document["phases"][0]["phase"], "forward");
  EXPECT_EQ(document["phases"][0]["begin_seconds"], 0);
  EXPECT_EQ(document["phases"][0]["end_seconds"], document["phases"][1]["begin_seconds"]);
}

TEST(MemoryTimelineTest, JsonHasAtMost20000Rows) {
  EXPECT_LE(Json::parse(memory_timeline_json(many_events(15'000)))["events"].size(), 20'000u);
}

TEST(MemoryTimelineTest, ThePictureNamesPeakPhasesStepsAndUnits) {
  const std::string svg = memory_timeline_svg(many_events(300));
  for (const char* text : {">peak 14.00 MiB: ffn/swiglu, forward<", ">forward<", ">backward<",
                           ">step 2<", ">time (ms)<", ">live tensors (MiB)<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(svg.find("http"), svg.find("http://www.w3.org/2000/svg")) << "self-contained";
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(MemoryTimelineTest, ThePictureStaysSmallAndInsideItsFrame) {
  const std::string svg = memory_timeline_svg(many_events(50'000));
  EXPECT_LT(svg.size(), 250'000u);
  const std::regex move("H([-0-9.]+)V([-0-9.]+)");
  size_t moves = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), move), end; at != end; ++at, ++moves) {
    const double x = std::stod((*at)[1]);
    const double y = std::stod((*at)[2]);
    EXPECT_TRUE(x >= 0 && x <= 1280 && y >= 0 && y <= 620) << x << ", " << y;
  }
  EXPECT_GT(moves, 2000u);
}

TEST(MemoryTimelineTest, WithoutEventsThereIsNoPicture) {
  EXPECT_THROW(memory_timeline_svg(MemoryRecording()), std::invalid_argument);
}

}  // namespace
}  // namespace tinyllama::training
