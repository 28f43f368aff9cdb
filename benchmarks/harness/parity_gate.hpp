// The parity gate: compares a case's results with the baseline evaluated in float64 on the same
// inputs and weights. What rounding alone does to the baseline's results sets the tolerance.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// Values of one tensor of the reference, kept outside the allocator that serves and counts
/// tensors.
using ReferenceValues = std::map<std::string, std::vector<double>>;

/// What rounding alone does to a tensor, relative to its scale (as errors are): measured on runs of
/// the baseline in the case's dtype under NoisyRounding.
struct Rounding {
  double scatter = 0;   ///< half of the largest difference between the runs
  double bias = 0;      ///< largest difference of the runs' mean from the reference
  double roundoff = 0;  ///< of the narrowest type that any result had
};
using Roundings = std::map<std::string, Rounding>;

/// Results beside what they should be. Errors are relative to the largest magnitude of the tensor,
/// for a gradient that is 0 everywhere to that of the largest gradient.
struct Comparison {
  double max_rel_error = 0;
  /// The tensor farthest off for what it is allowed, with the index of its worst element.
  std::string worst_tensor;
  double error = 0;
  double allowed = 0;
  double scatter = 0;   ///< of rounding alone, which `allowed` is derived from
  double scatters = 0;  ///< how many times `scatter` is allowed
  int64_t compared_tensors = 0;
  /// Why nothing can be proved in this dtype: rounding alone changes the results too much. Empty
  /// where they can be proved.
  std::string unprovable;

  bool passes() const { return error <= allowed; }
  /// Keeps the worse of the two.
  void add(const Comparison& other);
  /// In words, by how much it does not pass.
  std::string failure(Dtype dtype) const;
};

/// Compares every result with the reference of its name. Throws std::logic_error when there is
/// nothing to compare, a result has no reference, or (`expect_gradients`) a gradient of the
/// reference is missing from the results.
Comparison compare(const NamedTensors& results, const ReferenceValues& reference,
                   const Roundings& roundings, Dtype dtype, bool expect_gradients);

/// Computes references, and keeps the last one, because the plan runs all dtypes, variants and
/// passes of a shape in a row. The effect of rounding in each dtype is measured with two samples
/// and serves all batches of that sequence length: relative to a tensor's scale, it does not grow
/// with the number of samples. Further noisy runs are made only for a result that does not pass
/// yet: they can only widen the tolerance, so that what passes early would also pass in the end.
class ParityGate {
 public:
  /// `f64_flops_per_second`: the rate at which references are computed; nothing: measured when it
  /// is needed. `weights`: those of every reference; null: drawn from the seed. They must outlive
  /// the gate.
  ParityGate(const instruments::Device& device, uint64_t seed,
             std::optional<double> f64_flops_per_second, const Weights* weights = nullptr);

  /// Batch at which a case is verified: its own (at least 2), halved down to 2 while the reference
  /// would take more than 30 s or, with its values and the case beside it, more memory than
  /// `free_bytes`. Nothing if the memory is too small even at 2.
  std::optional<int64_t> batch_for(const Case& test_case, int64_t free_bytes);

  /// Compares results computed at `batch` with the reference; throws as compare() does.
  Comparison check(const Case& test_case, int64_t batch, const NamedTensors& results);

  /// Compares results of inputs that change_inputs(kChangedSeed, distinct_samples(batch)) gave:
  /// each copy of the distinct samples with their reference, and gradients of weights with as many
  /// times theirs as there are copies, except where the result is a loss, which is a mean.
  Comparison check_changed(const Case& test_case, int64_t batch, const NamedTensors& results);
  static constexpr uint64_t kChangedSeed = 20'240'229;

 private:
  /// Which inputs results are of: those that the build made, or changed ones.
  struct Inputs {
    int64_t batch;
    bool are_changed;
  };
  /// What is known for a few samples of one sequence length.
  struct Known {
    ReferenceValues reference;
    /// By dtype and number of noisy runs.
    std::map<std::pair<Dtype, int>, Roundings> roundings;
  };
  std::string key(const Case& test_case) const;
  Known& known_of(const Case& test_case, const Inputs& inputs);
  /// Adds the values for those results that `reference` lacks.
  void complete(ReferenceValues& reference, const Case& test_case, const Inputs& inputs,
                const NamedTensors& results) const;
  /// Compares within what few noisy runs on `inputs` scatter, and then within what more of them do,
  /// until it passes.
  using CompareWithin = std::function<Comparison(const Roundings&)>;
  Comparison within_rounding(const Case& test_case, const Inputs& inputs, int64_t batch,
                             const NamedTensors& results, const CompareWithin& compare_within);
  /// Makes the noisy runs that `known` lacks, and returns what they say, scaled to the batch.
  Roundings roundings_of(Known& known, int runs, const Case& test_case, const Inputs& inputs,
                         int64_t batch, const NamedTensors& results) const;
  std::unique_ptr<WorkItem> build_baseline(const Case& test_case, const Inputs& inputs, Pass pass,
                                           Dtype dtype) const;
  Roundings measure_rounding(const ReferenceValues& reference, int runs, const Case& test_case,
                             const Inputs& inputs, Pass pass) const;
  bool is_quick(int64_t flops);
  int64_t reference_bytes(const Case& reference) const;
  bool has_host_memory(const Case& reference) const;

  instruments::Device device_;
  uint64_t seed_;
  std::optional<double> f64_flops_per_second_;
  const Weights* weights_;
  ReferenceValues reference_;
  std::string reference_key_;
  std::map<std::string, Known> known_;
  std::string known_key_;
};

}  // namespace tinyllama::harness
