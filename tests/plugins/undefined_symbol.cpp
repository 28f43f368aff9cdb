// A library that was built against a libtorch with a function that no libtorch has.
namespace at {
void function_of_another_version(int);
}

extern "C" void call_it() {
  at::function_of_another_version(1);
}
