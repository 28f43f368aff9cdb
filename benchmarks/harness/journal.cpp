#include "benchmarks/harness/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string_view>

#include "core/strict_json.hpp"

namespace tinyllama::harness {
namespace {

constexpr const char* kMagic = "tiny_llama_bench journal";
// What its first line begins with.
constexpr std::string_view kStart = R"({"journal":"tiny_llama_bench journal",)";
constexpr int kDeepestNesting = 16;

// The types of a row's values, which a run that continues relies on: these are texts, those below
// flags, and all others numbers or lists of numbers.
const std::set<std::string_view> kTexts = {
    "name",       "run_name",       "run_type",       "label",         "time_unit",
    "component",  "pass",           "variant",        "size",          "dtype",
    "above_peak", "aggregate_name", "aggregate_unit", "error_message", "skip_message"};
const std::set<std::string_view> kFlags = {"skipped", "error_occurred"};

bool is_figure(const Json& value) {
  return value.is_number() || (value.is_array() && std::ranges::all_of(value, [](const Json& v) {
                                 return v.is_number();
                               }));
}

// What is wrong with a row; empty where nothing is.
std::string fault_of(const Json& entry) {
  if (!entry.is_object()) return "needs entries that are objects";
  for (const char* key : {"name", "run_name", "real_time"}) {
    if (!entry.contains(key)) return fmt::format("needs entries with a {}", key);
  }
  if (entry.contains("interval_ns") &&
      (!entry.at("interval_ns").is_array() || entry.at("interval_ns").size() != 2))
    return fmt::format("interval_ns = {}: must be two numbers",
                       printable_json(entry.at("interval_ns")));
  for (const auto& [key, value] : entry.items()) {
    const bool is_text = kTexts.contains(key);
    const bool is_flag = kFlags.contains(key);
    const bool is_right = is_text ? value.is_string()
                          : is_flag
                              ? value.is_boolean()
                              : is_figure(value) && (key.ends_with("_ns") || value.is_number());
    if (!is_right) {
      return fmt::format("{} = {}: must be {}", printable(key), printable_json(value),
                         is_text   ? "a text"
                         : is_flag ? "true or false"
                                   : "a number");
    }
  }
  return {};
}

[[noreturn]] void fail_system(const std::filesystem::path& file, const char* what) {
  throw std::runtime_error(
      fmt::format("journal {}: {}: {}", file.string(), what, std::strerror(errno)));
}

std::string read_text(const std::filesystem::path& file) {
  std::error_code unknown;
  if (std::filesystem::is_directory(file, unknown)) {
    throw std::invalid_argument(fmt::format("journal {}: is a directory", file.string()));
  }
  std::ifstream in(file, std::ios::binary);
  if (!in)
    throw std::invalid_argument(
        fmt::format("journal {}: cannot be read; --journal names the file of the run to continue",
                    file.string()));
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

Journal::Journal(std::filesystem::path file, int descriptor)
    : file_(std::move(file)), descriptor_(descriptor) {}

bool Journal::is_begun(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  return text.find('\n') != std::string::npos ||
         !kStart.starts_with(std::string_view(text).substr(0, kStart.size()));
}

Journal Journal::create(const std::filesystem::path& file, const Json& header) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) fail_system(file, "cannot be created");
  Journal journal(file, descriptor);
  journal.lock();
  if (std::filesystem::is_regular_file(file)) {
    if (is_begun(file)) {
      throw std::invalid_argument(fmt::format(
          "--journal {}: exists and is not empty; continue it with --resume, or name another file",
          file.string()));
    }
    if (::ftruncate(descriptor, 0) != 0) fail_system(file, "cannot be truncated");
  }
  Json line = {{"journal", kMagic}, {"schema_version", kSchemaVersion}};
  line["header"] = header;
  journal.write_line(line);
  return journal;
}

Journal Journal::append_to(const std::filesystem::path& file) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0) {
    read_text(file);  // whose words are for one that is not there
    fail_system(file, "cannot be appended to");
  }
  Journal journal(file, descriptor);
  journal.lock();
  const std::string text = read_text(file);
  // Whatever follows the last newline is a line that a kill cut short.
  const auto whole = static_cast<off_t>(text.rfind('\n') + 1);
  if (::ftruncate(descriptor, whole) != 0) fail_system(file, "cannot be truncated");
  return journal;
}

