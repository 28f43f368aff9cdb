// Every operator of the fake GPU: the CPU's kernel over the same memory, launched on the current
// stream. Few have a kernel of their own: what allocates, views and copies.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/fakes/gpu/fake_gpu.hpp"
#include "tests/fakes/gpu/host_tensors.hpp"

namespace fake_gpu {
namespace {

using Values = std::vector<c10::IValue>;

// What looks at a value on the host, and so waits for it.
const std::set<std::string> kWaiting = {"aten::_local_scalar_dense", "aten::is_nonzero",
                                        "aten::nonzero", "aten::masked_select", "aten::equal"};

const std::set<std::string> kOfBlas = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// The one device of all GPU tensors; the current one where there are none. Beside them only single
/// numbers may be on the CPU.
c10::DeviceIndex device_of(const std::string& name, const Values& arguments) {
  std::optional<c10::DeviceIndex> device;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      TORCH_CHECK(tensor.is_cuda() || tensor.dim() == 0,
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "cuda and cpu (",
                  name, ")");
      if (!tensor.is_cuda()) return;
      TORCH_CHECK(!device || *device == tensor.get_device(),
                  "Expected all tensors to be on the same device, but found at least two devices (",
                  name, ")");
      device = tensor.get_device();
    });
    if (argument.isDevice() && argument.toDevice().is_cuda() && argument.toDevice().has_index() &&
        !device) {
      device = argument.toDevice().index();
    }
  }
  return device.value_or(current_device());
}

/// A GPU's softmax takes float16 and gives float32, and backward the other way; the CPU's computes
/// in float32 then. Returns where the result goes that is of another type; undefined where none is.
at::Tensor widen_softmax(const std::string& name, Values& arguments) {
  const bool is_forward = name == "aten::_softmax" || name == "aten::_log_softmax";
  const bool is_backward =
      name == "aten::_softmax_backward_data" || name == "aten::_log_softmax_backward_data";
  if (is_forward && arguments[2].toBool()) {
    arguments[0] = arguments[0].toTensor().to(at::kFloat);
    arguments[2] = false;
  }
  if (!is_backward || arguments[3].toScalarType() != at::kHalf ||
      arguments[0].toTensor().scalar_type() != at::kFloat) {
    return {};
  }
  arguments[3] = at::kFloat;
  at::Tensor narrow;
  if (arguments.size() > 4) {
    narrow = arguments[4].toTensor();
    arguments[4] = at::empty(narrow.sizes(), narrow.options().dtype(at::kFloat));
  }
  return narrow;
}

Values run_on_host(const c10::OperatorHandle& op, const Values& given) {
  Values arguments = given;
  const at::Tensor narrow = widen_softmax(op.schema().name(), arguments);
  torch::jit::Stack stack;
  for (const auto& argument : arguments) {
    const bool is_gpu = argument.isDevice() && argument.toDevice().is_cuda();
    stack.push_back(is_gpu ? c10::IValue(c10::Device(c10::kCPU)) : argument);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  if (narrow.defined()) narrow.copy_(stack.back().toTensor());
  return {stack.end() - static_cast<std::ptrdiff_t>(op.schema().returns().size()), stack.end()};
}

void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<size_t>(at::detail::computeStorageNbytes(
      sizes, strides, tensor.element_size(), static_cast<size_t>(tensor.storage_offset())));
  if (bytes > storage->nbytes()) {
    const c10::DeviceGuard guard(tensor.device());
    c10::DataPtr larger = allocator().allocate(bytes);
    if (storage->nbytes() > 0) std::memcpy(larger.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(bytes);
  }
  impl->set_sizes_and_strides(sizes, strides, tensor.storage_offset());
}

/// A CPU tensor of the same shape that is all 0, for a trial that must neither see nor change
/// anything.
at::Tensor zeros_like_on_host(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor zeros =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
  std::memset(zeros.mutable_data_ptr(), 0, zeros.storage().nbytes());
  return zeros;
}

Values try_out(const c10::OperatorHandle& op, const Values& arguments) {
  Values zeros;
  for (const auto& argument : arguments)
    zeros.push_back(with_tensors(argument, zeros_like_on_host));
  return run_on_host(op, zeros);
}

/// An empty tensor to write to takes the size of what is written.
void resize_outputs(const c10::OperatorHandle& op, const Values& arguments) {
  const auto& schema = op.schema();
  bool has_empty = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_empty = writes(schema.arguments()[i]) && arguments[i].isTensor() &&
                          arguments[i].toTensor().defined() && arguments[i].toTensor().numel() == 0;
    has_empty = has_empty || is_empty;
  }
  if (!has_empty) return;
  const Values results = try_out(op, arguments);
  for (size_t r = 0; r < results.size(); ++r) {
    const auto* const alias = schema.returns()[r].alias_info();
    for (size_t i = 0; alias != nullptr && i < arguments.size(); ++i) {
      const auto* const info = schema.arguments()[i].alias_info();
      if (info == nullptr || *info != *alias || !arguments[i].isTensor()) continue;
      const at::Tensor& wanted = results[r].toTensor();
      if (arguments[i].toTensor().numel() == 0)
        resize(arguments[i].toTensor(), wanted.sizes(), wanted.strides());
    }
  }
}

