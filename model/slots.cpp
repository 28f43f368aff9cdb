#include "model/slots.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <stdexcept>

namespace tinyllama {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Description {
  Slot slot;
  std::string_view name;
  std::string_view schema;
  /// Names of the results, as a backward operator asks for them.
  std::array<std::string_view, 2> outputs{};
  /// How many of the inputs, which come first, have gradients.
  size_t differentiable = 0;
};

constexpr std::array kSlots = {
    Description{Slot::rms_norm,
                "rms_norm",
                "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
                {"output"},
                2},
    Description{Slot::rms_norm_residual,
                "rms_norm_residual",
                "rms_norm_residual(Tensor residual, Tensor branch, Tensor weight, float eps) -> "
                "(Tensor, Tensor)",
                {"sum", "normalized"},
                3},
    Description{Slot::rotary,
                "rotary",
                "rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor",
                {"output"},
                1},
    Description{Slot::causal_attention,
                "causal_attention",
                "causal_attention(Tensor q, Tensor k, Tensor v, float scale) -> Tensor",
                {"output"},
                3},
    Description{Slot::swiglu, "swiglu", "swiglu(Tensor gate, Tensor up) -> Tensor", {"output"}, 2},
    Description{Slot::linear, "linear", "linear(Tensor x, Tensor weight) -> Tensor", {"output"}, 2},
    Description{Slot::linear_cross_entropy,
                "linear_cross_entropy",
                "linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, int ignore_index) "
                "-> Tensor",
                {"output"},
                2},
    Description{Slot::adamw_step_, "adamw_step_",
                "adamw_step_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] exp_avgs, "
                "Tensor(c!)[] exp_avg_sqs, int step, float lr, float beta1, float beta2, float "
                "eps, float weight_decay) -> ()"},
};

constexpr bool are_in_order() {
  for (size_t i = 0; i < kSlots.size(); ++i)
    if (static_cast<size_t>(kSlots[i].slot) != i) return false;
  return true;
}
static_assert(are_in_order() && kSlots.size() == static_cast<size_t>(Slot::adamw_step_) + 1,
              "a description stands where its slot stands in the enumeration");

const Description& description(Slot slot) {
  return kSlots[static_cast<size_t>(slot)];
}

// "my::rms_norm.fast" -> "rms_norm"; empty where there is no "::".
std::string_view base_name(std::string_view name) {
  const size_t colons = name.find("::");
  if (colons == std::string_view::npos || colons == 0) return {};
  const std::string_view behind = name.substr(colons + 2);
  return behind.substr(0, behind.find('.'));
}

std::optional<c10::OperatorHandle> find_in_dispatcher(std::string_view name,
                                                      std::string_view suffix = {}) {
  const size_t dot = std::min(name.find('.'), name.size());
  const std::string overload(name.substr(std::min(dot + 1, name.size())));
  return c10::Dispatcher::singleton().findSchema(
      {fmt::format("{}{}", name.substr(0, dot), suffix), overload});
}

[[noreturn]] void refuse(std::string_view name, const std::string& why) {
  throw std::invalid_argument(fmt::format("operator '{}': {}", name, why));
}

// Argument types in order, and what the operator may write to.
bool is_like(const std::vector<c10::Argument>& actual, const std::vector<c10::Argument>& expected) {
  return std::ranges::equal(actual, expected, [](const auto& a, const auto& b) {
    const auto is_written = [](const c10::Argument& argument) {
      return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    };
    return *a.type() == *b.type() && is_written(a) == is_written(b);
  });
}

bool has_kernel(const c10::OperatorHandle& op, std::initializer_list<c10::DispatchKey> keys) {
  return std::ranges::any_of(keys, [&](auto key) { return op.hasKernelForDispatchKey(key); });
}

// Where a backward operator's argument comes from.
struct Source {
  enum class Kind : uint8_t { gradient, input, number, output } kind;
  size_t index;
};

std::vector<std::string> gradient_names(const Description& slot) {
  if (slot.outputs[1].empty()) return {"gradient"};
  return {fmt::format("{}_gradient", slot.outputs[0]), fmt::format("{}_gradient", slot.outputs[1])};
}

std::vector<Source> sources_of(const c10::FunctionSchema& backward, const Description& slot,
                               const c10::FunctionSchema& expected) {
  std::vector<Source> sources;
  const std::vector<std::string> gradients = gradient_names(slot);
  std::vector<std::string> known = gradients;
  for (const auto& input : expected.arguments()) known.push_back(input.name());
  for (const auto output : slot.outputs)
    if (!output.empty()) known.emplace_back(output);
  const size_t inputs = expected.arguments().size();
  for (const c10::Argument& argument : backward.arguments()) {
    const auto found = std::ranges::find(known, argument.name());
    const auto place = static_cast<size_t>(found - known.begin());
    const bool is_input = place >= gradients.size() && place < gradients.size() + inputs;
    const c10::TypePtr type = is_input ? expected.arguments()[place - gradients.size()].type()
                                       : c10::TypePtr(c10::TensorType::get());
    if (found == known.end() || *argument.type() != *type)
      refuse(toString(backward.operator_name()),
             fmt::format("its argument '{}' of type {} is none of the slot's: the schema is {}; a "
                         "backward may ask for {}, with the types that they have in {}",
                         argument.name(), argument.type()->str(), toString(backward),
                         fmt::join(known, ", "), slot.schema));
    if (place < gradients.size())
      sources.push_back({Source::Kind::gradient, place});
    else if (is_input)
      sources.push_back(
          {*type == *c10::TensorType::get() ? Source::Kind::input : Source::Kind::number,
           place - gradients.size()});
    else
      sources.push_back({Source::Kind::output, place - gradients.size() - inputs});
  }
  const auto is_tensor = [](const c10::Argument& result) {
    return *result.type() == *c10::TensorType::get();
  };
  if (backward.returns().size() != slot.differentiable ||
      !std::ranges::all_of(backward.returns(), is_tensor))
    refuse(toString(backward.operator_name()),
           fmt::format("must return a Tensor for each of the first {} inputs of {}, but its schema "
                       "is {}",
                       slot.differentiable, slot.schema, toString(backward)));
  return sources;
}

std::vector<at::Tensor> call(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (c10::IValue& value : stack) results.push_back(std::move(value).toTensor());
  return results;
}

}  // namespace

