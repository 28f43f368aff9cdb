#include "model/slowdown_ledger.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "model/dtype.hpp"

namespace tinyllama::slowdown {
namespace {

// Weight of the last time in what work lately took.
constexpr double kNewest = 0.1;
// Longer than the usual time by more than this factor: the machine did something else.
constexpr double kInterrupted = 2.0;

class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
};

// The profiler is such an observer too.
bool is_observed() {
  return at::hasCallbacks();
}

}  // namespace

bool Ledger::is_slowed(Part part) const {
  return !repeating_ && plan_.contains(part) && !is_observed();
}

void Ledger::settle(const Kind& kind, double seconds, double overhead,
                    const std::function<void()>& repeat) {
  // The forward of a backward that is observed need not have been.
  if (is_observed()) return;
  Account& account = accounts_[kind];
  account.debt += plan_.at(std::get<Part>(kind)) * account.part.note(seconds) - overhead;
  account.debt = std::max(account.debt, -account.unit.seconds());
  repay(account, repeat);
}

double worked_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int64_t Ledger::units(Part part, Direction direction) const {
  int64_t sum = 0;
  for (const auto& [kind, account] : accounts_)
    if (std::get<Part>(kind) == part && std::get<Direction>(kind) == direction)
      sum += account.units;
  return sum;
}

double Ledger::UsualTime::note(double seconds) {
  if (usual_ == 0.0) return usual_ = seconds;
  const double counted = std::min(seconds, kInterrupted * usual_);
  usual_ += kNewest * (counted - usual_);
  return counted;
}

void Ledger::repay(Account& account, const std::function<void()>& repeat) {
  const Flag repeating(repeating_);
  const at::NoGradGuard no_grad;
  // Autocast would keep the weights that it converts here for later, without their gradients.
  const WithoutAutocast as_they_are;
  // Half a unit: begun later or earlier by as much on average, so that the mean is exact.
  while (account.debt > 0 && account.debt >= account.unit.seconds() / 2) {
    const double begun = worked_seconds();
    repeat();
    account.debt -= account.unit.note(worked_seconds() - begun);
    ++account.units;
  }
}

Ledger& ledger() {
  static Ledger instance = [] {
    const char* text = std::getenv(kSlowdownVariable);
    return Ledger(parse_slowdown(text == nullptr ? "" : text));
  }();
  return instance;
}

bool is_slowed(Part part) {
  return ledger().is_slowed(part);
}

}  // namespace tinyllama::slowdown
