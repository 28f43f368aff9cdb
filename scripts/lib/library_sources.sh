# shellcheck shell=bash
# Sources of libraries into .deps/sources/<name>, where CMake looks for what is not installed: source packages of Debian's next release,
# through the machine's own mirror and without root. Google Benchmark always: Debian 12's own package is built without NDEBUG, which
# marks every result "debug".

sources_folder="$dependencies_folder/sources"
sources_release=trixie
# name, package that it is installed by, source package, version
library_sources="
benchmark - benchmark 1.9.1
nlohmann_json nlohmann-json3-dev nlohmann-json3 3.11.3
cli11 libcli11-dev cli11 2.4.1
googletest libgtest-dev googletest 1.16.0"

packages_as_sources() { sed -nE 's/^[a-z0-9_]+ (lib|nlohmann)([^ ]+) .*/\1\2/p' <<<"$library_sources"; }

# sources_lacking <package that is not installed>...: of the sources that CMake will need, those that are not here, a line each
sources_lacking() {
  local name package source version
  while read -r name package source version; do
    [[ -n "$name" && ! -f "$sources_folder/$name/CMakeLists.txt" ]] || continue
    if [[ "$package" == - || " $* " == *" $package "* ]]; then printf '%s %s %s\n' "$name" "$source" "$version"; fi
  done <<<"$library_sources"
}

# next_release_sources <apt's folder> <own release> <target folder>: the machine's own lists for the release wanted and its sources only.
# Mirror, proxy and signing key stay what the machine's owner chose.
next_release_sources() {
  local path
  for path in "$1"/sources.list "$1"/sources.list.d/*.{list,sources}; do
    [[ -f "$path" ]] || continue
    sed -E "s/^deb([[:space:]])/deb-src\1/; s/^Types:.*/Types: deb-src/; s/([[:space:]])$2\b/\1$sources_release/g" "$path" >"$3/${path##*/}"
  done
}

# Every folder that apt writes to is inside `work`.
fetch_library_sources() { # <own release> <package that is not installed>...
  local own_release="$1" work="$dependencies_folder/apt" name source version found unpacked archive status=0
  shift
  rm -rf "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/parts" "$sources_folder"
  next_release_sources /etc/apt "$own_release" "$work/parts"
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
  while read -r name source version; do
    found="$(apt-cache "${options[@]}" showsrc --only-source "$source" |
      sed -n "s/^Version: \(${version//./\\.}[-+].*\)/\1/p" | sort -V | tail -n 1)"
    # of its files only the release's own is needed
    if [[ -n "$found" ]]; then apt-get "${options[@]}" source --download-only "$source=$found" || true; fi
    archive="$(find . -maxdepth 1 -name "${source}_$version*.orig.tar.*" ! -name '*.asc')"
    if [[ -z "$archive" ]]; then
      echo "apt offers no source of $source $version"
      status=1
      continue
    fi
    unpacked="$sources_folder/$name.new"
    rm -rf "$unpacked"
    mkdir "$unpacked"
    tar -x --strip-components=1 -C "$unpacked" -f "$archive"
    # Otherwise its version stamp would be read from this project's own git tags.
    printf 'not a repository: the source package %s %s\n' "$source" "$found" >"$unpacked/.git"
    rm -rf "${sources_folder:?}/$name"
    mv "$unpacked" "$sources_folder/$name"
  done < <(sources_lacking "$@")
  cd "$project_root"
  rm -rf "$work"
  return "$status"
}

# set_up_library_sources <package that is not installed>...
set_up_library_sources() {
  local release="" names
  names="$(sources_lacking "$@" | cut -d ' ' -f 1 | paste -sd ' ')"
  if [[ -z "$names" ]]; then return 0; fi
  if [[ -r /etc/os-release ]]; then
    # shellcheck source=/dev/null
    release="$(. /etc/os-release && if [[ "${ID:-}" == debian ]]; then echo "${VERSION_CODENAME:-}"; fi)"
  fi
  if [[ -n "$release" ]] && command -v apt-get >/dev/null; then
    run_step "sources of $names: source packages of Debian $sources_release" library_sources fetch_library_sources "$release" "$@" &&
      return 0
  fi
  say "   Left to CMake, which takes what is installed and downloads the rest from github.com: $names"
}
