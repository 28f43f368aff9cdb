# `cmake --install`: programs, Python tools, data, headers and libraries under a prefix that can be moved. No installed file names the
# source or the build tree.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(TINY_LLAMA_INSTALL_LIBTORCH AUTO CACHE STRING
  "Installed programs use libtorch: COPY, of the prefix; PLACE, where it lies now; BESIDE, of the site-packages that they are installed in; AUTO, COPY of one for CPUs that lies inside this checkout, else PLACE")
set_property(CACHE TINY_LLAMA_INSTALL_LIBTORCH PROPERTY STRINGS AUTO COPY PLACE BESIDE)
option(TINY_LLAMA_INSTALL_PYTHON_PACKAGES "Let pip put what the Python tools need into the prefix" ON)
if(NOT TINY_LLAMA_INSTALL_LIBTORCH MATCHES "^(AUTO|COPY|PLACE|BESIDE)$")
  message(FATAL_ERROR "TINY_LLAMA_INSTALL_LIBTORCH=${TINY_LLAMA_INSTALL_LIBTORCH}: allowed are AUTO, COPY, PLACE and BESIDE.")
endif()

# What CUDA's and ROCm's load in their turn lies in packages of its own, several GB, which is not copied.
if(TINY_LLAMA_INSTALL_LIBTORCH STREQUAL COPY AND (TINY_LLAMA_TORCH_IS_CUDA OR TINY_LLAMA_TORCH_IS_ROCM))
  message(FATAL_ERROR "TINY_LLAMA_INSTALL_LIBTORCH=COPY: only a libtorch for CPUs is copied, and ${Torch_DIR} is one for GPUs; use PLACE or BESIDE.")
endif()

set(data_dir "${CMAKE_INSTALL_DATADIR}/tiny_llama")
set(library_dir lib/tiny_llama)
set(programs tiny_llama_bench tiny_llama_scaling tiny_llama_train)

# A build folder obeys the rule of a prefix, ../share/tiny_llama beside the folder of a program (core/data_folder.hpp).
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/share")
file(CREATE_LINK "${PROJECT_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/share/tiny_llama" SYMBOLIC)

get_filename_component(torch_folder "${TINY_LLAMA_TORCH_LIBRARY_DIR}" REALPATH)
set(libtorch_is ${TINY_LLAMA_INSTALL_LIBTORCH})
if(libtorch_is STREQUAL AUTO)
  set(libtorch_is PLACE)
  get_filename_component(real_source "${PROJECT_SOURCE_DIR}" REALPATH)
  foreach(root "${real_source}" "${PROJECT_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
    cmake_path(IS_PREFIX root "${torch_folder}" is_inside)
    cmake_path(IS_PREFIX root "${TINY_LLAMA_TORCH_LIBRARY_DIR}" is_linked_inside)
    if((is_inside OR is_linked_inside) AND NOT TINY_LLAMA_TORCH_IS_CUDA AND NOT TINY_LLAMA_TORCH_IS_ROCM)
      set(libtorch_is COPY)
    endif()
  endforeach()
endif()
set(library_files "${TINY_LLAMA_TORCH_LIBRARY_DIR}/libtorch.so" ${libtorch_openmp})
if(TARGET tiny_llama_gpu_runtime)
  get_target_property(runtimes tiny_llama_gpu_runtime INTERFACE_LINK_LIBRARIES)
  list(APPEND library_files ${runtimes})
endif()
set(run_path "")
foreach(file ${library_files})
  get_filename_component(folder "${file}" DIRECTORY)
  if(libtorch_is STREQUAL PLACE)
    list(APPEND run_path "${folder}")
  elseif(libtorch_is STREQUAL BESIDE)
    # <site-packages>/torch/lib, torch.libs, nvidia/... seen from <site-packages>/tiny_llama_bench/bin
    file(RELATIVE_PATH folder "${TINY_LLAMA_TORCH_ROOT}/.." "${folder}")
    list(APPEND run_path "$ORIGIN/../../${folder}")
  endif()
endforeach()
list(FILTER run_path EXCLUDE REGEX "\\.\\./\\.\\./\\.\\.")
if(libtorch_is STREQUAL COPY)
  set(run_path "$ORIGIN/../${library_dir}/torch")
  # what lies there is libtorch's and its own dependencies'; its part for Python is not needed
  file(GLOB copied "${torch_folder}/*.so*")
  list(FILTER copied EXCLUDE REGEX "/lib(torch_python|shm|jitbackend_test|backend_with_compiler|torchbind_test|caffe2_nvrtc)\\.so")
  install(FILES ${copied} ${libtorch_openmp} DESTINATION ${library_dir}/torch COMPONENT programs)
endif()
list(REMOVE_DUPLICATES run_path)
list(REMOVE_ITEM run_path ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES})
set_target_properties(${programs} PROPERTIES INSTALL_RPATH "${run_path}")
install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)

