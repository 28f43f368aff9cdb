# shellcheck shell=bash
# Configure and build. scripts/bench and scripts/test share one configuration of build/, so that neither undoes the other's.

# With the HIP part (preset ci) wherever its headers are and libtorch is not CUDA's: what CI compiles is then what is measured.
# In CI itself a missing HIP runtime has to be an error, not a smaller build.
choose_preset() {
  if [[ "$torch_kind" == cuda ]]; then
    echo release
  elif [[ "${CI:-}" == true ]] || is_met header:hip/hip_runtime_api.h; then
    echo ci
  else
    echo release
  fi
}

cache_has() { # <build folder> <variable> <value>
  grep -qE "^$2:[A-Z]+=" "$1/CMakeCache.txt" && [[ "$(sed -nE "s/^$2:[A-Z]+=//p" "$1/CMakeCache.txt")" == "$3" ]]
}

# The cache itself says what a build folder was configured for; CMake looks after its own files' changes at build time.
is_configured() { # <preset> <build folder> [<variable>=<value>]...
  local preset="$1" folder="$2" setting
  shift 2
  [[ -f "$folder/CMakeCache.txt" && -f "$folder/build.ninja" ]] || return 1
  cache_has "$folder" CMAKE_HOME_DIRECTORY "$project_root" && cache_has "$folder" Torch_DIR "$torch_cmake_folder" || return 1
  for setting in "$@"; do
    cache_has "$folder" "${setting%%=*}" "${setting#*=}" || return 1
  done
  case "$preset" in
    ci) cache_has "$folder" TINY_LLAMA_WITH_HIP ON && cache_has "$folder" CMAKE_BUILD_TYPE Release ;;
    release) cache_has "$folder" CMAKE_BUILD_TYPE Release && ! cache_has "$folder" TINY_LLAMA_WITH_HIP ON ;;
    asan) cache_has "$folder" TINY_LLAMA_SANITIZERS "address,undefined" ;;
  esac
}

configure() { # <preset> <build folder> <Torch_DIR> [<variable>=<value>]...
  local preset="$1" folder="$2" torch="$3" options=() setting
  shift 3
  # Paths of another libtorch or of a checkout since moved stay in the cache otherwise.
  if [[ -f "$folder/CMakeCache.txt" ]]; then
    if ! cache_has "$folder" CMAKE_HOME_DIRECTORY "$project_root" || ! cache_has "$folder" Torch_DIR "$torch"; then options+=(--fresh); fi
  fi
  for setting in "$@"; do options+=("-D$setting"); done
  cd "$project_root"
  cmake --preset "$preset" "${options[@]}" -DTorch_DIR="$torch"
}

# One compiler takes up to 1.5 GiB on libtorch's headers: as many at once as there are processors and memory for.
parallel_jobs() {
  local processors available_kib limit jobs
  processors="$(nproc)"
  available_kib="$(sed -nE 's/^MemAvailable: *([0-9]+) kB/\1/p' /proc/meminfo 2>/dev/null)"
  limit="$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)"
  if [[ "$limit" =~ ^[0-9]+$ && $((limit / 1024)) -lt ${available_kib:-0} ]]; then available_kib=$((limit / 1024)); fi
  jobs=$((${available_kib:-$((processors * 1572864))} / 1572864))
  if [[ $jobs -gt $processors ]]; then jobs=$processors; fi
  if [[ $jobs -lt 1 ]]; then jobs=1; fi
  echo "$jobs"
}

build() { cmake --build "$1" --parallel "$(parallel_jobs)"; } # <build folder>

# set_up_build <preset> <build folder> [<CMake variable>=<value>]...
set_up_build() {
  local preset="$1" folder="$2"
  shift 2
  if ! is_configured "$preset" "$folder" "$@"; then
    require_step "configure $(basename "$folder") (preset $preset)" "configure_$(basename "$folder")" \
      configure "$preset" "$folder" "$torch_cmake_folder" "$@"
  fi
  require_step "build $(basename "$folder")" "build_$(basename "$folder")" build "$folder"
}
