// How figures, tables and errors are written for people.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace tinyllama {

/// 1536 -> "1.50 KiB", with the unit that leaves 1 to 1023.
std::string format_bytes(int64_t bytes);
/// 1536 -> "1.54 k", in thousands: k, M, G, T, P.
std::string format_count(double value);
/// "12.3 us", "4.56 ms", "7.890 s"
std::string format_seconds(double seconds);
/// What an error says, without the stack that libtorch's have below.
std::string message_of(const std::exception& error);

/// Right-aligned columns (the first one left-aligned), two blanks apart, with a rule under the
/// header. Columns whose header is empty are kept; every row must have as many cells as the header.
std::string format_table(const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows);

}  // namespace tinyllama
