#include "benchmarks/scaling/step_proof.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "benchmarks/distributed/fingerprint.hpp"
#include "model/relative_error.hpp"

namespace tinyllama::scaling {
namespace {

// Sums in another order differ by rounding: some hundred units in the last place of the type.
double allowed_error(Dtype dtype) {
  switch (storage_type(dtype)) {
    case c10::ScalarType::BFloat16:
      return 2e-2;
    case c10::ScalarType::Half:
      return 5e-3;
    default:
      return uses_autocast(dtype) ? 2e-2 : 1e-5;
  }
}

// A gradient's rounding counts for more in its update, the steepest where the gradient is small.
constexpr double kUpdateFactor = 30;

using Values = std::vector<double>;

std::vector<Values> values_of(const NamedTensors& parameters) {
  std::vector<Values> values;
  for (const auto& [name, parameter] : parameters) values.push_back(to_values(parameter));
  return values;
}

double unit_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::BFloat16:
      return 0x1p-7;
    case c10::ScalarType::Half:
      return 0x1p-10;
    default:
      return 0x1p-23;
  }
}

// How far two ways of changing the same weights are apart, relative to the largest change, beyond
// one unit in the last place of each weight; infinite where only the first changes any, or where
// one is not finite.
double change_error(const Values& before, const at::Tensor& first, const at::Tensor& second) {
  const Values one = to_values(first);
  const Values other = to_values(second);
  const double unit = unit_of(second.scalar_type());
  double beyond = 0;
  double largest = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double apart = std::abs(one.at(i) - other.at(i));
    if (!std::isfinite(apart)) return std::numeric_limits<double>::infinity();
    beyond = std::max(beyond, apart - unit * std::abs(other.at(i)));
    largest = std::max(largest, std::abs(other.at(i) - before[i]));
  }
  if (beyond <= 0) return 0;
  return largest > 0 ? beyond / largest : std::numeric_limits<double>::infinity();
}

struct Worst {
  double error = 0;
  std::string name;

  void add(const std::string& tensor, double found) {
    if (found <= error) return;
    error = found;
    name = tensor;
  }
};

std::vector<at::Tensor> gradients_of(const NamedTensors& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) gradients.push_back(parameter.grad().clone());
  return gradients;
}

// All ranks take rank 0's word, which alone has compared.
std::string shared_failure(distributed::ProcessGroup& group, const std::string& name,
                           const std::string& mine) {
  return group.gather_texts(name, mine).front();
}

}  // namespace

StepProof prove_step(StepSession& session, const ScalingOptions& options,
                     distributed::ProcessGroup& group) {
  StepProof proof;
  Worst worst;
  std::vector<at::Tensor> expected;
  group.enter("proof of the step");
  session.clear_gradients();
  session.compute_global_gradients();
  if (group.is_first()) {
    expected = gradients_of(session.parameters());
  }
  for (const StepMode mode : {StepMode::no_overlap, StepMode::overlap}) {
    session.clear_gradients();
    session.attach(mode);
    session.compute_gradients();
    session.detach();
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto& [name, parameter] = session.parameters()[i];
      worst.add("gradient of " + name,
                largest_error(to_values(parameter.grad()), to_values(expected[i])).relative);
    }
  }
  expected.clear();
  proof.max_rel_error = group.number_of_first(worst.error);
  std::string wrong;
  if (worst.error > allowed_error(options.dtype)) {
    wrong = fmt::format(
        "wrong result: {}, summed over {} ranks, differs from one process with all samples by "
        "{:.3g} "
        "of its largest magnitude, allowed are {:g}",
        worst.name, group.size(), worst.error, allowed_error(options.dtype));
  }
  proof.failure = shared_failure(group, "gradients proved", wrong);
  if (!proof.failure.empty()) return proof;
  session.update();
  proof.failure = distributed::differing_ranks(group, "weights proved", session.parameters());
  if (!proof.failure.empty() || !options.shard_optimizer) return proof;

  const std::vector<Values> before = values_of(session.sharded_parameters());
  session.attach(StepMode::sharded);
  session.run_sharded();
  session.detach();
  const NamedTensors sharded = session.sharded_parameters();
  proof.failure = distributed::differing_ranks(group, "sharded weights proved", sharded);
  if (!proof.failure.empty()) return proof;
  for (size_t i = 0; i < sharded.size() && group.is_first(); ++i) {
    const auto& [name, parameter] = session.parameters()[i];
    const double error = change_error(before[i], sharded[i].second, parameter);
    proof.sharded_error = std::max(proof.sharded_error, error);
    if (error > kUpdateFactor * allowed_error(options.dtype)) {
      wrong = fmt::format(
          "wrong result: one step of a sharded optimizer changes {} otherwise than that of a whole "
          "one, by {:.3g} of its largest change, allowed are {:g}",
          name, error, kUpdateFactor * allowed_error(options.dtype));
    }
  }
  proof.sharded_error = group.number_of_first(proof.sharded_error);
  proof.failure = shared_failure(group, "sharded step proved", wrong);
  return proof;
}

}  // namespace tinyllama::scaling
