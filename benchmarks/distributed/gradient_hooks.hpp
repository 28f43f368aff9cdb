// Tells when a backward has finished a parameter's gradient.
#pragma once

#include <functional>

#include "model/parameters.hpp"

namespace tinyllama::distributed {

class GradientHooks {
 public:
  /// `on_gradient` gets a parameter's index as soon as autograd has added its gradient, within the
  /// backward; its exceptions leave the backward.
  GradientHooks(NamedTensors parameters, std::function<void(size_t)> on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Without hooks a backward is a plain one, to the instruction. Attaching replaces whatever hook
  /// of this kind a parameter had.
  void attach();
  void detach();
  bool is_attached() const { return is_attached_; }

 private:
  NamedTensors parameters_;
  std::function<void(size_t)> on_gradient_;
  bool is_attached_ = false;
};

/// The elements of a dense tensor, whatever its order of dimensions, as a view [numel] of its
/// memory. Throws std::logic_error where it has gaps or overlaps.
at::Tensor dense_values(const at::Tensor& tensor);

}  // namespace tinyllama::distributed
