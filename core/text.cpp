#include "core/text.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace tinyllama {

std::string format_bytes(int64_t bytes) {
  constexpr std::array<std::string_view, 7> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; std::abs(value) >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

std::string format_count(double value) {
  constexpr std::array<std::string_view, 7> units = {"", " k", " M", " G", " T", " P", " E"};
  size_t unit = 0;
  for (; std::abs(value) >= 1000 && unit + 1 < units.size(); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{:g}", value) : fmt::format("{:.2f}{}", value, units[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

}  // namespace tinyllama
