// The element types of range kernels, without libtorch: files that are compiled for several
// instruction sets must share no inline function with others, or the linker could hand a function
// compiled for AVX-512 to everybody.
#pragma once

#include <stdint.h>

namespace tinyllama::kernels {

/// The upper half of a float32.
struct Bfloat16 {
  uint16_t bits;
};
/// IEEE 754 binary16.
struct Float16 {
  uint16_t bits;
};

template <class T>
struct ComputeTypeOf {
  using Type = float;
};
template <>
struct ComputeTypeOf<double> {
  using Type = double;
};
/// In which a range kernel computes on elements of type T, and keeps what it says of rows.
template <class T>
using ComputeType = typename ComputeTypeOf<T>::Type;

}  // namespace tinyllama::kernels
