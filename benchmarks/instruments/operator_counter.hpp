// How many operators the dispatcher runs for a piece of work.
#pragma once

#include <cstdint>
#include <functional>

namespace tinyllama::instruments {

/// Operators that pass through libtorch's dispatcher while `work` runs, on any thread, those that
/// other operators call included.
int64_t count_operators(const std::function<void()>& work);

}  // namespace tinyllama::instruments
