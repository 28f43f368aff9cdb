// A table of text with aligned columns, as all our console output uses it.
#pragma once

#include <string>
#include <vector>

namespace tinyllama::console {

/// Right-aligned columns (the first one left-aligned), two blanks apart, with a rule under the
/// header. Columns whose header is empty are kept; every row must have as many cells as the header.
std::string format_table(const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows);

}  // namespace tinyllama::console
