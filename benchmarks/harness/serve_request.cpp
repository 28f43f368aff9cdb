#include "benchmarks/harness/serve_request.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "core/strict_json.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::ordered_json;
using Action = ServeRequest::Action;

// A line for a message: shortened, and without zero bytes, at which the message would end.
std::string quoted(const std::string& text) {
  constexpr size_t longest = 120;
  std::string beginning = text.substr(0, longest);
  const auto is_control = [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; };
  std::replace_if(beginning.begin(), beginning.end(), is_control, '?');
  return text.size() <= longest ? beginning : beginning + "...";
}

[[noreturn]] void refuse(const std::string& key, const Json& value, const std::string& rule) {
  throw std::invalid_argument(fmt::format("\"{}\" {}: {}", key, quoted(value.dump()), rule));
}

Json parse_object(const std::string& line) {
  constexpr int deepest_nesting = 4;
  try {
    return parse_strict_json<Json>(line, "request", {.depth = deepest_nesting});
  } catch (const std::invalid_argument&) {
    throw std::invalid_argument(
        fmt::format("'{}': a request is one JSON object on one line", quoted(line)));
  }
}

const Json& member(const Json& request, const std::string& key) {
  const auto found = request.find(key);
  if (found == request.end()) {
    throw std::invalid_argument(
        fmt::format("'{}': the request lacks \"{}\"", quoted(request.dump()), key));
  }
  return *found;
}

Action read_action(const Json& value) {
  if (value == "open") return Action::open;
  if (value == "time") return Action::time;
  if (value == "close") return Action::close;
  refuse("do", value, "must be open, time or close");
}

// A misspelt key must not pass as one that was left out.
void check_keys(const Json& request, const std::vector<std::string>& known) {
  for (const auto& [key, value] : request.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      refuse(key, value, fmt::format("unknown here; known are {}", fmt::join(known, ", ")));
  }
}

bool read_flag(const Json& request, const std::string& key) {
  const auto found = request.find(key);
  if (found == request.end()) return false;
  if (!found->is_boolean()) refuse(key, *found, "must be true or false");
  return found->get<bool>();
}

double read_seconds(const Json& request, double most_seconds) {
  const Json& value = member(request, "seconds");
  const auto in_range = [&] {
    const auto seconds = value.get<double>();
    return seconds >= 0 && seconds <= most_seconds;
  };
  if (!value.is_number() || !in_range()) {
    refuse("seconds", value,
           fmt::format("must be a number from 0 to {:g} (--max-seconds-per-case)", most_seconds));
  }
  return value.get<double>();
}

}  // namespace

ServeRequest parse_serve_request(const std::string& line, double most_seconds) {
  const Json request = parse_object(line);
  ServeRequest parsed;
  parsed.action = read_action(member(request, "do"));
  const Json& name = member(request, "case");
  if (!name.is_string()) refuse("case", name, "must be the name of a case");
  parsed.case_name = name.get<std::string>();
  switch (parsed.action) {
    case Action::open:
      check_keys(request, {"do", "case", "verify", "meter"});
      parsed.verify = read_flag(request, "verify");
      parsed.meter = read_flag(request, "meter");
      break;
    case Action::time:
      check_keys(request, {"do", "case", "seconds"});
      parsed.seconds = read_seconds(request, most_seconds);
      break;
    case Action::close:
      check_keys(request, {"do", "case"});
      break;
  }
  return parsed;
}

}  // namespace tinyllama::harness
