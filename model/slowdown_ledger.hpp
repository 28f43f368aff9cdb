// How much work each slowed part still owes. Only in builds with TINY_LLAMA_WITH_SLOWDOWN.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>

#include "model/slowdown_plan.hpp"

namespace tinyllama::slowdown {

/// Processor time of the calling thread, in seconds. Not wall time: that of a long part holds more
/// interruptions by other programs than that of a short unit, so that too much would be repeated.
/// Time in which the thread waits for others of its own program is not counted: then somewhat less
/// than the fraction is repeated, never more.
double worked_seconds();

/// Turns the measured time of a part into repeated work. Time is fed back, so that the fraction is
/// right whatever the shape: a part's time adds to its debt, the time of each unit of repeated work
/// is taken off it, and what is left is carried over to the part's next call. Interruptions count
/// in neither, or else one of a unit would suspend the slowdown for many calls. It rests while
/// libtorch reports its operators to a profiler or another observer: the work that is counted is
/// then the model's own. Not for several threads at a time: libtorch runs the backward of CPU
/// tensors in the thread that asked for it.
class Ledger {
 public:
  explicit Ledger(SlowdownPlan plan) : plan_(std::move(plan)) {}

  enum class Direction : uint8_t { forward, backward };
  /// Work that is alike: calls of one part and direction on inputs of as many elements.
  using Kind = std::tuple<Part, Direction, int64_t>;

  const SlowdownPlan& plan() const { return plan_; }
  /// Whether to slow this part here; never inside repeated work, nor while it rests.
  bool is_slowed(Part part) const;
  /// Work of this kind took so many seconds, besides the `overhead` in seconds of measuring it,
  /// which counts as repaid: repeats units of work until as many seconds as the plan says are
  /// worked off to within half a unit. Nothing is owed for work done while it rests.
  void settle(const Kind& kind, double seconds, double overhead,
              const std::function<void()>& repeat);
  /// Units of work that were repeated for this part so far.
  int64_t units(Part part, Direction direction) const;

 private:
  /// What work of one kind lately took.
  class UsualTime {
   public:
    /// Notes that it took so many seconds. Returns how many of them count: not those beyond twice
    /// the usual time, which went to an interruption and not to the work.
    double note(double seconds);
    double seconds() const { return usual_; }

   private:
    double usual_ = 0.0;  // 0 before the first
  };
  struct Account {
    double debt = 0.0;  // seconds
    UsualTime part;
    UsualTime unit;
    int64_t units = 0;
  };
  void repay(Account& account, const std::function<void()>& repeat);

  SlowdownPlan plan_;
  std::map<Kind, Account> accounts_;
  bool repeating_ = false;
};

/// The process's ledger, its plan read from the environment when it is first asked for. One for the
/// process, because layers are values that are copied and made anew for every case, while debts
/// have to outlive them. Tests put another in its place by assignment. Throws std::invalid_argument
/// (parse_slowdown).
Ledger& ledger();

bool is_slowed(Part part);

/// A few tokens of [B, S, ..]: the first of the first sample, a small share of all, one at least.
at::Tensor some_tokens(const at::Tensor& tokenwise);

/// See slowed_as() and slowed_update() in slowdown.hpp.
at::Tensor run_layer(Part part, const at::Tensor& input, c10::function_ref<at::Tensor()> forward,
                     std::function<void()> repeat);
void run_update(Part part, const at::Tensor& input, c10::function_ref<void()> work,
                const std::function<void()>& repeat);

}  // namespace tinyllama::slowdown
