#include "benchmarks/scaling/step_proof.hpp"

#include <fmt/format.h>

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

  session.attach(StepMode::sharded);
  session.run_sharded();
  session.detach();
  const NamedTensors sharded = session.sharded_parameters();
  proof.failure = distributed::differing_ranks(group, "sharded weights proved", sharded);
  if (!proof.failure.empty()) return proof;
  for (size_t i = 0; i < sharded.size() && group.is_first(); ++i) {
    const auto& [name, parameter] = session.parameters()[i];
    const double error = largest_error(to_values(sharded[i].second), to_values(parameter)).relative;
    if (error > allowed_error(options.dtype)) {
      wrong = fmt::format(
          "wrong result: after one step of a sharded optimizer {} differs from that of a whole one "
          "by "
          "{:.3g} of its largest magnitude, allowed are {:g}",
          name, error, allowed_error(options.dtype));
    }
  }
  proof.failure = shared_failure(group, "sharded step proved", wrong);
  return proof;
}

}  // namespace tinyllama::scaling
