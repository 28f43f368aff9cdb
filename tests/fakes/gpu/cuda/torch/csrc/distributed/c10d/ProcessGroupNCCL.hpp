// NCCL between fake GPUs: Gloo, over the memory that they have on the host. Like NCCL it refuses
// tensors that are on no GPU or have gaps.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tests/fakes/gpu/fake_gpu.hpp"
#include "tests/fakes/gpu/host_tensors.hpp"

namespace c10d {

class ProcessGroupNCCL final : public Backend {
 public:
  struct Options : Backend::Options {
    Options() : Backend::Options("nccl") {}
    static c10::intrusive_ptr<Options> create() { return c10::make_intrusive<Options>(); }
  };

  ProcessGroupNCCL(const c10::intrusive_ptr<Store>& store, int rank, int size,
                   const c10::intrusive_ptr<Options>& options)
      : Backend(rank, size) {
    auto gloo = ProcessGroupGloo::Options::create(options->timeout);
    gloo->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    gloo_ = c10::make_intrusive<ProcessGroupGloo>(store, rank, size, gloo);
  }

  const std::string getBackendName() const override { return "nccl"; }

  c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors,
                                     const BroadcastOptions& options) override {
    std::vector<at::Tensor> hosts;
    for (const at::Tensor& tensor : tensors) hosts.push_back(on_host(tensor));
    return gloo_->broadcast(hosts, options);
  }
  c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors,
                                     const AllreduceOptions& options) override {
    std::vector<at::Tensor> hosts;
    for (const at::Tensor& tensor : tensors) hosts.push_back(on_host(tensor));
    return gloo_->allreduce(hosts, options);
  }
  c10::intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const ReduceScatterOptions& options) override {
    at::Tensor to = on_host(output), from = on_host(input);
    return gloo_->_reduce_scatter_base(to, from, options);
  }
  c10::intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                           const AllgatherOptions& options) override {
    at::Tensor to = on_host(output), from = on_host(input);
    return gloo_->_allgather_base(to, from, options);
  }
  c10::intrusive_ptr<Work> barrier(const BarrierOptions& options) override {
    TORCH_CHECK(options.device && options.device->is_cuda(), "a barrier needs its GPU's number");
    return gloo_->barrier({});
  }
  void abort() override { gloo_->abort(); }

 private:
  static at::Tensor on_host(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_cuda() && tensor.is_non_overlapping_and_dense(),
                "Tensors must be CUDA and dense");
    fake_gpu::wait_for(fake_gpu::current_stream(tensor.get_device()));
    return fake_gpu::HostTensors().on_host(tensor);
  }

  c10::intrusive_ptr<ProcessGroupGloo> gloo_;
};

}  // namespace c10d