/// What the operator returns of what it was given: the argument that it wrote to.
c10::IValue written_argument(const c10::FunctionSchema& schema, const c10::Argument& result,
                             const Values& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* const info = schema.arguments()[i].alias_info();
    if (info != nullptr && *info == *result.alias_info()) return arguments[i];
  }
  TORCH_CHECK(false, schema.name(), ": returns what it was not given");
}

void copy_values(const Values& from, const Values& to) {
  for (size_t i = 0; i < to.size(); ++i) {
    std::vector<at::Tensor> sources;
    for_each_tensor(from[i], [&](const at::Tensor& tensor) { sources.push_back(tensor); });
    auto source = sources.begin();
    for_each_tensor(to[i], [&](const at::Tensor& tensor) { tensor.copy_(*source++); });
  }
}

/// Views need no kernel: they are made at once, captured or not.
Values run_view(const c10::OperatorHandle& op, const Values& arguments) {
  HostTensors tensors;
  Values hosts;
  for (const auto& argument : arguments) {
    hosts.push_back(with_tensors(argument, [&](const auto& t) { return tensors.on_host(t); }));
  }
  Values results = run_on_host(op, hosts);
  for (auto& result : results)
    result = with_tensors(result, [&](const auto& t) { return tensors.back(t); });
  return results;
}

Values run_writing(const c10::OperatorHandle& op, const Values& arguments,
                   const c10::Stream& stream, const std::string& kernel) {
  resize_outputs(op, arguments);
  HostTensors tensors;
  Values hosts;
  for (const auto& argument : arguments) {
    hosts.push_back(with_tensors(argument, [&](const auto& t) { return tensors.on_host(t); }));
  }
  launch(stream, kernel, Work::kernel, [op, hosts] { run_on_host(op, hosts); });
  Values results;
  for (const auto& result : op.schema().returns()) {
    TORCH_CHECK(result.alias_info() != nullptr, op.schema().name(),
                ": writes and returns something else; the fake GPU knows no such operator");
    results.push_back(written_argument(op.schema(), result, arguments));
  }
  return results;
}

Values run_pure(const c10::OperatorHandle& op, const Values& arguments, const c10::Stream& stream,
                const std::string& kernel) {
  const bool waits = kWaiting.contains(op.schema().name());
  if (waits) {
    refuse_in_capture(op.schema().name());
    wait_for(stream);
  }
  HostTensors tensors;
  Values hosts;
  for (const auto& argument : arguments) {
    hosts.push_back(with_tensors(argument, [&](const auto& t) { return tensors.on_host(t); }));
  }
  const bool captured = is_captured(stream);
  const auto computed = std::make_shared<Values>();
  if (captured) {
    *computed = try_out(op, arguments);  // for its shapes
  } else {
    const Work kind = waits ? Work::copy_to_host : Work::kernel;
    launch(stream, kernel, kind, [&] { *computed = run_on_host(op, hosts); });
  }
  Values results, result_hosts;
  for (const auto& value : *computed) {
    results.push_back(with_tensors(value, [&](const at::Tensor& t) {
      if (!t.defined()) return t;
      return empty_on_gpu(t.sizes(), t.strides(), t.scalar_type(), stream.device_index());
    }));
    result_hosts.push_back(
        with_tensors(results.back(), [&](const auto& t) { return tensors.on_host(t); }));
  }
  if (captured) {
    launch(stream, kernel, Work::kernel,
           [op, hosts, result_hosts] { copy_values(run_on_host(op, hosts), result_hosts); });
  } else {
    copy_values(*computed, result_hosts);
  }
  return results;
}

