// Draws memory_timeline.svg.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <stdexcept>

#include "benchmarks/training/memory_timeline.hpp"

namespace tinyllama::training {
namespace {

constexpr size_t kMostPoints = 4000;
constexpr double kMiB = 1 << 20;
constexpr double kMilliseconds = 1e3;

// Pixels. Above the plot lie a line for the title, one for the steps and one for the phases.
constexpr double kWidth = 1280;
constexpr double kHeight = 620;
constexpr double kLeft = 84;
constexpr double kRight = kWidth - 24;
constexpr double kTop = 108;
constexpr double kBottom = kHeight - 104;
constexpr double kFontSize = 13;
// Mean width of a letter of a sans-serif font, in font sizes; a little too much rather than too
// little.
constexpr double kLetterWidth = 0.58;
constexpr double kBoldLetterWidth = 0.66;

struct PhaseStyle {
  Phase phase;
  std::string_view label;
  std::string_view fill;     // differ in lightness, so that they differ in print as well
  std::string_view pattern;  // drawn over the fill; empty: none
};

constexpr std::array kStyles = {PhaseStyle{Phase::data_loading, "data loading", "#d9d2c0", "dots"},
                                PhaseStyle{Phase::forward, "forward", "#eef4fb", ""},
                                PhaseStyle{Phase::backward, "backward", "#cfdcec", ""},
                                PhaseStyle{Phase::optimizer, "optimizer", "#f6e3c5", "stripes"},
                                PhaseStyle{Phase::evaluation, "evaluation", "#dcecd9", "bars"},
                                PhaseStyle{Phase::other, "other", "#ffffff", ""}};

const PhaseStyle& style_of(Phase phase) {
  return *std::ranges::find(kStyles, phase, &PhaseStyle::phase);
}

double text_width(std::string_view text, double letter_width = kLetterWidth) {
  return static_cast<double>(text.size()) * letter_width * kFontSize;
}

/// A step of 1, 2 or 5 times a power of ten that cuts `range` into at most `most` parts.
double tick_step(double range, int most) {
  const double power = std::pow(10.0, std::floor(std::log10(range / most)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (factor * power) <= most) return factor * power;
  }
  return 10 * power;
}

std::string tick_text(double value, double step) {
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return fmt::format("{:.{}f}", value, decimals);
}

class Picture {
 public:
  explicit Picture(const MemoryRecording& recording);
  std::string text() const;

 private:
  double x(double seconds) const {
    return kLeft + (seconds - begin_) / (end_ - begin_) * (kRight - kLeft);
  }
  double y(double bytes) const { return kBottom - bytes / kMiB / top_MiB_ * (kBottom - kTop); }

  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Arguments>(arguments)...);
    body_ += '\n';
  }
  void add_text(double at_x, double at_y, std::string_view anchor, std::string_view text,
                std::string_view attributes = "") {
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" {}>{}</text>)", at_x, at_y, anchor,
        attributes, text);
  }
  void draw_title();
  void draw_phases();
  void draw_steps();
  void draw_axes();
  void draw_curve();
  void draw_peak();
  void draw_legend();

  const MemoryRecording& recording_;
  std::vector<TimelinePoint> points_;
  TimelinePoint peak_;
  double begin_ = 0;
  double end_ = 0;
  double top_MiB_ = 1;
  std::string body_;
};

Picture::Picture(const MemoryRecording& recording)
    : recording_(recording), points_(timeline_points(recording, kMostPoints)) {
  if (points_.empty())
    throw std::invalid_argument("0 events in the recording of memory: there is nothing to draw");
  begin_ = points_.front().seconds;
  end_ = points_.back().seconds;
  if (!recording.steps.empty()) {
    begin_ = std::min(begin_, recording.steps.front().begin_seconds);
    end_ = std::max(end_, recording.steps.back().end_seconds);
  }
  // A recording of one instant.
  if (end_ <= begin_) end_ = begin_ + 1e-6;
  peak_ = *std::ranges::max_element(points_, {}, &TimelinePoint::live_bytes);
  const double highest = static_cast<double>(std::max<int64_t>(peak_.live_bytes, 1)) / kMiB;
  // Room above the curve for what is written at its peak.
  constexpr double headroom = 1.16;
  top_MiB_ = highest * headroom;
  draw_phases();
  draw_axes();
  draw_curve();
  draw_peak();
  draw_steps();
  draw_title();
  draw_legend();
}

