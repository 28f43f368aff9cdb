#include "benchmarks/instruments/operator_counter.hpp"

#include <ATen/record_function.h>

#include <atomic>
#include <memory>

namespace tinyllama::instruments {
namespace {

/// Operators seen so far. libtorch calls back through a plain function pointer, which leaves no
/// other place to count; because the count only grows, each user takes a difference and nobody has
/// to reset it.
std::atomic<int64_t>& operators_seen() {
  static std::atomic<int64_t> count{0};
  return count;
}

std::unique_ptr<at::ObserverContext> count_one(const at::RecordFunction&) {
  operators_seen().fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

/// The callback for as long as this object lives, also when the work throws.
class Registration {
 public:
  Registration()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&count_one).scopes({at::RecordScope::FUNCTION}))) {}
  ~Registration() { at::removeCallback(handle_); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace

int64_t count_operators(const std::function<void()>& work) {
  const Registration registration;
  const int64_t before = operators_seen().load(std::memory_order_relaxed);
  work();
  return operators_seen().load(std::memory_order_relaxed) - before;
}

}  // namespace tinyllama::instruments
