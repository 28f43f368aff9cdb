// Which of libtorch's operators, and of ours, compute matrix products.
#pragma once

#include <string_view>

namespace tinyllama::instruments {

/// Products whose FLOPs Kineto computes from their shapes.
bool is_counted_product(std::string_view name);
/// oneDNN's inner product of [m, k] and [n, k], for which Kineto has no formula.
bool is_onednn_product(std::string_view name);
/// Attention kernels: their products are the caller's to know (Cost::opaque_flops), because no
/// event tells how many of the masked scores a kernel leaves out.
bool is_attention_kernel(std::string_view name);
/// Operators that compute no products themselves: views, copies, element by element, reductions,
/// look-ups; and those that only call other operators, which have events of their own.
bool is_without_products(std::string_view name);
/// Operators that touch no element: views, allocations, and those that only call others. Their own
/// time is the library's, not the computation's.
bool is_dispatch_only(std::string_view name);

}  // namespace tinyllama::instruments
