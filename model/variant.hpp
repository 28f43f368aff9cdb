// Variant: the set of switches that choose an implementation of each part. The empty set is the
// baseline.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tinyllama {

/// So far only the baseline exists, the empty set. A switch becomes a member here, a name in
/// parse() and name(), and a branch in the layer that it changes; plan, names, gate and cost
/// already carry the variant.
class Variant {
 public:
  /// The baseline.
  Variant() = default;

  /// "baseline". Throws std::invalid_argument naming the text and the known variants.
  static Variant parse(std::string_view text);

  /// The baseline, every switch alone and every named set: what a proof has to hold for.
  static std::vector<Variant> all();

  /// The spelling that parse() reads.
  std::string name() const;

  auto operator<=>(const Variant&) const = default;
};

}  // namespace tinyllama
