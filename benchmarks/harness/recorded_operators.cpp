#include "benchmarks/harness/recorded_operators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/file_io.hpp"
#include "core/strict_json.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::json;

constexpr const char* kNodes = "nodes";
constexpr const char* kEvents = "traceEvents";

// What is wrong with one part of the file; whoever knows the file puts its name in front.
struct Malformed : std::runtime_error {
  using runtime_error::runtime_error;
};

const Json& member(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key))
    throw Malformed(fmt::format("lacks \"{}\"", key));
  return object.at(key);
}

const Json& list_member(const Json& object, const char* key) {
  const Json& found = member(object, key);
  if (!found.is_array()) throw Malformed(fmt::format("\"{}\" must be a list", key));
  return found;
}

bool are_integers(const Json& value) {
  return value.is_array() &&
         std::ranges::all_of(value, [](const Json& part) { return part.is_number_integer(); });
}

// Sizes or strides of one tensor; nothing where the input is a list of tensors.
std::vector<int64_t> extents(const Json& value) {
  if (!are_integers(value)) return {};
  std::vector<int64_t> found;
  for (const Json& part : value) {
    constexpr auto most = std::numeric_limits<int64_t>::max();
    const bool is_too_large = part.is_number_unsigned() && part.get<uint64_t>() > most;
    found.push_back(is_too_large ? -1 : part.get<int64_t>());
    if (found.back() < 0)
      throw Malformed(fmt::format("a size or stride {}: must be from 0 to 2^63 - 1", part.dump()));
  }
  return found;
}

// "Tensor(float)" of an execution trace -> "float"; that of what is no tensor -> "".
std::string element_type(const std::string& type) {
  constexpr std::string_view begin = "Tensor(";
  if (!type.starts_with(begin) || !type.ends_with(')')) return {};
  return type.substr(begin.size(), type.size() - begin.size() - 1);
}

std::string text_of(const Json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

const Json& at(const Json& list, size_t index) {
  static const Json none;
  return index < list.size() ? list[index] : none;
}

std::vector<RecordedInput> chakra_inputs(const Json& node) {
  const Json& inputs = member(node, "inputs");
  const Json& shapes = list_member(inputs, "shapes");
  const Json& types = list_member(inputs, "types");
  const Json& values = list_member(inputs, "values");
  const Json strides = inputs.value("strides", Json::array());
  if (shapes.size() != types.size() || values.size() != types.size())
    throw Malformed("has not as many shapes and values as types");
  std::vector<RecordedInput> found;
  for (size_t i = 0; i < types.size(); ++i) {
    RecordedInput input;
    input.type = element_type(text_of(types[i]));
    if (input.is_tensor()) {
      input.sizes = extents(shapes[i]);
      input.strides = extents(at(strides, i));
    } else {
      input.value = text_of(values[i]);
    }
    found.push_back(std::move(input));
  }
  return found;
}

// The profiler writes types of tensors as "float", and of numbers "Scalar" beside their value.
std::vector<RecordedInput> chrome_inputs(const Json& event) {
  const Json arguments = event.value("args", Json::object());
  const Json types = arguments.value("Input type", Json::array());
  const Json sizes = arguments.value("Input Dims", Json::array());
  const Json strides = arguments.value("Input Strides", Json::array());
  const Json values = arguments.value("Concrete Inputs", Json::array());
  if (!types.is_array() || !sizes.is_array() || !strides.is_array() || !values.is_array())
    throw Malformed("\"Input type\", \"Input Dims\", \"Input Strides\" must be lists");
  std::vector<RecordedInput> found;
  for (size_t i = 0; i < types.size(); ++i) {
    RecordedInput input;
    const std::string type = text_of(types[i]);
    const std::string value = text_of(at(values, i));
    if (type == "Scalar" || type == "ScalarList" || type.empty() || i >= sizes.size()) {
      input.value = value;
    } else {
      input.type = type;
      input.sizes = extents(sizes[i]);
      input.strides = extents(at(strides, i));
    }
    found.push_back(std::move(input));
  }
  return found;
}

// Takes the parts of a trace as they are parsed.
class Collector {
 public:
  void add_node(const Json& node) {
    const Json& id = member(node, "id");
    const Json& caller = member(node, "ctrl_deps");
    if (!id.is_number_integer() || !caller.is_number_integer())
      throw Malformed("\"id\" and \"ctrl_deps\" must be integers");
    ids_.emplace(id.get<int64_t>(), std::ssize(trace_.operators));
    callers_.push_back(caller.get<int64_t>());
    trace_.operators.push_back({text_of(member(node, "name")), chakra_inputs(node)});
  }

  void add_event(const Json& event) {
    if (!event.is_object()) throw Malformed("must be an object");
    const std::string category = event.contains("cat") ? text_of(event["cat"]) : "";
    trace_.has_kernels = trace_.has_kernels || category == "kernel";
    if (category != "cpu_op") return;
    const Json& begin = member(event, "ts");
    const Json& duration = member(event, "dur");
    if (!begin.is_number() || !duration.is_number())
      throw Malformed("\"ts\" and \"dur\" must be numbers");
    spans_.push_back({text_of(event.value("tid", Json())), begin.get<double>(),
                      begin.get<double>() + duration.get<double>()});
    trace_.operators.push_back(
        {text_of(member(event, "name")), chrome_inputs(event), -1, duration.get<double>() * 1e-6});
  }

  RecordedTrace finish(const Json& head) {
    if (head.contains("schema") && !trace_.operators.empty() && spans_.empty()) {
      trace_.format = "Chakra " + text_of(head["schema"]);
      for (size_t i = 0; i < callers_.size(); ++i) {
        const auto found = ids_.find(callers_[i]);
        // the process is its own caller
        if (found != ids_.end() && found->second != static_cast<int64_t>(i))
          trace_.operators[i].caller = found->second;
      }
    } else {
      trace_.format = "Chrome";
      nest();
    }
    return std::move(trace_);
  }

 private:
  struct Span {
    std::string thread;
    double begin;
    double end;
  };

  // An operator was called by the one of its thread that had not ended.
  void nest() {
    std::vector<size_t> order(spans_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      return std::tuple(spans_[a].begin, -spans_[a].end) <
             std::tuple(spans_[b].begin, -spans_[b].end);
    });
    std::map<std::string, std::vector<size_t>> open;
    double first = std::numeric_limits<double>::infinity();
    double last = -first;
    for (const size_t i : order) {
      const Span& span = spans_[i];
      std::vector<size_t>& callers = open[span.thread];
      while (!callers.empty() && spans_[callers.back()].end < span.end) callers.pop_back();
      if (!callers.empty()) trace_.operators[i].caller = static_cast<int64_t>(callers.back());
      callers.push_back(i);
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
    }
    if (last > first) trace_.seconds = (last - first) * 1e-6;
  }

  RecordedTrace trace_;
  std::unordered_map<int64_t, int64_t> ids_;  // index of each node
  std::vector<int64_t> callers_;              // ids, node by node
  std::vector<Span> spans_;                   // event by event, in microseconds
};

