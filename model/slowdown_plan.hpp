// What the environment asks to be slowed, and by how much.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tinyllama {

enum class Part : uint8_t;

/// The environment variable that is read.
inline constexpr const char* kSlowdownVariable = "TINY_LLAMA_SLOWDOWN";

/// Of each part that is slowed, the fraction of its own time that is added.
using SlowdownPlan = std::map<Part, double>;

/// "ffn:0.05,rotary:1" -> its plan; the empty text -> nothing is slowed. Parts: embedding,
/// rms_norm, rotary, attention, ffn, loss, optimizer; fractions: above 0, at most 10. Throws
/// std::invalid_argument that names the text and the rule it breaks.
SlowdownPlan parse_slowdown(std::string_view text);

}  // namespace tinyllama
