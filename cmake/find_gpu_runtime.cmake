# The GPU of this libtorch: the runtime library that libtorch itself loads, its headers, and the compiler for our kernels. Wheels carry
# libraries and most headers, so that no complete toolkit is needed. Two runtimes in one process do not work: what is of another major
# version than libtorch's is refused. With a CPU libtorch the system's HIP serves only to say what devices there are.
if(NOT TINY_LLAMA_WITH_HIP MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TINY_LLAMA_WITH_HIP=${TINY_LLAMA_WITH_HIP}: allowed are AUTO, ON and OFF.")
endif()
set(TINY_LLAMA_CUDA_ARCHITECTURES "" CACHE STRING
  "For our kernels, as TORCH_CUDA_ARCH_LIST, which comes first (9.0 or 8.0;9.0+PTX); empty: the GPUs that are seen, else 8.0;9.0;10.0")
set(TINY_LLAMA_HIP_ARCHITECTURES "" CACHE STRING
  "For our kernels, as PYTORCH_ROCM_ARCH, which comes first (gfx90a;gfx942); empty: the GPUs that are seen, else gfx90a;gfx942;gfx950")

# tiny_llama_gpu_compiler(<variable> <name> <what it is called in --version> <folders>...): the first that is found; which major version
# it has is <variable>_MAJOR. Folders come before PATH; -D<variable>=OFF builds without our kernels.
function(tiny_llama_gpu_compiler variable name version_words)
  find_program(${variable} ${name} HINTS ${ARGN} PATH_SUFFIXES bin DOC "Compiler of our GPU kernels; OFF: without")
  set(${variable}_MAJOR "" PARENT_SCOPE)
  if(${variable})
    execute_process(COMMAND "${${variable}}" --version OUTPUT_VARIABLE version ERROR_VARIABLE problem RESULT_VARIABLE status)
    if(NOT "${version}" MATCHES "${version_words}[: ]*([0-9]+)\\.")
      message(FATAL_ERROR "${variable}=${${variable}}: its version is not known (status ${status}): ${version}${problem}")
    endif()
    set(${variable}_MAJOR "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

# tiny_llama_same_major(<variable> <libtorch's> <what> <folder variable>): refuses another major version.
function(tiny_llama_same_major variable wanted what folder)
  if(${variable} AND wanted AND NOT ${variable}_MAJOR EQUAL wanted)
    message(FATAL_ERROR "${${variable}} is of ${what} ${${variable}_MAJOR}, libtorch ${Torch_VERSION} was built with ${what} ${wanted}: two "
      "runtimes in one process do not work. Set ${folder} to a toolkit of version ${wanted}, -D${variable}=<compiler>, or "
      "-D${variable}=OFF to build without our kernels for GPUs.")
  endif()
endfunction()

# tiny_llama_same_headers(<file> <its version> <what> <folder variable>)
function(tiny_llama_same_headers file pattern what folder)
  file(STRINGS "${file}" line REGEX "define ${pattern}" LIMIT_COUNT 1)
  if(line MATCHES "${pattern}" AND TINY_LLAMA_GPU_MAJOR AND NOT CMAKE_MATCH_1 EQUAL TINY_LLAMA_GPU_MAJOR)
    message(FATAL_ERROR "${file} is of ${what} ${CMAKE_MATCH_1}, libtorch ${Torch_VERSION} was built with ${what} ${TINY_LLAMA_GPU_MAJOR}: set "
      "${folder} to a toolkit of version ${TINY_LLAMA_GPU_MAJOR}.")
  endif()
endfunction()

set(TINY_LLAMA_HAS_HIP OFF)
set(TINY_LLAMA_HAS_CUDA OFF)
if(TINY_LLAMA_TORCH_IS_ROCM)
  tiny_llama_torch_needs(c10_hip libamdhip64 hip TINY_LLAMA_GPU_MAJOR)
elseif(TINY_LLAMA_TORCH_IS_CUDA)
  tiny_llama_torch_needs(c10_cuda libcudart cuda TINY_LLAMA_GPU_MAJOR)
endif()
# Folders of a wheel's own packages, which may hold a compiler too.
file(GLOB wheel_folders "${TINY_LLAMA_TORCH_ROOT}/../nvidia/*" "${TINY_LLAMA_TORCH_ROOT}/../_rocm_sdk_*")
file(GLOB cuda_toolkits "/usr/local/cuda-${TINY_LLAMA_GPU_MAJOR}.*")
tiny_llama_gpu_compiler(TINY_LLAMA_NVCC nvcc "release" "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" ${wheel_folders} ${cuda_toolkits} /usr/local/cuda)
tiny_llama_gpu_compiler(TINY_LLAMA_HIPCC hipcc "HIP version" "$ENV{ROCM_PATH}" ${wheel_folders} /opt/rocm)

if(TINY_LLAMA_TORCH_IS_CUDA)
  tiny_llama_same_major(TINY_LLAMA_NVCC "${TINY_LLAMA_GPU_MAJOR}" CUDA CUDA_HOME)
  set(toolkit "")
  if(TINY_LLAMA_NVCC)
    # nvcc may be a script or a link; what it says itself is its toolkit.
    execute_process(COMMAND "${TINY_LLAMA_NVCC}" --dryrun -x cu -c /dev/null ERROR_VARIABLE dry_run OUTPUT_VARIABLE dry_run)
    if(dry_run MATCHES "TOP=([^\n]+)")
      get_filename_component(toolkit "${CMAKE_MATCH_1}" REALPATH)
    endif()
  endif()
  # A slim toolkit has the runtime's headers only, a wheel's packages those of the libraries.
  set(TINY_LLAMA_GPU_FOLDERS ${toolkit} ${wheel_folders} "$ENV{CUDA_HOME}" ${cuda_toolkits} "${TINY_LLAMA_TORCH_ROOT}")
  find_path(TINY_LLAMA_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${TINY_LLAMA_GPU_FOLDERS} PATH_SUFFIXES include)
  # The package of these headers does not come with torch, but triton, which does, has them too.
  find_path(TINY_LLAMA_CUDA_CRT_INCLUDE_DIR crt/host_defines.h
    HINTS ${TINY_LLAMA_GPU_FOLDERS} "${TINY_LLAMA_TORCH_ROOT}/../triton/backends/nvidia" PATH_SUFFIXES include)
  find_library(TINY_LLAMA_CUDA_LIBRARY "libcudart.so.${TINY_LLAMA_GPU_MAJOR}" HINTS ${wheel_folders} ${TINY_LLAMA_GPU_FOLDERS}
    PATH_SUFFIXES lib lib64)
  foreach(needed TINY_LLAMA_CUDA_INCLUDE_DIR TINY_LLAMA_CUDA_CRT_INCLUDE_DIR TINY_LLAMA_CUDA_LIBRARY)
    if(NOT ${needed})
      message(FATAL_ERROR "libtorch ${Torch_VERSION} is CUDA ${TINY_LLAMA_GPU_MAJOR}'s, but that runtime was not found (headers: "
        "${TINY_LLAMA_CUDA_INCLUDE_DIR}, ${TINY_LLAMA_CUDA_CRT_INCLUDE_DIR}; library: ${TINY_LLAMA_CUDA_LIBRARY}). Set CUDA_HOME to a toolkit of "
        "that version, pass -D${needed}=..., or -DTINY_LLAMA_WITH_CUDA=OFF to use this libtorch as one for CPUs.")
    endif()
  endforeach()
  tiny_llama_same_headers("${TINY_LLAMA_CUDA_INCLUDE_DIR}/cuda_runtime_api.h" "CUDART_VERSION +([0-9]+)[0-9][0-9][0-9]" CUDA CUDA_HOME)
  set(TINY_LLAMA_HAS_CUDA ON)
  add_library(tiny_llama_gpu_runtime INTERFACE)
  target_include_directories(tiny_llama_gpu_runtime SYSTEM INTERFACE "${TINY_LLAMA_CUDA_INCLUDE_DIR}" "${TINY_LLAMA_CUDA_CRT_INCLUDE_DIR}")
  target_link_libraries(tiny_llama_gpu_runtime INTERFACE "${TINY_LLAMA_CUDA_LIBRARY}")
elseif(NOT TINY_LLAMA_WITH_HIP STREQUAL "OFF")
  if(TINY_LLAMA_TORCH_IS_ROCM)
    tiny_llama_same_major(TINY_LLAMA_HIPCC "${TINY_LLAMA_GPU_MAJOR}" HIP ROCM_PATH)
    list(TRANSFORM wheel_folders APPEND "/lib/libamdhip64.so*" OUTPUT_VARIABLE wheel_runtimes)
    file(GLOB torch_hip_runtime "${TINY_LLAMA_TORCH_LIBRARY_DIR}/libamdhip64.so*" ${wheel_runtimes})
    if(torch_hip_runtime)
      list(GET torch_hip_runtime 0 TINY_LLAMA_HIP_LIBRARY)
    endif()
  endif()
  set(TINY_LLAMA_GPU_FOLDERS "$ENV{ROCM_PATH}" ${wheel_folders} /opt/rocm)
  find_path(TINY_LLAMA_HIP_INCLUDE_DIR hip/hip_runtime_api.h HINTS ${TINY_LLAMA_GPU_FOLDERS} PATH_SUFFIXES include)
  if(NOT TINY_LLAMA_HIP_LIBRARY)
    find_library(TINY_LLAMA_HIP_LIBRARY amdhip64 HINTS ${TINY_LLAMA_GPU_FOLDERS} PATH_SUFFIXES lib)
  endif()
  if(TINY_LLAMA_HIP_INCLUDE_DIR AND TINY_LLAMA_HIP_LIBRARY)
    tiny_llama_same_headers("${TINY_LLAMA_HIP_INCLUDE_DIR}/hip/hip_version.h" "HIP_VERSION_MAJOR +([0-9]+)" HIP ROCM_PATH)
    set(TINY_LLAMA_HAS_HIP ON)
    add_library(tiny_llama_gpu_runtime INTERFACE)
    target_include_directories(tiny_llama_gpu_runtime SYSTEM INTERFACE "${TINY_LLAMA_HIP_INCLUDE_DIR}")
    target_compile_definitions(tiny_llama_gpu_runtime INTERFACE __HIP_PLATFORM_AMD__)
    target_link_libraries(tiny_llama_gpu_runtime INTERFACE "${TINY_LLAMA_HIP_LIBRARY}")
  elseif(TINY_LLAMA_WITH_HIP STREQUAL "ON" OR TINY_LLAMA_TORCH_IS_ROCM)
    message(FATAL_ERROR "The HIP runtime was not found (headers: ${TINY_LLAMA_HIP_INCLUDE_DIR}, library: ${TINY_LLAMA_HIP_LIBRARY}). Install "
      "libamdhip64-dev or ROCm, set ROCM_PATH, or pass -DTINY_LLAMA_WITH_HIP=OFF.")
  endif()
endif()
message(STATUS "GPU runtimes: HIP ${TINY_LLAMA_HAS_HIP}, CUDA ${TINY_LLAMA_HAS_CUDA} ${TINY_LLAMA_GPU_MAJOR}")
