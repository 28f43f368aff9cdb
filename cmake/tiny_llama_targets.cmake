# One way to declare a library, a program and a test of ours, and the precompiled header that they share: libtorch's headers take five
# times as long to read as what they are included in takes to compile.

file(WRITE "${CMAKE_BINARY_DIR}/precompiled.cpp" "")
add_library(tiny_llama_precompiled STATIC "${CMAKE_BINARY_DIR}/precompiled.cpp")
target_link_libraries(tiny_llama_precompiled PUBLIC tiny_llama_build_settings tiny_llama_torch fmt::fmt-header-only)
set(TINY_LLAMA_PRECOMPILED
  <ATen/core/Tensor.h> <ATen/TensorOperators.h> <fmt/format.h> <nlohmann/json.hpp>
  <algorithm> <functional> <map> <memory> <optional> <string> <vector>)
target_precompile_headers(tiny_llama_precompiled PRIVATE ${TINY_LLAMA_PRECOMPILED})

# tiny_llama_library(<name> SOURCES <file>... [LINK <library>...]): the static library tinyllama::<name>.
function(tiny_llama_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(tiny_llama_${name} STATIC ${ARG_SOURCES})
  add_library(tinyllama::${name} ALIAS tiny_llama_${name})
  target_link_libraries(tiny_llama_${name} PUBLIC tiny_llama_build_settings tiny_llama_torch ${ARG_LINK})
  target_precompile_headers(tiny_llama_${name} REUSE_FROM tiny_llama_precompiled)
endfunction()

# tiny_llama_test(<name> SOURCES <file>... [LINK <library>...]): one GoogleTest program, one ctest entry. One entry a program and
# not one a test, because loading libtorch costs more than most tests do.
function(tiny_llama_test name)
  if(NOT TINY_LLAMA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest_main)
  target_precompile_headers(${name} REUSE_FROM tiny_llama_precompiled)
  target_compile_definitions(${name} PRIVATE TINY_LLAMA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
endfunction()

# tiny_llama_sanitized_test(<name> SOURCES <file>...): a test that runs under the address and undefined-behaviour sanitizers in every
# build, for code that reads what others wrote. The sources include the code under test, since a library of ours was built without.
function(tiny_llama_sanitized_test name)
  if(NOT TINY_LLAMA_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tiny_llama_build_settings tiny_llama_torch fmt::fmt-header-only nlohmann_json::nlohmann_json
    GTest::gtest_main)
  # A header precompiled without the sanitizers does not serve.
  target_precompile_headers(${name} PRIVATE ${TINY_LLAMA_PRECOMPILED})
  if(NOT TINY_LLAMA_SANITIZERS)
    target_compile_options(${name} PRIVATE -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${name} PRIVATE -fsanitize=address,undefined)
  endif()
  add_test(NAME ${name} COMMAND ${name})
endfunction()
