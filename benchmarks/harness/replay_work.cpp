#include "benchmarks/harness/replay_work.hpp"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "benchmarks/instruments/operator_profile.hpp"
#include "model/kernels/kernels.hpp"

namespace tinyllama::harness {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr double kMostFlops = 1e18;
constexpr size_t kDeepestCalls = 1000;

const std::map<std::string, c10::ScalarType, std::less<>> kTypes = {
    {"float", c10::ScalarType::Float},
    {"double", c10::ScalarType::Double},
    {"c10::BFloat16", c10::ScalarType::BFloat16},
    {"c10::Half", c10::ScalarType::Half}};
const std::map<std::string, std::string, std::less<>> kShortTypes = {
    {"float", "f32"}, {"double", "f64"}, {"c10::BFloat16", "bf16"}, {"c10::Half", "f16"}};

// What an operator is replayed as: computed by `forward`, or the backward of that.
struct Replayed {
  std::string name;            // of the operator, in the case's name
  std::string shape;           // there, what follows the type
  std::vector<size_t> inputs;  // of the recorded ones, those that are made
  bool is_backward = false;
  int64_t flops = 0;
  std::function<at::Tensor(const Tensors&)> forward;
};

[[noreturn]] void refuse(const RecordedOperator& recorded, const std::string& rule) {
  std::vector<std::string> shapes;
  for (const RecordedInput& input : recorded.inputs)
    if (input.is_tensor()) shapes.push_back(fmt::format("[{}]", fmt::join(input.sizes, ", ")));
  throw std::invalid_argument(
      fmt::format("{} of {}: {}", recorded.name, fmt::join(shapes, " x "), rule));
}

// --- shapes and strides ---

int64_t elements_of(const RecordedOperator& recorded, const std::vector<int64_t>& sizes) {
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    if (size != 0 && elements > kMostElements / size)
      refuse(recorded, fmt::format("has more than {} elements", kMostElements));
    elements *= size;
  }
  return elements;
}

int64_t flops_of(const RecordedOperator& recorded, double flops) {
  if (flops > kMostFlops) refuse(recorded, fmt::format("has more than {:g} FLOPs", kMostFlops));
  return static_cast<int64_t>(flops);
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  return strides;
}

// How a matrix, or each of a batch, lies: "n" by rows, "t" by columns, and where it is not dense
// all strides. Dimensions of one element have any stride.
std::string layout(const RecordedInput& input) {
  if (input.strides.size() != input.sizes.size() || input.sizes.size() < 2) return "n";
  const auto is_like = [&](const std::vector<int64_t>& dense) {
    for (size_t i = 0; i < dense.size(); ++i)
      if (input.sizes[i] > 1 && input.strides[i] != dense[i]) return false;
    return true;
  };
  std::vector<int64_t> sizes = input.sizes;
  if (is_like(dense_strides(sizes))) return "n";
  const size_t last = sizes.size() - 1;
  std::swap(sizes[last], sizes[last - 1]);
  std::vector<int64_t> by_columns = dense_strides(sizes);
  std::swap(by_columns[last], by_columns[last - 1]);
  if (is_like(by_columns)) return "t";
  return fmt::format("[{}]", fmt::join(input.strides, ","));
}

std::string layouts(const RecordedInput& a, const RecordedInput& b) {
  const std::string both[] = {layout(a), layout(b)};
  return both[0] + (both[0].size() + both[1].size() > 2 ? "," : "") + both[1];
}

// Elements from the first to the last one, with those that strides leave out.
int64_t storage_elements(const RecordedOperator& recorded, const RecordedInput& input) {
  const int64_t elements = elements_of(recorded, input.sizes);
  if (input.strides.size() != input.sizes.size() || elements == 0) return elements;
  double last = 1;
  for (size_t i = 0; i < input.sizes.size(); ++i)
    last += static_cast<double>(input.sizes[i] - 1) * static_cast<double>(input.strides[i]);
  if (last > static_cast<double>(kMostElements))
    refuse(recorded, fmt::format("has strides beyond {} elements", kMostElements));
  return static_cast<int64_t>(last);
}

struct Made {
  RecordedInput input;
  int64_t storage_elements;
};

at::Tensor make_tensor(const Made& made, c10::Device device, const at::Generator& generator) {
  const RecordedInput& input = made.input;
  const auto options = at::TensorOptions().dtype(kTypes.at(input.type)).device(device);
  // elements that several indices share could not be filled through the view
  at::Tensor storage = at::empty({made.storage_elements}, options);
  storage.uniform_(-1, 1, generator);
  const bool has_strides = input.strides.size() == input.sizes.size();
  return storage.as_strided(input.sizes, has_strides ? input.strides : dense_strides(input.sizes));
}

