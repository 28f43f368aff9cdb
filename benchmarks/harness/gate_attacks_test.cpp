// Implementations that are wrong on purpose, as people have handed them in to win: each is refused
// with its reason. Where a first look at results before timing lets one pass, the test says so.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>

#include "benchmarks/harness/gate_run.hpp"
#include "benchmarks/harness/parity_gate.hpp"
#include "benchmarks/harness/runner.hpp"
#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

constexpr uint64_t kSeed = 42;

// x [B, S, D] times a weight [D], which it is to compute; what it keeps lasts as long as the work.
// Baselines are honest: an attack is a variant.
using Forward = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight)>;

// Without matrix multiplications: else the profiler's count of them would refuse most of these.
Component scaling(const std::function<Forward()>& make_forward) {
  const auto build = [=](const BuildRequest& request) -> std::unique_ptr<WorkItem> {
    const Workload& w = request.workload;
    const int64_t D = w.config.hidden_dim();
    TensorInitializer initializer(request.seed, w.dtype, request.device);
    const at::Tensor weight = initializer.normal_parameter({D}, 1.0);
    const at::Tensor x = initializer.normal({w.batch, w.seq, D}).requires_grad_(true);
    std::vector<at::Tensor> gradients;
    if (has_backward(request.pass)) gradients = {initializer.normal(x.sizes())};
    const bool is_honest = w.variant == Variant() || request.device.is_meta();
    const Forward forward =
        is_honest ? [](const at::Tensor& a, const at::Tensor& b) { return a * b; } : make_forward();
    return std::make_unique<LayerWork>(Layer{{{"x", x}},
                                             {{"weight", weight}},
                                             [=] {
                                               return NamedTensors{{"output", forward(x, weight)}};
                                             },
                                             gradients},
                                       request.pass, w.dtype, request.device.type());
  };
  return {"scaling",
          {Pass::forward, Pass::backward, Pass::forward_backward},
          [](const Workload&, Pass) { return Cost{.bytes = 8}; },
          build};
}

Component scaling_by(const Forward& forward) {
  return scaling([forward] { return forward; });
}

// Right, but what arrives at the output's gradient passes through this.
Component with_gradient_hook(
    const std::function<at::Tensor(const at::Tensor& gradient, int64_t call)>& hook) {
  return scaling([hook] {
    return [hook, calls = std::make_shared<int64_t>(0)](const at::Tensor& x,
                                                        const at::Tensor& weight) {
      at::Tensor y = x * weight;
      y.register_hook(
          [hook, calls](const at::Tensor& gradient) { return hook(gradient, ++*calls); });
      return y;
    };
  });
}

struct Attack {
  std::string name;
  Pass pass;
  /// Of its results before timing, in memory as it comes; nothing where that is chance.
  std::optional<bool> passes_a_first_look;
  std::string reason;  ///< part of why it is refused
  std::function<Component()> component;
  Workload workload = testing::small_case({}, Pass::forward).workload;
};

void PrintTo(const Attack& attack, std::ostream* out) {
  *out << attack.name;
}

Workload of(int64_t batch, int64_t seq) {
  Workload workload = testing::small_case({}, Pass::forward).workload;
  workload.batch = batch;
  workload.seq = seq;
  return workload;
}

// Returns what it returned first, for ever.
Component first_result_for_ever() {
  return scaling([] {
    return [kept = std::make_shared<at::Tensor>()](const at::Tensor& x, const at::Tensor& weight) {
      if (!kept->defined()) *kept = x * weight;
      return *kept;
    };
  });
}

Component cached_by_address() {
  return scaling([] {
    const auto kept = std::make_shared<std::map<const void*, at::Tensor>>();
    return [kept](const at::Tensor& x, const at::Tensor& weight) {
      at::Tensor& y = (*kept)[x.const_data_ptr()];
      if (!y.defined()) y = x * weight;
      return y;
    };
  });
}

