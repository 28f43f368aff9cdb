#include "benchmarks/training/memory_analysis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <string_view>
#include <tuple>

#include "model/attention.hpp"
#include "model/loss.hpp"

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kSmallAllocation = int64_t{64} << 10;
constexpr size_t kLargestTensors = 10;

// What libtorch's allocator of a GPU rounds to, and the largest remainder of a block that it does
// not split off (kMinBlockSize, kSmallSize in c10/cuda/CUDACachingAllocator.h).
constexpr int64_t kGpuGranule = 512;
constexpr int64_t kGpuRemainder = int64_t{1} << 20;

/// Tells what a tensor of one model at one batch and sequence length is, by the event that
/// allocated it. Letters as in the model: B, S, D (hidden), D_ff (intermediate), H (heads), KV (KV
/// heads), V (vocabulary).
class TensorNames {
 public:
  TensorNames(const MemoryRecording& recording, const Workload& workload)
      : recording_(recording),
        computed_(compute_bytes(workload.dtype)),
        stored_(storage_bytes(workload.dtype)),
        wide_(std::max<int64_t>(4, computed_)) {
    if (has_score_matrix(workload.variant))
      scores_ = workload.batch * workload.config.n_heads() * workload.seq * workload.seq;
    add_activations(workload);
    add_weights(workload.config);
  }

  /// "attention_scores [B,H,S,S]", "gradient of logits [B,S,V]", ...; "<component>: <operator>"
  /// where no tensor of the component has as many bytes.
  std::string name(const MemoryEvent& event) const {
    const std::string& component = recording_.names[event.component];
    const std::string& operation = recording_.names[event.operation];
    const bool in_backward = event.phase == Phase::backward;
    std::string_view name;
    if (is_score_matrix(event)) {
      const bool is_softmax = operation == "aten::_softmax" || operation == "aten::_to_copy" ||
                              (operation == "aten::bmm" && in_backward);
      name = is_softmax ? "attention_probabilities [B,H,S,S]" : "attention_scores [B,H,S,S]";
    } else if (const Entry* entry = find(event)) {
      name = entry->name;
    } else {
      return fmt::format("{}: {}", component, operation.empty() ? "outside operators" : operation);
    }
    return fmt::format("{}{}", in_backward ? "gradient of " : "", name);
  }

  /// Whether it is a matrix of attention scores or of their softmax, in its narrow or wide type.
  bool is_score_matrix(const MemoryEvent& event) const {
    if (scores_ == 0 || recording_.names[event.component] != kCore) return false;
    if (!matches(event.bytes, scores_ * computed_) && !matches(event.bytes, scores_ * wide_))
      return false;
    // Queries or keys may be as large; they come from other operators.
    constexpr std::string_view of_scores[] = {"aten::bmm", "aten::_softmax", "aten::_to_copy",
                                              "aten::_softmax_backward_data"};
    return std::ranges::count(of_scores, recording_.names[event.operation]) > 0 ||
           find(event) == nullptr;
  }

 private:
  static constexpr std::string_view kCore = "attention/core";
  struct Entry {
    std::string_view component;
    int64_t size;  // elements, and once it is in the table bytes
    std::string_view name;
    std::string_view operation = {};  // where tensors of the same size come from several
  };

