#include "benchmarks/harness/parity_gate.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "benchmarks/harness/rounding.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "model/relative_error.hpp"
#include "model/step_gemms.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kMaxReferenceSeconds = 30.0;
// Every machine computes float64 faster than this, so that shorter references need no measured
// rate.
constexpr double kSlowestFlopsPerSecond = 1e9;
constexpr int64_t kSmallestBatch = 2;
constexpr std::string_view kGradientPrefix = "gradient of ";

// The pass that references are computed with. Where possible it is forward_backward, which includes
// the results of every other pass; not for a loss of sequences of one token, which has no backward.
Pass reference_pass(const Case& test_case) {
  const auto& passes = test_case.component->passes;
  const auto& refusal = test_case.component->refusal;
  Workload workload = test_case.workload;
  workload.variant = Variant();
  const bool has = std::find(passes.begin(), passes.end(), Pass::forward_backward) != passes.end();
  const bool refused = refusal && !refusal(workload, Pass::forward_backward).empty();
  return has && !refused ? Pass::forward_backward : test_case.pass;
}

double to_double(int64_t count) {
  return static_cast<double>(count);
}

template <class Known>
bool contains_all(const Known& known, const NamedTensors& results) {
  return std::all_of(results.begin(), results.end(),
                     [&](const auto& named) { return known.contains(named.first); });
}

ReferenceValues values_after_a_run(WorkItem& item) {
  item.prepare();
  item.run();
  ReferenceValues values;
  for (const auto& [name, tensor] : item.results()) {
    if (tensor.defined()) values[name] = to_values(tensor);
  }
  return values;
}

// How far off a result may be: several times the scatter of rounding, because that is a sample and
// a variant may sum in another order (twice the scatter was seen); plus some roundoffs of the
// tensor's scale, in case the few elements of a small tensor scattered little by chance. In float32
// and wider both are larger: there the rounding of each term in a sum counts, which noisy rounding
// of results does not show.
struct Allowance {
  double scatters;
  double roundoffs;
};
Allowance allowance(const Rounding& rounding) {
  constexpr double narrow = 1e-5;
  return rounding.roundoff < narrow ? Allowance{16, 32} : Allowance{2.5, 2};
}

// Every result was rounded to its own type at least once.
Roundings least_roundings(const NamedTensors& results) {
  Roundings roundings;
  for (const auto& [name, tensor] : results)
    if (tensor.defined()) roundings[name].roundoff = unit_roundoff(tensor.scalar_type());
  return roundings;
}

// After how many noisy runs a result is compared: more of them only where it would not pass. Two
// runs may be close to each other by chance where the errors of a tensor's elements are one error,
// as in the gradient of a bias of keys, a sum that nearly cancels: half the range of two runs is
// 0.6 standard deviations, of six 1.3, of 18 1.8. Those of small tensors cost little.
std::vector<int> noisy_runs(const ReferenceValues& reference) {
  constexpr size_t small = 100'000;
  size_t elements = 0;
  for (const auto& [name, values] : reference) elements += values.size();
  return elements < small ? std::vector{2, 6, 18} : std::vector{2, 6};
}

// The roundoff of a sum. In float32 it grows with the square root of the number of terms, because
// errors are a random walk; at most by a factor of 8.
double roundoff_of_sums(double roundoff, const Workload& workload, int64_t batch) {
  if (roundoff > 0x1p-24) return roundoff;
  const ModelConfig& config = workload.config;
  const int64_t terms =
      std::max({batch * workload.seq, config.vocab_size(), config.intermediate_dim()});
  return roundoff * std::clamp(std::sqrt(to_double(terms)) / 8, 1.0, 8.0);
}

// Scales what a few samples showed to a batch.
Roundings of_batch(Roundings roundings, const Workload& workload, int64_t few, int64_t batch) {
  for (auto& [name, rounding] : roundings) {
    // Gradients of a mean over more samples are smaller, and float16 loses more of their digits.
    rounding.bias *= to_double(batch) / to_double(few);
    rounding.roundoff = roundoff_of_sums(rounding.roundoff, workload, batch);
  }
  return roundings;
}

