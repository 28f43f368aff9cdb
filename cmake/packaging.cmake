# `cpack`: a package of Debian's kind (-G DEB) and an archive (-G TGZ), of what `cmake --install` installs. libtorch is in them where it
# was copied (TINY_LLAMA_INSTALL_LIBTORCH); a package without it needs a torch of that very version where the build found it.
set(CPACK_PACKAGE_NAME tiny-llama-bench)
set(CPACK_PACKAGE_VENDOR "The Tiny LLaMA benchmark authors")
set(CPACK_PACKAGE_CONTACT "The Tiny LLaMA benchmark authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Benchmarks of a small LLaMA's training step and of its parts, on libtorch")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_VERBATIM_VARIABLES ON)
# one package, not one a component
set(CPACK_MONOLITHIC_INSTALL ON)
# an archive of libtorch is large: all processors
set(CPACK_THREADS 0)

# Two builds of one version may differ in the libtorch that they were built with, and in whether it is in them.
set(with_libtorch "torch${Torch_VERSION}")
if(NOT libtorch_is STREQUAL COPY)
  string(PREPEND with_libtorch "for-")
endif()
set(CPACK_PACKAGE_FILE_NAME "tiny-llama-bench-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}-${with_libtorch}")

# Below /usr. What the programs need of the system is read off them where dpkg-shlibdeps (dpkg-dev) is there; libtorch's libraries are in no
# package, so what they need in their turn is not asked.
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${CPACK_PACKAGE_CONTACT}")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "python3 (>= 3.10)")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${TINY_LLAMA_TORCH_LIBRARY_DIR}")
include(CPack)
