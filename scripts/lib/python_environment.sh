# shellcheck shell=bash
# libtorch and the Python tools. A torch that the user already has is taken as it is, whatever device it was built for; only
# where there is none does pip install one, into the project's own .venv.

# Steps run in shells of their own, which another environment than .venv is told by the variable.
virtual_environment="${TINY_LLAMA_ENVIRONMENT:-$project_root/.venv}"
virtual_python="$virtual_environment/bin/python"

# What find_own_torch and set_up_torch leave behind.
torch_cmake_folder=""
torch_kind=""

take_torch() { # <folder of TorchConfig.cmake>: sets the two variables above
  torch_cmake_folder="$(cd "$1" && pwd)"
  torch_kind=cpu
  if [[ -e "$1/../../../lib/libtorch_cuda.so" ]]; then torch_kind=cuda; fi
  if [[ -e "$1/../../../lib/libtorch_hip.so" ]]; then torch_kind=rocm; fi
}

# find_torch_of <python>: takes that Python's torch, if it has one that will do.
find_torch_of() {
  local line status=0
  [[ -n "$1" ]] && command -v "$1" >/dev/null || return 1
  line="$("$1" "$scripts_folder/lib/find_torch.py" 2>/dev/null)" || status=$?
  if [[ $status -eq 3 ]]; then
    say "   Not used: torch ${line%% *} of $(command -v "$1"): only 2.9 or newer, complete with its CMake files, will do."
  fi
  [[ $status -eq 0 && -n "$line" ]] || return 1
  take_torch "${line#* }"
}

# In order: Torch_DIR, then the active python3 (an activated .venv of ours does not count: it has to be complete first).
find_own_torch() {
  if [[ -n "${Torch_DIR:-}" ]]; then
    if [[ ! -f "$Torch_DIR/TorchConfig.cmake" ]]; then
      say "error: Torch_DIR=$Torch_DIR has no TorchConfig.cmake. It is <libtorch>/share/cmake/Torch."
      exit 2
    fi
    take_torch "$Torch_DIR"
    return 0
  fi
  if [[ "$(dirname "$(command -v python3)")" -ef "$virtual_environment/bin" ]]; then return 1; fi
  find_torch_of python3
}

# find_given_torch <folder>: takes that of a Python environment, or of a folder such as Torch_DIR is.
find_given_torch() {
  if [[ -x "$1/bin/python" ]]; then
    find_torch_of "$1/bin/python" && return 0
  elif [[ -f "$1/TorchConfig.cmake" ]]; then
    take_torch "$1"
    return 0
  fi
  say "error: --torch-dir '$1' must be <libtorch>/share/cmake/Torch, or a Python environment with a torch, 2.9 or newer."
  exit 2
}

# The groups of pyproject.toml, which go into .venv.
declare -A group_titles=(
  [torch]="libtorch"
  [tools]="Python packages of the tools"
  [pictures]="what draws pictures of a report"
  [parquet]="what writes Parquet, 55 MB"
  [test]="tools for the tests"
  [oracle]="the oracle of the proofs"
  [cuda]="libtorch for CUDA and nvcc, 5 GB"
)

# How pip finds a group. Of torch the index decides which build it gives, so that no hash can be asked for.
group_options() { # <group>: one a line
  printf '%s\n' --group "$project_root/pyproject.toml:$1"
  if [[ "$1" != torch && "$1" != cuda ]]; then printf '%s\n' --require-hashes --constraint "$project_root/requirements.lock"; fi
}

# A stamp inside .venv says which group, of what versions and for which place, is completely installed.
group_stamp() { # <group>
  {
    printf '%s\n' "$project_root"
    sed -n '/^\[dependency-groups\]/,/^\[tool/p' "$project_root/pyproject.toml"
    if [[ "$1" != torch && "$1" != cuda ]]; then cat "$project_root/requirements.lock"; fi
  } | cksum
}
environment_has() { # <group>
  local stamp="$virtual_environment/.complete_$1"
  [[ -x "$virtual_python" && -f "$stamp" && "$(<"$stamp")" == "$(group_stamp "$1")" ]]
}

