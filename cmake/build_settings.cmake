# Language level, build type, compiler cache, warnings and sanitizers: the same for every target of ours.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# -O3 takes a tenth longer to compile and is for loops, which ask for it themselves: the range kernels and the triad.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness lets ccache serve files that use the precompiled header; the base, that of another build folder or clone.
  set(ccache_base "$ENV{CCACHE_BASEDIR}")
  if(NOT ccache_base)
    set(ccache_base "${PROJECT_SOURCE_DIR}")
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${ccache_base} ${CCACHE_PROGRAM})
endif()

add_library(tiny_llama_build_settings INTERFACE)
target_compile_features(tiny_llama_build_settings INTERFACE cxx_std_20)
target_include_directories(tiny_llama_build_settings INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include/tiny_llama>")
# How we compile, not those who use what is installed.
set(own_options
  # Messages with a file's name, ours and libtorch's, name it without the folders of this machine.
  "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/="
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wconversion -Wno-sign-conversion
  $<$<BOOL:${TINY_LLAMA_WARNINGS_AS_ERRORS}>:-Werror>
  # GCC 12 sees overlapping copies in the standard library's own string concatenation (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # ccache understands a precompiled header only with this.
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
target_compile_options(tiny_llama_build_settings INTERFACE "$<BUILD_INTERFACE:${own_options}>")
if(TINY_LLAMA_SANITIZERS)
  target_compile_options(tiny_llama_build_settings INTERFACE
    -fsanitize=${TINY_LLAMA_SANITIZERS} -fno-omit-frame-pointer -fno-sanitize-recover=all
    # With the address sanitizer GCC 12 takes members of std::regex's own automaton for uninitialized.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(tiny_llama_build_settings INTERFACE -fsanitize=${TINY_LLAMA_SANITIZERS})
endif()
