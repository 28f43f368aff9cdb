// Which component of the model each node of the autograd graph belongs to.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllama::training {

/// Maps sequence numbers of one thread to components. Autograd numbers the nodes that a thread
/// creates in order (at::sequence_number::peek() is the next number), so what a range created are
/// the numbers from its begin to before its end. Not thread-safe.
class ComponentMap {
 public:
  ComponentMap();
  ComponentMap(const ComponentMap&) = delete;
  ComponentMap& operator=(const ComponentMap&) = delete;
  /// Opens a range inside those that are open. `sequence_now` never falls between calls.
  void enter(std::string_view path, uint64_t sequence_now);
  /// Closes the innermost range. Throws std::logic_error where none is open.
  void leave(uint64_t sequence_now);
  /// The innermost component whose range created the node; "other" for numbers outside every range
  /// and for nodes without a number (below 0). The string lives as long as the map.
  const std::string& of_sequence(int64_t sequence) const;
  /// The innermost open range; "other" where none is open.
  const std::string& current() const;
  /// Forgets the ranges that are closed; open ones stay open, from now on.
  void clear();

 private:
  // From this number on (until the next boundary) nodes belong to this component.
  struct Boundary {
    uint64_t first;
    const std::string* component;
  };
  void begin_stretch(uint64_t first, const std::string* component);

  std::set<std::string, std::less<>> names_;
  const std::string* other_;
  std::vector<const std::string*> open_;
  std::vector<Boundary> boundaries_;
};

}  // namespace tinyllama::training