# The first pip that takes hashes from constraints (https://github.com/pypa/pip/issues/9243), so that one file has those of all groups.
pip_version=26.3
pip_hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13

# A .venv whose Python or pip does not answer (an interrupted creation, a removed interpreter, a moved checkout) is made anew.
make_virtual_environment() { # [python]
  if ! "$virtual_python" -m pip --version >/dev/null 2>&1 ||
    ! [[ "$("$virtual_python" -c 'import sys; print(sys.prefix)')" -ef "$virtual_environment" ]]; then
    rm -rf "$virtual_environment"
    "${1:-python3}" -m venv "$virtual_environment"
  fi
  if [[ "$("$virtual_python" -m pip --version)" != "pip $pip_version "* ]]; then
    "$virtual_python" -m pip install --disable-pip-version-check --progress-bar off --require-hashes \
      --requirement /dev/stdin <<<"pip==$pip_version --hash=$pip_hash"
  fi
}

# pip takes a package whose files an interruption left half there for installed, so a marker tells the next run to write all of them
# again.
install_group() { # <group>
  local group="$1" marker="$virtual_environment/.installing_$1" options=()
  make_virtual_environment
  mapfile -t options < <(group_options "$group")
  if [[ -f "$marker" ]]; then options+=(--ignore-installed); fi
  : >"$marker"
  "$virtual_python" -m pip install --disable-pip-version-check --progress-bar off "${options[@]}"
  if [[ "$group" == torch ]]; then
    # this also loads the libraries, which a file cut short would not survive
    "$virtual_python" -W ignore -c 'import torch; print("torch", torch.__version__)'
  fi
  rm "$marker"
  group_stamp "$group" >"$virtual_environment/.complete_$group.new"
  mv "$virtual_environment/.complete_$group.new" "$virtual_environment/.complete_$group"
}

set_up_group() { # <group>
  if environment_has "$1"; then return 0; fi
  require_step "${group_titles[$1]}: pip install --group $1 into $(basename "$virtual_environment")" "packages_$1" install_group "$1"
}

# After find_own_torch found none.
set_up_torch() {
  if ! environment_has torch || ! find_torch_of "$virtual_python"; then
    if [[ -e /dev/kfd || -n "${ROCM_PATH:-}" ]]; then
      say "   This machine seems to have an AMD GPU, but no torch for ROCm was found, and pip's own choice has no ROCm: the"
      say "   benchmark will only see the CPU. To use the GPU, install torch for ROCm (or set Torch_DIR) and run this again."
    fi
    say "   pip chooses the build of torch: 0.2 GB to download for a CPU, several GB with the CUDA libraries where its index has"
    say "   those first. To use another one, install it yourself or set Torch_DIR; it is then taken as it is."
    rm -f "$virtual_environment/.complete_torch"
    set_up_group torch
    find_torch_of "$virtual_python" || {
      say "error: pip installed torch, but it is not complete. Remove .venv and run this again."
      exit 2
    }
  fi
}

# first_python <code>: that of .venv or the active one, the first of which runs the code well; status 1 where neither does.
first_python() {
  local python
  for python in "$virtual_python" python3; do
    if "$python" -c "$1" 2>/dev/null; then
      printf '%s\n' "$python"
      return
    fi
  done
  return 1
}

# The first Python that has torch and the oracle's packages; status 1 where none has. A user's own Python, which holds the torch
# of its device, is never installed into.
find_oracle_python() {
  if first_python 'import safetensors, torch, transformers'; then return 0; fi
  say "error: no Python here has torch, transformers and safetensors. In the environment that has your torch:"
  say "   python3 -m pip install --group '$project_root/pyproject.toml:oracle' -c '$project_root/requirements.lock'    # pip $pip_version"
  return 1
}
