#include "benchmarks/instruments/operator_profile.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>

#include "benchmarks/instruments/kineto_session.hpp"
#include "benchmarks/instruments/operator_kinds.hpp"

namespace tinyllama::instruments {
namespace {

using torch::autograd::profiler::KinetoEvent;

// Operators are named <namespace>::<name>. Nodes of the autograd graph have no namespace, or the
// engine's own.
bool is_operator(std::string_view name) {
  return name.find("::") != std::string_view::npos && !name.starts_with("autograd::") &&
         !name.starts_with("torch::autograd::");
}

int64_t onednn_flops(const KinetoEvent& event) {
  const auto shapes = event.shapes();
  if (shapes.size() < 2 || shapes[0].size() != 2 || shapes[1].size() != 2) return 0;
  return 2 * shapes[0][0] * shapes[0][1] * shapes[1][0];
}

// A product inside a product is the same one: autocast casts the operands of aten::bmm and calls
// aten::bmm again, and both are recorded.
int64_t sum_outermost(std::vector<const KinetoEvent*> products) {
  std::ranges::sort(products, [](const KinetoEvent* a, const KinetoEvent* b) {
    return std::tuple(a->startThreadId(), a->startNs(), b->endNs()) <
           std::tuple(b->startThreadId(), b->startNs(), a->endNs());
  });
  int64_t flops = 0;
  const KinetoEvent* outer = nullptr;
  for (const KinetoEvent* event : products) {
    const bool is_inside = outer != nullptr && event->startThreadId() == outer->startThreadId() &&
                           event->endNs() <= outer->endNs();
    if (is_inside) continue;
    flops += static_cast<int64_t>(event->flops());
    outer = event;
  }
  return flops;
}

}  // namespace

OperatorProfile profile_operators(const Device& device, const std::function<void()>& work) {
  KinetoSession session(device, {.shapes = true, .flops = true});
  work();
  const auto result = session.stop();
  OperatorProfile profile;
  if (device.is_gpu()) profile.kernels = 0;
  std::set<std::string> unknown;
  std::vector<const KinetoEvent*> products;
  for (const KinetoEvent& event : result->events()) {
    if (is_kernel(event, device)) ++*profile.kernels;
    if (event.deviceType() != c10::DeviceType::CPU) continue;
    const std::string name = event.name();
    if (is_counted_product(name)) {
      products.push_back(&event);
    } else if (is_onednn_product(name)) {
      profile.product_flops += onednn_flops(event);
    } else if (is_operator(name) && !is_without_products(name) && !is_attention_kernel(name)) {
      unknown.insert(name);
    }
  }
  profile.product_flops += sum_outermost(std::move(products));
  profile.unknown_operators.assign(unknown.begin(), unknown.end());
  return profile;
}

}  // namespace tinyllama::instruments
