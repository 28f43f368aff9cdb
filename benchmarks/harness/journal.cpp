#include "benchmarks/harness/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace tinyllama::harness {
namespace {

constexpr const char* kMagic = "tiny_llama_bench journal";

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
    : file_(std::move(file)), descriptor_(new int(descriptor)) {}

void Journal::CloseFile::operator()(const int* descriptor) const {
  ::close(*descriptor);
  delete descriptor;
}

Journal Journal::create(const std::filesystem::path& file, const Json& header) {
  std::error_code unreadable;
  if (std::filesystem::is_regular_file(file, unreadable) &&
      std::filesystem::file_size(file, unreadable) > 0) {
    throw std::invalid_argument(fmt::format(
        "--journal {}: exists and is not empty; continue it with --resume, or name another file",
        file.string()));
  }
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail_system(file, "cannot be created");
  Journal journal(file, descriptor);
  Json line = {{"journal", kMagic}, {"schema_version", kSchemaVersion}};
  line["header"] = header;
  journal.write_line(line);
  return journal;
}

Journal Journal::append_to(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0) fail_system(file, "cannot be appended to");
  Journal journal(file, descriptor);
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
    const Json line =
        Json::parse(text.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) fail("is not a JSON object");
    if (number == 1) {
      if (line.value("journal", Json()) != kMagic || !line.contains("header"))
        fail("is not the header of a journal");
      if (line.value("schema_version", Json()) != kSchemaVersion) {
        fail(fmt::format(
            "schema_version {}: this program writes {}, whose rows mean something else; measure "
            "anew, without --resume",
            line.value("schema_version", Json()).dump(), kSchemaVersion));
      }
      contents.header = line.at("header");
      continue;
    }
    if (line.contains("peaks")) {
      contents.header["peaks"] = line.at("peaks");
      continue;
    }
    const auto is_entry = [](const Json& entry) {
      return entry.is_object() && entry.contains("name") && entry.contains("run_name");
    };
    if (!line.contains("case") || !line["case"].is_string() || !line.contains("entries") ||
        !line["entries"].is_array() || line["entries"].empty() ||
        !std::all_of(line["entries"].begin(), line["entries"].end(), is_entry)) {
      fail("needs a case and its entries");
    }
    contents.results.push_back({line.at("case").get<std::string>(), line.at("entries")});
  }
  if (number == 0) throw std::invalid_argument(fmt::format("journal {}: is empty", file.string()));
  return contents;
}

void Journal::add_peaks(const Json& peaks) {
  write_line({{"peaks", peaks}});
}

void Journal::add(const CaseResult& result) {
  write_line({{"case", result.name}, {"entries", result.entries}});
}

void Journal::write_line(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::write(*descriptor_, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_system(file_, "cannot be written");
    written += static_cast<size_t>(n);
  }
  // EINVAL: something like a pipe, which has no disk to reach.
  if (::fsync(*descriptor_) != 0 && errno != EINVAL)
    fail_system(file_, "cannot be flushed to disk");
}

void check_same_circumstances(const std::filesystem::path& file, const Json& header,
                              const Json& now, const std::vector<std::string>& keys) {
  for (const auto& key : keys) {
    const Json then = header.value(key, Json());
    const Json current = now.value(key, Json());
    if (then != current) {
      throw std::invalid_argument(fmt::format(
          "--resume: journal {} was written with {} = {}, this run has {}; results of both must "
          "not be mixed",
          file.string(), key, then.dump(), current.dump()));
    }
  }
}

}  // namespace tinyllama::harness
