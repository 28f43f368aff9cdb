cmake_minimum_required(VERSION 3.22)
# Run at every build (cmake -P): writes the commit that is being built, and whether tracked files differ from it, to OUT; the file is
# touched only when that changes.
execute_process(COMMAND git -C "${SOURCE}" rev-parse HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
set(dirty false)
if(status EQUAL 0)
  execute_process(COMMAND git -C "${SOURCE}" status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(dirty true)
  endif()
else()
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define TINY_LLAMA_COMMIT \"@commit@\"\n#define TINY_LLAMA_DIRTY @dirty@\n" @ONLY)
