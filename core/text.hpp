// How figures are written for people.
#pragma once

#include <cstdint>
#include <string>

namespace tinyllama {

/// 1536 -> "1.50 KiB", with the unit that leaves 1 to 1023.
std::string format_bytes(int64_t bytes);
/// 1536 -> "1.54 k", in thousands: k, M, G, T, P.
std::string format_count(double value);
/// "12.3 us", "4.56 ms", "7.890 s"
std::string format_seconds(double seconds);

}  // namespace tinyllama