// A weight as it was packed in the first call.
Component weight_kept_from_the_first_call() {
  return scaling([] {
    return [kept = std::make_shared<at::Tensor>()](const at::Tensor& x, const at::Tensor& weight) {
      if (!kept->defined()) *kept = weight.detach().clone();
      return x * (weight + (*kept - weight).detach());
    };
  });
}

// Long work, but only where the input is not the last one.
Component skipped_for_unchanged_inputs() {
  struct Kept {
    at::Tensor x, weight, y;
  };
  return scaling([] {
    return [kept = std::make_shared<Kept>()](const at::Tensor& x, const at::Tensor& weight) {
      const bool is_known =
          kept->y.defined() && at::equal(kept->x, x) && at::equal(kept->weight, weight);
      if (is_known) return kept->y;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      *kept = {x.detach().clone(), weight.detach().clone(), x * weight};
      return kept->y;
    };
  });
}

// The call returns at once; a thread writes the result some time later.
class LaterWriter {
 public:
  ~LaterWriter() {
    if (thread_.joinable()) thread_.join();
  }
  at::Tensor start(const at::Tensor& x, const at::Tensor& weight) {
    if (thread_.joinable()) thread_.join();
    at::Tensor y = at::empty_like(x.detach());
    thread_ = std::thread([y, x = x.detach(), weight = weight.detach()]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      at::mul_out(y, x, weight);
    });
    return y;
  }

 private:
  std::thread thread_;
};

Component deferred_to_a_thread() {
  return scaling([] {
    return [writer = std::make_shared<LaterWriter>()](
               const at::Tensor& x, const at::Tensor& weight) { return writer->start(x, weight); };
  });
}

// Computes once; later its output is the memory in which the iteration before left the result.
Component unwritten_memory() {
  return scaling([] {
    return [calls = std::make_shared<int>(0)](const at::Tensor& x, const at::Tensor& weight) {
      if (++*calls == 1) return x * weight;
      return at::empty_like(x.detach()).requires_grad_(true) + 0 * weight.sum() + 0 * x.sum();
    };
  });
}

// Right in the first half of the batch, to the bit.
Component wrong_in_the_second_half() {
  return scaling([] {
    return [calls = std::make_shared<int>(0)](const at::Tensor& x, const at::Tensor& weight) {
      at::Tensor y = x * weight;
      if (++*calls > 1) y.detach().narrow(0, x.size(0) / 2, x.size(0) / 2).zero_();
      return y;
    };
  });
}

Component output_memory_never_written() {
  return scaling_by([](const at::Tensor& x, const at::Tensor& /*weight*/) {
    return at::empty_like(x.detach()).requires_grad_(true);
  });
}

