#include "benchmarks/training/range_emitter.hpp"

#include <torch/csrc/profiler/stubs/base.h>

#include <stdexcept>

namespace tinyllama::training {
namespace {

using torch::profiler::impl::ProfilerStubs;

// The GPU's where there is one: its ranges lie beside the kernels they launch.
const ProfilerStubs* range_stubs() {
  const ProfilerStubs* const gpu = torch::profiler::impl::cudaStubs();
  if (gpu->enabled()) return gpu;
  const ProfilerStubs* const itt = torch::profiler::impl::ittStubs();
  return itt->enabled() ? itt : nullptr;
}

std::unique_ptr<at::ObserverContext> push(const at::RecordFunction& range) {
  range_stubs()->rangePush(range.name());
  return nullptr;
}

void pop(const at::RecordFunction&, at::ObserverContext*) {
  range_stubs()->rangePop();
}

at::CallbackHandle add_callback() {
  if (range_stubs() == nullptr) {
    throw std::invalid_argument(
        "--emit-ranges: this libtorch was built without roctx, NVTX and ITT; use one that was, or "
        "leave the option out");
  }
  return at::addGlobalCallback(
      at::RecordFunctionCallback(&push, &pop).scopes({at::RecordScope::USER_SCOPE}));
}

}  // namespace

std::string RangeEmitter::available() {
  if (torch::profiler::impl::cudaStubs()->enabled()) return "roctx or NVTX";
  return torch::profiler::impl::ittStubs()->enabled() ? "ITT" : "";
}

RangeEmitter::RangeEmitter() : callback_(add_callback()) {}

RangeEmitter::~RangeEmitter() {
  at::removeCallback(callback_);
}

}  // namespace tinyllama::training
