// --benchmark_format other than console and json: a flat row a case, in lines of csv or jsonl, and
// a Markdown table.
#pragma once

#include <string>

#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

/// What is known of a case, by column (flat_columns()); the figures are those of its median, or of
/// a peak's best repetition. A counter that is no column yet is there under its own name. `file`:
/// that holds the result; may be empty.
Json flat_row(const Json& context, const CaseResult& result, const std::string& file);

/// A heading and a line a case, each with every column (RFC 4180, with line feeds). What is not
/// known is empty.
std::string csv_text(const ResultDocument& document, const std::string& file);

/// An object a case and line, each with every column. What is not known is null.
std::string jsonl_text(const ResultDocument& document, const std::string& file);

/// One table of all cases, whose columns are the axes and counters that vary, and one of the peaks
/// that were cases; below it what all rows share, the build, and why cases have no time. `more`:
/// names of counters to show beside the usual ones.
std::string markdown_text(const ResultDocument& document, const std::vector<std::string>& more);

/// The document as options.format says, unless that is console.
std::string formatted(const Options& options, const ResultDocument& document);

}  // namespace tinyllama::harness
