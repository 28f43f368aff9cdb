// From options to the list of cases: the default grid, or the axes that the user named.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/console/named_sizes.hpp"
#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "model/config.hpp"
#include "model/step_gemms.hpp"
#include "model/variant.hpp"

namespace tinyllama::harness {

/// Name under which --components selects the device's peaks.
inline constexpr const char* kPeakComponent = "peak";

/// A row that measures the machine: peak/bandwidth, peak/gemm/<type>, or, with the shape of a
/// GEMM of the model, peak/gemm/<type>/1024x256x512.
struct PeakCase {
  std::string name;
  std::string type;  ///< of the GEMMs; empty: bandwidth
  std::optional<GemmShape> shape{};
};

struct Plan {
  std::vector<Case> cases;
  /// Types of GEMMs ("f32", "bf16", ...) that the cases run: their peaks are the denominators.
  std::vector<std::string> gemm_types;
  /// When they were asked for. `--components peak` with a size, batch or sequence: also every
  /// GEMM of the training step there.
  std::vector<PeakCase> peak_cases;
  /// Of sequences that are longer than those a size's config.json was made for.
  std::vector<std::string> warnings{};
  /// The models that one rank's share is measured of, by the names of the shares' sizes.
  std::map<std::string, ModelConfig> wholes{};

  /// Each type of GEMMs that its rows are of, with the shapes that its cases run; the largest
  /// traffic of a case, or memory's where a row is of it.
  instruments::PeaksNeeded peaks_needed() const;
};

/// --exclude, and Google Benchmark's filter: an extended regular expression searched for in the
/// name; a leading '-' inverts it.
class NameFilter {
 public:
  /// Throws std::invalid_argument that names option and value for what is no such expression.
  explicit NameFilter(const Options& options);
  bool keeps(const std::string& name) const {
    return finds_(name) != inverted_ && !(excludes_ && excludes_(name));
  }

 private:
  bool inverted_;
  std::function<bool(const std::string&)> finds_;
  std::function<bool(const std::string&)> excludes_;
};

/// Throws std::invalid_argument naming the value and the rule for an unknown size, an impossible
/// workload, an invalid filter, or when nothing is left to run.
/// `traits`: of the device that the cases are for; it says what `optimized` stands for in each, and
/// which variants are refused.
Plan make_plan(const Options& options, const std::vector<Component>& components,
               const console::NamedSizes& sizes, const DeviceTraits& traits);

/// The dimensions behind a size's name, and the features it has (console::features_of).
nlohmann::ordered_json dimensions_of(const ModelConfig& config);

/// Those behind the name of each size of the plan, of which `custom` says none; of one rank's share
/// also the model's that it is of.
nlohmann::ordered_json sizes_of(const Options& options, const Plan& plan);

}  // namespace tinyllama::harness