struct SlotOperator::Entry {
  Entry(const Description& slot_, std::string name_, c10::OperatorHandle forward_)
      : slot(slot_), name(std::move(name_)), forward(std::move(forward_)) {}
  const Description& slot;
  std::string name;
  c10::OperatorHandle forward;
  std::optional<c10::OperatorHandle> backward{};  // where autograd does not know the operator
  std::vector<Source> backward_sources{};
  mutable std::atomic<int64_t> calls{0};
};

// The forward operator with the backward operator of its library.
class SlotFunction : public torch::autograd::Function<SlotFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList /*differentiable*/,
                               const SlotOperator& op, const std::vector<c10::IValue>& arguments) {
    const SlotOperator::Entry& entry = *op.entry_;
    const std::vector<at::Tensor> outputs = call(entry.forward, arguments);
    variable_list kept;
    std::vector<c10::IValue> numbers;
    for (const Source& source : entry.backward_sources) {
      if (source.kind == Source::Kind::output) kept.push_back(outputs[source.index]);
      if (source.kind == Source::Kind::input) kept.push_back(arguments[source.index].toTensor());
      if (source.kind == Source::Kind::number) numbers.push_back(arguments[source.index]);
    }
    context->save_for_backward(kept);
    context->saved_data["operator"] =
        c10::IValue::make_capsule(c10::make_intrusive<Holder>(op, std::move(numbers)));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["operator"].toCapsule());
    const SlotOperator::Entry& entry = *holder->op.entry_;
    auto kept = context->get_saved_variables();
    auto next = kept.begin();
    auto number = holder->numbers.begin();
    torch::jit::Stack arguments;
    for (const Source& source : entry.backward_sources) {
      if (source.kind == Source::Kind::gradient)
        arguments.emplace_back(gradients[source.index]);
      else if (source.kind == Source::Kind::number)
        arguments.push_back(*number++);
      else
        arguments.emplace_back(*next++);
    }
    variable_list results = call(*entry.backward, std::move(arguments));
    results.resize(results.size() + 2);  // of the operator and its arguments
    return results;
  }

 private:
  // What a graph node can keep.
  struct Holder : torch::CustomClassHolder {
    Holder(SlotOperator op_, std::vector<c10::IValue> numbers_)
        : op(std::move(op_)), numbers(std::move(numbers_)) {}
    SlotOperator op;
    std::vector<c10::IValue> numbers;  // that the backward asks for
  };
};

