# Libraries besides libtorch. fmt is used header-only: torch's include folder carries its own fmt headers, which shadow the
# system's and then fail to link.
include(FetchContent)
set(FETCHCONTENT_QUIET ON)

find_package(fmt REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(CLI11 REQUIRED)

# A Google Benchmark built without NDEBUG marks every result "debug" (Debian 12's own does), so one built here comes first:
# scripts/bench unpacks the source of a release to .deps/benchmark, other machines take an installed one or fetch it.
if(EXISTS "${PROJECT_SOURCE_DIR}/.deps/benchmark/CMakeLists.txt" AND NOT FETCHCONTENT_SOURCE_DIR_BENCHMARK)
  set(FETCHCONTENT_SOURCE_DIR_BENCHMARK "${PROJECT_SOURCE_DIR}/.deps/benchmark" CACHE PATH "Source of Google Benchmark")
endif()
set(BENCHMARK_ENABLE_TESTING OFF CACHE BOOL "" FORCE)
set(BENCHMARK_ENABLE_GTEST_TESTS OFF CACHE BOOL "" FORCE)
set(BENCHMARK_ENABLE_INSTALL OFF CACHE BOOL "" FORCE)
set(BENCHMARK_ENABLE_WERROR OFF CACHE BOOL "" FORCE)
FetchContent_Declare(benchmark
  GIT_REPOSITORY https://github.com/google/benchmark.git
  GIT_TAG v1.9.1
  FIND_PACKAGE_ARGS 1.8)
FetchContent_MakeAvailable(benchmark)

if(TINY_LLAMA_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
