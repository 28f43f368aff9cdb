// The table of counters: what results/schema.json, which is compiled in, says of each in its
// `x-counter`. The Python tools read the same file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tinyllama::harness {

/// A counter of a case's rows that can be a column.
struct Counter {
  std::string key;
  std::string title;   ///< empty where the unit says it
  std::string unit;    ///< empty where there is none
  std::string format;  ///< of one value; empty: as a count, "1.23 G"
  bool is_shown = false;
  bool is_figure = false;  ///< of merit

  std::string text(double value) const;
  /// "memory MiB", or with a value "memory 12.3 MiB"
  std::string heading(std::string_view value = "") const;
};

/// In the order of the columns.
const std::vector<Counter>& counters();

/// What --columns may name: every counter, and kAllColumns.
std::vector<std::string> column_names();
inline constexpr const char* kAllColumns = "all";

/// Throws std::out_of_range for a key that no counter has.
const Counter& counter(std::string_view key);

/// A column of a case's flat row: `flat_row` of the schema.
struct FlatColumn {
  std::string name;
  std::string from;  ///< "row.run_name", "context.device.name"; empty where it is computed, and of
                     ///< a counter
};

/// In their order: what is said of the case, every counter, what is said of the run.
const std::vector<FlatColumn>& flat_columns();

}  // namespace tinyllama::harness
