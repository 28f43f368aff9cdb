#include "benchmarks/instruments/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>

namespace tinyllama::instruments {

void SharedLibrary::Close::operator()(void* handle) const {
  ::dlclose(handle);
}

SharedLibrary::SharedLibrary(const std::string& name)
    : name_(name),
      // It stays loaded: vendors' libraries leave threads and exit handlers behind.
      handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
  if (handle_) return;
  const char* reason = ::dlerror();
  throw std::runtime_error(reason != nullptr ? reason : name + ": cannot be loaded");
}

SharedLibrary SharedLibrary::first_of(std::span<const std::string> names) {
  std::string reason = "no library is named";
  for (const std::string& name : names) {
    try {
      return SharedLibrary(name);
    } catch (const std::runtime_error& error) {
      if (&name == &names.front()) reason = error.what();
    }
  }
  throw std::runtime_error(reason);
}

void* SharedLibrary::address(const char* function) const {
  return ::dlsym(handle_.get(), function);
}

void* SharedLibrary::required_address(const char* function) const {
  void* found = address(function);
  if (found == nullptr) throw std::runtime_error(fmt::format("{} has no {}", name_, function));
  return found;
}

}  // namespace tinyllama::instruments
