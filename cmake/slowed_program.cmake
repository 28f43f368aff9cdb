# tiny_llama_bench_slowed: tiny_llama_bench with parts of the model that can be slowed on purpose, and the test of that. The files that
# know of the slowdown are compiled again; the linker takes their objects before those of the libraries, so that tiny_llama_bench itself
# and everything else stay as they are.
set(slowed_sources
  benchmarks/instruments/context.cpp
  model/adamw.cpp model/attention.cpp model/embedding.cpp model/feed_forward.cpp model/loss.cpp model/rms_norm.cpp
  model/rotary.cpp model/slowdown.cpp model/slowdown_ledger.cpp model/slowdown_plan.cpp model/variant.cpp)
list(TRANSFORM slowed_sources PREPEND "${PROJECT_SOURCE_DIR}/")
add_library(tiny_llama_slowed OBJECT ${slowed_sources})
target_compile_definitions(tiny_llama_slowed PRIVATE TINY_LLAMA_WITH_SLOWDOWN)
# what benchmarks/instruments/ gives context.cpp
target_include_directories(tiny_llama_slowed PRIVATE $<TARGET_PROPERTY:tiny_llama_instruments,INCLUDE_DIRECTORIES>)
target_compile_definitions(tiny_llama_slowed PRIVATE $<TARGET_PROPERTY:tiny_llama_instruments,COMPILE_DEFINITIONS>)
target_link_libraries(tiny_llama_slowed PRIVATE tinyllama::model tinyllama::instruments)
add_dependencies(tiny_llama_slowed tiny_llama_instruments)

add_executable(tiny_llama_bench_slowed "${PROJECT_SOURCE_DIR}/benchmarks/main.cpp" $<TARGET_OBJECTS:tiny_llama_slowed>)
target_link_libraries(tiny_llama_bench_slowed PRIVATE tinyllama::components tinyllama::harness)
target_compile_definitions(tiny_llama_bench_slowed PRIVATE TINY_LLAMA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
set_target_properties(tiny_llama_bench_slowed PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/benchmarks")

tiny_llama_test(slowdown_test
  SOURCES "${PROJECT_SOURCE_DIR}/model/slowdown_test.cpp" $<TARGET_OBJECTS:tiny_llama_slowed>
  LINK tinyllama::model tinyllama::instruments)
if(TARGET slowdown_test)
  target_compile_definitions(slowdown_test PRIVATE TINY_LLAMA_WITH_SLOWDOWN)
endif()