// --- operators ---

std::string extents_text(const std::vector<int64_t>& sizes) {
  return fmt::format("{}", fmt::join(sizes, "x"));
}

// [..., m, k] x [..., k, n], or of `b` by rows [n, k].
Replayed gemm(const RecordedOperator& recorded, size_t first, bool by_rows,
              std::function<at::Tensor(const Tensors&)> forward) {
  if (recorded.inputs.size() < first + 2) refuse(recorded, "must have two factors");
  const RecordedInput& a = recorded.inputs[first];
  const RecordedInput& b = recorded.inputs[first + 1];
  if (a.sizes.size() < 1 || b.sizes.size() < 2) refuse(recorded, "must have two factors");
  const size_t rank = b.sizes.size();
  const int64_t k = a.sizes.back();
  const int64_t n = b.sizes[rank - (by_rows ? 2 : 1)];
  if (k != b.sizes[rank - (by_rows ? 1 : 2)]) refuse(recorded, "the factors do not fit together");
  const int64_t rows = k == 0 ? 0 : elements_of(recorded, a.sizes) / k;
  const bool has_batches = rank > 2;
  const int64_t batches = has_batches ? b.sizes.front() : 1;
  if (has_batches && (a.sizes.size() != 3 || rank != 3 || a.sizes.front() != batches))
    refuse(recorded, "the batches do not fit together");
  const std::string batch = has_batches ? fmt::format("{}x", batches) : "";
  const int64_t m = batches == 0 ? 0 : rows / batches;
  return {.name = {},
          .shape = fmt::format("{}{}x{}x{}/{}", batch, m, n, k, layouts(a, b)),
          .inputs = {first, first + 1},
          .flops = flops_of(recorded, 2.0 * static_cast<double>(rows) * static_cast<double>(n) *
                                          static_cast<double>(k)),
          .forward = std::move(forward)};
}

bool has_tensor(const RecordedOperator& recorded, size_t index) {
  return index < recorded.inputs.size() && recorded.inputs[index].is_tensor();
}

// The addend comes first among the inputs, and as it is: broadcast or not.
Replayed gemm_with_addend(const RecordedOperator& recorded, size_t addend, size_t first,
                          bool by_rows, std::function<at::Tensor(const Tensors&)> forward) {
  Replayed replayed = gemm(recorded, first, by_rows, std::move(forward));
  replayed.inputs.push_back(addend);
  replayed.shape += fmt::format("/+{}", extents_text(recorded.inputs[addend].sizes));
  return replayed;
}

// Where an argument is among the inputs, by the schema that this libtorch has.
std::optional<size_t> place_of(const RecordedOperator& recorded,
                               std::initializer_list<std::string_view> names) {
  const auto handle = c10::Dispatcher::singleton().findSchema({recorded.name, ""});
  if (!handle) return std::nullopt;
  const auto& arguments = handle->schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < recorded.inputs.size(); ++i)
    if (std::ranges::find(names, arguments[i].name()) != names.end()) return i;
  return std::nullopt;
}

bool is_true(const RecordedOperator& recorded, std::optional<size_t> place) {
  if (!place) return false;
  const std::string& value = recorded.inputs[*place].value;
  return value == "true" || value == "True" || value == "1";
}

// 2 GEMMs of `scores` of each head; backward 5.
int64_t attention_flops(const RecordedOperator& recorded, bool is_backward, int64_t batch,
                        int64_t heads, int64_t head_dim, double scores) {
  const double of_score = 2.0 * (is_backward ? 5 : 2) * static_cast<double>(head_dim);
  return flops_of(recorded,
                  of_score * static_cast<double>(batch) * static_cast<double>(heads) * scores);
}

bool has_four_dimensions(const RecordedOperator& recorded, std::optional<size_t> place) {
  return place && has_tensor(recorded, *place) && recorded.inputs[*place].sizes.size() == 4;
}

