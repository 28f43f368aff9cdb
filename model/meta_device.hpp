// Tensors of libtorch's `meta` device have a shape and no data: the model runs on them without
// computing, and allocates what it would on the device that they stand for. Here is what libtorch
// lacks for that.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace tinyllama {

/// Type of device that tensors on meta stand for, on this thread.
inline thread_local c10::DeviceType meta_stands_for = c10::DeviceType::CPU;

/// Sets it for as long as it lives.
class MetaStandsFor {
 public:
  explicit MetaStandsFor(c10::DeviceType device)
      : previous_(std::exchange(meta_stands_for, device)) {}
  ~MetaStandsFor() { meta_stands_for = previous_; }
  MetaStandsFor(const MetaStandsFor&) = delete;
  MetaStandsFor& operator=(const MetaStandsFor&) = delete;

 private:
  c10::DeviceType previous_;
};

/// Whether a tensor is on a GPU, or stands for one that is.
inline bool is_on_gpu(const at::Tensor& tensor) {
  return tensor.is_cuda() || (tensor.is_meta() && meta_stands_for != c10::DeviceType::CPU);
}

/// The type of device under which autocast's state is kept. libtorch has none for meta: there, that
/// of PrivateUse1 is used, which no build of ours has otherwise.
inline c10::DeviceType autocast_device(c10::DeviceType device) {
  return device == c10::DeviceType::Meta ? c10::DeviceType::PrivateUse1 : device;
}

/// Drops the casts that were cached on meta; called at the end of the outermost autocast scope.
void clear_meta_autocast_cache();

/// scaled_dot_product_attention of tensors on meta, with this mask or causal, by the implementation
/// that libtorch chooses on the device that they stand for.
at::Tensor meta_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::optional<at::Tensor>& mask, double scale);

}  // namespace tinyllama