// A tolerance above this share of a tensor's scale would prove nothing.
constexpr double kMostAllowed = 0.5;
// A gradient this much smaller than the largest one is 0 but for float64's rounding.
constexpr double kZero = 1e-12;

double largest_gradient(const ReferenceValues& reference) {
  double largest = 0;
  for (const auto& [name, values] : reference) {
    if (name.starts_with(kGradientPrefix)) largest = std::max(largest, largest_magnitude(values));
  }
  return largest;
}

// The magnitude that errors of a tensor are relative to. A bias of keys moves all scores of a query
// alike, but for the rotation: its gradient is a sum that nearly cancels, of terms whose rounding
// does not (without a score matrix a row of probabilities adds up to 1 only nearly). The weight's
// gradient is a sum of the same terms, which does not cancel.
double scale_of(const std::string& name, const ReferenceValues& reference, double gradients) {
  constexpr std::string_view bias = "k_proj.bias", weight = "k_proj.weight";
  double scale = largest_magnitude(reference.at(name));
  if (!name.starts_with(kGradientPrefix)) return scale;
  if (name.ends_with(bias)) {
    const std::string of_weight = name.substr(0, name.size() - bias.size()) + std::string(weight);
    const auto found = reference.find(of_weight);
    if (found != reference.end()) scale = std::max(scale, largest_magnitude(found->second));
  }
  return scale <= kZero * gradients ? gradients : scale;
}

// `error`: of the result. A result within its tolerance is right, whatever the type's range.
std::string why_unprovable(const std::string& name, const Rounding& rounding, double error,
                           double allowed, Dtype dtype) {
  const std::string type = gemm_type_name(dtype);
  if (!std::isfinite(rounding.scatter) || !std::isfinite(rounding.bias)) {
    return fmt::format("cannot be proved: {} is not finite where every operator rounds to {}", name,
                       type);
  }
  if (allowed > kMostAllowed) {
    return fmt::format(
        "cannot be proved: rounding to {} alone scatters {} by {:.3g} of its largest magnitude",
        type, name, rounding.scatter);
  }
  // float16 is 0 below 6e-8, where some gradients are: a correct program has that error, too. One
  // that is off by far more is wrong.
  if (compute_type(dtype) == c10::ScalarType::Half && error > allowed &&
      error <= 4 * rounding.bias && rounding.bias > allowed / 2) {
    return fmt::format(
        "cannot be proved: {} is off by {:.3g} of its largest magnitude where every operator "
        "rounds to f16, whose range is too small for it",
        name, rounding.bias);
  }
  return {};
}

// Of results of a batch that is `copies` of what the reference is of: the rows of one copy, and
// with the first one what has no batch. A loss is a mean: gradients of its inputs are as many times
// smaller as there are copies. Else gradients of weights are as many times larger.
NamedTensors part_of(const NamedTensors& results, const ReferenceValues& reference, int64_t copy,
                     int64_t copies) {
  const bool is_mean = reference.contains("loss");
  const auto times = static_cast<double>(copies);
  NamedTensors part;
  for (const auto& [name, tensor] : results) {
    const auto expected = reference.find(name);
    const bool is_known = tensor.defined() && expected != reference.end();
    const int64_t elements = is_known ? static_cast<int64_t>(expected->second.size()) : 0;
    const bool is_gradient = copies > 1 && is_known && name.starts_with(kGradientPrefix);
    if (copies > 1 && is_known && tensor.numel() == copies * elements) {
      const int64_t rows = tensor.size(0) / copies;
      const at::Tensor own = tensor.narrow(0, copy * rows, rows);
      part.emplace_back(name, is_gradient && is_mean ? as_doubles(own) * times : own);
    } else if (copy == 0) {
      part.emplace_back(name, is_gradient && !is_mean ? as_doubles(tensor) / times : tensor);
    }
  }
  return part;
}

}  // namespace

std::string Comparison::failure(Dtype dtype) const {
  return fmt::format(
      "wrong result: {} differs from the float64 baseline by {:.3g} of its largest magnitude; the "
      "tolerance is {:.3g}: {:g} times the scatter of {:.3g} by rounding to {}, plus {:.3g}",
      worst_tensor, error, allowed, scatters, scatter, gemm_type_name(dtype),
      allowed - scatters * scatter);
}

