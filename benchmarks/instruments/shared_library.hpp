// A library that is looked for when the program runs, so that the program starts without it.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace tinyllama::instruments {

class SharedLibrary {
 public:
  /// A file's path, or a name that the dynamic linker knows. Throws std::runtime_error with the
  /// linker's reason where it cannot be loaded.
  explicit SharedLibrary(const std::string& name);
  /// The first of `names` that can be loaded; throws the first one's reason where none can.
  static SharedLibrary first_of(std::span<const std::string> names);

  const std::string& name() const { return name_; }
  /// The function of that name; null where the library has none. Function is its pointer type.
  template <typename Function>
  Function find(const char* function) const {
    return reinterpret_cast<Function>(address(function));
  }
  /// The same, but throws std::runtime_error naming library and function where there is none.
  template <typename Function>
  Function require(const char* function) const {
    return reinterpret_cast<Function>(required_address(function));
  }

 private:
  void* address(const char* function) const;
  void* required_address(const char* function) const;
  struct Close {
    void operator()(void* handle) const;
  };
  std::string name_;
  std::unique_ptr<void, Close> handle_;
};

}  // namespace tinyllama::instruments
