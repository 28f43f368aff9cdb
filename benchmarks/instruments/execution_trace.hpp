// Execution traces of libtorch's own observer: every operator of some work as a node of a graph,
// with shapes, strides, types and tensors, in the JSON that MLCommons Chakra reads.
#pragma once

#include <filesystem>
#include <functional>

namespace tinyllama::instruments {

/// Runs the work and writes its trace, whole or not at all. On a GPU the work has to synchronise
/// by itself. libtorch has one observer a process: one trace at a time. Throws what the work
/// throws, and std::runtime_error that names the path and the cause, a full disk included.
void record_execution_trace(const std::filesystem::path& file, const std::function<void()>& work);

}  // namespace tinyllama::instruments
