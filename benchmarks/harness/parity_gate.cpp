#include "benchmarks/harness/parity_gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "benchmarks/instruments/peaks.hpp"
#include "model/relative_error.hpp"
#include "model/step_gemms.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kMaxReferenceSeconds = 30.0;
// Any machine is faster with float64.
constexpr double kSlowestFlopsPerSecond = 1e9;
constexpr int64_t kSmallestBatch = 2;
constexpr std::string_view kGradientPrefix = "gradient of ";

// The pass whose reference holds what every other pass of the component computes, as far as one
// does.
Pass reference_pass(const Case& test_case) {
  const auto& passes = test_case.component->passes;
  const bool has = std::find(passes.begin(), passes.end(), Pass::forward_backward) != passes.end();
  return has ? Pass::forward_backward : test_case.pass;
}

double to_double(int64_t count) {
  return static_cast<double>(count);
}

bool contains_all(const ReferenceValues& reference, const NamedTensors& results) {
  return std::all_of(results.begin(), results.end(),
                     [&](const auto& named) { return reference.contains(named.first); });
}

}  // namespace

// Unit roundoff u of float32 is 6e-8, of bfloat16 2e-3 (8 bits), of float16 5e-4 (11 bits). A
// result passes through a few dozen roundings (GEMMs accumulate wider than they store), whose
// errors add up to a few dozen u of the largest element; a wrong term is far larger.
double tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return 1e-10;
    case Dtype::f32:
      return 2e-5;
    case Dtype::bf16:
    case Dtype::amp_bf16:
      return 5e-2;
    case Dtype::f16:
    case Dtype::amp_f16:
      return 1e-2;
  }
  throw std::logic_error("tolerance: a dtype without one");
}

Comparison compare(const NamedTensors& results, const ReferenceValues& reference,
                   bool expect_gradients) {
  Comparison comparison;
  std::set<std::string> compared;
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
    const LargestError worst = largest_error(values_of(doubles), expected->second);
    if (worst.relative > comparison.max_rel_error) {
      comparison.max_rel_error = worst.relative;
      comparison.worst_tensor = fmt::format("{}[{}]", name, worst.index);
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

// A sample of a fifth of a second is good enough to plan with, and only long references need it.
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

std::optional<int64_t> ParityGate::batch_for(const Case& test_case, int64_t free_bytes) {
  Case reference = test_case;
  reference.workload.variant = Variant();
  reference.workload.dtype = Dtype::f64;
  reference.pass = reference_pass(test_case);
  for (int64_t batch = std::max(test_case.workload.batch, kSmallestBatch);;) {
    reference.workload.batch = batch;
    reference.known_memory.reset();
    const bool fits = reference_bytes(reference) + test_case.memory().peak() <= free_bytes;
    if (fits && is_quick(reference.cost().hardware_flops)) return batch;
    if (batch == kSmallestBatch) return fits ? std::optional(batch) : std::nullopt;
    batch = std::max(kSmallestBatch, batch / 2);
  }
}

Comparison ParityGate::check(const Case& test_case, int64_t batch, const NamedTensors& results) {
  std::string key = fmt::format("{}/{}/{}/{}", test_case.component->name, test_case.size, batch,
                                test_case.workload.seq);
  // Drawn weights are exact in every type; given ones are rounded to the case's own.
  if (weights_ != nullptr)
    key += fmt::format("/{}", c10::toString(storage_type(test_case.workload.dtype)));
  if (key != reference_key_) {
    reference_.clear();
    reference_key_.clear();
    compute_reference(test_case, batch, reference_pass(test_case));
    reference_key_ = key;
  }
  if (!contains_all(reference_, results)) compute_reference(test_case, batch, test_case.pass);
  return compare(results, reference_, has_backward(test_case.pass));
}

void ParityGate::compute_reference(const Case& test_case, int64_t batch, Pass pass) {
  Workload workload = test_case.workload;
  workload.variant = Variant();
  workload.dtype = Dtype::f64;
  workload.batch = batch;
  const auto item = test_case.component->build(
      {workload, pass, seed_, device_.torch(), weights_, storage_type(test_case.workload.dtype)});
  item->prepare();
  item->run();
  for (const auto& [name, tensor] : item->results()) reference_[name] = to_values(tensor);
}

}  // namespace tinyllama::harness