JournalContents Journal::read(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  JournalContents contents;
  size_t number = 0;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    ++number;
    const auto fail = [&](const std::string& rule) {
      throw std::invalid_argument(
          fmt::format("journal {}, line {}: {}", file.string(), number, rule));
    };
    const auto line = parse_strict_json<Json>(
        std::string_view(text).substr(begin, end - begin),
        fmt::format("journal {}, line {}:", file.string(), number), {.depth = kDeepestNesting});
    if (number == 1) {
      if (line.value("journal", Json()) != kMagic || !line.contains("header") ||
          !line.at("header").is_object())
        fail("is not the header of a journal");
      if (line.value("schema_version", Json()) != kSchemaVersion) {
        fail(fmt::format(
            "schema_version {}: this program writes {}, whose rows mean something else; measure "
            "anew, without --resume",
            printable_json(line.value("schema_version", Json())), kSchemaVersion));
      }
      contents.header = line.at("header");
      continue;
    }
    if (line.contains("peaks")) {
      contents.header["peaks"] = line.at("peaks");
      continue;
    }
    if (!line.contains("case") || !line["case"].is_string() || !line.contains("entries") ||
        !line["entries"].is_array() || line["entries"].empty()) {
      fail("needs a case and its entries");
    }
    for (const Json& entry : line["entries"]) {
      if (const std::string fault = fault_of(entry); !fault.empty()) fail(fault);
    }
    contents.results.push_back({line.at("case").get<std::string>(), line.at("entries")});
  }
  if (number == 0)
    throw std::invalid_argument(fmt::format("journal {}: has no whole line", file.string()));
  return contents;
}

// A file system without locks is accepted.
void Journal::lock() const {
  if (::flock(descriptor_.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw std::invalid_argument(
        fmt::format("journal {}: another run writes it; wait for its end", file_.string()));
  }
}

void Journal::add_peaks(const Json& peaks) {
  write_line({{"peaks", peaks}});
}

void Journal::add(const CaseResult& result) {
  write_line({{"case", result.name}, {"entries", result.entries}});
}

void Journal::write_line(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  errno = descriptor_.write(text.data(), std::ssize(text));
  if (errno != 0) fail_system(file_, "cannot be written");
  // EINVAL: something like a pipe, which has no disk to reach.
  if (::fsync(descriptor_.number()) != 0 && errno != EINVAL)
    fail_system(file_, "cannot be flushed to disk");
}

void check_same_circumstances(const std::filesystem::path& file, const Json& header,
                              const Json& now, const std::vector<std::string>& paths) {
  const auto at = [](const Json& context, const Json::json_pointer& place) {
    return context.contains(place) ? context.at(place) : Json();
  };
  for (const auto& path : paths) {
    const Json::json_pointer pointer("/" + path);
    const Json before = at(header, pointer);
    const Json after = at(now, pointer);
    const Json differences = Json::diff(before, after);
    if (differences.empty()) continue;
    // The first member that differs, because nobody can find it in a text of all settings.
    const std::string inner = differences.front().at("path");
    const Json::json_pointer place(inner);
    const bool is_option = path == "goals" && !inner.empty();
    const std::string name = is_option ? "--" + inner.substr(1) : path + inner;
    throw std::invalid_argument(fmt::format(
        "--resume: journal {} was written with {} = {}, this run has {}; results of both must "
        "not be mixed",
        file.string(), name, printable_json(at(before, place)), printable_json(at(after, place))));
  }
}

}  // namespace tinyllama::harness
