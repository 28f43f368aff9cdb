// Names the part of the model that work belongs to, for profilers.
#pragma once

#include <ATen/record_function.h>

namespace tinyllama {

/// Opens a range of libtorch's own (RecordScope::USER_SCOPE) for the life of the object: Kineto
/// shows it, and libtorch's callbacks get it. `path` is a literal, one of those in
/// docs/training_files.md ("attention/core"). Costs some 10 ns where nothing listens.
class ComponentRange {
 public:
  explicit ComponentRange(const char* path) : range_(at::RecordScope::USER_SCOPE) {
    if (range_.isActive()) range_.before(path);
  }
  ComponentRange(const ComponentRange&) = delete;
  ComponentRange& operator=(const ComponentRange&) = delete;

 private:
  at::RecordFunction range_;
};

}  // namespace tinyllama
