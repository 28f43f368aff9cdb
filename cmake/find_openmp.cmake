# tiny_llama_openmp: for all targets, since any may call at::parallel_for and all share one precompiled header. It is a template of
# libtorch's headers, and without OpenMP where it is compiled it silently runs on one thread. The runtime is the one that libtorch has
# loaded, never a second one beside it: two would keep threads of their own, each waiting in the other's way.
find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(tiny_llama_openmp INTERFACE)
separate_arguments(openmp_flags UNIX_COMMAND "${OpenMP_CXX_FLAGS}")
target_compile_options(tiny_llama_openmp INTERFACE ${openmp_flags})
# Wheels carry it in torch/lib, or beside torch in torch.libs under a name with a hash.
file(GLOB libtorch_openmp "${TINY_LLAMA_TORCH_LIBRARY_DIR}/libgomp*.so*" "${TINY_LLAMA_TORCH_LIBRARY_DIR}/../../torch.libs/libgomp*.so*")
if(libtorch_openmp)
  list(GET libtorch_openmp 0 libtorch_openmp)
endif()
# Clang's code needs its own, libomp, which has GCC's functions too: loaded first, it serves libtorch as well.
if(libtorch_openmp AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_link_libraries(tiny_llama_openmp INTERFACE "${libtorch_openmp}")
else()
  target_link_libraries(tiny_llama_openmp INTERFACE OpenMP::OpenMP_CXX)
endif()