void Picture::draw_title() {
  const auto& steps = recording_.steps;
  std::string title = "Memory of live tensors";
  if (!steps.empty() && steps.front().step == steps.back().step) {
    title += fmt::format(", step {}", steps.front().step);
  } else if (!steps.empty()) {
    title += fmt::format(", steps {} to {}", steps.front().step, steps.back().step);
  }
  add_text(kLeft, 34, "start", title, R"(font-size="19" font-weight="bold")");
}

void Picture::draw_phases() {
  double free_from = kLeft;
  for (const Stretch& stretch : recording_.phases) {
    const PhaseStyle& style = style_of(stretch.phase);
    const double from = x(stretch.begin_seconds);
    const double width = x(stretch.end_seconds) - from;
    for (const std::string& fill :
         {std::string(style.fill), fmt::format("url(#{})", style.pattern)}) {
      if (fill == "url(#)") continue;
      add(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}"/>)", from,
          kTop - 22, width, kBottom - kTop + 22, fill);
    }
    add(R"(<line x1="{0:.2f}" y1="{1}" x2="{0:.2f}" y2="{2}" class="edge"/>)", from, kTop - 22,
        kBottom);
    // The legend has the names of bands that are too narrow for them.
    const double label = text_width(style.label);
    if (width < label + 6 || from + (width - label) / 2 < free_from) continue;
    add_text(from + width / 2, kTop - 7, "middle", style.label);
    free_from = from + (width + label) / 2;
  }
}

void Picture::draw_steps() {
  double free_from = kLeft;
  for (const Stretch& step : recording_.steps) {
    const double from = x(step.begin_seconds);
    const double to = x(step.end_seconds);
    const std::string label = fmt::format("step {}", step.step);
    add(R"(<path d="M{0:.2f} {1} V{2} H{3:.2f} V{1}" class="bracket"/>)", from, kTop - 24,
        kTop - 30, to);
    const double middle = (from + to) / 2;
    const double half = text_width(label, kBoldLetterWidth) / 2;
    if (2 * half > to - from || middle - half < free_from) continue;
    add_text(middle, kTop - 36, "middle", label, R"(font-weight="bold")");
    free_from = middle + half;
  }
}

void Picture::draw_axes() {
  const double y_step = tick_step(top_MiB_, 8);
  for (double value = 0; value <= top_MiB_; value += y_step) {
    const double at = y(value * kMiB);
    add(R"(<line x1="{}" y1="{:.1f}" x2="{}" y2="{:.1f}" class="grid"/>)", kLeft, at, kRight, at);
    add_text(kLeft - 8, at + 4, "end", tick_text(value, y_step));
  }
  const double range_ms = (end_ - begin_) * kMilliseconds;
  const double x_step = tick_step(range_ms, 12);
  for (double value = 0; value <= range_ms; value += x_step) {
    const double at = x(begin_ + value / kMilliseconds);
    add(R"(<line x1="{0:.1f}" y1="{1}" x2="{0:.1f}" y2="{2}" class="tick"/>)", at, kBottom,
        kBottom + 5);
    add_text(at, kBottom + 20, "middle", tick_text(value, x_step));
  }
  add(R"(<path d="M{} {} V{} H{}" class="axis"/>)", kLeft, kTop, kBottom, kRight);
  add_text((kLeft + kRight) / 2, kBottom + 42, "middle", "time (ms)");
  const double middle = (kTop + kBottom) / 2;
  add_text(24, middle, "middle", "live tensors (MiB)",
           fmt::format(R"x(transform="rotate(-90 24 {:.1f})")x", middle));
}

void Picture::draw_curve() {
  const auto before = static_cast<double>(recording_.live_bytes_before);
  std::string path = fmt::format("M{:.2f} {:.2f}", x(begin_), y(before));
  for (const TimelinePoint& point : points_) {
    fmt::format_to(std::back_inserter(path), "H{:.2f}V{:.2f}", x(point.seconds),
                   y(static_cast<double>(point.live_bytes)));
  }
  fmt::format_to(std::back_inserter(path), "H{:.2f}", x(end_));
  add(R"(<path d="{}V{:.2f}H{:.2f}Z" class="area"/>)", path, kBottom, kLeft);
  add(R"(<path d="{}" class="curve"/>)", path);
}