std::string_view to_string(Slot slot) {
  return description(slot).name;
}

std::string_view schema_of(Slot slot) {
  return description(slot).schema;
}

std::span<const Slot> all_slots() {
  static constexpr auto all = [] {
    std::array<Slot, kSlots.size()> slots{};
    for (size_t i = 0; i < kSlots.size(); ++i) slots[i] = kSlots[i].slot;
    return slots;
  }();
  return all;
}

bool SlotOperator::is_name(std::string_view name) {
  return std::ranges::any_of(kSlots,
                             [&](const auto& slot) { return slot.name == base_name(name); });
}

SlotOperator SlotOperator::find(std::string_view name) {
  const auto* const slot = std::ranges::find(kSlots, base_name(name), &Description::name);
  if (slot == kSlots.end()) {
    std::vector<std::string_view> names;
    for (const auto& known : kSlots) names.push_back(known.name);
    refuse(name, fmt::format("fills no slot; an operator fills the one it is named after: {}",
                             fmt::join(names, ", ")));
  }
  const std::optional<c10::OperatorHandle> found = find_in_dispatcher(name);
  if (!found) refuse(name, "is not registered; name the library that registers it with --plugin");
  const c10::FunctionSchema expected = torch::jit::parseSchema(std::string(slot->schema));
  const c10::FunctionSchema& schema = found->schema();
  if (!is_like(schema.arguments(), expected.arguments()) ||
      !is_like(schema.returns(), expected.returns()))
    refuse(name, fmt::format("its schema is {}, the slot's is {}", toString(schema), slot->schema));
  const auto entry = std::make_shared<Entry>(*slot, std::string(name), *found);
  const bool has_own_gradients =
      slot->differentiable == 0 ||
      has_kernel(*found,
                 {c10::DispatchKey::Autograd, c10::DispatchKey::AutogradCPU,
                  c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CompositeImplicitAutograd});
  if (!has_own_gradients) {
    entry->backward = find_in_dispatcher(name, "_backward");
    if (!entry->backward)
      refuse(name, fmt::format("has no gradients: it needs an Autograd kernel, or beside it an "
                               "operator {}_backward, because steps are those of a training",
                               name.substr(0, name.find('.'))));
    entry->backward_sources = sources_of(entry->backward->schema(), *slot, expected);
  }
  return SlotOperator(entry);
}

Slot SlotOperator::slot() const {
  return entry_->slot.slot;
}

const std::string& SlotOperator::name() const {
  return entry_->name;
}

std::string SlotOperator::refuse_device(c10::DeviceType device) const {
  const auto key = device == c10::DeviceType::CPU ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  const auto lacks = [&](const c10::OperatorHandle& op) {
    return !has_kernel(op, {key, c10::DispatchKey::CompositeImplicitAutograd,
                            c10::DispatchKey::CompositeExplicitAutograd});
  };
  if (lacks(entry_->forward)) return fmt::format("{}: has no {} kernel", name(), toString(key));
  if (entry_->backward && lacks(*entry_->backward))
    return fmt::format("{}: its backward has no {} kernel", name(), toString(key));
  return {};
}

bool SlotOperator::has_meta_kernel() const {
  const auto has = [](const c10::OperatorHandle& op) {
    return op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  };
  return has(entry_->forward) && (!entry_->backward || has(*entry_->backward));
}

int64_t SlotOperator::calls() const {
  return entry_->calls.load(std::memory_order_relaxed);
}

std::vector<at::Tensor> SlotOperator::operator()(std::vector<c10::IValue> arguments) const {
  entry_->calls.fetch_add(1, std::memory_order_relaxed);
  if (!entry_->backward || !at::GradMode::is_enabled())
    return call(entry_->forward, std::move(arguments));
  std::vector<at::Tensor> differentiable;
  for (size_t i = 0; i < entry_->slot.differentiable; ++i)
    differentiable.push_back(arguments[i].toTensor());
  return SlotFunction::apply(at::TensorList(differentiable), *this, arguments);
}

}  // namespace tinyllama
