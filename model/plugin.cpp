#include "model/plugin.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <limits>
#include <map>
#include <stdexcept>
#include <string_view>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "core/file_io.hpp"
#include "core/sha256.hpp"
#include "model/slots.hpp"

namespace tinyllama {
namespace {

// Every operator, with what the dispatcher says of its kernels.
std::map<std::string, std::string> registered_operators() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::map<std::string, std::string> found;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    found[toString(name)] = op ? op->dumpState() : "";
  }
  return found;
}

// The processor's mode of floating point: a library linked with -ffast-math changes it as it loads.
unsigned floating_point_mode() {
#ifdef __x86_64__
  return _mm_getcsr() & ~_MM_EXCEPT_MASK;
#else
  return 0;
#endif
}

// What keeps a library that was built against another libtorch from being loaded.
std::string why_not_loaded(const std::string& error) {
  if (error.find("undefined symbol") == std::string::npos) return error;
  return fmt::format(
      "{}; this program has libtorch {}, and the library wants something that it does not have: "
      "build the library against this very version",
      error, TORCH_VERSION);
}

// While a library is loaded. What its initialisers throw does not come through the loader, which
// calls std::terminate: the process ends here, with a word of the library and the exit status of
// bad input.
class Loading {
 public:
  explicit Loading(const std::filesystem::path& file) : previous_(std::set_terminate(&end)) {
    file_ = file.string();
  }
  ~Loading() { std::set_terminate(previous_); }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

 private:
  [[noreturn]] static void end() {
    std::string what = "what it throws is no exception";
    try {
      throw;
    } catch (const c10::Error& error) {
      what = error.what_without_backtrace();
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    std::ranges::replace(what, '\n', ' ');
    fmt::print(stderr, "{}: --plugin: plug-in {}: cannot register its operators: {}\n",
               program_invocation_short_name, file_, what);
    std::_Exit(2);
  }

  static inline std::string file_;
  std::terminate_handler previous_;
};

}  // namespace

Plugin load_plugin(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(fmt::format("plug-in {}: {}", file.string(), why));
  };
  std::string bytes;
  try {
    bytes = read_text(file, std::numeric_limits<int64_t>::max());
  } catch (const std::exception& error) {
    refuse(error.what());
  }
  if (!bytes.starts_with("\x7f"
                         "ELF"))
    refuse("is no shared library (a file of type ELF), as a build of TORCH_LIBRARY code makes one");
  const std::map<std::string, std::string> before = registered_operators();
  const unsigned mode = floating_point_mode();
  // With its folder, or the loader would search for it; never closed, because the dispatcher keeps
  // what it registered.
  {
    const Loading scope(file);
    if (dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
      refuse("cannot be loaded: " + why_not_loaded(dlerror()));
  }
  if (floating_point_mode() != mode)
    refuse(
        "changes the processor's mode of floating point as it is loaded (subnormal numbers become "
        "0), for all code of this process: link it without -ffast-math and -Ofast");
  Plugin plugin{file.filename().string(), sha256(bytes), {}};
  std::vector<std::string> others;
  for (const auto& [name, kernels] : registered_operators()) {
    const auto known = before.find(name);
    if (known != before.end() && known->second != kernels)
      refuse(fmt::format("changes the kernels of {}, which the baseline and its proof use", name));
    if (known != before.end()) continue;
    (SlotOperator::is_name(name) ? plugin.operators : others).push_back(name);
  }
  if (plugin.operators.empty()) {
    std::vector<std::string_view> slots;
    for (const Slot slot : all_slots()) slots.push_back(to_string(slot));
    refuse(fmt::format("registers {}; an operator that fills a slot is named after it: {}",
                       others.empty()
                           ? "no operator (or one that was there already)"
                           : fmt::format("{}, which fill no slot", fmt::join(others, ", ")),
                       fmt::join(slots, ", ")));
  }
  return plugin;
}

std::string with_operators_of(std::span<const Plugin> plugins, const std::string& variant) {
  constexpr std::string_view set = "plugin";
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= variant.size();) {
    const size_t end = std::min(variant.find('+', begin), variant.size());
    const std::string name = variant.substr(begin, end - begin);
    begin = end + 1;
    if (name != set) {
      names.push_back(name);
      continue;
    }
    if (plugins.empty())
      throw std::invalid_argument(fmt::format(
          "variant '{}': plugin stands for the operators of --plugin FILE, and none is given",
          variant));
    for (const Plugin& plugin : plugins)
      names.insert(names.end(), plugin.operators.begin(), plugin.operators.end());
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

}  // namespace tinyllama