/// libtorch keeps a workspace of the BLAS for each of a thread's handles and stream
/// (ATen/cuda/CublasHandlePool.cpp).
void keep_workspace(const c10::Stream& stream) {
  const auto bytes = static_cast<size_t>(settings().workspace_bytes);
  if (bytes == 0 || is_captured(stream)) return;
  static std::mutex mutex;
  using Holder = std::tuple<std::thread::id, c10::DeviceIndex, c10::StreamId>;
  // never freed: threads end after what their memory belongs to
  static auto& workspaces = *new std::map<Holder, c10::DataPtr>;
  const std::lock_guard lock(mutex);
  c10::DataPtr& kept = workspaces[{std::this_thread::get_id(), stream.device_index(), stream.id()}];
  if (kept.get() == nullptr) kept = allocator().allocate(bytes);
}

void run_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& schema = op.schema();
  const auto count = static_cast<std::ptrdiff_t>(schema.arguments().size());
  const Values arguments(stack->end() - count, stack->end());
  torch::jit::drop(*stack, schema.arguments().size());
  const c10::DeviceIndex device = device_of(schema.name(), arguments);
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, device));
  const c10::Stream stream = current_stream(device);
  if (kOfBlas.contains(schema.name())) keep_workspace(stream);
  std::string kernel = schema.name();
  std::replace(kernel.begin(), kernel.end(), ':', '_');
  const bool is_writing = std::ranges::any_of(schema.arguments(), writes);
  const bool is_view = !is_writing && std::ranges::any_of(schema.returns(), [](const auto& result) {
    return result.alias_info() != nullptr;
  });
  Values results;
  if (is_writing) {
    results = run_writing(op, arguments, stream, kernel);
  } else if (is_view) {
    results = run_view(op, arguments);
  } else {
    results = run_pure(op, arguments, stream, kernel);
  }
  for (auto& result : results) torch::jit::push(*stack, std::move(result));
}

c10::DeviceIndex index_of(std::optional<at::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                               std::optional<at::Layout>, std::optional<at::Device> device,
                               std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, index_of(device)));
  return at::detail::empty_generic(sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  return empty_on_gpu(sizes, strides, c10::dtype_or_default(type), index_of(device));
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::Device gpu = self.is_cuda() ? self.device() : source.device();
  const c10::DeviceGuard guard(gpu);
  const c10::Stream stream = current_stream(gpu.index());
  const bool crosses = !self.is_cuda() || !source.is_cuda();
  if (crosses && !non_blocking) refuse_in_capture("a copy between host and device, which waits");
  HostTensors tensors;
  const at::Tensor to = tensors.on_host(self), from = tensors.on_host(source);
  const Work kind = !self.is_cuda()     ? Work::copy_to_host
                    : !source.is_cuda() ? Work::copy_to_device
                                        : Work::copy_on_device;
  // copies that convert or reorder are kernels
  const bool is_kernel =
      kind == Work::copy_on_device && (self.scalar_type() != source.scalar_type() ||
                                       !self.is_contiguous() || !source.is_contiguous());
  launch(stream, is_kernel ? "aten__copy_" : "Memcpy", is_kernel ? Work::kernel : kind,
         [to, from] { to.copy_(from); });
  if (crosses && !non_blocking) wait_for(stream);
  return self;
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat>) {
  resize(self, sizes, c10::contiguous_strides(sizes));
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_operator>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty_memory_format);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("resize_", &resize_);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  // GPUs have a kernel of their own for these, which others put together from smaller operators.
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::_foreach_") && name.name != "aten::silu_backward") continue;
    if (name.overload_name.ends_with("out") || name.overload_name == "grad_input") continue;
    library.impl(c10::toString(name).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&run_operator>());
  }
}

}  // namespace fake_gpu
