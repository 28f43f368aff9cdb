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
    if ! cache_has "$folder" CMAKE_HOME_DIRECTORY "$project_root" || ! cache_has "$folder" Torch_DIR "$torch"; then
      rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
    fi
  fi
  for setting in "$@"; do options+=("-D$setting"); done
  cd "$project_root"
  cmake --preset "$preset" -B "$folder" "${options[@]}" -DTorch_DIR="$torch"
}

# What limits this process: its control groups, version 1, 2 or both, with all groups above them.
control_groups=/sys/fs/cgroup
membership=/proc/self/cgroup
limiting_folders() { # <controller>: one a line
  local controllers group mounts mount
  while IFS=: read -r _ controllers group; do
    case ",$controllers," in
      ,,) mounts=("$control_groups" "$control_groups/unified") ;;
      *",$1,"*) mounts=("$control_groups/$1") ;;
      *) continue ;;
    esac
    while [[ "$group" == /* ]]; do
      for mount in "${mounts[@]}"; do printf '%s\n' "$mount$group"; done
      if [[ "$group" == / ]]; then break; fi
      group="${group%/*}"
      group="${group:-/}"
    done
  done <"$membership" 2>/dev/null || true
}

# lower <variable> <value>: "max" and -1 are no limits
lower() { if [[ "$2" =~ ^[0-9]+$ && "$2" -lt "${!1}" ]]; then printf -v "$1" %s "$2"; fi; }

# One compiler takes up to 1.5 GiB on libtorch's headers: as many at once as there are processors and memory for.
parallel_jobs() {
  local jobs kib limit quota period folder
  jobs="$(nproc)"
  kib="$(sed -nE 's/^MemAvailable: *([0-9]+) kB/\1/p' /proc/meminfo 2>/dev/null || true)"
  kib="${kib:-$((jobs * 1572864))}"
  while IFS= read -r folder; do
    for limit in "$folder"/memory.{max,limit_in_bytes}; do
      if [[ -r "$limit" ]]; then lower kib "$(($(sed 's/^max$/-1024/' "$limit") / 1024))"; fi
    done
  done < <(limiting_folders memory)
  while IFS= read -r folder; do
    quota=max period=0
    if [[ -r "$folder/cpu.max" ]]; then
      read -r quota period <"$folder/cpu.max"
    elif [[ -r "$folder/cpu.cfs_quota_us" ]]; then
      quota="$(<"$folder/cpu.cfs_quota_us")" period="$(<"$folder/cpu.cfs_period_us")"
    fi
    # of half a processor more another compiler makes use
    if [[ "$quota" =~ ^[0-9]+$ && "$period" -gt 0 ]]; then lower jobs $(((quota + period / 2) / period)); fi
  done < <(limiting_folders cpu)
  lower jobs $((kib / 1572864))
  echo $((jobs > 1 ? jobs : 1))
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
