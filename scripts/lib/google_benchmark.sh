# shellcheck shell=bash
# Google Benchmark's source into .deps/benchmark, where CMake looks for it first. Debian 12's own package is built without NDEBUG,
# which marks every result "debug"; the source package of the next release has what is needed, through the machine's own mirror.

benchmark_version=1.9.1
benchmark_release=trixie
benchmark_folder="$dependencies_folder/benchmark"

google_benchmark_is_unpacked() { [[ -f "$benchmark_folder/CMakeLists.txt" ]]; }

# Works without root: every folder that apt writes to is inside `work`.
fetch_google_benchmark() {
  local own_release="$1" work="$dependencies_folder/apt" version unpacked
  rm -rf "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/parts"
  python3 "$scripts_folder/tinyllama_tools/apt_sources.py" --own-release "$own_release" \
    --wanted-release "$benchmark_release" >"$work/parts/next_release.sources"
  cd "$work"
  local options=(
    -o Dir::Etc::SourceList=/dev/null
    -o "Dir::Etc::SourceParts=$PWD/parts"
    -o "Dir::State::Lists=$PWD/lists"
    -o "Dir::Cache=$PWD/cache"
    -o Acquire::Languages=none
    # as root, apt would download as a user who may not enter this folder
    -o APT::Sandbox::User=root
  )
  # One archive of several may lack the release; whether the version is there decides.
  apt-get "${options[@]}" update || true
  version="$(apt-cache "${options[@]}" showsrc --only-source benchmark |
    sed -n "s/^Version: \(${benchmark_version//./\\.}-.*\)/\1/p" | sort -V | tail -n 1)"
  [[ -n "$version" ]] || { echo "apt offers no source of benchmark $benchmark_version"; return 1; }
  apt-get "${options[@]}" source --download-only "benchmark=$version"
  unpacked="$dependencies_folder/benchmark.new"
  rm -rf "$unpacked"
  mkdir "$unpacked"
  tar -x --strip-components=1 -C "$unpacked" -f benchmark_"$benchmark_version".orig.tar.*
  # Otherwise its version stamp would be read from this project's own git tags.
  printf 'not a repository: the source package of %s\n' "$version" >"$unpacked/.git"
  rm -rf "$benchmark_folder"
  mv "$unpacked" "$benchmark_folder"
  cd "$project_root"
  rm -rf "$work"
}

set_up_google_benchmark() {
  google_benchmark_is_unpacked && return 0
  local name="" codename=""
  if [[ -r /etc/os-release ]]; then
    # shellcheck source=/dev/null
    name="$(. /etc/os-release && echo "${ID:-}")"
    # shellcheck source=/dev/null
    codename="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")"
  fi
  if [[ "$name" == debian && -n "$codename" ]] && command -v apt-get >/dev/null; then
    run_step "Google Benchmark $benchmark_version: source package of Debian $benchmark_release" google_benchmark \
      fetch_google_benchmark "$codename" && return 0
  fi
  say "   Google Benchmark is left to CMake, which takes an installed one (1.8 or newer) or fetches it with git."
}
