// The proof before the number: a case's results against the baseline evaluated in float64 on the
// same inputs and weights.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// Largest error allowed, relative to the largest magnitude of the tensor compared.
double tolerance(Dtype dtype);

struct Comparison {
  double max_rel_error = 0;
  std::string worst_tensor;  ///< and the index of its worst element
  int64_t compared_tensors = 0;
};

/// Values of one tensor of the reference, kept outside the allocator that serves and counts
/// tensors.
using ReferenceValues = std::map<std::string, std::vector<double>>;

/// Compares every result with the reference of its name. Throws std::logic_error when there is
/// nothing to compare, a result has no reference, or (`expect_gradients`) a gradient of the
/// reference is missing from the results.
Comparison compare(const NamedTensors& results, const ReferenceValues& reference,
                   bool expect_gradients);

/// Computes references, and keeps the last one: the plan runs all dtypes, variants and passes of a
/// shape in a row.
class ParityGate {
 public:
  /// `f64_flops_per_second`: of a reference; nothing: measured where it matters. `weights`: given
  /// to every reference, null: drawn from the seed; must outlive the gate.
  ParityGate(const instruments::Device& device, uint64_t seed,
             std::optional<double> f64_flops_per_second, const Weights* weights = nullptr);

  /// Batch at which a case is verified: its own (at least 2), halved down to 2 while the reference
  /// would take more than 30 s or, with its values and the case beside it, more memory than
  /// `free_bytes`. Nothing if the memory is too small even at 2.
  std::optional<int64_t> batch_for(const Case& test_case, int64_t free_bytes);

  /// Compares results computed at `batch` with the reference; throws as compare() does.
  Comparison check(const Case& test_case, int64_t batch, const NamedTensors& results);

 private:
  void compute_reference(const Case& test_case, int64_t batch, Pass pass);
  bool is_quick(int64_t flops);
  int64_t reference_bytes(const Case& reference) const;

  instruments::Device device_;
  uint64_t seed_;
  std::optional<double> f64_flops_per_second_;
  const Weights* weights_;
  std::string reference_key_;
  ReferenceValues reference_;
};

}  // namespace tinyllama::harness
