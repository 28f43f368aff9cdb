#include "benchmarks/console/text_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace tinyllama::console {

std::string format_table(const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& title : header) widths.push_back(title.size());
  for (const auto& row : rows) {
    if (row.size() != header.size())
      throw std::logic_error("format_table: a row has too few or too many cells");
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const auto format_row = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", cells[i], widths[i])
                     : fmt::format("  {:>{}}", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  };
  std::vector<std::string> rule;
  for (const size_t width : widths) rule.emplace_back(width, '-');
  std::string text = format_row(header) + format_row(rule);
  for (const auto& row : rows) text += format_row(row);
  return text;
}

}  // namespace tinyllama::console
