// Which of oneDNN's implementations compute: it chooses by shapes and processor, and bfloat16
// without units for it may run fifteen times slower than float32.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tinyllama::instruments {

/// The implementations in what oneDNN says of itself (ONEDNN_VERBOSE=1), the one with most time
/// first, each once: "matmul brg_matmul:avx512_core_bf16". Conversions of layout (reorder) are left
/// out.
std::vector<std::string> onednn_kernels_in(const std::string& verbose);

/// Runs `work` once while oneDNN talks, catches its words from standard output, and returns
/// onednn_kernels_in() them. Empty without oneDNN, where it computes nothing, where the user
/// listens himself (ONEDNN_VERBOSE, DNNL_VERBOSE), and where standard output cannot be caught. Not
/// for timing. What `work` throws goes through.
std::vector<std::string> onednn_kernels(const std::function<void()>& work);

}  // namespace tinyllama::instruments
