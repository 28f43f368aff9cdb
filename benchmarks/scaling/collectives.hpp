// The collectives that data-parallel training is made of, proved and timed over message sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/scaling/rows.hpp"

namespace tinyllama::scaling {

enum class Collective { all_reduce, reduce_scatter, all_gather };
std::string_view to_string(Collective collective);

/// Bytes from 1 KiB on in steps of 4 up to `largest`, and each of `bucket_bytes` up to it; sorted,
/// each once. All are multiples of `granularity`, rounded up.
std::vector<int64_t> message_sizes(int64_t largest, const std::vector<int64_t>& bucket_bytes,
                                   int64_t granularity);

/// Bus bandwidth over algorithm bandwidth, as nccl-tests defines it (its PERFORMANCE.md): what each
/// link has to carry, so that it can be held against the hardware's, whatever the number of ranks.
double bus_factor(Collective collective, int ranks);

/// Proves and measures the collectives that the options name, and adds their rows to the results
/// after every round; none for a world of one. Bytes are those of the whole vector: what every rank
/// has (all_reduce), gives (reduce_scatter) or gets (all_gather). Returns, on all ranks the same,
/// what is wrong with a collective's result; empty where nothing is.
std::string measure_collectives(const ScalingOptions& options, ProcessGroup& group,
                                console::Progress& progress,
                                const std::vector<int64_t>& bucket_bytes, ScalingResults& results);

}  // namespace tinyllama::scaling
