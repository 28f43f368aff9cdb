#include "benchmarks/harness/prepared_case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/gate_run.hpp"
#include "benchmarks/instruments/library_choices.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "core/text.hpp"

namespace tinyllama::harness {
namespace {

// Iterations that even the shortest measurement needs: the gate's, the metered and the timed one.
constexpr int kFewestIterations = 3;

// A key of cases that should reach about the same rate. It has the switches because rates may
// differ widely: bfloat16 GEMMs computed in float32 are thirty times as fast on some processors.
std::string reached_key(const Case& test_case) {
  return fmt::format("{}/{}/{}/{}", test_case.component->name, to_string(test_case.pass),
                     test_case.workload.variant.switch_names(),
                     gemm_type_name(test_case.workload.dtype));
}

// Empty if kFewestIterations can end in the time of a case at the rate that is expected of it.
std::string refuse_for_time(const Preparation& shared, const Case& test_case) {
  const int64_t flops = test_case.cost().hardware_flops;
  if (!shared.peaks || flops == 0) return {};
  const auto known = shared.reached.find(reached_key(test_case));
  const bool is_known = known != shared.reached.end();
  const std::string type = gemm_type_name(test_case.workload.dtype);
  const double rate = is_known ? known->second : shared.peaks->measured_flops(type);
  const double seconds = kFewestIterations * static_cast<double>(flops) / rate;
  const double most = shared.options.max_seconds_per_case;
  if (seconds <= most) return {};
  return fmt::format(
      "{} iterations need at least {:.1f} s at {}FLOP/s ({}), more than --max-seconds-per-case "
      "{:g}",
      kFewestIterations, seconds, format_count(rate),
      is_known ? "the best that other cases of this component and variant reached"
               : fmt::format("the measured {} peak", type),
      most);
}

// Not with checkpoint, whose backward computes the layer once more: autograd's graph does not show
// its parameters.
std::string refuse_without_gradient(const Case& test_case, const WorkItem& item) {
  if (has_backward(test_case.pass) || test_case.workload.variant.has(Switch::checkpoint)) return {};
  const std::vector<std::string> names = item.without_gradient();
  if (names.empty()) return {};
  return fmt::format(
      "no gradient would reach {}: what is timed is the forward of a training, whose operators "
      "autograd records",
      fmt::join(names, ", "));
}

// Whether results have the shapes and types of the baseline's, which values alone do not show;
// empty where they have.
std::string refuse_form(const Case& test_case, int64_t batch, const NamedTensors& results) {
  BuildRequest request{test_case.workload, test_case.pass, 0, c10::Device(c10::DeviceType::Meta)};
  request.workload.variant = Variant();
  request.workload.batch = batch;
  const auto form = [](const at::Tensor& tensor) {
    return fmt::format("{} [{}]{}", c10::toString(tensor.scalar_type()),
                       fmt::join(tensor.sizes(), ", "),
                       tensor.layout() == c10::kStrided && !tensor.is_neg() && !tensor.is_conj()
                           ? ""
                           : ", not computed or of another layout");
  };
  std::map<std::string, std::string> expected;
  predict_memory(test_case.workload.device, [&] {
    const std::shared_ptr<WorkItem> item = test_case.component->build(request);
    const auto iteration = [&, item] {
      item->prepare();
      item->run();
      for (const auto& [name, tensor] : item->results())
        if (tensor.defined()) expected[name] = form(tensor);
    };
    return WorkOnMeta{iteration, {}, {}};
  });
  for (const auto& [name, tensor] : results) {
    const auto found = expected.find(name);
    if (tensor.defined() && tensor.device().type() != test_case.workload.device)
      return fmt::format("result '{}' is on {}", name, tensor.device().str());
    if (tensor.defined() && found != expected.end() && form(tensor) != found->second)
      return fmt::format("result '{}' is {}, and must be {}", name, form(tensor), found->second);
  }
  return {};
}

}  // namespace

// Operators of the case that none of its code calls are not proved by it.
class CallsOfOperators {
 public:
  explicit CallsOfOperators(const Variant& variant) : operators_(variant.operators()) {
    for (const SlotOperator& op : operators_) before_.push_back(op.calls());
  }
  std::vector<std::string> uncalled() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < operators_.size(); ++i)
      if (operators_[i].calls() == before_[i]) names.push_back(operators_[i].name());
    return names;
  }
  bool are_none() const { return !operators_.empty() && uncalled().size() == operators_.size(); }

 private:
  const std::vector<SlotOperator>& operators_;
  std::vector<int64_t> before_;
};