std::optional<Replayed> attention(const RecordedOperator& recorded, bool is_backward) {
  const auto q = place_of(recorded, {"query"});
  const auto k = place_of(recorded, {"key"});
  const auto v = place_of(recorded, {"value"});
  for (const auto place : {q, k, v})
    if (!has_four_dimensions(recorded, place)) return std::nullopt;
  const auto& of_q = recorded.inputs[*q].sizes;
  const auto& of_k = recorded.inputs[*k].sizes;
  if (of_q[0] != of_k[0] || of_q[3] != of_k[3] || of_k[1] == 0 || of_q[1] % of_k[1] != 0 ||
      recorded.inputs[*v].sizes[2] != of_k[2])
    refuse(recorded, "query, key and value do not fit together");
  const bool is_causal = is_true(recorded, place_of(recorded, {"is_causal"}));
  const auto mask = place_of(recorded, {"attn_mask", "attn_bias"});
  const bool has_mask = mask && has_tensor(recorded, *mask);
  const bool is_grouped = of_q[1] != of_k[1];
  const auto queries = static_cast<double>(of_q[2]);
  const double scores =
      is_causal ? queries * (queries + 1) / 2 : queries * static_cast<double>(of_k[2]);
  Replayed replayed{
      .name = is_backward ? "attention_backward" : "attention",
      .shape = fmt::format("{}/kv:{}x{}{}{}/{},{},{}", extents_text(of_q), of_k[1], of_k[2],
                           is_causal ? "/causal" : "", has_mask ? "/mask" : "",
                           layout(recorded.inputs[*q]), layout(recorded.inputs[*k]),
                           layout(recorded.inputs[*v])),
      .inputs = {*q, *k, *v},
      .is_backward = is_backward,
      .flops = attention_flops(recorded, is_backward, of_q[0], of_q[1], of_q[3], scores),
      .forward = [is_causal, is_grouped, has_mask](const Tensors& given) {
        const auto given_mask = has_mask ? std::optional(given[3]) : std::nullopt;
        return at::scaled_dot_product_attention(given[0], given[1], given[2], given_mask,
                                                /*dropout_p=*/0.0, is_causal, std::nullopt,
                                                is_grouped);
      }};
  if (has_mask) replayed.inputs.push_back(*mask);
  return replayed;
}

// [B, S, heads, D] each.
std::optional<Replayed> own_attention(const RecordedOperator& recorded, bool is_backward) {
  for (const size_t place : {0, 1, 2})
    if (!has_four_dimensions(recorded, place)) return std::nullopt;
  if (recorded.inputs.size() < 5) return std::nullopt;
  constexpr int64_t most_positions = int64_t{1} << 24;
  const auto& of_q = recorded.inputs[0].sizes;
  const auto& of_k = recorded.inputs[1].sizes;
  const std::string& window = recorded.inputs[4].value;
  int64_t positions = 0;
  std::from_chars(window.data(), window.data() + window.size(), positions);
  if (positions < 1) refuse(recorded, fmt::format("a window of '{}': must be 1 or more", window));
  if (of_q[1] > most_positions)
    refuse(recorded, fmt::format("has more than {} positions", most_positions));
  const auto scores = static_cast<double>(kernels::causal_attention_scores(of_q[1], positions));
  return Replayed{
      .name = is_backward ? "causal_attention_backward" : "causal_attention",
      .shape = fmt::format("{}/kv:{}{}", extents_text(of_q), of_k[2],
                           positions < of_q[1] ? fmt::format("/window:{}", positions) : ""),
      .inputs = {0, 1, 2},
      .is_backward = is_backward,
      .flops = attention_flops(recorded, is_backward, of_q[0], of_q[2], of_q[3], scores),
      .forward = [positions](const Tensors& given) {
        return kernels::causal_attention(given[0], given[1], given[2], /*scale=*/0.1, positions);
      }};
}

// `x` and `weight`: places. Nothing for a norm over more than the last dimension.
std::optional<Replayed> norm(const RecordedOperator& recorded, const char* name,
                             std::optional<size_t> x, std::optional<size_t> weight,
                             bool is_backward, std::function<at::Tensor(const Tensors&)> forward) {
  if (!x || !has_tensor(recorded, *x) || recorded.inputs[*x].sizes.empty()) return std::nullopt;
  const bool has_weight = weight && has_tensor(recorded, *weight);
  if (has_weight && (recorded.inputs[*weight].sizes.size() != 1 ||
                     recorded.inputs[*weight].sizes[0] != recorded.inputs[*x].sizes.back()))
    return std::nullopt;
  Replayed replayed{
      .name = std::string(name) + (is_backward ? "_backward" : ""),
      .shape = extents_text(recorded.inputs[*x].sizes) + (has_weight ? "" : "/no_weight"),
      .inputs = {*x},
      .is_backward = is_backward,
      .forward = std::move(forward)};
  if (has_weight) replayed.inputs.push_back(*weight);
  return replayed;
}

std::optional<at::Tensor> second_of(const Tensors& given) {
  return given.size() > 1 ? std::optional(given[1]) : std::nullopt;
}