void Comparison::add(const Comparison& other) {
  const double largest = std::max(max_rel_error, other.max_rel_error);
  const int64_t tensors = compared_tensors + other.compared_tensors;
  const std::string unproved = unprovable.empty() ? other.unprovable : unprovable;
  const bool is_worse =
      error == 0 ? other.error > 0 : other.error * allowed > error * other.allowed;
  if (compared_tensors == 0 || is_worse) *this = other;
  max_rel_error = largest;
  compared_tensors = tensors;
  unprovable = unproved;
}

Comparison compare(const NamedTensors& results, const ReferenceValues& reference,
                   const Roundings& roundings, Dtype dtype, bool expect_gradients) {
  const double gradients = largest_gradient(reference);
  Comparison comparison;
  std::set<std::string> compared;
  double farthest = 0;
  for (const auto& [name, tensor] : results) {
    const auto expected = reference.find(name);
    if (expected == reference.end())
      throw std::logic_error(fmt::format("result '{}' has no reference", name));
    if (!tensor.defined())
      throw std::logic_error(fmt::format("result '{}' was not computed", name));
    if (tensor.numel() != static_cast<int64_t>(expected->second.size())) {
      throw std::logic_error(fmt::format("result '{}' has {} elements, its reference {}", name,
                                         tensor.numel(), expected->second.size()));
    }
    const at::Tensor doubles = as_doubles(tensor);
    const double scale = scale_of(name, reference, gradients);
    const LargestError worst = largest_error(values_of(doubles), expected->second, scale);
    const auto rounded = roundings.find(name);
    if (rounded == roundings.end())
      throw std::logic_error(fmt::format("nothing is known of what rounds '{}'", name));
    const Rounding& rounding = rounded->second;
    const auto [scatters, roundoffs] = allowance(rounding);
    const double allowed = scatters * rounding.scatter + roundoffs * rounding.roundoff;
    const std::string unprovable = why_unprovable(name, rounding, worst.relative, allowed, dtype);
    if (comparison.unprovable.empty() || !std::isfinite(rounding.scatter))
      comparison.unprovable = unprovable;
    comparison.max_rel_error = std::max(comparison.max_rel_error, worst.relative);
    // A tensor that cannot be proved must not hide another's error.
    if (unprovable.empty() && worst.relative / allowed > farthest) {
      farthest = worst.relative / allowed;
      comparison.worst_tensor = fmt::format("{}[{}]", name, worst.index);
      comparison.error = worst.relative;
      comparison.allowed = allowed;
      comparison.scatter = rounding.scatter;
      comparison.scatters = scatters;
    }
    ++comparison.compared_tensors;
    compared.insert(name);
  }
  if (comparison.compared_tensors == 0)
    throw std::logic_error("no result to compare with the reference");
  for (const auto& [name, values] : reference) {
    if (expect_gradients && name.starts_with(kGradientPrefix) && !compared.contains(name)) {
      throw std::logic_error(fmt::format("'{}' is missing from the results", name));
    }
  }
  return comparison;
}

ParityGate::ParityGate(const instruments::Device& device, uint64_t seed,
                       std::optional<double> f64_flops_per_second, const Weights* weights)
    : device_(device),
      seed_(seed),
      f64_flops_per_second_(f64_flops_per_second),
      weights_(weights) {}

// A rate that was measured for a fifth of a second is good enough to plan with; only long
// references need it.
bool ParityGate::is_quick(int64_t flops) {
  if (!f64_flops_per_second_ && to_double(flops) <= kMaxReferenceSeconds * kSlowestFlopsPerSecond)
    return true;
  if (!f64_flops_per_second_) {
    const auto paths = gemm_paths(at::kDouble, device_.torch().type());
    f64_flops_per_second_ =
        instruments::measure_gemm_peak(device_, at::kDouble, paths, {}, 0.2).per_second;
  }
  return to_double(flops) / *f64_flops_per_second_ <= kMaxReferenceSeconds;
}

