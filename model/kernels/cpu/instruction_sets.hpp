// Which range kernels run on this processor.
#pragma once

#include <vector>

#include "model/kernels/cpu/range_kernels.hpp"

namespace tinyllama::kernels {

/// Those of the best instruction set that this processor has and ATEN_CPU_CAPABILITY, which limits
/// libtorch's kernels, allows.
const RangeKernels& range_kernels();
/// All that can run here, the best first.
const std::vector<RangeKernels>& available_range_kernels();

}  // namespace tinyllama::kernels
