-- For Lmod: put the folder above this one on MODULEPATH, then `module load tiny-llama-bench`.
local prefix = "/opt/tiny_llama" -- yours: that of `cmake --install build --prefix`

whatis("Name: tiny-llama-bench")
whatis("Version: " .. myModuleVersion())
whatis("Description: Benchmarks of a small LLaMA's training step and of its parts, on libtorch")
help([[tiny-llama bench --quick measures a tiny model; tiny-llama --help lists the commands.]])
prepend_path("PATH", pathJoin(prefix, "bin"))
-- for find_package(tiny_llama)
prepend_path("CMAKE_PREFIX_PATH", prefix)
-- yours: where libtorch is not in the prefix, the module that it came with, e.g. depends_on("rocm")