  // For a tensor of a component the first entry decides whose operator and bytes fit.
  void add_activations(const Workload& workload) {
    const int64_t tokens = workload.tokens();
    const int64_t hidden = tokens * workload.config.hidden_dim();
    const int64_t queries = tokens * workload.config.q_dim();
    const int64_t keys = tokens * workload.config.kv_dim();
    const int64_t inner = tokens * workload.config.intermediate_dim();
    const int64_t V = workload.config.vocab_size();
    constexpr std::string_view cross_entropy = "loss/cross_entropy";
    constexpr std::string_view log_name = "log-probabilities [B,S,V]";
    add({kTokenBytes}, {{"data_loading", tokens, "tokens [B,S]"}});
    add({stored_}, {{"embedding", hidden, "embedded tokens [B,S,D]"},
                    {"residual", hidden, "residual stream [B,S,D]"}});
    add({stored_, wide_}, {{"rms_norm", hidden, "norm intermediate [B,S,D]"},
                           {"rms_norm", tokens, "norm factors [B,S,1]"}});
    add({wide_}, {{cross_entropy, tokens * V, log_name, "aten::_log_softmax"},
                  {cross_entropy, tokens * V, log_name, "aten::nll_loss_backward"}});
    add({wide_, computed_}, {{cross_entropy, tokens * V, "logits [B,S,V]"}});
    add({computed_},
        {{"attention/qkv_proj", queries + 2 * keys, "queries, keys and values [B,S,(H+2KV) D/H]"},
         {"attention/qkv_proj", queries, "queries or attention input [B,S,D]"},
         {"attention/qkv_proj", hidden, "attention input [B,S,D]"},
         {"attention/qkv_proj", keys, "keys or values [B,S,KV,D/H]"},
         {"attention/rotary", queries, "rotated queries [B,S,H,D/H]"},
         {"attention/rotary", keys, "rotated keys [B,S,KV,D/H]"},
         {kCore, queries, "attended values or queries [B,S,D]"},
         {kCore, keys, "keys or values [B,S,KV,D/H]"},
         {"attention/o_proj", hidden, "attention output [B,S,D]"},
         {"ffn/gate_up_proj", inner, "ffn intermediate [B,S,D_ff]"},
         {"ffn/gate_up_proj", 2 * inner, "ffn intermediate [B,S,2 D_ff]"},
         {"ffn/gate_up_proj", hidden, "ffn input [B,S,D]"},
         {"ffn/swiglu", inner, "ffn intermediate [B,S,D_ff]"},
         {"ffn/swiglu", 2 * inner, "ffn intermediate [B,S,2 D_ff]"},
         {"ffn/down_proj", hidden, "ffn output [B,S,D]"},
         // In a backward: the gradient of what the projection read.
         {"ffn/down_proj", inner, "ffn intermediate [B,S,D_ff]"},
         {"loss/lm_head", tokens * V, "logits [B,S,V]"},
         {"loss/lm_head", hidden, "final hidden states [B,S,D]"},
         {"loss/fused", fused_loss_chunk(tokens, V, workload.device) * V,
          "logits of a chunk of tokens"},
         {"loss/fused", hidden, "final hidden states [B,S,D]"}});
  }

  // Casts of weights under autocast, gradients on their way to a parameter, and what an update
  // computes for one parameter.
  void add_weights(const ModelConfig& config) {
    const int64_t D = config.hidden_dim();
    const int64_t Q = config.q_dim();
    const int64_t V = config.vocab_size();
    const int64_t inner = config.intermediate_dim();
    add({stored_, computed_},
        {{"embedding", V * D, "embedding weight [V,D]"},
         {"loss/lm_head", V * D, "LM head weight [V,D]"},
         {"loss/fused", V * D, "LM head weight [V,D]"},
         {"rms_norm", D, "norm weight [D]"},
         {"attention/qkv_proj", Q * D, "query projection weight [D,D]"},
         {"attention/qkv_proj", config.kv_dim() * D, "key or value projection weight [KV D/H,D]"},
         {"attention/o_proj", Q * D, "output projection weight [D,D]"},
         {"ffn/gate_up_proj", inner * D, "ffn weight [D_ff,D]"},
         {"ffn/down_proj", inner * D, "ffn weight [D_ff,D]"},
         {"optimizer", V * D, "AdamW intermediate [V,D]"},
         {"optimizer", inner * D, "AdamW intermediate [D_ff,D]"},
         {"optimizer", Q * D, "AdamW intermediate [D,D]"}});
  }

  /// `widths`: of an element.
  void add(std::initializer_list<int64_t> widths, const std::vector<Entry>& entries) {
    for (const int64_t width : widths) {
      for (Entry entry : entries) {
        entry.size *= width;
        entries_.push_back(entry);
      }
    }
  }

  // Allocations on a GPU are larger than what was asked for, by rounding and by remainders too
  // small to be split off.
  bool matches(int64_t bytes, int64_t expected) const {
    if (!recording_.on_gpu) return bytes == expected;
    const int64_t rounded = (expected + kGpuGranule - 1) / kGpuGranule * kGpuGranule;
    return bytes == rounded ||
           (rounded > kGpuRemainder && bytes > rounded && bytes - rounded <= kGpuRemainder);
  }

  const Entry* find(const MemoryEvent& event) const {
    const auto entry = std::ranges::find_if(entries_, [&](const Entry& candidate) {
      return candidate.component == recording_.names[event.component] &&
             matches(event.bytes, candidate.size) &&
             (candidate.operation.empty() ||
              candidate.operation == recording_.names[event.operation]);
    });
    return entry == entries_.end() ? nullptr : &*entry;
  }

  const MemoryRecording& recording_;
  int64_t computed_;  // bytes of an element in GEMMs, in storage, and where it is widened
  int64_t stored_;
  int64_t wide_;
  int64_t scores_ = 0;  // elements; 0 where there is no such matrix
  std::vector<Entry> entries_;
};

