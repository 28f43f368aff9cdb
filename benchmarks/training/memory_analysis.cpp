#include "benchmarks/training/memory_analysis.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "benchmarks/training/memory_breakdown.hpp"

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kSmallAllocation = int64_t{64} << 10;
constexpr size_t kLargestTensors = 10;

bool in_any(const std::vector<Stretch>& stretches, size_t event) {
  return std::ranges::any_of(stretches, [&](const Stretch& stretch) {
    return event >= stretch.first_event && event < stretch.end_event;
  });
}

std::vector<Stretch> phases_of(const MemoryRecording& recording, Phase phase) {
  std::vector<Stretch> stretches;
  std::ranges::copy_if(recording.phases, std::back_inserter(stretches),
                       [&](const Stretch& stretch) { return stretch.phase == phase; });
  return stretches;
}

/// One recording's answers, key by key.
class Analysis {
 public:
  Analysis(const MemoryRecording& recording, const Workload& workload)
      : recording_(recording), history_(recording), names_(workload, recording.on_gpu) {
    if (recording.steps.empty()) {
      throw std::invalid_argument(
          "0 steps in the recording of memory: an analysis needs at least one");
    }
    peak_ = *history_.peak(recording.steps);
  }

  Json levels() const;
  Json peak_place() const;
  Json allocations() const;
  Json largest_tensors() const;
  Json largest_spike() const;
  Json breakdown_at_peak() const;
  Json component_activation_bytes() const;
  Json fragmentation(std::optional<int64_t> resident_before) const;

 private:
  int64_t peak_bytes() const { return history_.live()[peak_]; }
  Json phase_peak(Phase phase) const {
    const auto instant = history_.peak(phases_of(recording_, phase));
    return instant ? Json(history_.live()[*instant]) : Json(nullptr);
  }
  const std::string& component(const MemoryEvent& event) const {
    return recording_.names[event.component];
  }
  const std::string& operation(const MemoryEvent& event) const {
    return recording_.names[event.operation];
  }
  std::string name_of(const MemoryBlock& block) const;

  const MemoryRecording& recording_;
  MemoryHistory history_;
  TensorNames names_;
  size_t peak_ = 0;
};

Json Analysis::levels() const {
  const auto average = history_.average(recording_.steps);
  Json after_steps = Json::array();
  for (const Stretch& step : recording_.steps)
    after_steps.push_back(history_.live()[step.end_event]);
  Json result;
  result["peak_bytes"] = peak_bytes();
  result["average_bytes"] = average ? Json(*average) : Json(nullptr);
  result["peak_to_average"] =
      average && *average > 0 ? Json(static_cast<double>(peak_bytes()) / *average) : Json(nullptr);
  result["forward_peak_bytes"] = phase_peak(Phase::forward);
  result["backward_peak_bytes"] = phase_peak(Phase::backward);
  result["optimizer_peak_bytes"] = phase_peak(Phase::optimizer);
  result["baseline_bytes"] = history_.live()[recording_.steps.front().first_event];
  result["live_bytes_after_steps"] = std::move(after_steps);
  return result;
}

// A peak that no event made was there from the beginning.
Json Analysis::peak_place() const {
  if (peak_ == 0) {
    return {{"peak_phase", nullptr},
            {"peak_component", nullptr},
            {"peak_operator", nullptr},
            {"peak_seconds", nullptr}};
  }
  const MemoryEvent& event = recording_.events[peak_ - 1];
  double begin = 0;
  for (const Stretch& step : recording_.steps) {
    if (step.begin_seconds <= event.seconds) begin = step.begin_seconds;
  }
  return {{"peak_phase", to_string(event.phase)},
          {"peak_component", component(event)},
          {"peak_operator", operation(event)},
          {"peak_seconds", event.seconds - begin}};
}

Json Analysis::allocations() const {
  int64_t all = 0;
  int64_t small = 0;
  for (const Stretch& step : recording_.steps) {
    for (size_t i = step.first_event; i < step.end_event; ++i) {
      const int64_t bytes = recording_.events[i].bytes;
      all += bytes > 0;
      small += bytes > 0 && bytes < kSmallAllocation;
    }
  }
  const auto steps = static_cast<double>(recording_.steps.size());
  return {{"allocations_per_step", static_cast<double>(all) / steps},
          {"small_allocations_per_step", static_cast<double>(small) / steps}};
}

// The same tensor of every layer has one name.
std::string Analysis::name_of(const MemoryBlock& block) const {
  if (!block.kind) return names_.name(origin_of(recording_, block), block.bytes);
  std::string name = block.name;
  constexpr std::string_view layers = "layers.";
  const size_t at = name.find(layers);
  if (at != std::string::npos) {
    const size_t digits = at + layers.size();
    name.replace(digits, name.find('.', digits) - digits, "*");
  }
  return (block.kind == TensorKind::gradient ? "gradient of " : "") + name;
}

