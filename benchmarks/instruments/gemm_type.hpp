// The names of the types that products run in. Internal to the instruments.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace tinyllama::instruments {

/// Of "f64", "f32", "bf16" or "f16"; throws std::invalid_argument naming any other text.
c10::ScalarType parse_gemm_type(const std::string& type);

}  // namespace tinyllama::instruments
