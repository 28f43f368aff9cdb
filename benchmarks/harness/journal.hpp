// The journal: each finished case is on disk before the next one starts, so that a killed run can
// be continued.
//
// JSON lines: first a header with the run's circumstances and peaks, then {"case": name, "entries":
// [...]} a case. A line cut short by a kill is ignored when reading, and removed before appending.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "benchmarks/harness/rows.hpp"
#include "core/file_io.hpp"

namespace tinyllama::harness {

struct JournalContents {
  Json header;
  std::vector<CaseResult> results;
};

class Journal {
 public:
  /// False for a file that holds nothing, or no more than a part of a journal's first line: a run
  /// that was stopped there has measured nothing. Throws std::invalid_argument when it cannot be
  /// read.
  static bool is_begun(const std::filesystem::path& file);
  /// Starts a new journal. Throws std::invalid_argument when the file is_begun() (it may be hours
  /// of measurements), and std::runtime_error naming the file and the reason when it cannot be
  /// written.
  static Journal create(const std::filesystem::path& file, const Json& header);
  /// Appends to a journal that read() understood.
  static Journal append_to(const std::filesystem::path& file);
  /// Throws std::invalid_argument naming the file, the line and the rule when it is not a journal.
  static JournalContents read(const std::filesystem::path& file);

  /// Returns when the line has reached the disk. Throws std::runtime_error (disk full, ...) naming
  /// the file and the reason.
  void add(const CaseResult& result);
  void add_peaks(const Json& peaks);

 private:
  Journal(std::filesystem::path file, int descriptor);
  void lock() const;
  void write_line(const Json& line);
  std::filesystem::path file_;
  FileDescriptor descriptor_;
};

/// Throws std::invalid_argument naming the first of `paths` (JSON pointers without their first `/`)
/// whose value differs between the journal's header and this run's.
void check_same_circumstances(const std::filesystem::path& file, const Json& header,
                              const Json& now, const std::vector<std::string>& paths);

}  // namespace tinyllama::harness
