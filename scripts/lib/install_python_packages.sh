#!/usr/bin/env bash
# install_python_packages.sh PREFIX: puts the Python packages of the tools into PREFIX/lib/tiny_llama/python3.X, for the active python3 or
# that of TINY_LLAMA_PYTHON, where bin/tiny-llama finds them. `cmake --install` calls it. Where pip cannot, it says what is missing then,
# and ends with status 1, which the installation ignores: programs, `tiny-llama bench` and `tiny-llama train` work without.
set -euo pipefail
project_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
scripts_folder="$project_root/scripts"
# shellcheck source=scripts/lib/python_environment.sh
source "$scripts_folder/lib/python_environment.sh"

if [[ $# -ne 1 || "$1" == -* ]]; then
  printf 'usage: %s PREFIX\n' "$0" >&2
  exit 2
fi
python="${TINY_LLAMA_PYTHON:-python3}"
# a package is first staged elsewhere
target="${DESTDIR:-}$1/lib/tiny_llama"
mkdir -p "$target"
scratch="$(mktemp -d "$target/.packages.XXXXXX")"
trap 'rm -rf "$scratch"' EXIT

# The pip that takes the hashes, in an environment of its own; of the packages, all or none come into their place.
install_packages() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$python is no Python 3.10 or newer"; return 1; }
  virtual_environment="$scratch/pip" virtual_python="$scratch/pip/bin/python"
  make_virtual_environment "$python" || return 1
  local options=()
  mapfile -t options < <(group_options tools)
  "$virtual_python" -m pip install --disable-pip-version-check --progress-bar off --target "$scratch/packages" "${options[@]}" || return 1
  local folder
  folder="$target/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')"
  rm -rf "$folder"
  mv "$scratch/packages" "$folder"
  chmod -R a+rX "$folder"
  printf -- '-- Python packages of the tools: %s\n' "$folder"
}

if ! install_packages >"$scratch/log" 2>&1; then
  tail -n 3 "$scratch/log" | cut -c -240 | sed 's/^/   | /' >&2
  printf '%s\n' \
    "-- The Python packages of the tools could not be installed. tiny_llama_*, tiny-llama bench and tiny-llama train work without them;" \
    "   the other commands need them. Once there is a network: ${TINY_LLAMA_PYTHON:+TINY_LLAMA_PYTHON='$TINY_LLAMA_PYTHON' }bash '$scripts_folder/lib/install_python_packages.sh' '$1'" >&2
  exit 1
fi
tail -n 1 "$scratch/log"
