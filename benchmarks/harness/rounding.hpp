// How far off a correct program may be in some precision, found without any kernel of that
// precision: operators compute in a wider type, and each result is rounded to the type it would
// have, with seeded noise (Monte Carlo arithmetic: D. S. Parker, 1997).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace tinyllama::harness {

/// Half a step between neighbouring values, relative to them; 0 for types that are not narrower
/// than float64.
double unit_roundoff(c10::ScalarType type);

class RoundingNoise;

/// Within its scope, also in backwards that begin there, every operator on tensors of float32,
/// bfloat16 or float16 computes in float64, or for the last two in float32, and rounds its result
/// to its own type, after moving each element by up to one unit roundoff at random. Views and
/// operators on float64 are left alone.
class NoisyRounding {
 public:
  NoisyRounding(uint64_t seed, c10::Device device);

  /// Unit roundoff of the narrowest type that a result was rounded to; 0 if none was.
  double largest_roundoff() const;

 private:
  explicit NoisyRounding(std::shared_ptr<RoundingNoise> noise);

  std::shared_ptr<RoundingNoise> noise_;
  c10::DebugInfoGuard listening_;
  c10::impl::IncludeDispatchKeyGuard included_;
};

}  // namespace tinyllama::harness
