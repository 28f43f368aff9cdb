# shellcheck shell=bash
# Configure and build. scripts/bench and scripts/test share one configuration of build/, so that neither undoes the other's.

# In CI a warning and, unless libtorch is CUDA's, a missing HIP runtime have to be errors. Elsewhere HIP is used where it is found, and a
# compiler or a libtorch that warns of something new still builds.
choose_preset() {
  if [[ "${CI:-}" == true && "$torch_kind" != cuda ]]; then echo ci; else echo release; fi
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
    ci)
      cache_has "$folder" CMAKE_BUILD_TYPE Release && cache_has "$folder" TINY_LLAMA_WITH_HIP ON &&
        cache_has "$folder" TINY_LLAMA_WARNINGS_AS_ERRORS ON
      ;;
    # also what preset ci configured: the same program, not to be built again after each change of preset
    release) cache_has "$folder" CMAKE_BUILD_TYPE Release ;;
    asan) cache_has "$folder" TINY_LLAMA_SANITIZERS "address,undefined" ;;
  esac
}

# Where configure and build run: here, or through this function (in_rocm_root).
build_place=()

configure() { # <preset> <build folder> <Torch_DIR> [<variable>=<value>]...
  local preset="$1" folder="$2" torch="$3" options=() setting
  shift 3
  # Paths of another libtorch or of a checkout since moved stay in the cache otherwise.
  if [[ -f "$folder/CMakeCache.txt" ]]; then
    if ! cache_has "$folder" CMAKE_HOME_DIRECTORY "$project_root" || ! cache_has "$folder" Torch_DIR "$torch"; then options+=(--fresh); fi
  fi
  for setting in "$@"; do options+=("-D$setting"); done
  cd "$project_root"
  cmake --preset "$preset" -B "$folder" "${options[@]}" -DTorch_DIR="$torch"
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

build() { # <build folder> [target]...
  # as it is counted while it runs, whatever the user's own says
  NINJA_STATUS='[%f/%t] ' cmake --build "$1" --parallel "$(parallel_jobs)" ${2:+--target "${@:2}"}
}

# set_up_configured <preset> <build folder> [<CMake variable>=<value>]...
set_up_configured() {
  local preset="$1" folder="$2" name
  shift 2
  if is_configured "$preset" "$folder" "$@"; then return 0; fi
  name="configure_$(basename "$folder")"
  require_step "configure $(basename "$folder") (preset $preset)" "$name" "${build_place[@]}" configure "$preset" "$folder" "$torch_cmake_folder" "$@"
  # our own warnings, which would stay unread in the log
  sed -n '/^CMake Warning at cmake/,/^Call Stack/s/^  /   /p' "$log_folder/$name.log" >&2
}

# set_up_build <preset> <build folder> [target]...
set_up_build() {
  set_up_configured "$1" "$2"
  require_step "build in $(basename "$2")/" "build_$(basename "$2")" build "${@:2}"
}
