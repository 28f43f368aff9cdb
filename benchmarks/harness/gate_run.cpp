#include "benchmarks/harness/gate_run.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "benchmarks/harness/timing.hpp"
#include "benchmarks/instruments/host_allocator.hpp"

namespace tinyllama::harness {
namespace {

using instruments::seconds_since;

bool shares_memory(const at::Tensor& tensor, const NamedTensors& others) {
  return std::any_of(others.begin(), others.end(),
                     [&](const auto& other) { return tensor.is_alias_of(other.second); });
}

void fill_with_nan(const NamedTensors& results, const NamedTensors& givens) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : results) {
    if (tensor.defined() && tensor.is_floating_point() && !shares_memory(tensor, givens))
      tensor.detach().fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace

NamedTensors copies_of(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors)
    copies.emplace_back(name, tensor.defined() ? tensor.detach().clone() : at::Tensor());
  return copies;
}

KeptValues::KeptValues(const WorkItem& item) {
  NamedTensors tensors = item.givens();
  append(tensors, item.parameters());
  append(tensors, item.optimizer_state());
  std::set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    Kept kept{tensor.detach(), std::make_unique<uint8_t[]>(tensor.nbytes()), {}};
    kept.values = at::from_blob(kept.bytes.get(), tensor.sizes(),
                                at::TensorOptions().dtype(tensor.scalar_type()));
    kept.values.copy_(kept.tensor);
    all_.push_back(std::move(kept));
  }
}

void KeptValues::put_back() const {
  for (const Kept& kept : all_) kept.tensor.copy_(kept.values);
}

GateRun run_for_gate(const instruments::Device& device, WorkItem& item) {
  item.prepare();
  device.synchronize();
  GateRun run;
  const auto start = instruments::Clock::now();
  {
    const instruments::host_allocator::NanFill unwritten;
    item.run();
  }
  if (!device.is_gpu()) run.seconds = seconds_since(start);
  // The small ones first: work that goes on behind the call has least time for them.
  const NamedTensors results = item.results();
  std::vector<size_t> order(results.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) {
    return results[i].second.defined() ? results[i].second.nbytes() : 0;
  });
  run.results.resize(results.size());
  for (const size_t i : order) run.results[i] = copies_of({results[i]}).front();
  device.synchronize();
  if (device.is_gpu()) run.seconds = seconds_since(start);
  return run;
}

void change_inputs(WorkItem& item, uint64_t seed, int64_t distinct) {
  fill_with_nan(item.results(), item.givens());
  item.change_inputs(seed, distinct);
}

std::string first_changed(const NamedTensors& tensors, const NamedTensors& copies) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!at::equal(tensors[i].second.detach(), copies.at(i).second)) return tensors[i].first;
  }
  return {};
}

std::string skipped_work(const instruments::Device& device, WorkItem& item, double usual_seconds,
                         double changed_seconds, const std::function<void()>& change) {
  // Work that is skipped is skipped almost as a whole. Warm caches alone make less difference than
  // this, and a busy machine hardly makes the fastest of several iterations longer.
  constexpr double most = 4;
  constexpr int pairs = 8;
  if (changed_seconds <= most * usual_seconds) return {};
  std::vector<double> as_before, changed;
  const auto time = [&](std::vector<double>& seconds) {
    seconds.push_back(time_until(device, item, nullptr, {.most_iterations = 1}).seconds.front());
  };
  for (int i = 0; i < pairs; ++i) {
    change();
    time(changed);
    // As much traffic through the caches as a change of inputs makes.
    for (const auto& [name, tensor] : item.givens()) static_cast<void>(tensor.detach().clone());
    time(as_before);
    if (changed.back() <= most * as_before.back()) return {};
  }
  const double ratio = *std::ranges::min_element(changed) / *std::ranges::min_element(as_before);
  if (ratio <= most) return {};
  return fmt::format(
      "work is skipped: an iteration takes {:.1f} times as long where its inputs have changed",
      ratio);
}

}  // namespace tinyllama::harness