/// One allocation from its begin to its release. Instants count events: instant i is the state
/// after i events.
struct Block {
  int64_t bytes = 0;
  size_t begin = 0;  // first instant at which it is alive; 0: from before
  size_t end = std::numeric_limits<size_t>::max();  // first instant at which it no longer is
  std::optional<TensorKind> kind = std::nullopt;
  std::string name = {};  // where the kind is known

  bool alive_at(size_t instant) const { return begin <= instant && instant < end; }
  /// Whether it was allocated in the stretch and is alive at its end.
  bool is_left_by(const Stretch& stretch) const {
    return begin > stretch.first_event && alive_at(stretch.end_event);
  }
};

/// The bytes alive at each instant, and the life of every tensor.
struct History {
  explicit History(const MemoryRecording& recording) {
    for (const KnownTensor& tensor : recording.known_before) {
      alive_[tensor.data] = blocks.size();
      blocks.push_back({.bytes = tensor.bytes, .kind = tensor.kind, .name = tensor.name});
    }
    live.reserve(recording.events.size() + 1);
    live.push_back(recording.live_bytes_before);
    auto mark = recording.marks.begin();
    for (size_t i = 0; i <= recording.events.size(); ++i) {
      for (; mark != recording.marks.end() && mark->event <= i; ++mark) apply(mark->tensor);
      if (i < recording.events.size()) add(recording.events[i], i + 1);
    }
  }

  std::vector<int64_t> live;
  /// Allocations of the recording, and the tensors known from before. What else was alive before is
  /// in `live` alone.
  std::vector<Block> blocks;

 private:
  void add(const MemoryEvent& event, size_t instant) {
    live.push_back(live.back() + event.bytes);
    if (event.bytes > 0) {
      alive_[event.data] = blocks.size();
      blocks.push_back({.bytes = event.bytes, .begin = instant});
      return;
    }
    const auto released = alive_.find(event.data);
    if (released == alive_.end()) return;
    blocks[released->second].end = instant;
    alive_.erase(released);
  }

  void apply(const KnownTensor& tensor) {
    const auto [alive, is_new] = alive_.try_emplace(tensor.data, blocks.size());
    // Not seen so far, so it was there before the recording.
    if (is_new) blocks.push_back({.bytes = tensor.bytes});
    blocks[alive->second].kind = tensor.kind;
    blocks[alive->second].name = tensor.name;
  }

  std::unordered_map<const void*, size_t> alive_;  // address -> index in blocks
};

/// One recording's answers, key by key.
class Analysis {
 public:
  Analysis(const MemoryRecording& recording, const Workload& workload)
      : recording_(recording), history_(recording), names_(recording, workload) {
    if (recording.steps.empty()) {
      throw std::invalid_argument(
          "0 steps in the recording of memory: an analysis needs at least one");
    }
    peak_ = *peak_of(recording.steps);
  }

  Json levels() const {
    const auto average = average_of_steps();
    Json after_steps = Json::array();
    for (const Stretch& step : recording_.steps)
      after_steps.push_back(history_.live[step.end_event]);
    const auto phase_peak = [&](Phase phase) {
      const auto instant = peak_of(phases(phase));
      return instant ? Json(history_.live[*instant]) : Json(nullptr);
    };
    return {{"peak_bytes", peak_bytes()},
            {"average_bytes", average ? Json(*average) : Json(nullptr)},
            {"peak_to_average", average && *average > 0
                                    ? Json(static_cast<double>(peak_bytes()) / *average)
                                    : Json(nullptr)},
            {"forward_peak_bytes", phase_peak(Phase::forward)},
            {"backward_peak_bytes", phase_peak(Phase::backward)},
            {"optimizer_peak_bytes", phase_peak(Phase::optimizer)},
            {"baseline_bytes", history_.live[recording_.steps.front().first_event]},
            {"live_bytes_after_steps", std::move(after_steps)}};
  }

