// A backward whose gradients are sent bucket by bucket, each as soon as it is complete.
#pragma once

#include <functional>
#include <vector>

#include "benchmarks/distributed/gradient_buckets.hpp"
#include "benchmarks/distributed/gradient_hooks.hpp"
#include "benchmarks/distributed/process_group.hpp"

namespace tinyllama::distributed {

struct BucketOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  /// Start a bucket as soon as its gradients are ready; else all after the backward.
  bool overlap = true;
};

class BucketedBackward {
 public:
  /// `keep` gets a parameter whose gradient is ready and puts it where its bucket is sent from,
  /// `send` starts a bucket of which all are kept. `parameters` in the model's order.
  BucketedBackward(const NamedTensors& parameters, const BucketOptions& options,
                   std::function<void(size_t)> keep, std::function<Pending(size_t)> send);

  /// Whether backwards that follow are watched.
  void attach() { hooks_.attach(); }
  void detach() { hooks_.detach(); }
  void set_overlap(bool overlap) { overlap_ = overlap; }

  /// Before a backward.
  void begin() { queue_.begin(); }
  /// After it: waits for every bucket. Throws RankLostError, and std::logic_error naming a
  /// parameter without a gradient.
  void finish();
  /// Sends all buckets, with or without a backward, and waits for them.
  void send_all();

  const NamedTensors& parameters() const { return parameters_; }
  const GradientBuckets& buckets() const { return buckets_; }
  /// Elements of a bucket.
  int64_t elements(size_t bucket) const { return elements_.at(bucket); }
  /// A parameter's part of its bucket's message, as a view with the sizes and strides of `like`.
  /// `messages`: a flat tensor a bucket.
  at::Tensor place_in(const std::vector<at::Tensor>& messages, size_t parameter,
                      const at::Tensor& like) const;
  size_t bucket_of(size_t parameter) const { return queue_.bucket_of(parameter); }

 private:
  void on_gradient(size_t parameter);
  void wait();

  NamedTensors parameters_;
  GradientBuckets buckets_;
  BucketQueue queue_;
  bool overlap_;
  std::function<void(size_t)> keep_;
  std::function<Pending(size_t)> send_;
  std::vector<int64_t> elements_;  // of a bucket
  std::vector<int64_t> offset_;    // of a parameter in its bucket
  std::vector<Pending> pending_;   // a bucket
  GradientHooks hooks_;
};

}  // namespace tinyllama::distributed
