# Finds libtorch 2.9 to 2.13: in order Torch_DIR, an active `python3 -c "import torch"`, the project's own .venv. A ROCm or
# CUDA torch that the user already has comes before anything we would download.
set(TINY_LLAMA_TORCH_MINIMUM 2.9)
set(TINY_LLAMA_TORCH_BELOW 2.14)

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

# libtorch's own package announces itself loudly and asks for a static kineto that wheels do not carry; both are noise here.
set(CMAKE_MESSAGE_LOG_LEVEL_SAVED "${CMAKE_MESSAGE_LOG_LEVEL}")
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
find_package(Torch QUIET)
set(CMAKE_MESSAGE_LOG_LEVEL "${CMAKE_MESSAGE_LOG_LEVEL_SAVED}")
if(NOT Torch_FOUND)
  message(FATAL_ERROR "libtorch ${TINY_LLAMA_TORCH_MINIMUM} or newer was not found. Run scripts/bench --setup-only, activate a Python "
    "environment that has torch, or pass -DTorch_DIR=<libtorch>/share/cmake/Torch.")
endif()
if(Torch_VERSION VERSION_LESS TINY_LLAMA_TORCH_MINIMUM OR NOT Torch_VERSION VERSION_LESS TINY_LLAMA_TORCH_BELOW)
  message(FATAL_ERROR "libtorch ${Torch_VERSION} at ${Torch_DIR} is outside the supported range "
    "${TINY_LLAMA_TORCH_MINIMUM} <= version < ${TINY_LLAMA_TORCH_BELOW}.")
endif()
get_filename_component(TINY_LLAMA_TORCH_LIBRARY_DIR "${Torch_DIR}/../../../lib" ABSOLUTE)
message(STATUS "libtorch ${Torch_VERSION} at ${Torch_DIR}")

# torch's headers are not ours to warn about, and its flags (ABI, C++ library) must reach every target.
add_library(tiny_llama_torch INTERFACE)
target_include_directories(tiny_llama_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(tiny_llama_torch INTERFACE ${torch_flags})
target_link_libraries(tiny_llama_torch INTERFACE ${TORCH_LIBRARIES})
