#include "model/slowdown.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace tinyllama {
namespace {

using Direction = slowdown::Ledger::Direction;

// Tokens of a unit of repeated work: a few percent of the part's own work, so that small fractions
// are spread evenly over its calls.
constexpr int64_t kSharesOfTokens = 32;

void require_cpu(bool is_cpu) {
  if (is_cpu) return;
  throw std::invalid_argument(
      fmt::format("{}: parts are slowed on the CPU only; unset it, or run with --device cpu",
                  kSlowdownVariable));
}

// The backward of one call of a part, from the node that its output's gradient reaches first to one
// that runs when all others are done.
struct Backward {
  double begun = 0.0;                 // worked_seconds()
  std::function<void(double)> ended;  // takes seconds; empty once it was called
};

// A name without a namespace: profiles take those that have one for operators.
class UncountedNode : public torch::autograd::Node {
 public:
  using Node::Node;
  std::string name() const override { return "Slowed"; }
};

// Neither reads nor passes on a gradient. A backward runs those nodes that are ready in the order
// opposite to that in which they were made: after all nodes of a part comes the one made before
// them. So it is a neighbour of the part in the graph, and gradients are summed in the usual order.
class LastNode final : public UncountedNode {
 public:
  explicit LastNode(std::shared_ptr<Backward> backward) : backward_(std::move(backward)) {
    add_input_metadata(torch::autograd::Node::undefined_input());
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*none*/) override {
    if (const auto ended = std::exchange(backward_->ended, nullptr))
      ended(slowdown::worked_seconds() - backward_->begun);
    return {};
  }

 private:
  std::shared_ptr<Backward> backward_;
};

// Behind the part's output: hands the gradient on to the part, and makes the last node ready.
class FirstNode final : public UncountedNode {
 public:
  FirstNode(torch::autograd::edge_list&& next, std::shared_ptr<Backward> backward)
      : UncountedNode(std::move(next)), backward_(std::move(backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    backward_->begun = slowdown::worked_seconds();
    gradients.emplace_back();
    return std::move(gradients);
  }

 private:
  std::shared_ptr<Backward> backward_;
};

// Older versions of libtorch keep nodes in std::shared_ptr, newer ones in a pointer of their own.
using NodePointer = std::remove_cvref_t<decltype(std::declval<at::Tensor>().grad_fn())>;

template <typename Pointer, typename Kind, typename... Arguments>
Pointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_constructible_v<Pointer, std::shared_ptr<Kind>>) {
    return std::make_shared<Kind>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Kind>(std::forward<Arguments>(arguments)...);
  }
}

// `output` with the first node of the part's backward behind it. Of its own version, so that it may
// be changed in place as if the node were not there.
at::Tensor with_first_node(const at::Tensor& output, const NodePointer& last,
                           const std::shared_ptr<Backward>& backward) {
  torch::autograd::edge_list next = torch::autograd::collect_next_edges(output);
  next.emplace_back(last, 0);
  at::Tensor same = output.variable_data();
  torch::autograd::set_history(same, make_node<NodePointer, FirstNode>(std::move(next), backward));
  return same;
}

}  // namespace

namespace slowdown {

at::Tensor some_tokens(const at::Tensor& tokenwise) {
  const int64_t seq = tokenwise.size(1);
  const int64_t share = tokenwise.size(0) * seq / kSharesOfTokens;
  return tokenwise.narrow(0, 0, 1).narrow(1, 0, std::clamp<int64_t>(share, 1, seq));
}

at::Tensor run_layer(Part part, const at::Tensor& input, c10::function_ref<at::Tensor()> forward,
                     std::function<void()> repeat) {
  require_cpu(input.is_cpu());
  const double entered = worked_seconds();
  const auto settle = [part, elements = input.numel()](Direction direction, double seconds,
                                                       double overhead,
                                                       const std::function<void()>& work) {
    ledger().settle({part, direction, elements}, seconds, overhead, work);
  };
  const auto backward = std::make_shared<Backward>();
  const NodePointer last =
      at::GradMode::is_enabled() ? make_node<NodePointer, LastNode>(backward) : NodePointer();
  const double begun = worked_seconds();
  at::Tensor output = forward();
  const double ended = worked_seconds();
  if (last && output.requires_grad()) {
    backward->ended = [=](double seconds) { settle(Direction::backward, seconds, 0.0, repeat); };
    output = with_first_node(output, last, backward);
  }
  const double seconds = ended - begun;
  settle(Direction::forward, seconds, worked_seconds() - entered - seconds, repeat);
  return output;
}

void run_update(Part part, const at::Tensor& input, c10::function_ref<void()> work,
                const std::function<void()>& repeat) {
  require_cpu(input.is_cpu());
  const double begun = worked_seconds();
  work();
  ledger().settle({part, Direction::forward, input.numel()}, worked_seconds() - begun, 0.0, repeat);
}

}  // namespace slowdown

std::string refuse_slowdown(bool is_gpu, bool checkpoint) {
  if (slowdown::ledger().plan().empty()) return {};
  require_cpu(!is_gpu);
  if (!checkpoint) return {};
  return fmt::format("checkpoint: {} would slow the parts again where they are computed again",
                     kSlowdownVariable);
}

}  // namespace tinyllama