// The reference while it is computed, and then its values, which lie in the host's memory as
// float64; as many at most are a result's own while it is compared.
int64_t ParityGate::reference_bytes(const Case& reference) const {
  const PredictedMemory& memory = reference.memory();
  if (device_.is_gpu()) return memory.peak();
  const int64_t gradients = memory.gradients + memory.inputs;
  const int64_t values = has_backward(reference.pass) ? gradients : memory.activations;
  return memory.peak() + 2 * values;
}

// Whether the host has room, beside tensors and no part of their limit, for values of float64: the
// reference's, and those of two samples as drawn and with new inputs. Results under noise lie in
// their own type where the reference's tensors were.
bool ParityGate::has_host_memory(const Case& reference) const {
  if (device_.is_gpu()) return true;
  const PredictedMemory& memory = reference.memory();
  const int64_t step = memory.weights + memory.optimizer_state + memory.gradients;
  const int64_t values = std::max(step, memory.activations);
  constexpr int64_t sets = 3;
  return memory.peak() + sets * values <= device_.free_memory_bytes();
}

std::optional<int64_t> ParityGate::batch_for(const Case& test_case, int64_t free_bytes) {
  Case reference = test_case;
  reference.workload.variant = Variant();
  reference.workload.dtype = Dtype::f64;
  reference.pass = reference_pass(test_case);
  for (int64_t batch = std::max(test_case.workload.batch, kSmallestBatch);;) {
    reference.workload.batch = batch;
    reference.known_memory.reset();
    const bool fits = reference_bytes(reference) + test_case.memory().peak() <= free_bytes &&
                      has_host_memory(reference);
    if (fits && is_quick(reference.cost().hardware_flops)) return batch;
    if (batch == kSmallestBatch) return fits ? std::optional(batch) : std::nullopt;
    batch = std::max(kSmallestBatch, batch / 2);
  }
}

std::string ParityGate::key(const Case& test_case) const {
  std::string key = fmt::format("{}/{}", test_case.component->name, test_case.size);
  // Drawn weights are exact in every type; given ones are rounded to the case's own.
  if (weights_ != nullptr)
    key += fmt::format("/{}", c10::toString(storage_type(test_case.workload.dtype)));
  return key;
}

ParityGate::Known& ParityGate::known_of(const Case& test_case, const Inputs& inputs) {
  constexpr size_t most_kept = 16;
  const std::string wanted = key(test_case);
  const std::string samples = fmt::format("{}/{}/{}", inputs.are_changed ? "changed" : "drawn",
                                          inputs.batch, test_case.workload.seq);
  if (wanted != known_key_ || (!known_.contains(samples) && known_.size() >= most_kept))
    known_.clear();
  known_key_ = wanted;
  return known_[samples];
}

Comparison ParityGate::check(const Case& test_case, int64_t batch, const NamedTensors& results) {
  // Changed inputs have scatters of their own: larger ones, within which planted faults would pass
  // here.
  const Inputs few = {kSmallestBatch, false};
  const std::string wanted = fmt::format("{}/{}/{}", key(test_case), batch, test_case.workload.seq);
  if (wanted != reference_key_) reference_ = {};
  reference_key_ = wanted;
  ReferenceValues& reference = batch == few.batch ? known_of(test_case, few).reference : reference_;
  complete(reference, test_case, {batch, false}, results);
  return within_rounding(test_case, few, batch, results, [&](const Roundings& roundings) {
    return compare(results, reference, roundings, test_case.workload.dtype,
                   has_backward(test_case.pass));
  });
}

Comparison ParityGate::check_changed(const Case& test_case, int64_t batch,
                                     const NamedTensors& results) {
  const Inputs few = {distinct_samples(batch), true};
  ReferenceValues& reference = known_of(test_case, few).reference;
  complete(reference, test_case, few, results);
  const int64_t copies = batch / few.batch;
  return within_rounding(test_case, few, batch, results, [&](const Roundings& roundings) {
    Comparison all;
    for (int64_t copy = 0; copy < copies; ++copy) {
      const NamedTensors part = part_of(results, reference, copy, copies);
      if (part.empty()) break;  // nothing has a batch
      all.add(compare(part, reference, roundings, test_case.workload.dtype,
                      copy == 0 && has_backward(test_case.pass)));
    }
    return all;
  });
}