std::vector<Attack> attacks() {
  const auto by = [](const Forward& forward) { return [forward] { return scaling_by(forward); }; };
  const auto through = [](const std::function<at::Tensor(const at::Tensor&, int64_t)>& hook) {
    return [hook] { return with_gradient_hook(hook); };
  };
  const Forward detached = [](const at::Tensor& x, const at::Tensor& w) {
    return (x * w).detach();
  };
  const Forward no_weight_gradient = [](const at::Tensor& x, const at::Tensor& w) {
    return x * w.detach();
  };
  return {
      {"ForwardWithoutGradient", Pass::forward, true, "no gradient would reach x, weight",
       by(detached)},
      {"BackwardWithoutGradient", Pass::forward_backward, false, "does not require grad",
       by(detached)},
      {"ForwardWithoutGradientOfOneParameter", Pass::forward, true,
       "no gradient would reach weight", by(no_weight_gradient)},
      {"BackwardWithoutGradientOfOneParameter", Pass::forward_backward, false,
       "result 'gradient of weight' was not computed", by(no_weight_gradient)},
      {"Zeros", Pass::forward_backward, false,
       "wrong result: ", by([](const at::Tensor& x, const at::Tensor& w) { return 0 * x * w; })},
      {"InputChangedInPlace", Pass::forward, true, "x was changed in place",
       by([](const at::Tensor& x, const at::Tensor& w) {
         at::Tensor y = x * w;
         x.detach().copy_(y.detach());
         return y;
       })},
      {"WeightChangedInPlace", Pass::forward, true, "wrong result: output[",
       by([](const at::Tensor& x, const at::Tensor& w) {
         at::Tensor y = x * w;
         w.detach().mul_(1.5);
         return y;
       })},
      {"CachedByAddress", Pass::forward, true, "new inputs at the same addresses: wrong result",
       cached_by_address},
      {"FirstResultForEver", Pass::forward, true, "new inputs at the same addresses: wrong result",
       first_result_for_ever},
      {"WeightKeptFromTheFirstCall", Pass::forward_backward, true,
       "new inputs at the same addresses: wrong result", weight_kept_from_the_first_call},
      {"SkippedForUnchangedInputs", Pass::forward, true, "after timing, work is skipped",
       skipped_for_unchanged_inputs},
      {"DeferredToAThread", Pass::forward, std::nullopt,
       "work went on when the timed call had returned", deferred_to_a_thread},
      {"OutputMemoryNeverWritten", Pass::forward, std::nullopt, "wrong result: output[",
       output_memory_never_written},
      {"MemoryOfTheIterationBefore", Pass::forward, true,
       "new inputs at the same addresses: wrong result", unwritten_memory, of(2, 4096)},
      {"WrongAtOddLengths", Pass::forward, false, "wrong result: output[",
       by([](const at::Tensor& x, const at::Tensor& w) {
         return x * w * (x.size(1) % 2 == 1 ? 1.01 : 1.0);
       }),
       of(2, 5)},
      {"WrongInTheSecondHalfOfTheBatch", Pass::forward, true,
       "new inputs at the same addresses: wrong result", wrong_in_the_second_half, of(4, 4)},
      {"TellsTheGateByItsNaN", Pass::forward, std::nullopt,
       "after timing, an iteration that was timed: wrong result: output[",
       by([](const at::Tensor& x, const at::Tensor& w) {
         const at::Tensor unwritten = at::empty_like(x);
         return unwritten.isnan().all().item<bool>() ? x * w : (x * w).mul(0);
       })},
      {"WrongInTheLastRow", Pass::forward, false, "wrong result: output[",
       by([](const at::Tensor& x, const at::Tensor& w) {
         at::Tensor y = x * w;
         y.detach().select(0, -1).select(0, -1).mul_(1.01);
         return y;
       })},
      {"WrongForLargeValues", Pass::forward_backward, true, "wrong result: output[",
       by([](const at::Tensor& x, const at::Tensor& w) { return x.clamp(-16, 16) * w; })},
      {"WrongInTheSecondBackward", Pass::forward_backward, true, "wrong result: gradient of ",
       through([](const at::Tensor& gradient, int64_t call) {
         return call == 1 ? gradient : gradient * 1.01;
       })},
      {"GradientOfTheStepBefore", Pass::forward_backward, true, "wrong result: gradient of ",
       through([kept = std::make_shared<at::Tensor>()](const at::Tensor& gradient, int64_t call) {
         const at::Tensor before = std::exchange(*kept, gradient.clone());
         return call == 1 ? gradient : before;
       })}};
}

class GateAttackTest : public ::testing::TestWithParam<Attack> {
 protected:
  void SetUp() override { peaks.restore(testing::made_up_peaks()); }

