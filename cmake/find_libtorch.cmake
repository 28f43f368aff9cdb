# Finds libtorch 2.9 or newer: in order Torch_DIR, an active `python3 -c "import torch"`, the project's own .venv. A ROCm or
# CUDA torch that the user already has comes before anything we would download.
set(TINY_LLAMA_TORCH_MINIMUM 2.9)
# scripts/test --torch-dir passed with both.
set(TINY_LLAMA_TORCH_NEWEST_TRIED 2.15)

function(tiny_llama_torch_prefix python result)
  set(${result} "" PARENT_SCOPE)
  if(NOT EXISTS "${python}")
    return()
  endif()
  execute_process(COMMAND "${python}" -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    set(${result} "${prefix}" PARENT_SCOPE)
  endif()
endfunction()

if(NOT Torch_DIR AND NOT DEFINED ENV{Torch_DIR})
  find_program(TINY_LLAMA_PYTHON3 python3)
  foreach(candidate "${TINY_LLAMA_PYTHON3}" "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    tiny_llama_torch_prefix("${candidate}" prefix)
    if(prefix)
      set(Torch_DIR "${prefix}/Torch" CACHE PATH "CMake package folder of libtorch")
      break()
    endif()
  endforeach()
elseif(NOT Torch_DIR)
  set(Torch_DIR "$ENV{Torch_DIR}" CACHE PATH "CMake package folder of libtorch")
endif()

if(NOT TINY_LLAMA_WITH_CUDA MATCHES "^(AUTO|OFF)$")
  message(FATAL_ERROR "TINY_LLAMA_WITH_CUDA=${TINY_LLAMA_WITH_CUDA}: allowed are AUTO and OFF.")
endif()
if(NOT EXISTS "${Torch_DIR}/TorchConfigVersion.cmake")
  message(FATAL_ERROR "libtorch ${TINY_LLAMA_TORCH_MINIMUM} or newer was not found (Torch_DIR: ${Torch_DIR}). Run scripts/bench --setup-only, "
    "activate a Python environment that has torch, or pass -DTorch_DIR=<libtorch>/share/cmake/Torch.")
endif()
# Its version only: libtorch's own targets want the complete CUDA or ROCm toolkit that it was built with, and link libraries of that
# toolkit, not those that libtorch loads. Headers and libraries by path need neither.
include("${Torch_DIR}/TorchConfigVersion.cmake")
set(Torch_VERSION "${PACKAGE_VERSION}")
if(Torch_VERSION VERSION_LESS TINY_LLAMA_TORCH_MINIMUM)
  message(FATAL_ERROR "libtorch ${Torch_VERSION} at ${Torch_DIR} is too old: ${TINY_LLAMA_TORCH_MINIMUM} or newer is needed.")
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_release "${Torch_VERSION}")
if(torch_release VERSION_GREATER TINY_LLAMA_TORCH_NEWEST_TRIED)
  message(WARNING "libtorch ${Torch_VERSION} is newer than those tried, ${TINY_LLAMA_TORCH_MINIMUM} to "
    "${TINY_LLAMA_TORCH_NEWEST_TRIED}. This tries it: scripts/test --torch-dir ${Torch_DIR}")
endif()
get_filename_component(TINY_LLAMA_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)
set(TINY_LLAMA_TORCH_LIBRARY_DIR "${TINY_LLAMA_TORCH_ROOT}/lib")
set(TINY_LLAMA_TORCH_IS_ROCM OFF)
set(TINY_LLAMA_TORCH_IS_CUDA OFF)
set(torch_libraries c10 torch torch_cpu)
if(EXISTS "${TINY_LLAMA_TORCH_LIBRARY_DIR}/libtorch_hip.so")
  set(TINY_LLAMA_TORCH_IS_ROCM ON)
  list(APPEND torch_libraries c10_hip torch_hip)
elseif(EXISTS "${TINY_LLAMA_TORCH_LIBRARY_DIR}/libtorch_cuda.so" AND NOT TINY_LLAMA_WITH_CUDA STREQUAL "OFF")
  set(TINY_LLAMA_TORCH_IS_CUDA ON)
  list(APPEND torch_libraries c10_cuda torch_cuda)
endif()
message(STATUS "libtorch ${Torch_VERSION} at ${Torch_DIR}")

add_library(tiny_llama_torch INTERFACE)
# torch's headers are not ours to warn about.
target_include_directories(tiny_llama_torch SYSTEM INTERFACE
  "${TINY_LLAMA_TORCH_ROOT}/include" "${TINY_LLAMA_TORCH_ROOT}/include/torch/csrc/api/include")
list(TRANSFORM torch_libraries REPLACE ".+" "${TINY_LLAMA_TORCH_LIBRARY_DIR}/lib\\0.so")
foreach(file ${torch_libraries} "${TINY_LLAMA_TORCH_ROOT}/include/fmt/format-inl.h")
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "libtorch ${Torch_VERSION} is incomplete: ${file} is missing. Install it again, or set Torch_DIR to another.")
  endif()