Preparation::Preparation(const instruments::Device& device_of_cases, const Options& all_options,
                         const instruments::MeasuredPeaks* measured_peaks)
    : device(device_of_cases),
      options(all_options),
      peaks(measured_peaks),
      gate(device, options.seed, std::nullopt, options.weights.get()) {
  if (options.cold_cache) flusher = std::make_unique<CacheFlusher>(device);
  guard = CaseGuard::of(device, options);
  if (!device.is_gpu()) return;
  const auto take = [&] { instruments::take_library_workspaces(device); };
  // Where this fails, each case will, and says so.
  failure_of(device, 0, [&] { guard->run_beside_cases("the first GEMMs", take); });
}

void Preparation::note_rate(const Case& test_case, double seconds) {
  const int64_t flops = test_case.cost().hardware_flops;
  if (flops == 0) return;
  double& best = reached[reached_key(test_case)];
  best = std::max(best, static_cast<double>(flops) / seconds);
}

PreparedCase::PreparedCase(Preparation& shared, const Case& test_case, const Steps& steps,
                           int64_t live_beside)
    : shared_(shared), case_(test_case), live_beside_(live_beside) {
  guarded([&] { prepare(steps); });
}

// The order of everything; timing and prove_after_timing() follow.
void PreparedCase::prepare(const Steps& steps) {
  // The allocator's cached memory would not count as free: release it first.
  if (steps.proof != Steps::Proof::none || !refusal(steps).empty())
    instruments::release_cached_memory(shared_.device);
  remarks_.skip = refusal(steps);
  if (is_over()) return;
  // The name of a set does not say what it is here.
  const Variant& variant = case_.workload.variant;
  if (variant.name() != variant.switch_names())
    add_to_label(fmt::format("{} = {}", variant.name(), variant.switch_names()));
  for (const SlotOperator& op : variant.operators()) {
    if (!op.has_meta_kernel())
      add_to_label(op.name() + " has no Meta kernel: memory was measured, not predicted");
  }
  // A captured step calls them while it is built.
  const CallsOfOperators calls(variant);
  work_ = build_work(shared_.device, case_, shared_.options.seed, shared_.options.weights.get());
  if (steps.proof != Steps::Proof::none) pass_gate(steps, calls);
  if (is_over() || !steps.times) return;
  remarks_.skip = refuse_after_gate();
  if (is_over()) return;
  warm_up();
  if (steps.meters) meter();
}

void PreparedCase::guarded(const std::function<void()>& step) {
  // libtorch's own operators may draw random numbers: sdpa does, for a dropout of 0.
  const bool keeps_state = !case_.workload.variant.operators().empty();
  const auto watched = [&] { shared_.guard->run(case_.name(), keeps_state, step); };
  std::string thrown = failure_of(shared_.device, shared_.options.memory_limit_bytes,
                                  shared_.guard ? std::function<void()>(watched) : step);
  if (thrown.empty()) return;
  remarks_.failure = std::move(thrown);
  work_.item.reset();
  release_memory(shared_.device);
}

MemoryBudget PreparedCase::budget() const {
  return memory_budget(shared_.device, shared_.options.memory_limit_bytes, live_beside_);
}

