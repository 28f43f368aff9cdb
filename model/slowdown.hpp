// A chosen part of the model made slower by a known fraction, so that what a comparison detects can
// be measured. Builds without the CMake option TINY_LLAMA_WITH_SLOWDOWN, which is off by default,
// contain none of it: there slowed() only calls
// the part.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#ifdef TINY_LLAMA_WITH_SLOWDOWN
#include "model/slowdown_ledger.hpp"
#endif

namespace tinyllama {

/// What can be slowed; each is a component that the suite also times alone.
enum class Part : uint8_t { embedding, rms_norm, rotary, attention, ffn, loss, optimizer };

#ifdef TINY_LLAMA_WITH_SLOWDOWN

/// forward(), with as much further work as the environment asks of this part: after the forward a
/// fraction of the forward's time, and in the backward, once all gradients inside the part are
/// there, a fraction of the backward's (once for a graph). The further work is repeat(some...)
/// without gradients, where `some` are a few tokens of each of `tokenwise` ([B, S, ..], the first
/// of them the part's input). `repeat` must leave no trace, and what it refers to must live until
/// the backward. Throws std::invalid_argument for a value of the variable that is against its rules
/// (parse_slowdown) and for tensors that are not on the CPU.
template <typename Forward, typename Repeat, typename... Tokenwise>
at::Tensor slowed_as(Part part, const Forward& forward, const Repeat& repeat,
                     const at::Tensor& input, const Tokenwise&... tokenwise) {
  if (!slowdown::is_slowed(part)) return forward();
  return slowdown::run_layer(part, input, forward, [=] {
    repeat(slowdown::some_tokens(input), slowdown::some_tokens(tokenwise)...);
  });
}

/// The same where the part itself, forward(tokenwise...), is what is repeated.
template <typename Forward, typename... Tokenwise>
at::Tensor slowed(Part part, const Forward& forward, const Tokenwise&... tokenwise) {
  return slowed_as(
      part, [&] { return forward(tokenwise...); }, forward, tokenwise...);
}

/// The same of work without a backward, on tensors of which `input` is one.
template <typename Work, typename Repeat>
void slowed_update(Part part, const at::Tensor& input, const Work& work, const Repeat& repeat) {
  if (!slowdown::is_slowed(part)) return work();
  slowdown::run_update(part, input, work, repeat);
}

/// Empty, or why a variant with this switch cannot be slowed. Throws std::invalid_argument as
/// slowed() does: before anything runs, where it is asked while cases are planned.
std::string refuse_slowdown(bool is_gpu, bool checkpoint);

#else

template <typename Forward, typename Repeat, typename... Tokenwise>
inline at::Tensor slowed_as(Part /*part*/, const Forward& forward, const Repeat& /*repeat*/,
                            const Tokenwise&... /*tokenwise*/) {
  return forward();
}

template <typename Forward, typename... Tokenwise>
inline at::Tensor slowed(Part /*part*/, const Forward& forward, const Tokenwise&... tokenwise) {
  return forward(tokenwise...);
}

template <typename Work, typename Repeat>
inline void slowed_update(Part /*part*/, const at::Tensor& /*input*/, const Work& work,
                          const Repeat& /*repeat*/) {
  work();
}

inline std::string refuse_slowdown(bool /*is_gpu*/, bool /*checkpoint*/) {
  return {};
}

#endif

}  // namespace tinyllama