void refuse_other_schemas(const Json& head) {
  const bool is_chakra = head.contains(kNodes);
  if (is_chakra && head.contains("schema")) {
    const std::string schema = text_of(head["schema"]);
    if (!schema.starts_with("1.") || schema.find("-chakra.") == std::string::npos)
      throw Malformed(fmt::format(
          "is of schema \"{}\", and must be of 1.*-chakra.*, as 1.1.1-chakra.0.0.4", schema));
    return;
  }
  if (!head.contains(kEvents)) {
    throw Malformed(
        "is no trace: has neither \"schema\" and \"nodes\", as an execution trace, nor "
        "\"traceEvents\", as a Chrome trace");
  }
}

void refuse_without_shapes(const RecordedTrace& trace) {
  if (trace.operators.empty()) throw Malformed("holds no operators");
  const bool has_shapes =
      std::ranges::any_of(trace.operators, [](const RecordedOperator& recorded) {
        return std::ranges::any_of(recorded.inputs, &RecordedInput::is_tensor);
      });
  if (!has_shapes) {
    throw Malformed(
        "its operators have no shapes: record it with record_shapes=True (torch.profiler), "
        "--trace or --execution-trace");
  }
}

RecordedTrace parse(std::istream& stream) {
  Collector collector;
  std::string key;
  int64_t place = 0;
  // Takes each operator as it is read and drops it: a tree of all would take many times the text.
  const auto take = [&](int depth, Json::parse_event_t part, Json& value) {
    if (depth == 1 && part == Json::parse_event_t::key) key = value.get<std::string>();
    if (depth != 2 || part != Json::parse_event_t::object_end) return true;
    if (key != kNodes && key != kEvents) return true;
    try {
      key == kNodes ? collector.add_node(value) : collector.add_event(value);
    } catch (const Malformed& fault) {
      throw Malformed(fmt::format("{}[{}]: {}", key, place, fault.what()));
    }
    ++place;
    return false;
  };
  const Json head = Json::parse(stream, take);
  if (!head.is_object()) throw Malformed("is no trace, which is a JSON object");
  refuse_other_schemas(head);
  RecordedTrace trace = collector.finish(head);
  refuse_without_shapes(trace);
  return trace;
}

}  // namespace

RecordedTrace read_recorded_trace(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument(fmt::format("{}: {}", file.string(), what));
  };
  if (ReadableFile(file).bytes() == 0) refuse("is empty: no trace");
  std::ifstream stream(file, std::ios::binary);
  try {
    return parse(stream);
  } catch (const Malformed& fault) {
    refuse(fault.what());
  } catch (const Json::parse_error& error) {
    refuse("is no JSON, or cut off: " + printable(error.what()));
  } catch (const Json::exception& error) {
    refuse("is no trace: " + printable(error.what()));
  }
  return {};
}

}  // namespace tinyllama::harness