std::string PreparedCase::refusal(const Steps& steps) {
  if (!case_.skip_reason.empty()) return case_.skip_reason;
  const MemoryBudget left = budget();
  const std::string too_large = refuse_for_memory(case_, left);
  if (!too_large.empty() && shared_.options.admit == Admit::fitting) return too_large;
  if (steps.proof != Steps::Proof::none) {
    // Decided before anything of the case is built: its tensors would count twice.
    proof_batch_ = shared_.gate.batch_for(case_, left.bytes);
    if (!proof_batch_) {
      return fmt::format(
          "cannot be verified: its float64 reference does not fit beside it into {} ({})",
          format_bytes(left.bytes), left.source);
    }
  }
  // A proof alone takes only as long as its float64 reference, which the gate limits.
  return steps.times ? refuse_for_time(shared_, case_) : "";
}

void PreparedCase::pass_gate(const Steps& steps, const CallsOfOperators& calls) {
  const int64_t batch = proof_batch_.value();
  std::unique_ptr<WorkItem> smaller;
  if (batch != case_.workload.batch) {
    add_to_label(fmt::format("verified at batch:{}", batch));
    Workload workload = case_.workload;
    workload.batch = batch;
    smaller = case_.component->build({workload, case_.pass, shared_.options.seed,
                                      shared_.device.torch(), shared_.options.weights.get()});
  }
  WorkItem& item = smaller ? *smaller : *work_.item;
  double first_seconds = 0;
  {
    const GateRun run = run_for_gate(shared_.device, item);
    first_seconds = run.seconds;
    if (!smaller) shared_.note_rate(case_, run.seconds);
    const auto check = [&](const NamedTensors& results) {
      return shared_.gate.check(case_, batch, results);
    };
    if (calls.are_none()) remarks_.skip = "the work calls none of the variant's operators";
    for (const std::string& name : calls.uncalled()) add_to_label("does not call " + name);
    if (!is_over() && !case_.workload.variant.operators().empty())
      remarks_.failure = refuse_form(case_, batch, item.results());
    if (!is_over()) remarks_.failure = refuse_results(item, run, check, comparison_);
    if (!is_over()) remarks_.skip = comparison_.unprovable;
  }
  if (!is_over()) remarks_.failure = refuse_without_gradient(case_, item);
  if (is_over()) return;
  if (steps.proof == Steps::Proof::results_and_new_inputs) {
    // What is timed is the case as it was built: its time may depend on its inputs.
    std::optional<KeptValues> as_built;
    if (steps.times && !smaller) as_built.emplace(item);
    check_with_new_inputs(item, batch, first_seconds);
    if (as_built) as_built->put_back();
    return;
  }
  if (smaller) return;
  gate_seconds_ = first_seconds;
  // A first iteration also loads kernels: where its time would decide, a second one does.
  if (first_seconds >= shared_.options.max_seconds_per_case / 10) {
    const auto second = time_until(shared_.device, item, nullptr, {.most_iterations = 1});
    gate_seconds_ = std::min(first_seconds, second.seconds.front());
  }
}

std::string PreparedCase::refuse_results(const WorkItem& item, const GateRun& run,
                                         const Check& check, Comparison& comparison) const {
  comparison = check(run.results);
  if (comparison.passes()) return {};
  std::string wrong = comparison.failure(case_.workload.dtype);
  constexpr double at_least = 0.1;
  std::this_thread::sleep_for(std::chrono::duration<double>(at_least + 2 * run.seconds));
  if (check(item.results()).passes())
    wrong += "; later it is right: work went on when the timed call had returned";
  return wrong;
}

