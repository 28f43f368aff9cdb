#include "model/published_models.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "core/file_io.hpp"
#include "core/strict_json.hpp"
#include "model/checkpoint_config.hpp"

namespace tinyllama {
namespace {

// Keeps the order of the file, in which the names are listed.
using Json = nlohmann::ordered_json;

constexpr int64_t kMostBytes = 10'000'000;
constexpr int kDeepestNesting = 6;
constexpr std::string_view kKeys[] = {"source", "checked", "parameters", "batch", "seq", "config"};

// One object of the file, with what messages call it.
class Reader {
 public:
  Reader(const std::filesystem::path& file, std::string place, const Json& object)
      : file_(file), place_(std::move(place)), object_(object) {
    if (!object.is_object()) fail(fmt::format("{}: must be an object", place_));
  }

  template <typename Keys>
  void expect_keys(const Keys& keys) const {
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(keys, std::string_view(key)) == std::end(keys))
        fail(fmt::format("{}: unknown key: must be one of {}", place_of(printable(key)),
                         fmt::join(keys, ", ")));
    }
    for (const auto key : keys)
      if (!object_.contains(std::string(key))) fail(fmt::format("{}: is missing", place_of(key)));
  }
  const Json& object(const char* key) const {
    const Json& value = object_.at(key);
    if (!value.is_object()) refuse(key, "must be an object");
    return value;
  }
  std::string text(const char* key) const {
    const Json& value = object_.at(key);
    if (!value.is_string() || value.get<std::string>().empty())
      refuse(key, "must be a text that is not empty");
    return value.get<std::string>();
  }
  void expect_texts(const char* key) const {
    const Json& value = object_.at(key);
    if (!value.is_array() || value.empty() ||
        !std::ranges::all_of(value, [](const Json& item) { return item.is_string(); }))
      refuse(key, "must be a list of texts that is not empty");
  }
  int64_t positive(const char* key) const {
    const Json& value = object_.at(key);
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
    if (!fits || value.get<int64_t>() < 1) refuse(key, "must be a positive integer");
    return value.get<int64_t>();
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(fmt::format("published models {}: {}", file_.string(), what));
  }

 private:
  [[noreturn]] void refuse(const char* key, const char* rule) const {
    fail(fmt::format("{} = {}: {}", place_of(key), printable_json(object_.at(key)), rule));
  }
  std::string place_of(std::string_view key) const {
    return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
  }

  const std::filesystem::path& file_;
  std::string place_;
  const Json& object_;
};

// Names are part of the cases' names, which have slashes between them.
bool is_name(std::string_view name) {
  const auto may_be = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
  };
  return !name.empty() && name != "custom" && std::ranges::all_of(name, may_be);
}

}  // namespace

PublishedModels::PublishedModels(const std::filesystem::path& file) : file_(file) {
  const Json root = parse_strict_json<Json>(read_text(file, kMostBytes),
                                            fmt::format("published models {}:", file.string()),
                                            {.depth = kDeepestNesting});
  const Reader whole(file, "", root);
  whole.expect_keys(std::vector<std::string_view>{"description", "models"});
  for (const auto& [name, value] : whole.object("models").items()) {
    const Reader entry(file, printable(name), value);
    if (!is_name(name))
      entry.fail(fmt::format("name '{}': must be of a-z, 0-9, '.', '-' and '_', and not custom",
                             printable(name)));
    entry.expect_keys(kKeys);
    entry.expect_texts("checked");
    entries_.push_back({name, entry.text("source"), entry.positive("parameters"),
                        entry.positive("batch"), entry.positive("seq"),
                        entry.object("config").dump()});
  }
}

std::vector<std::string> PublishedModels::names() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  return names;
}

bool PublishedModels::contains(const std::string& name) const {
  return std::ranges::find(entries_, name, &Entry::name) != entries_.end();
}

PublishedModel PublishedModels::read(const std::string& name) const {
  const auto entry = std::ranges::find(entries_, name, &Entry::name);
  if (entry == entries_.end())
    throw std::out_of_range(fmt::format("{} has no model '{}'", file_.string(), name));
  const std::filesystem::path place = fmt::format("{}: {}", file_.string(), name);
  check_batch_and_seq(entry->batch, entry->seq);
  return {{name, parse_checkpoint_config(place, entry->config_text), entry->batch, entry->seq,
           entry->config_text},
          entry->source,
          entry->parameters};
}

}  // namespace tinyllama
