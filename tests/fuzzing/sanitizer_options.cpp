// Options that programs under the sanitizers start with, whoever runs them.

// libtorch's memory at exit is no leak of ours; a request that no memory can serve is an error of
// the program's own, as it is without sanitizers.
// NOLINTNEXTLINE: the name is the sanitizer's
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=5";
}

// NOLINTNEXTLINE: the name is the sanitizer's
extern "C" const char* __ubsan_default_options() {
  return "print_stacktrace=1";
}
