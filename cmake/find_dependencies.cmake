# Libraries besides libtorch: each where it is installed, else its source in .deps/sources (scripts/lib/library_sources.sh), else a pinned
# release. FETCHCONTENT_TRY_FIND_PACKAGE_MODE=NEVER passes over what is installed.
include(FetchContent)
set(FETCHCONTENT_QUIET ON)
# Files of an archive get the time of their extraction.
if(POLICY CMP0135)
  cmake_policy(SET CMP0135 NEW)
endif()

# tiny_llama_dependency(<name> <package> <version> <url> <SHA-256>).
macro(tiny_llama_dependency name package version url sha256)
  string(TOUPPER ${name} upper_name)
  if(NOT "${FETCHCONTENT_TRY_FIND_PACKAGE_MODE}" STREQUAL "NEVER")
    find_package(${package} ${version} QUIET)
  endif()
  if(NOT ${package}_FOUND)
    if(EXISTS "${PROJECT_SOURCE_DIR}/.deps/sources/${name}/CMakeLists.txt" AND NOT EXISTS "${FETCHCONTENT_SOURCE_DIR_${upper_name}}")
      set(FETCHCONTENT_SOURCE_DIR_${upper_name} "${PROJECT_SOURCE_DIR}/.deps/sources/${name}" CACHE PATH "Source of ${name}" FORCE)
    endif()
    message(STATUS "${name}: not installed, so its source is built")
    FetchContent_Declare(${name} URL "${url}" URL_HASH "SHA256=${sha256}")
    FetchContent_MakeAvailable(${name})
  endif()
endmacro()

set(BENCHMARK_ENABLE_TESTING OFF CACHE BOOL "" FORCE)
set(BENCHMARK_ENABLE_GTEST_TESTS OFF CACHE BOOL "" FORCE)
set(BENCHMARK_ENABLE_INSTALL OFF CACHE BOOL "" FORCE)
set(BENCHMARK_ENABLE_WERROR OFF CACHE BOOL "" FORCE)
set(CLI11_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(CLI11_BUILD_EXAMPLES OFF CACHE BOOL "" FORCE)
set(JSON_BuildTests OFF CACHE BOOL "" FORCE)
set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)

tiny_llama_dependency(nlohmann_json nlohmann_json 3.10 https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
  d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
tiny_llama_dependency(cli11 CLI11 2.1 https://github.com/CLIUtils/CLI11/archive/v2.4.2.tar.gz
  f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a)
# Debian 12's own is built without NDEBUG, which marks every result "debug", as 1.7 and older are: those are never taken.
tiny_llama_dependency(benchmark benchmark 1.8 https://github.com/google/benchmark/archive/refs/tags/v1.9.1.tar.gz
  32131c08ee31eeff2c8968d7e874f3cb648034377dfc32a4c377fa8796d84981)
if(TINY_LLAMA_BUILD_TESTS)
  tiny_llama_dependency(googletest GTest 1.11 https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
    8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7)
  include(GoogleTest)
endif()