at::Tensor layer_norm(const Tensors& given) {
  return at::layer_norm(given[0], {given[0].size(-1)}, second_of(given));
}

at::Tensor rms_norm(const Tensors& given) {
  return at::rms_norm(given[0], {given[0].size(-1)}, second_of(given));
}

// How this operator is replayed; nothing where it is not.
std::optional<Replayed> replayed_as(const RecordedOperator& recorded) {
  const std::string& name = recorded.name;
  if (std::ranges::none_of(recorded.inputs, &RecordedInput::is_tensor)) return std::nullopt;
  const auto called = [](Replayed replayed, const char* short_name) {
    replayed.name = short_name;
    return std::optional(std::move(replayed));
  };
  if (name == "aten::mm")
    return called(gemm(recorded, 0, false, [](auto& t) { return at::mm(t[0], t[1]); }), "mm");
  if (name == "aten::bmm")
    return called(gemm(recorded, 0, false, [](auto& t) { return at::bmm(t[0], t[1]); }), "bmm");
  if (name == "aten::addmm") {
    const auto add = [](auto& t) { return at::addmm(t[2], t[0], t[1]); };
    return called(gemm_with_addend(recorded, 0, 1, false, add), "addmm");
  }
  if (name == "aten::baddbmm") {
    const auto add = [](auto& t) { return at::baddbmm(t[2], t[0], t[1]); };
    return called(gemm_with_addend(recorded, 0, 1, false, add), "baddbmm");
  }
  if (name == "aten::linear" && has_tensor(recorded, 2)) {
    const auto add = [](auto& t) { return at::linear(t[0], t[1], t[2]); };
    return called(gemm_with_addend(recorded, 2, 0, true, add), "linear");
  }
  if (name == "aten::linear")
    return called(gemm(recorded, 0, true, [](auto& t) { return at::linear(t[0], t[1]); }),
                  "linear");
  if (name == "tinyllama::gemm")
    return called(gemm(recorded, 0, true, [](auto& t) { return kernels::gemm(t[0], t[1]); }),
                  "tiled_gemm");
  const bool is_backward = name.ends_with("_backward");
  if (name.starts_with("aten::_scaled_dot_product_") &&
      !name.starts_with("aten::_scaled_dot_product_attention_math"))
    return attention(recorded, is_backward);
  if (name == "aten::scaled_dot_product_attention") return attention(recorded, false);
  if (name.starts_with("tinyllama::causal_attention")) return own_attention(recorded, is_backward);
  if (name == "aten::native_layer_norm" || name == "aten::native_layer_norm_backward")
    return norm(recorded, "layer_norm", place_of(recorded, {"input"}),
                place_of(recorded, {"weight"}), is_backward, layer_norm);
  if (name == "aten::rms_norm" || name == "aten::_fused_rms_norm" ||
      name == "aten::_fused_rms_norm_backward")
    return norm(recorded, "rms_norm", place_of(recorded, {"input"}), place_of(recorded, {"weight"}),
                is_backward, rms_norm);
  const auto own_norm = [](const Tensors& t) { return kernels::rms_norm(t[0], t[1], 1e-5); };
  if (name == "tinyllama::rms_norm") return norm(recorded, "fused_rms_norm", 0, 1, false, own_norm);
  if (name == "tinyllama::rms_norm_backward")
    return norm(recorded, "fused_rms_norm", 1, 2, true, own_norm);
  if (name == "tinyllama::add_rms_norm") {
    return norm(recorded, "add_rms_norm", 0, 2, false, [](const Tensors& t) {
      return kernels::add_rms_norm(t[0], t[0], t[1], 1e-5).second;
    });
  }
  return std::nullopt;
}

// --- work ---

class ReplayWork final : public WorkItem {
 public:
  ReplayWork(std::function<at::Tensor(const Tensors&)> forward, Tensors inputs, bool is_backward)
      : forward_(std::move(forward)), inputs_(std::move(inputs)), is_backward_(is_backward) {
    if (!is_backward_) return;
    // a mask, which comes after q, k and v, has none
    for (size_t i = 0; i < std::min<size_t>(inputs_.size(), 3); ++i)
      inputs_[i].requires_grad_(true);
    gradient_ = at::ones_like(forward_(inputs_));
  }

  void prepare() override {
    if (!is_backward_) return;
    for (at::Tensor& input : inputs_) input.mutable_grad().reset();
    output_ = forward_(inputs_);
  }
  void run() override {
    if (is_backward_) return torch::autograd::backward({output_}, {gradient_});
    const at::NoGradGuard no_graph;
    output_ = forward_(inputs_);
  }
  bool runs_in_a_row() const override { return !is_backward_; }
  NamedTensors results() const override { return {{"output", output_}}; }

