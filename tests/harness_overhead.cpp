// harness_overhead: what the harness adds to the calls that it times. Each line times the same
// calls by hand and as a case is timed; the two take turns, and medians are compared.
//
// `nothing` and `add` (out = x + x, no allocation): by hand with one clock reading before and one
// after all iterations, so that the difference is the cost of the harness's loop and clock.
// The layers: by hand with a clock reading before and after each iteration's calls, as the harness
// does it, so that the difference is the cost of LayerWork. A case's overhead is the sum of both.
#include <ATen/ops/add.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/timing.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "core/statistics.hpp"
#include "model/feed_forward.hpp"
#include "model/rms_norm.hpp"

namespace tinyllama::harness {
namespace {

using instruments::Clock;
using instruments::seconds_since;

constexpr int kRounds = 41;

/// `by_hand` returns the seconds of so many iterations.
template <class ByHand>
void compare(const std::string& name, WorkItem& item, const ByHand& by_hand) {
  const auto cpu = instruments::Device::select("cpu");
  const double once = by_hand(10) / 10;
  const auto iterations = std::clamp<int64_t>(static_cast<int64_t>(0.01 / once), 5, 100'000);
  std::vector<double> bare, timed;
  for (int round = 0; round < kRounds; ++round) {
    bare.push_back(by_hand(iterations) / static_cast<double>(iterations));
    const TimingGoal goal{.min_seconds = std::numeric_limits<double>::infinity(),
                          .most_iterations = iterations};
    timed.push_back(mean(time_until(cpu, item, nullptr, goal).seconds));
  }
  const double difference = median(timed) - median(bare);
  const bool held = std::abs(difference) <= std::max(0.01 * median(bare), 200e-9);
  fmt::print("{:<32} {:>12.1f} {:>13.1f} {:>12.1f} {:>9.2f}  {}\n", name, median(bare) * 1e9,
             median(timed) * 1e9, difference * 1e9, 100 * difference / median(bare),
             held ? "held" : "MISSED");
}

class AddWork final : public WorkItem {
 public:
  explicit AddWork(int64_t elements) : x_(at::randn({elements})), out_(at::randn({elements})) {}
  void prepare() override {}
  void run() override {
    if (x_.numel() > 0) at::add_out(out_, x_, x_);
  }
  NamedTensors results() const override { return {{"out", out_}}; }

 private:
  at::Tensor x_;
  at::Tensor out_;
};

void compare_add(int64_t elements) {
  AddWork item(elements);
  compare(elements == 0 ? "nothing" : fmt::format("add, {} elements", elements), item,
          [&](int64_t iterations) {
            const auto start = Clock::now();
            for (int64_t i = 0; i < iterations; ++i) item.run();
            return seconds_since(start);
          });
}

/// The layer at tiny, in float32.
template <class TestedLayer>
TestedLayer make_layer(const ModelConfig& config, TensorInitializer& initializer) {
  if constexpr (std::is_same_v<TestedLayer, RmsNorm>) {
    return RmsNorm(config.hidden_dim(), config.norm_eps(), Variant(), initializer);
  } else {
    return TestedLayer(config, Variant(), initializer);
  }
}

template <class TestedLayer>
void compare_layer(const std::string& name, Pass pass, int64_t batch, int64_t seq) {
  const ModelConfig tiny({.vocab_size = 1000,
                          .hidden_dim = 256,
                          .n_layers = 4,
                          .n_heads = 8,
                          .n_kv_heads = 4,
                          .intermediate_dim = 512});
  TensorInitializer initializer(42, Dtype::f32, c10::kCPU);
  const auto layer = make_layer<TestedLayer>(tiny, initializer);
  const at::Tensor x = initializer.normal({batch, seq, tiny.hidden_dim()}).requires_grad_(true);
  const at::Tensor gradient = initializer.normal(x.sizes());
  const NamedTensors parameters = layer.parameters("");
  LayerWork item({{{"hidden_states", x}},
                  parameters,
                  [&] {
                    return NamedTensors{{"output", layer.forward(x)}};
                  },
                  {gradient}},
                 pass, Dtype::f32, c10::kCPU);
  at::Tensor output;
  compare(fmt::format("{}, {}, {} x {}", name, to_string(pass), batch, seq), item,
          [&](int64_t iterations) {
            double seconds = 0;
            for (int64_t i = 0; i < iterations; ++i) {
              output.reset();
              x.mutable_grad().reset();
              for (const auto& [_, parameter] : parameters) parameter.mutable_grad().reset();
              if (pass == Pass::backward) output = layer.forward(x);
              const auto start = Clock::now();
              if (pass != Pass::backward) output = layer.forward(x);
              if (pass != Pass::forward) torch::autograd::backward({output}, {gradient});
              seconds += seconds_since(start);
            }
            return seconds;
          });
}

at::Tensor hand_through(const at::Tensor& gate, const at::Tensor& /*up*/) {
  return gate;
}

/// What a call through libtorch's dispatcher, as an operator of a plug-in is called, costs more
/// than one of a function.
void compare_dispatcher() {
  const SlotOperator op = SlotOperator::find("overhead::swiglu");
  at::Tensor (*volatile function)(const at::Tensor&, const at::Tensor&) = hand_through;
  const at::Tensor x = at::randn({4});
  const auto nanoseconds = [&](const auto& call) {
    constexpr int calls = 20'000;
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      const auto start = Clock::now();
      for (int i = 0; i < calls; ++i) call();
      rounds.push_back(seconds_since(start) / calls * 1e9);
    }
    return median(rounds);
  };
  const double direct = nanoseconds([&] { return function(x, x); });
  const double dispatched = nanoseconds([&] { return op({x, x}).front(); });
  fmt::print("{:<32} {:>12.1f} {:>13.1f} {:>12.1f} {:>9}  {} (limit: 1000 ns)\n",
             "an operator of a plug-in", direct, dispatched, dispatched - direct, "",
             dispatched - direct < 1000 ? "held" : "MISSED");
}

}  // namespace
}  // namespace tinyllama::harness

TORCH_LIBRARY_FRAGMENT(overhead, library) {
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor", tinyllama::harness::hand_through);
}

int main(int /*argc*/, char** argv) {
  using namespace tinyllama;
  instruments::pin_openmp_threads(argv, std::nullopt);
  instruments::host_allocator::install();
  fmt::print("Limit: 1 % of the time by hand, or 200 ns where that is more; medians of {} turns.\n",
             harness::kRounds);
  fmt::print("{:<32} {:>12} {:>13} {:>12} {:>9}\n", "calls", "by hand ns", "as a case ns",
             "overhead ns", "percent");
  for (const int64_t elements : {0, 64, 16'384, 262'144, 4'194'304}) harness::compare_add(elements);
  harness::compare_dispatcher();
  for (const int64_t batch : {1, 8}) {
    const int64_t seq = 16 * batch;
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::forward_backward}) {
      harness::compare_layer<RmsNorm>("rms_norm", pass, batch, seq);
      harness::compare_layer<FeedForward>("ffn", pass, batch, seq);
    }
  }
}
