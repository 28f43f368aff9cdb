# One way to declare a library, a program and a test of ours, and tiny_llama_base that all of them have: the build's settings, libtorch,
# OpenMP, fmt, JSON and the precompiled header. libtorch's headers take five times as long to read as what they are included in takes to
# compile.

include(CheckCXXSourceCompiles)

add_library(tiny_llama_base STATIC "${PROJECT_SOURCE_DIR}/core/fmt_library.cpp")
target_link_libraries(tiny_llama_base PUBLIC
  tiny_llama_build_settings
  "$<BUILD_INTERFACE:tiny_llama_torch;tiny_llama_openmp;nlohmann_json::nlohmann_json>"
  # what the installed package finds anew (install.cmake); JSON's headers are installed with ours
  "$<INSTALL_INTERFACE:tiny_llama::torch;tiny_llama::openmp>")
target_precompile_headers(tiny_llama_base PRIVATE
  <ATen/core/Tensor.h> <ATen/TensorOperators.h> <fmt/format.h> <nlohmann/json.hpp>
  <algorithm> <functional> <map> <memory> <optional> <string> <vector>)

# tiny_llama_library(<name> SOURCES <file>... [LINK <library>...]): the static library tiny_llama::<name>.
function(tiny_llama_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(tiny_llama_${name} STATIC ${ARG_SOURCES})
  add_library(tiny_llama::${name} ALIAS tiny_llama_${name})
  set_target_properties(tiny_llama_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(tiny_llama_${name} PUBLIC tiny_llama_base ${ARG_LINK})
  target_precompile_headers(tiny_llama_${name} REUSE_FROM tiny_llama_base)
endfunction()

# tiny_llama_program(<name> SOURCES <file>... LINK <library>...): a program.
function(tiny_llama_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  target_precompile_headers(${name} REUSE_FROM tiny_llama_base)
endfunction()

# tiny_llama_test(<name> SOURCES <file>... [LINK <library>...] [ALSO_ON_AVX2]): one GoogleTest program, one ctest entry. One entry a
# program and not one a test, because loading libtorch costs more than most tests do. ALSO_ON_AVX2: a second entry in which libtorch,
# oneDNN and our kernels use no more than AVX2, for what is proved must hold on processors without AVX-512 as well. On those it would
# repeat the first, and scripts/test leaves it out.
function(tiny_llama_test name)
  if(NOT TINY_LLAMA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "ALSO_ON_AVX2" "" "SOURCES;LINK" ${ARGN})
  tiny_llama_program(${name} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE TINY_LLAMA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  if(ARG_ALSO_ON_AVX2)
    add_test(NAME ${name}_on_avx2 COMMAND ${name})
    set_tests_properties(${name}_on_avx2 PROPERTIES ENVIRONMENT "ATEN_CPU_CAPABILITY=avx2;ONEDNN_MAX_CPU_ISA=AVX2")
  endif()
endfunction()

# Not every compiler comes with the run-time libraries of the sanitizers; in CI that is an error.
set(TINY_LLAMA_SANITIZE_FLAGS -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all)
set(CMAKE_REQUIRED_FLAGS "-fsanitize=address,undefined")
check_cxx_source_compiles("int main() { return 0; }" TINY_LLAMA_HAS_SANITIZERS)
unset(CMAKE_REQUIRED_FLAGS)

# tiny_llama_sanitized_test(<name> TESTS <test program> SOURCES <file>... LINK <library>...): the tests of a program declared above, with the sources,
# the code under test, under the address and undefined-behaviour sanitizers in every build: for code that reads what others wrote.
function(tiny_llama_sanitized_test name)
  if(NOT TINY_LLAMA_BUILD_TESTS)
    return()
  endif()
  if(NOT TINY_LLAMA_HAS_SANITIZERS)
    if("$ENV{CI}" STREQUAL "true")
      message(FATAL_ERROR "${name}: this compiler cannot link with -fsanitize=address,undefined (libasan and libubsan are missing)")
    endif()
    message(STATUS "${name} is not built: this compiler cannot link with -fsanitize=address,undefined")
    return()
  endif()
  cmake_parse_arguments(ARG "" "TESTS" "SOURCES;LINK" ${ARGN})
  # As objects, and before those of the tests: of functions that both have (a parser's templates), the linker takes the first, which is
  # the one that is watched. CMake would list sources of the program itself behind them.
  add_library(${name}_watched OBJECT ${ARG_SOURCES})
  target_link_libraries(${name}_watched PRIVATE tiny_llama_base)
  add_executable(${name} $<TARGET_OBJECTS:${name}_watched> $<TARGET_OBJECTS:${ARG_TESTS}>)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest_main)
  if(NOT TINY_LLAMA_SANITIZERS)
    # Without a precompiled header of its own, which takes longer to make than it saves.
    target_compile_options(${name}_watched PRIVATE ${TINY_LLAMA_SANITIZE_FLAGS} -O1)
    target_link_options(${name} PRIVATE -fsanitize=address,undefined)
  endif()
  add_test(NAME ${name} COMMAND ${name})
endfunction()