void Picture::draw_peak() {
  const double at_x = x(peak_.seconds);
  const double at_y = y(static_cast<double>(peak_.live_bytes));
  const MemoryEvent& event = recording_.events[peak_.event];
  const std::string text =
      fmt::format("peak {:.2f} MiB: {}, {}", static_cast<double>(peak_.live_bytes) / kMiB,
                  recording_.names[event.component], style_of(event.phase).label);
  add(R"(<line x1="{}" y1="{:.1f}" x2="{}" y2="{:.1f}" class="level"/>)", kLeft, at_y, kRight,
      at_y);
  add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="5" class="peak"/>)", at_x, at_y);
  const double half = text_width(text, kBoldLetterWidth) / 2;
  const double middle = std::clamp(at_x, kLeft + half + 16, kRight - half - 16);
  // A box behind it: the edges of phases would cross the letters.
  add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="22" class="box"/>)", middle - half - 12,
      at_y - 34, 2 * half + 24);
  add_text(middle, at_y - 18, "middle", text, R"(font-weight="bold")");
}

void Picture::draw_legend() {
  double at = kLeft;
  const double top = kHeight - 38;
  const auto add_entry = [&](std::string_view label) {
    add_text(at + 28, top + 12, "start", label);
    at += 28 + text_width(label) + 26;
  };
  for (const PhaseStyle& style : kStyles) {
    const bool occurs = std::ranges::find(recording_.phases, style.phase, &Stretch::phase) !=
                        recording_.phases.end();
    if (!occurs) continue;
    for (const std::string& fill :
         {std::string(style.fill), fmt::format("url(#{})", style.pattern)}) {
      if (fill == "url(#)") continue;
      add(R"(<rect x="{:.1f}" y="{}" width="20" height="15" fill="{}" stroke="#777"/>)", at, top,
          fill);
    }
    add_entry(style.label);
  }
  add(R"(<line x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}" class="curve"/>)", at, top + 8, at + 20,
      top + 8);
  add_entry("live tensors");
  add(R"(<line x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}" class="level"/>)", at, top + 8, at + 20,
      top + 8);
  add(R"(<circle cx="{:.1f}" cy="{}" r="5" class="peak"/>)", at + 10, top + 8);
  add_entry("peak");
}

std::string Picture::text() const {
  return fmt::format(R"svg(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}"
 width="{0}" height="{1}" font-size="{2}" fill="#1a1a1a"
 font-family="Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif">
<defs>
<pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><path d="M0 0V6" stroke="#9a7b45"/></pattern>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
<circle cx="2" cy="2" r="1" fill="#7a7059"/></pattern>
<pattern id="bars" width="6" height="6" patternUnits="userSpaceOnUse">
<path d="M0 3H6" stroke="#5c8a56"/></pattern>
</defs>
<style>
.edge {{ stroke: #9aa4b0; stroke-width: 0.6 }}
.grid {{ stroke: #b9c0c8; stroke-width: 0.6; stroke-dasharray: 1 3 }}
.tick, .axis, .bracket {{ stroke: #333; stroke-width: 1; fill: none }}
.area {{ fill: #1f4e79; fill-opacity: 0.18 }}
.curve {{ stroke: #12395c; stroke-width: 1.6; fill: none }}
.level {{ stroke: #a01818; stroke-width: 1; stroke-dasharray: 6 4 }}
.peak {{ fill: #a01818; stroke: #ffffff; stroke-width: 1.2 }}
.box {{ fill: #ffffff; fill-opacity: 0.9; stroke: #a01818; stroke-width: 0.8 }}
</style>
<rect width="{0}" height="{1}" fill="#ffffff"/>
{3}</svg>
)svg",
                     kWidth, kHeight, kFontSize, body_);
}

}  // namespace

std::string memory_timeline_svg(const MemoryRecording& recording) {
  return Picture(recording).text();
}

}  // namespace tinyllama::training