void PreparedCase::check_with_new_inputs(WorkItem& item, int64_t batch, double usual_seconds) {
  uint64_t seed = ParityGate::kChangedSeed;
  const auto change = [&] { change_inputs(item, seed++, distinct_samples(batch)); };
  const auto check = [&](const NamedTensors& results) {
    return shared_.gate.check_changed(case_, batch, results);
  };
  change();
  const NamedTensors givens = copies_of(item.givens());
  const GateRun run = run_for_gate(shared_.device, item);
  Comparison comparison;
  const std::string wrong = refuse_results(item, run, check, comparison);
  const std::string changed = first_changed(item.givens(), givens);
  if (!wrong.empty())
    remarks_.failure = "with new inputs at the same addresses: " + wrong;
  else if (!changed.empty())
    remarks_.failure = changed + " was changed in place by the work, which only reads it";
  else if (comparison.unprovable.empty())
    remarks_.failure = skipped_work(shared_.device, item, usual_seconds, run.seconds, change);
  else
    remarks_.skip = comparison.unprovable;
}

// What was wrong with what the last timed iteration left: an implementation may tell the gate's
// iterations from others, for their memory holds NaN. Not looked at where work changes its own
// state, whose reference is of the first iteration, and where the reference is of a smaller batch.
std::string PreparedCase::wrong_timed_results() {
  const bool keeps_state = case_.pass != Pass::update && case_.pass != Pass::train;
  const int64_t batch = case_.workload.batch;
  if (!keeps_state || proof_batch_ != batch) return {};
  shared_.device.synchronize();
  const Comparison timed = shared_.gate.check(case_, batch, work_.item->results());
  if (timed.passes()) return {};
  return "an iteration that was timed: " + timed.failure(case_.workload.dtype);
}

// The gate's iteration has been timed; the metered and the timed one are still to come.
std::string PreparedCase::refuse_after_gate() const {
  const double most = shared_.options.max_seconds_per_case;
  if (kFewestIterations * gate_seconds_ <= most) return {};
  return fmt::format(
      "an iteration took {:.1f} s, and {} need more than --max-seconds-per-case {:g}",
      gate_seconds_, kFewestIterations, most);
}

void PreparedCase::warm_up() {
  timing_began_ = instruments::Clock::now();
  warm_seconds_ = gate_seconds_;
  // The gate's iteration has warmed a slow case up.
  const double most = shared_.options.max_seconds_per_case / 10;
  if (gate_seconds_ < most)
    warm_seconds_ =
        harness::warm_up(shared_.device, *work_.item, shared_.options.timing.warm_up_seconds, most);
}

void PreparedCase::meter() {
  metering_ = harness::meter(shared_.device, work_);
  const instruments::OperatorProfile& profile = metering_.profile;
  if (!profile.unknown_operators.empty())
    add_to_label(
        fmt::format("counted_flops leaves out: {}", fmt::join(profile.unknown_operators, ", ")));
  if (!profile.lack.empty()) add_to_label("kernels and their time unknown: " + profile.lack);
  if (!profile.attention_backend.empty()) add_to_label("attention: " + profile.attention_backend);
  const std::string blas = instruments::preferred_blas(shared_.device);
  if (!blas.empty()) add_to_label("BLAS: " + blas);
  if (!metering_.onednn_kernels.empty())
    add_to_label(fmt::format("oneDNN: {}", fmt::join(metering_.onednn_kernels, ", ")));
  remarks_.failure = wrong_flops(case_, metering_);
}

// Copies of inputs and results take memory that the timed work did not need.
void PreparedCase::prove_after_timing(double usual_seconds) {
  const std::string thrown = failure_of(shared_.device, shared_.options.memory_limit_bytes, [&] {
    const std::string timed = wrong_timed_results();
    check_with_new_inputs(*work_.item, case_.workload.batch, usual_seconds);
    // Where the inputs were changed, that is the reason.
    if (remarks_.failure.empty()) remarks_.failure = timed;
  });
  if (thrown.starts_with("out of memory"))
    add_to_label("not proved with new inputs: " + thrown);
  else if (!thrown.empty())
    remarks_.failure = thrown;
  if (!remarks_.failure.empty()) remarks_.failure = "after timing, " + remarks_.failure;
}

}  // namespace tinyllama::harness