Comparison ParityGate::within_rounding(const Case& test_case, const Inputs& inputs, int64_t batch,
                                       const NamedTensors& results,
                                       const CompareWithin& compare_within) {
  const auto is_enough = [](const Comparison& comparison) {
    return comparison.passes() && comparison.unprovable.empty();
  };
  Comparison comparison =
      compare_within(of_batch(least_roundings(results), test_case.workload, inputs.batch, batch));
  if (is_enough(comparison)) return comparison;
  Known& known = known_of(test_case, inputs);
  complete(known.reference, test_case, inputs, results);
  for (const int runs : noisy_runs(known.reference)) {
    comparison = compare_within(roundings_of(known, runs, test_case, inputs, batch, results));
    if (is_enough(comparison)) break;
  }
  return comparison;
}

void ParityGate::complete(ReferenceValues& reference, const Case& test_case, const Inputs& inputs,
                          const NamedTensors& results) const {
  for (const Pass pass : {reference_pass(test_case), test_case.pass}) {
    if (!contains_all(reference, results))
      reference.merge(values_after_a_run(*build_baseline(test_case, inputs, pass, Dtype::f64)));
  }
}

Roundings ParityGate::roundings_of(Known& known, int runs, const Case& test_case,
                                   const Inputs& inputs, int64_t batch,
                                   const NamedTensors& results) const {
  Roundings& measured = known.roundings[{test_case.workload.dtype, runs}];
  for (const Pass pass : {reference_pass(test_case), test_case.pass}) {
    if (!contains_all(measured, results))
      measured.merge(measure_rounding(known.reference, runs, test_case, inputs, pass));
  }
  return of_batch(measured, test_case.workload, inputs.batch, batch);
}

std::unique_ptr<WorkItem> ParityGate::build_baseline(const Case& test_case, const Inputs& inputs,
                                                     Pass pass, Dtype dtype) const {
  Workload workload = test_case.workload;
  workload.variant = Variant();
  workload.dtype = dtype;
  workload.batch = inputs.batch;
  auto item = test_case.component->build(
      {workload, pass, seed_, device_.torch(), weights_, storage_type(test_case.workload.dtype)});
  if (inputs.are_changed) item->change_inputs(kChangedSeed, inputs.batch);
  return item;
}

// Runs that differ in their noise only. An error that all of them share does not add to the
// scatter, so that a baseline that is wrong in its dtype does not widen the tolerance.
Roundings ParityGate::measure_rounding(const ReferenceValues& reference, int runs,
                                       const Case& test_case, const Inputs& inputs,
                                       Pass pass) const {
  double roundoff = 0;
  std::map<std::string, std::vector<at::Tensor>> noisy;
  for (int i = 1; i <= runs; ++i) {
    const auto item = build_baseline(test_case, inputs, pass, test_case.workload.dtype);
    const NoisyRounding noise(seed_ + static_cast<uint64_t>(i), device_.torch());
    item->prepare();
    item->run();
    for (const auto& [name, tensor] : item->results())
      if (tensor.defined()) noisy[name].push_back(tensor.detach());
    roundoff = noise.largest_roundoff();
  }
  const double gradients = largest_gradient(reference);
  Roundings roundings;
  for (auto& [name, tensors] : noisy) {
    const std::vector<double>& expected = reference.at(name);
    const double scale = scale_of(name, reference, gradients);
    const auto relative = [&](double error) { return scale == 0 ? 0 : error / scale; };
    // NaN, wherever it comes from, stays
    at::Tensor lowest = as_doubles(tensors.front());
    at::Tensor highest = lowest;
    at::Tensor sum = lowest;
    for (size_t i = 1; i < tensors.size(); ++i) {
      const at::Tensor more = as_doubles(tensors[i]);
      lowest = at::minimum(lowest, more);
      highest = at::maximum(highest, more);
      sum = sum + more;
    }
    Rounding& rounding = roundings[name];
    rounding.roundoff = roundoff;
    rounding.scatter = relative(largest_error(values_of(lowest), values_of(highest), 2).relative);
    rounding.bias = relative(largest_error(values_of(sum / runs), expected, 1).relative);
  }
  return roundings;
}

}  // namespace tinyllama::harness