install(FILES VERSION LICENSE DESTINATION ${data_dir} COMPONENT programs)
install(DIRECTORY fixtures DESTINATION ${data_dir} COMPONENT programs PATTERN golden EXCLUDE)
install(FILES results/schema.json results/training_schema.json DESTINATION ${data_dir}/results COMPONENT programs)
install(DIRECTORY scripts/tinyllama_tools DESTINATION ${data_dir}/scripts COMPONENT tools
  PATTERN __pycache__ EXCLUDE PATTERN "*.pyc" EXCLUDE)

# For outside projects: find_package(tiny_llama).
set(exported base build_settings core gpu_kernels kernels model console instruments harness components)
list(TRANSFORM exported PREPEND tiny_llama_)
set_target_properties(tiny_llama_base PROPERTIES EXPORT_NAME base)
set_target_properties(tiny_llama_build_settings PROPERTIES EXPORT_NAME build_settings)
install(TARGETS ${exported} EXPORT tiny_llama ARCHIVE DESTINATION ${library_dir} COMPONENT development)
install(EXPORT tiny_llama NAMESPACE tiny_llama:: FILE tiny_llama_targets.cmake DESTINATION lib/cmake/tiny_llama COMPONENT development)
foreach(folder core model benchmarks/console benchmarks/instruments benchmarks/harness benchmarks/components)
  install(DIRECTORY ${folder}/ DESTINATION include/tiny_llama/${folder} COMPONENT development FILES_MATCHING PATTERN "*.hpp")
endforeach()
# Libraries that our headers include, of the versions that ours were compiled with.
foreach(library_and_headers nlohmann_json::nlohmann_json=nlohmann CLI11::CLI11=CLI benchmark::benchmark=benchmark)
  string(REGEX MATCH "(.+)=(.+)" unused "${library_and_headers}")
  set(headers "${CMAKE_MATCH_2}")
  get_target_property(folders ${CMAKE_MATCH_1} INTERFACE_INCLUDE_DIRECTORIES)
  string(REGEX REPLACE "\\$<BUILD_INTERFACE:([^>]*)>" "\\1" folders "${folders}")
  foreach(folder ${folders})
    if(IS_DIRECTORY "${folder}/${headers}")
      install(DIRECTORY "${folder}/${headers}" DESTINATION include/tiny_llama COMPONENT development)
    endif()
  endforeach()
endforeach()
set(google_benchmark "")
get_target_property(aliased benchmark::benchmark ALIASED_TARGET)
if(aliased)
  set(google_benchmark "libgoogle_benchmark.a")
  install(FILES $<TARGET_FILE:benchmark> RENAME ${google_benchmark} DESTINATION ${library_dir} COMPONENT development)
endif()
configure_package_config_file(cmake/tiny_llama-config.cmake.in tiny_llama-config.cmake
  INSTALL_DESTINATION lib/cmake/tiny_llama PATH_VARS data_dir library_dir)
write_basic_package_version_file(tiny_llama-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/tiny_llama-config.cmake" "${CMAKE_CURRENT_BINARY_DIR}/tiny_llama-config-version.cmake"
  cmake/find_libtorch.cmake cmake/find_openmp.cmake cmake/find_gpu_runtime.cmake
  DESTINATION lib/cmake/tiny_llama COMPONENT development)

# The entry of all commands, and what shells complete it by, which its own parsers say.
install(PROGRAMS scripts/tiny-llama DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
find_program(TINY_LLAMA_PYTHON3 python3)
install(CODE "
  foreach(shell_and_file bash=bash-completion/completions/tiny-llama zsh=zsh/site-functions/_tiny-llama)
    string(REGEX MATCH \"(.+)=(.+)\" unused \"\${shell_and_file}\")
    set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/\${CMAKE_MATCH_2}\")
    execute_process(COMMAND \"${TINY_LLAMA_PYTHON3}\" -m tinyllama_tools completion \${CMAKE_MATCH_1}
      WORKING_DIRECTORY \"${PROJECT_SOURCE_DIR}/scripts\" OUTPUT_VARIABLE script RESULT_VARIABLE status)
    if(status EQUAL 0)
      file(WRITE \"\${file}\" \"\${script}\")
      message(STATUS \"Installing: \${file}\")
    else()
      message(WARNING \"No completion for \${CMAKE_MATCH_1}: it needs a python3 of 3.10 or newer\")
    endif()
  endforeach()" COMPONENT tools)

# What the tools of Python need, by pip, with the hashes of requirements.lock. Without a network the installation goes on.
if(TINY_LLAMA_INSTALL_PYTHON_PACKAGES)
  install(CODE "execute_process(COMMAND bash \"${PROJECT_SOURCE_DIR}/scripts/lib/install_python_packages.sh\" \"\${CMAKE_INSTALL_PREFIX}\")"
    COMPONENT python_packages)
endif()
