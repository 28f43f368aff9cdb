// How users write lists of numbers and amounts of memory, and name files to write.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllama::console {

/// "8", "4,8,16", "64:512:*2" (first:last:factor), "128:1024:+128" (first:last:increment), and any
/// of these joined by commas. Order is kept, repetitions are dropped. Throws std::invalid_argument
/// naming the option, the text and the rule.
std::vector<int64_t> parse_numbers(std::string_view option, std::string_view text);

/// "a,b,c" -> the parts, none of them empty. Throws std::invalid_argument as above.
std::vector<std::string> parse_names(std::string_view option, std::string_view text);

/// "8GiB", "512 MiB", "1.5GB", "1048576" -> bytes (GiB = 2^30, GB = 10^9). Throws
/// std::invalid_argument as above.
int64_t parse_memory_size(std::string_view option, std::string_view text);

/// A function that tells whether a name contains a match of this extended regular expression. It
/// takes time in proportion to the two lengths at most. Throws std::invalid_argument as above, also
/// for expressions whose reading would need more stack than there is.
std::function<bool(const std::string&)> parse_pattern(std::string_view option,
                                                      const std::string& text);

/// Finds out whether `file` can be written, before a run, by writing a temporary file beside it; an
/// existing file stays. An empty name stands for no file. Throws std::invalid_argument that names
/// the option and the cause.
void check_output_file(const char* option, const std::string& file);

/// 1536 -> "1.50 KiB", with the unit that leaves 1 to 1023.
std::string format_bytes(int64_t bytes);
/// 1536 -> "1.54 K", in thousands: k, M, G, T, P.
std::string format_count(double value);

}  // namespace tinyllama::console
