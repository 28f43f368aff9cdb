#include "benchmarks/harness/rounding.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace tinyllama::harness {
namespace {

using at::Tensor;

// Below autograd and autocast, so that types and saved tensors are those of the real program.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

bool is_narrow(c10::ScalarType type) {
  return c10::isFloatingType(type) && type != c10::ScalarType::Double;
}

}  // namespace

double unit_roundoff(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::BFloat16:
      return 0x1p-8;
    case c10::ScalarType::Half:
      return 0x1p-11;
    case c10::ScalarType::Float:
      return 0x1p-24;
    default:
      return 0;
  }
}

// Where a backward runs on a thread of its own, libtorch hands this on to it.
class RoundingNoise final : public c10::DebugInfoBase {
 public:
  RoundingNoise(uint64_t seed, c10::Device device) : engine_(seed) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (double& number : numbers_) number = uniform(engine_);
    uniform_ = at::from_blob(numbers_.data(), {kNumbers}, at::kDouble).to(device);
    uniform_float_ = uniform_.to(at::kFloat);
  }

  // `wide`, changed here, as `type`. What is not finite stays what it is.
  Tensor round(const Tensor& wide, c10::ScalarType type) {
    largest_roundoff_ = std::max(largest_roundoff_, unit_roundoff(type));
    const Tensor dense = wide.is_non_overlapping_and_dense() ? wide : wide.contiguous();
    const Tensor flat = dense.as_strided({dense.numel()}, {1});
    for (int64_t first = 0; first < flat.numel();) {
      const int64_t offset = std::uniform_int_distribution<int64_t>(0, kNumbers / 2)(engine_);
      const int64_t count = std::min(flat.numel() - first, kNumbers - offset);
      const Tensor part = flat.narrow(0, first, count);
      // by a factor, which leaves an infinity what it is
      const Tensor& uniform = part.scalar_type() == at::kFloat ? uniform_float_ : uniform_;
      part.mul_(uniform.narrow(0, offset, count) * unit_roundoff(type) + 1);
      first += count;
    }
    return dense.to(type);
  }

  double largest_roundoff() const { return largest_roundoff_; }

 private:
  static constexpr int64_t kNumbers = int64_t{1} << 16;
  std::mt19937_64 engine_;
  double largest_roundoff_ = 0;
  // outside the allocator of tensors, whose memory is the cases' own
  std::vector<double> numbers_ = std::vector<double>(kNumbers);
  Tensor uniform_;  // between -1 and 1
  Tensor uniform_float_;
};

namespace {

// A view, whose elements were rounded when they were computed.
bool is_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

// What is rounded to `type` is computed in this one, whose own rounding is nothing beside that.
c10::ScalarType wider(c10::ScalarType type) {
  return type == c10::ScalarType::Float ? c10::ScalarType::Double : c10::ScalarType::Float;
}

// One call of an operator with its floating-point arguments in a wider type.
class WideCall {
 public:
  WideCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), first_(stack.size() - op.schema().arguments().size()) {}

  // Type that the results have in the real program; nothing where none is to be rounded.
  std::optional<c10::ScalarType> result_type() const {
    at::native::ResultTypeState state = {};
    for (size_t i = first_; i < stack_.size(); ++i) {
      for_each_tensor(stack_[i], [&](const Tensor& tensor) {
        if (tensor.is_floating_point()) state = at::native::update_result_type_state(tensor, state);
      });
    }
    c10::ScalarType type = at::native::result_type(state);
    for (size_t i = first_; i < stack_.size(); ++i) {
      if (is_type(i)) type = stack_[i].toScalarType();
      if (is_widening(i)) type = c10::ScalarType::Float;
    }
    return is_narrow(type) ? std::optional(type) : std::nullopt;
  }

  void run(RoundingNoise& noise, c10::ScalarType type) {
    const c10::ScalarType wide_type = wider(type);
    for (size_t i = first_; i < stack_.size(); ++i) {
      if (is_type(i)) stack_[i] = wide_type;
      if (is_widening(i)) stack_[i] = false;
      const auto* alias = op_.schema().arguments()[i - first_].alias_info();
      stack_[i] = map(stack_[i], [&](const Tensor& tensor) {
        if (!is_narrow(tensor.scalar_type())) return tensor;
        // in any case a copy: it may be written
        const Tensor wide = tensor.to(wide_type, /*non_blocking=*/false, /*copy=*/true);
        if (alias != nullptr && alias->isWrite()) written_.push_back({tensor, wide});
        return wide;
      });
    }
    op_.callBoxed(&stack_);
    for (const auto& [tensor, wide] : written_)
      tensor.copy_(noise.round(wide, tensor.scalar_type()));
    for (size_t i = stack_.size() - op_.schema().returns().size(); i < stack_.size(); ++i) {
      stack_[i] = map(stack_[i], [&](const Tensor& tensor) {
        for (const auto& [original, wide] : written_) {
          if (tensor.is_same(wide)) return original;
        }
        return tensor.scalar_type() == wide_type ? noise.round(tensor, type) : tensor;
      });
    }
  }

 private:
  struct Written {
    Tensor tensor;
    Tensor wide;
  };

  template <class Body>
  static void for_each_tensor(const c10::IValue& value, const Body& body) {
    map(value, [&](const Tensor& tensor) {
      body(tensor);
      return tensor;
    });
  }

  // The value with its tensors, where it has any, replaced by what `change` makes of them.
  template <class Change>
  static c10::IValue map(const c10::IValue& value, const Change& change) {
    if (value.isTensor() && value.toTensor().defined()) return change(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> changed;
    for (const Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }

  const std::string& name_of(size_t i) const { return op_.schema().arguments()[i - first_].name(); }
  // Whether an argument says in which type to compute or answer.
  bool is_type(size_t i) const {
    return (name_of(i) == "dtype" || name_of(i) == "input_dtype") && stack_[i].isInt();
  }
  // Whether it asks for float32 of a narrower type (softmax on a GPU).
  bool is_widening(size_t i) const { return name_of(i) == "half_to_float" && stack_[i].toBool(); }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t first_;
  std::vector<Written> written_;
};

void round_results(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  const bool passes = is_view(op.schema()) || op.operator_name().name.starts_with("aten::_amp_");
  WideCall call(op, *stack);
  const auto type = passes ? std::nullopt : call.result_type();
  auto* noise =
      static_cast<RoundingNoise*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO));
  if (!type || noise == nullptr) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard nothing_within(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet(kKey));
  call.run(*noise, *type);
}

c10::DispatchKey registered_key() {
  static torch::Library fallback = [] {
    torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&round_results>());
    return library;
  }();
  return kKey;
}

}  // namespace

NoisyRounding::NoisyRounding(uint64_t seed, c10::Device device)
    : NoisyRounding(std::make_shared<RoundingNoise>(seed, device)) {}

NoisyRounding::NoisyRounding(std::shared_ptr<RoundingNoise> noise)
    : noise_(std::move(noise)),
      listening_(c10::DebugInfoKind::TEST_INFO, noise_),
      included_(registered_key()) {}

double NoisyRounding::largest_roundoff() const {
  return noise_->largest_roundoff();
}

}  // namespace tinyllama::harness