  Case as_case(const Component& component) const {
    Workload workload = GetParam().workload;
    workload.variant = Variant({Switch::qkv});
    return {&component, GetParam().pass, "custom", workload, ""};
  }
  // Timed as every case is: the failure, empty where there is none.
  std::string failure(const Component& component) {
    Options settings;
    settings.timing.iterations = 5;
    settings.timing.repetitions = 1;
    settings.timing.warm_up_seconds = 0;
    Runner runner(cpu, peaks, settings);
    const Case test_case = as_case(component);
    Outcome outcome;
    runner.repeat(test_case, outcome);
    EXPECT_EQ(outcome.skip, "");
    return outcome.failure;
  }
  bool passes_a_first_look(const Component& component) const {
    const Case test_case = as_case(component);
    const auto item = component.build({test_case.workload, test_case.pass, kSeed, cpu.torch()});
    item->prepare();
    try {
      item->run();
      ParityGate gate(cpu, kSeed, 1e12);
      const auto found = gate.check(test_case, test_case.workload.batch, item->results());
      return found.passes();
    } catch (const std::exception&) {
      return false;
    }
  }

  instruments::Device cpu = instruments::Device::select("cpu");
  instruments::MeasuredPeaks peaks{cpu};
};

TEST_P(GateAttackTest, IsRefusedWithItsReason) {
  const Component attack = GetParam().component();
  const bool first_look = passes_a_first_look(attack);
  EXPECT_EQ(first_look, GetParam().passes_a_first_look.value_or(first_look));
  EXPECT_CONTAINS(failure(attack), GetParam().reason);
  const Component honest =
      scaling_by([](const at::Tensor& x, const at::Tensor& weight) { return x * weight; });
  EXPECT_EQ(failure(honest), "") << "the same without the mistake";
}

INSTANTIATE_TEST_SUITE_P(All, GateAttackTest, ::testing::ValuesIn(attacks()),
                         ::tinyllama::testing::kNamedByParameter);

// prepare() that leaves the last gradients, to which the next backward adds.
class Accumulating final : public WorkItem {
 public:
  explicit Accumulating(std::unique_ptr<WorkItem> work) : work_(std::move(work)) {
    work_->prepare();
  }
  void prepare() override {}
  void run() override { work_->run(); }
  NamedTensors results() const override { return work_->results(); }
  NamedTensors givens() const override { return work_->givens(); }
  void change_inputs(uint64_t seed, int64_t distinct) override {
    work_->change_inputs(seed, distinct);
  }

 private:
  std::unique_ptr<WorkItem> work_;
};

// A proof alone has new inputs as well.
TEST(GateAttacksTest, GradientsThatAddUpAreRefusedByAProofAlone) {
  const auto cpu = instruments::Device::select("cpu");
  Component component = testing::linear_component();
  component.build = [build = component.build](const BuildRequest& request) {
    return std::make_unique<Accumulating>(build(request));
  };
  const Options options;
  Preparation shared(cpu, options);
  const Case test_case = testing::small_case(component, Pass::forward_backward);
  const PreparedCase proved(shared, test_case,
                            {.proof = Steps::Proof::results_and_new_inputs, .times = false});
  EXPECT_CONTAINS(proved.remarks().failure,
                  "with new inputs at the same addresses: wrong result: gradient of ");
}

// Whatever the batch, what follows from the reference of one or two samples is right.
TEST(GateAttacksTest, RightResultsPassAtEveryBatch) {
  const auto cpu = instruments::Device::select("cpu");
  const Component component = testing::linear_component();
  instruments::MeasuredPeaks peaks(cpu);
  peaks.restore(testing::made_up_peaks());
  Options settings;
  settings.timing.iterations = 2;
  settings.timing.repetitions = 1;
  for (const int64_t batch : {1, 2, 3, 6, 8}) {
    for (const Pass pass : component.passes) {
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::amp_bf16}) {
        const Case test_case = testing::small_case(component, pass, dtype, batch);
        Runner runner(cpu, peaks, settings);
        Outcome outcome;
        runner.repeat(test_case, outcome);
        EXPECT_EQ(outcome.failure, "") << test_case.name();
        EXPECT_EQ(outcome.repetitions.size(), 1U) << test_case.name();
      }
    }
  }
}

}  // namespace
}  // namespace tinyllama::harness
