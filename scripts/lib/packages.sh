# shellcheck shell=bash
# Distribution packages. What is there is recognised by itself, not by a package's name: headers may come from ROCm, conda or
# a user's own prefix, and the same check serves distributions without apt.

# What the build needs of the system: package of Debian or Ubuntu, how it is recognised, and whether it is required, optional, or a
# library whose source serves as well (library_sources.sh). "command:a,b" is met by any of the commands, "header:x.h" by a header from
# anywhere, "python:m" by a module of python3, "python_header:x.h" by a header of python3's own.
package_list="\
g++                 command:g++,clang++,c++         required
cmake               command:cmake                   required
ninja-build         command:ninja                   required
git                 command:git                     required
python3             command:python3                 required
python3-venv        python:ensurepip                required
libcli11-dev        header:CLI/CLI.hpp              source
nlohmann-json3-dev  header:nlohmann/json.hpp        source
libgtest-dev        header:gtest/gtest.h            source
ccache              command:ccache                  optional
libamdhip64-dev     header:hip/hip_runtime_api.h    optional
libgloo-dev         header:gloo/rendezvous/store.h  optional
openmpi-bin         command:mpirun                  optional
python3-dev         python_header:Python.h          optional
chromium            command:chromium,chromium-browser,google-chrome  optional"

header_folders() {
  local prefixes="${CMAKE_PREFIX_PATH:-}:${CONDA_PREFIX:-}:${ROCM_PATH:-/opt/rocm}:/usr/local:/usr" folder
  printf '%s\n' /usr/include/*-linux-gnu
  while IFS= read -r -d : folder; do
    if [[ -n "$folder" ]]; then printf '%s\n' "$folder/include"; fi
  done <<<"$prefixes:"
  while IFS= read -r -d : folder; do
    if [[ -n "$folder" ]]; then printf '%s\n' "$folder"; fi
  done <<<"${CPATH:-}:"
}

is_met() { # <check>
  local kind="${1%%:*}" wanted="${1#*:}" word folder
  case "$kind" in
    command)
      for word in ${wanted//,/ }; do
        if command -v "$word" >/dev/null; then return 0; fi
      done
      return 1
      ;;
    header)
      while IFS= read -r folder; do
        if [[ -f "$folder/$wanted" ]]; then return 0; fi
      done < <(header_folders)
      return 1
      ;;
    python) python3 -c "import $wanted" 2>/dev/null ;;
    python_header) [[ -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/$wanted" ]] ;;
    *) say "packages.sh: unknown check '$1'"; return 1 ;;
  esac
}

# missing_packages <required|source|optional> [package to leave out]...: one package a line
missing_packages() {
  local package check need
  while read -r package check need; do
    if [[ "$need" == "$1" && " ${*:2} " != *" $package "* ]] && ! is_met "$check"; then printf '%s\n' "$package"; fi
  done <<<"$package_list"
}

can_install_packages() { [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; }

# The lists of a fresh machine are often empty or old; one that cannot be fetched need not matter for these packages.
update_package_lists() { apt-get update || echo "apt-get update failed; trying with the lists that are there"; }

install_packages() { DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"; }

say_how_to_install() { # <package>...
  local package check
  if command -v apt-get >/dev/null; then
    say "   Install them with:  sudo apt-get install --no-install-recommends $*"
    return
  fi
  say "   There is no apt here. Install what provides these, by whatever name this system's package manager has for it:"
  while read -r package check _; do
    if [[ " $* " == *" $package "* ]]; then say "     ${check/:/ }   (on Debian and Ubuntu: $package)"; fi
  done <<<"$package_list"
}

# Libraries that set_up_packages found missing and did not install: for set_up_library_sources.
libraries_not_installed=()

# set_up_packages [package that this run does not need]...
set_up_packages() {
  local missing=() wanted=() offered=() absent=() package
  mapfile -t missing < <(missing_packages required "$@")
  mapfile -t wanted < <(missing_packages optional "$@")
  mapfile -t libraries_not_installed < <(missing_packages source "$@")
  if can_install_packages; then
    missing+=("${libraries_not_installed[@]}")
    libraries_not_installed=()
  fi
  if [[ ${#missing[@]} -gt 0 ]]; then
    if ! can_install_packages; then
      say "error: these packages are missing, and this user cannot install packages here: ${missing[*]}"
      say_how_to_install "${missing[@]}"
      exit 2
    fi
  fi
  if can_install_packages; then
    # not every release has all the optional ones; what it has is asked for once in this checkout
    if [[ ${#missing[@]} -gt 0 || (${#wanted[@]} -gt 0 && ! -f "$log_folder/package_lists.log") ]]; then
      require_step "lists of packages" package_lists update_package_lists
    fi
    for package in "${wanted[@]}"; do
      if apt-cache show "$package" >/dev/null 2>&1; then offered+=("$package"); else absent+=("$package"); fi
    done
    wanted=("${absent[@]}")
    if [[ ${#missing[@]} -gt 0 ]]; then
      require_step "distribution packages: ${missing[*]}" packages install_packages "${missing[@]}"
    fi
    if [[ ${#offered[@]} -gt 0 ]]; then
      run_step "distribution packages (optional): ${offered[*]}" packages_optional install_packages "${offered[@]}" ||
        say "   Going on without them."
    fi
  fi
  if [[ ${#wanted[@]} -eq 0 ]]; then return 0; fi
  say "-- going on without these optional packages${absent[*]:+, which this release does not have}: ${wanted[*]}"
  if ! can_install_packages; then say_how_to_install "${wanted[@]}"; fi
}