  // A peak that no event made was there from the beginning.
  Json peak_place() const {
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

  Json allocations() const {
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

  Json largest_tensors() const {
    // Largest first; among equals in the order of the texts.
    using Key = std::tuple<int64_t, std::string, std::string, std::string, Phase>;
    std::map<Key, int64_t> counts;
    for (const Block& block : history_.blocks) {
      if (block.begin == 0 || !is_in_a_step(block.begin - 1)) continue;
      const MemoryEvent& event = allocation_of(block);
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

  Json largest_spike() const {
    std::map<uint64_t, int64_t> before_call;
    const MemoryEvent* of_largest = nullptr;
    int64_t largest = 0;
    for (size_t i = 0; i < recording_.events.size(); ++i) {
      const MemoryEvent& event = recording_.events[i];
      if (event.operator_call == 0 || !is_in_a_step(i)) continue;
      const int64_t before =
          before_call.try_emplace(event.operator_call, history_.live[i]).first->second;
      if (history_.live[i + 1] - before <= largest) continue;
      largest = history_.live[i + 1] - before;
      of_largest = &event;
    }
    if (of_largest == nullptr) return nullptr;
    return {{"bytes", largest},
            {"component", component(*of_largest)},
            {"operator", operation(*of_largest)},
            {"phase", to_string(of_largest->phase)}};
  }

  // The parts add up to what is alive. Activations were allocated in a forward and are alive at its
  // end; temporary is everything else: inputs, tables, gradients of activations, ...
  Json breakdown_at_peak() const {
    std::map<TensorKind, int64_t> known;
    int64_t activations = 0;
    int64_t scores = 0;
    int64_t temporary = peak_bytes();
    for (const Block& block : history_.blocks) {
      if (!block.alive_at(peak_)) continue;
      if (block.kind) {
        known[*block.kind] += block.bytes;
      } else if (is_activation(block)) {
        (names_.is_score_matrix(allocation_of(block)) ? scores : activations) += block.bytes;
      } else {
        continue;
      }
      temporary -= block.bytes;
    }
    return {{"parameters", known[TensorKind::parameter]},
            {"gradients", known[TensorKind::gradient]},
            {"optimizer_states", known[TensorKind::optimizer_state]},
            {"activations", activations},
            {"attention_scores", scores},
            {"temporary", temporary}};
  }

  // Bytes that each component left alive at the end of the forward that led to the peak.
  Json component_activation_bytes() const {
    Json result = Json::object();
    const auto forwards = phases(Phase::forward);
    if (forwards.empty()) return result;
    const Stretch* chosen = &forwards.front();
    for (const Stretch& forward : forwards) {
      if (forward.first_event < peak_) chosen = &forward;
    }
    std::map<std::string, int64_t> sums;
    for (const Block& block : history_.blocks) {
      if (block.begin > 0 && !block.kind && block.is_left_by(*chosen))
        sums[component(allocation_of(block))] += block.bytes;
    }
    for (const auto& [component, bytes] : sums) result[component] = bytes;
    return result;
  }

  Json fragmentation(std::optional<int64_t> resident_before) const {
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
      const auto fullest = std::ranges::max_element(
          recording_.resident_samples, {},
          [&](const ResidentSample& sample) { return history_.live[sample.event]; });
      if (fullest == recording_.resident_samples.end()) return nullptr;
      allocated = history_.live[fullest->event];
      held = fullest->bytes - resident_before.value_or(0);
      definition = fmt::format(
          "share of the process's resident set which is in no live tensor, at the end of the phase "
          "that leaves most alive; memory kept for later tensors counts as held; {}",
          resident_before ? "what was resident before the first tensor (the program, libtorch) is "
                            "subtracted"
                          : "the program and libtorch itself are in it");
    }
    return {{"allocated_bytes", allocated},
            {"held_bytes", held},
            {"percent", held > 0 ? Json(100.0 * static_cast<double>(held - allocated) /
                                        static_cast<double>(held))
                                 : Json(nullptr)},
            {"definition", definition}};
  }

 private:
  int64_t peak_bytes() const { return history_.live[peak_]; }
  const std::string& component(const MemoryEvent& event) const {
    return recording_.names[event.component];
  }
  const std::string& operation(const MemoryEvent& event) const {
    return recording_.names[event.operation];
  }
  // Of a block of the recording, not from before.
  const MemoryEvent& allocation_of(const Block& block) const {
    return recording_.events.at(block.begin - 1);
  }

  bool is_in_a_step(size_t event) const {
    return std::ranges::any_of(recording_.steps, [&](const Stretch& step) {
      return event >= step.first_event && event < step.end_event;
    });
  }

  std::vector<Stretch> phases(Phase phase) const {
    std::vector<Stretch> chosen;
    std::ranges::copy_if(recording_.phases, std::back_inserter(chosen),
                         [&](const Stretch& stretch) { return stretch.phase == phase; });
    return chosen;
  }

  bool is_activation(const Block& block) const {
    if (block.begin == 0) return false;
    // Phases follow each other in order: the one that the allocation falls into.
    const size_t event = block.begin - 1;
    const auto after =
        std::ranges::upper_bound(recording_.phases, event, {}, &Stretch::first_event);
    if (after == recording_.phases.begin()) return false;
    const Stretch& phase = *std::prev(after);
    return event < phase.end_event && phase.phase == Phase::forward && block.is_left_by(phase);
  }

  // The first instant of the highest live bytes in the stretches; nothing where there are none.
  std::optional<size_t> peak_of(const std::vector<Stretch>& stretches) const {
    std::optional<size_t> peak;
    for (const Stretch& stretch : stretches) {
      for (size_t instant = stretch.first_event; instant <= stretch.end_event; ++instant) {
        if (!peak || history_.live[instant] > history_.live[*peak]) peak = instant;
      }
    }
    return peak;
  }

  // Mean of the live bytes over the time of the steps; nothing where that is no time.
  std::optional<double> average_of_steps() const {
    double byte_seconds = 0;
    double seconds = 0;
    for (const Stretch& step : recording_.steps) {
      double since = step.begin_seconds;
      for (size_t i = step.first_event; i < step.end_event; ++i) {
        const double now = recording_.events[i].seconds;
        byte_seconds += static_cast<double>(history_.live[i]) * (now - since);
        since = now;
      }
      byte_seconds +=
          static_cast<double>(history_.live[step.end_event]) * (step.end_seconds - since);
      seconds += step.end_seconds - step.begin_seconds;
    }
    if (seconds <= 0) return std::nullopt;
    return byte_seconds / seconds;
  }

  // The same tensor of every layer has one name.
  std::string name_of(const Block& block) const {
    if (!block.kind) return names_.name(allocation_of(block));
    std::string name = block.name;
    constexpr std::string_view layers = "layers.";
    const size_t at = name.find(layers);
    if (at != std::string::npos) {
      const size_t digits = at + layers.size();
      name.replace(digits, name.find('.', digits) - digits, "*");
    }
    return (block.kind == TensorKind::gradient ? "gradient of " : "") + name;
  }

  const MemoryRecording& recording_;
  History history_;
  TensorNames names_;
  size_t peak_ = 0;
};

/// Live bytes from an event on until the next.
struct TimelinePoint {
  size_t event = 0;
  int64_t live_bytes = 0;
};

std::vector<TimelinePoint> timeline_points(const MemoryRecording& recording, size_t most) {
  std::vector<TimelinePoint> points;
  int64_t live = recording.live_bytes_before;
  for (const MemoryEvent& event : recording.events)
    points.push_back({points.size(), live += event.bytes});
  if (points.size() <= most) return points;
  const size_t parts = most / 2;
  std::vector<TimelinePoint> kept;
  for (size_t part = 0; part < parts; ++part) {
    const auto at = [&](size_t of_part) {
      return points.begin() + static_cast<std::ptrdiff_t>(points.size() * of_part / parts);
    };
    const auto [lowest, highest] =
        std::ranges::minmax_element(at(part), at(part + 1), {}, &TimelinePoint::live_bytes);
    kept.push_back(*std::min(lowest, highest));
    if (lowest != highest) kept.push_back(*std::max(lowest, highest));
  }
  return kept;
}

// JSON's readers lose nothing at this; more digits would be noise of the clock.
double rounded(double seconds) {
  constexpr double resolution = 1e-9;
  return std::round(seconds / resolution) * resolution;
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

std::string memory_timeline_json(const MemoryRecording& recording, size_t most_rows) {
  const auto& steps = recording.steps;
  Json rows = Json::array();
  for (const TimelinePoint& point : timeline_points(recording, most_rows)) {
    const MemoryEvent& event = recording.events[point.event];
    rows.push_back({rounded(event.seconds), point.live_bytes, to_string(event.phase),
                    recording.names[event.component]});
  }
  Json phases = Json::array();
  for (const Stretch& stretch : recording.phases) {
    phases.push_back({{"step", stretch.step},
                      {"phase", to_string(stretch.phase)},
                      {"begin_seconds", rounded(stretch.begin_seconds)},
                      {"end_seconds", rounded(stretch.end_seconds)}});
  }
  const Json document = {{"unit", "bytes"},
                         {"first_step", steps.empty() ? Json(nullptr) : Json(steps.front().step)},
                         {"last_step", steps.empty() ? Json(nullptr) : Json(steps.back().step)},
                         {"columns", {"seconds", "live_bytes", "phase", "component"}},
                         {"events", std::move(rows)},
                         {"phases", std::move(phases)}};
  return document.dump() + "\n";
}

}  // namespace tinyllama::training