Json Analysis::largest_tensors() const {
  // Largest first; among equals in the order of the texts.
  using Key = std::tuple<int64_t, std::string, std::string, std::string, Phase>;
  std::map<Key, int64_t> counts;
  for (const MemoryBlock& block : history_.blocks()) {
    if (block.begin == 0 || !in_any(recording_.steps, block.begin - 1)) continue;
    const MemoryEvent& event = recording_.events[block.begin - 1];
    ++counts[{-block.bytes, name_of(block), component(event), operation(event), event.phase}];
  }
  const auto steps = static_cast<int64_t>(recording_.steps.size());
  Json largest = Json::array();
  for (const auto& [key, count] : counts) {
    if (largest.size() == kLargestTensors) break;
    const auto& [negative_bytes, name, component, operation, phase] = key;
    largest.push_back({{"name", name},
                       {"bytes", -negative_bytes},
                       {"count", (count + steps - 1) / steps},
                       {"component", component},
                       {"operator", operation},
                       {"phase", to_string(phase)}});
  }
  return largest;
}

Json Analysis::largest_spike() const {
  struct Call {
    int64_t before;
    int64_t rise;
  };
  std::map<uint64_t, Call> calls;
  const MemoryEvent* of_largest = nullptr;
  int64_t largest = 0;
  for (size_t i = 0; i < recording_.events.size(); ++i) {
    const MemoryEvent& event = recording_.events[i];
    if (event.operator_call == 0 || !in_any(recording_.steps, i)) continue;
    Call& call = calls.try_emplace(event.operator_call, Call{history_.live()[i], 0}).first->second;
    call.rise = history_.live()[i + 1] - call.before;
    if (call.rise <= largest) continue;
    largest = call.rise;
    of_largest = &event;
  }
  if (of_largest == nullptr) return nullptr;
  return {{"bytes", largest},
          {"component", component(*of_largest)},
          {"operator", operation(*of_largest)},
          {"phase", to_string(of_largest->phase)}};
}

Json Analysis::breakdown_at_peak() const {
  const MemoryBreakdown at_peak = breakdown_at(recording_, history_, names_, peak_);
  return {{"parameters", at_peak.parameters},
          {"gradients", at_peak.gradients},
          {"optimizer_states", at_peak.optimizer_states},
          {"activations", at_peak.activations},
          {"attention_scores", at_peak.attention_scores},
          {"temporary", at_peak.temporary}};
}

// Of the forward that led to the peak.
Json Analysis::component_activation_bytes() const {
  Json result = Json::object();
  const auto forwards = phases_of(recording_, Phase::forward);
  if (forwards.empty()) return result;
  const Stretch* chosen = &forwards.front();
  for (const Stretch& forward : forwards) {
    if (forward.first_event < peak_) chosen = &forward;
  }
  for (const auto& [component, bytes] : activation_bytes(recording_, history_, *chosen))
    result[component] = bytes;
  return result;
}

Json Analysis::fragmentation(std::optional<int64_t> resident_before) const {
  int64_t allocated = peak_bytes();
  int64_t held = 0;
  std::string definition;
  if (recording_.on_gpu) {
    if (peak_ == 0) return nullptr;
    held = recording_.events[peak_ - 1].reserved_bytes;
    definition =
        "share of the memory that the device's caching allocator holds of the system which no "
        "tensor uses, at the peak";
  } else {
    const ResidentSample* fullest = nullptr;
    for (const ResidentSample& sample : recording_.resident_samples) {
      if (!fullest || history_.live()[sample.event] > history_.live()[fullest->event])
        fullest = &sample;
    }
    if (fullest == nullptr) return nullptr;
    allocated = history_.live()[fullest->event];
    held = fullest->bytes - resident_before.value_or(0);
    definition =
        std::string(
            "share of the process's resident set which is in no live tensor, at the end of the "
            "phase that leaves most alive; memory kept for later tensors counts as held; ") +
        (resident_before ? "what was resident before the first tensor (the program, libtorch) is "
                           "subtracted"
                         : "the program and libtorch itself are in it");
  }
  Json result;
  result["allocated_bytes"] = allocated;
  result["held_bytes"] = held;
  result["percent"] =
      held > 0 ? Json(100.0 * static_cast<double>(held - allocated) / static_cast<double>(held))
               : Json(nullptr);
  result["definition"] = definition;
  return result;
}

}  // namespace

Json analyze_memory(const MemoryRecording& recording, const Workload& workload,
                    std::optional<int64_t> resident_before) {
  const Analysis analysis(recording, workload);
  Json memory;
  memory["first_step"] = recording.steps.front().step;
  memory["last_step"] = recording.steps.back().step;
  memory.update(analysis.levels());
  memory.update(analysis.peak_place());
  memory.update(analysis.allocations());
  memory["largest_tensors"] = analysis.largest_tensors();
  memory["largest_spike"] = analysis.largest_spike();
  memory["breakdown_at_peak"] = analysis.breakdown_at_peak();
  memory["component_activation_bytes"] = analysis.component_activation_bytes();
  memory["fragmentation"] = analysis.fragmentation(resident_before);
  return memory;
}

}  // namespace tinyllama::training
