#include "benchmarks/training/component_map.hpp"

#include <algorithm>
#include <stdexcept>

#include "benchmarks/training/component_names.hpp"

namespace tinyllama::training {

ComponentMap::ComponentMap() : other_(&*names_.emplace(kOtherComponent).first) {}

void ComponentMap::begin_stretch(uint64_t first, const std::string* component) {
  // A stretch without nodes is no stretch.
  if (!boundaries_.empty() && boundaries_.back().first == first) boundaries_.pop_back();
  const std::string* before = boundaries_.empty() ? other_ : boundaries_.back().component;
  if (component != before) boundaries_.push_back({first, component});
}

void ComponentMap::enter(std::string_view path, uint64_t sequence_now) {
  auto name = names_.find(path);
  if (name == names_.end()) name = names_.emplace(path).first;
  open_.push_back(&*name);
  begin_stretch(sequence_now, &*name);
}

void ComponentMap::leave(uint64_t sequence_now) {
  if (open_.empty()) throw std::logic_error("a component was left that was never entered");
  open_.pop_back();
  begin_stretch(sequence_now, &current());
}

const std::string& ComponentMap::of_sequence(int64_t sequence) const {
  if (sequence < 0) return *other_;
  const auto after =
      std::ranges::upper_bound(boundaries_, static_cast<uint64_t>(sequence), {}, &Boundary::first);
  return after == boundaries_.begin() ? *other_ : *std::prev(after)->component;
}

const std::string& ComponentMap::current() const {
  return open_.empty() ? *other_ : *open_.back();
}

void ComponentMap::clear() {
  if (open_.empty()) {
    boundaries_.clear();
  } else if (boundaries_.size() > 1) {
    boundaries_.erase(boundaries_.begin(), boundaries_.end() - 1);
  }
}

}  // namespace tinyllama::training