 private:
  std::function<at::Tensor(const Tensors&)> forward_;
  Tensors inputs_;
  bool is_backward_;
  at::Tensor gradient_;
  at::Tensor output_;
};

ReplayCase make_case(const RecordedOperator& recorded, const Replayed& replayed) {
  std::vector<Made> inputs;
  std::vector<std::string> types;
  int64_t bytes = 0;
  for (const size_t place : replayed.inputs) {
    const RecordedInput& input = recorded.inputs[place];
    inputs.push_back({input, storage_elements(recorded, input)});
    bytes += inputs.back().storage_elements *
             static_cast<int64_t>(c10::elementSize(kTypes.at(input.type)));
    types.push_back(kShortTypes.at(input.type));
  }
  const bool has_one_type = std::ranges::count(types, types.front()) == std::ssize(types);
  if (has_one_type) types.resize(1);
  ReplayCase replay;
  replay.name =
      fmt::format("replay/{}/{}/{}", replayed.name, fmt::join(types, ","), replayed.shape);
  replay.flops = replayed.flops;
  replay.bytes = bytes;
  replay.build = [inputs, forward = replayed.forward, is_backward = replayed.is_backward](
                     c10::Device device, uint64_t seed) -> std::unique_ptr<WorkItem> {
    at::Generator generator = at::globalContext().defaultGenerator(device).clone();
    generator.set_current_seed(seed);
    Tensors made;
    for (const Made& input : inputs) made.push_back(make_tensor(input, device, generator));
    return std::make_unique<ReplayWork>(forward, std::move(made), is_backward);
  };
  return replay;
}

bool has_known_types(const RecordedOperator& recorded, const Replayed& replayed) {
  return std::ranges::all_of(
      replayed.inputs, [&](size_t place) { return kTypes.contains(recorded.inputs[place].type); });
}

// Not what autograd, the observer or a user's range adds to operators.
bool is_operator(const std::string& name) {
  return name.find("::") != std::string::npos && !name.starts_with("autograd::") &&
         !name.starts_with("torch::") && !name.starts_with("torch.") && !name.starts_with('[');
}

// The operators that called one, from the nearest on.
std::vector<size_t> callers_of(const RecordedTrace& trace, size_t index) {
  std::vector<size_t> callers;
  int64_t caller = trace.operators[index].caller;
  // a trace may say that operators call each other in a circle
  while (caller >= 0 && callers.size() < kDeepestCalls) {
    callers.push_back(static_cast<size_t>(caller));
    caller = trace.operators[callers.back()].caller;
  }
  return callers;
}

}  // namespace

ReplayPlan plan_replay(const RecordedTrace& trace) {
  const auto& operators = trace.operators;
  std::vector<std::optional<ReplayCase>> cases(operators.size());
  std::vector<bool> is_replayed(operators.size()), calls_others(operators.size()),
      calls_replayed(operators.size());
  for (size_t i = 0; i < operators.size(); ++i) {
    const auto replayed = replayed_as(operators[i]);
    is_replayed[i] = replayed && has_known_types(operators[i], *replayed);
    if (is_replayed[i]) cases[i] = make_case(operators[i], *replayed);
    const auto callers = callers_of(trace, i);
    if (!callers.empty() && is_operator(operators[i].name)) calls_others[callers.front()] = true;
    if (!is_replayed[i]) continue;
    for (const size_t caller : callers) calls_replayed[caller] = true;
  }
  // Computes by itself, and whatever it calls is part of that.
  const auto computes = [&](size_t i) {
    const std::string& name = operators[i].name;
    return is_operator(name) && !calls_replayed[i] && !instruments::is_dispatch_only(name);
  };
  ReplayPlan plan;
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < operators.size(); ++i) {
    const auto callers = callers_of(trace, i);
    if (std::ranges::any_of(callers, [&](size_t at) { return is_replayed[at] || computes(at); }))
      continue;
    const std::string& name = operators[i].name;
    if (!is_replayed[i]) {
      if (computes(i))
        ++plan.not_replayed[name];
      else if (is_operator(name) && !calls_others[i])
        ++plan.without_computing[name];
      continue;
    }
    const auto [found, is_new] = places.try_emplace(cases[i]->name, plan.cases.size());
    if (is_new) plan.cases.push_back(std::move(*cases[i]));
    ReplayCase& replay = plan.cases[found->second];
    ++replay.count;
    replay.recorded_seconds += operators[i].seconds;
  }
  return plan;
}

}  // namespace tinyllama::harness