endforeach()
target_link_libraries(tiny_llama_torch INTERFACE ${torch_libraries})
# AMD's wheels have ROCm in wheels of its own, and the run paths of torch's libraries are those of the machine that built them: its Python
# part loads beforehand what they need. No run path of a program serves a library that has one. So the program needs the same itself:
# what is loaded first is found by its name. Its own run path is a DT_RPATH, which serves what those need in their turn.
if(TINY_LLAMA_TORCH_IS_ROCM)
  file(GLOB_RECURSE sdk_libraries "${TINY_LLAMA_TORCH_ROOT}/../_rocm_sdk_*/lib/*.so*")
  list(FILTER sdk_libraries EXCLUDE REGEX "/_rocm_sdk_devel/") # the same once more, for compilers
  if(sdk_libraries)
    set(needed "")
    foreach(library ${torch_libraries})
      execute_process(COMMAND "${CMAKE_READELF}" -d "${library}" OUTPUT_VARIABLE dynamic ERROR_QUIET)
      string(APPEND needed "${dynamic}")
    endforeach()
    foreach(library ${sdk_libraries})
      get_filename_component(name "${library}" NAME)
      string(FIND "${needed}" "[${name}]" position)
      if(position GREATER -1 AND NOT EXISTS "${TINY_LLAMA_TORCH_LIBRARY_DIR}/${name}")
        target_link_libraries(tiny_llama_torch INTERFACE "${library}")
        string(REPLACE "[${name}]" "" needed "${needed}")
      endif()
    endforeach()
    target_link_options(tiny_llama_torch INTERFACE LINKER:--disable-new-dtags)
  endif()
endif()
# Back-ends register themselves when they are loaded, and some linkers leave out a library of which nothing is called. What libtorch's
# libraries need in their turn they find by their own run paths.
target_link_options(tiny_llama_torch INTERFACE LINKER:--no-as-needed LINKER:--allow-shlib-undefined)
# Of the C++ library's two string types, the one that it was built with.
file(STRINGS "${Torch_DIR}/TorchConfig.cmake" torch_abi REGEX "_GLIBCXX_USE_CXX11_ABI=[01]")
if(torch_abi MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
  target_compile_definitions(tiny_llama_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${CMAKE_MATCH_1})
endif()

# tiny_llama_torch_needs(<library of libtorch> <name> <key> <result>): the major version of what it was built with, from the name that the
# loader looks for (libcudart.so.13) or, where that has none, from the key's line in torch/version.py; empty where neither tells.
function(tiny_llama_torch_needs library name version_key result)
  execute_process(COMMAND "${CMAKE_READELF}" -d "${TINY_LLAMA_TORCH_LIBRARY_DIR}/lib${library}.so" OUTPUT_VARIABLE found ERROR_QUIET)
  if(NOT found MATCHES "${name}[-0-9a-f]*\\.so\\.([0-9]+)" AND EXISTS "${TINY_LLAMA_TORCH_ROOT}/version.py")
    file(STRINGS "${TINY_LLAMA_TORCH_ROOT}/version.py" found REGEX "^${version_key}[:= ]")
    string(REGEX MATCH "'([0-9]+)\\." found "${found}")
  endif()
  set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()
