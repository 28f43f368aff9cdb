// The division of rows over threads. Internal to the kernels.
#pragma once

#include <ATen/Config.h>
#include <ATen/Parallel.h>

#include <algorithm>

// at::parallel_for is a template of libtorch's headers and would silently run on one thread.
#if AT_PARALLEL_OPENMP && !defined(_OPENMP)
#error "compile with OpenMP: see CMakeLists.txt"
#endif

namespace tinyllama::kernels {

/// Below this many elements a second thread costs more than it saves.
inline constexpr int64_t kElementsPerThread = 16384;

/// body(begin, end) over all of [0, rows), by as many threads as `row_elements` a row are worth.
template <class Body>
void for_rows(int64_t rows, int64_t row_elements, const Body& body) {
  const int64_t grain =
      std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, row_elements));
  at::parallel_for(0, rows, grain, body);
}

/// How many parts for_parts makes; depends on nothing but sizes and the number of threads, so that
/// sums over parts are the same in every run.
inline int64_t part_count(int64_t rows, int64_t row_elements) {
  const int64_t wanted = rows * row_elements / kElementsPerThread;
  const int64_t most = std::min<int64_t>(at::get_num_threads(), rows);
  return std::max<int64_t>(1, std::min(wanted, most));
}

/// body(part, begin, end) for each part of [0, rows), one thread a part.
template <class Body>
void for_parts(int64_t parts, int64_t rows, const Body& body) {
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part)
      body(part, rows * part / parts, rows * (part + 1) / parts);
  });
}

}  // namespace tinyllama::kernels
