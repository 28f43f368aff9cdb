# shellcheck shell=bash
# libtorch and the Python tools. A torch that the user already has is taken as it is, whatever device it was built for; only
# where there is none does pip install one, into the project's own .venv.

# Steps run in shells of their own, which another environment than .venv is told by the variable.
virtual_environment="${TINY_LLAMA_ENVIRONMENT:-$project_root/.venv}"
virtual_python="$virtual_environment/bin/python"

# What find_own_torch and set_up_torch leave behind.
torch_cmake_folder=""
torch_kind=""

# find_torch_of <python>: sets the two variables above if that Python has a torch that will do.
find_torch_of() {
  local line status=0
  [[ -n "$1" ]] && command -v "$1" >/dev/null || return 1
  line="$("$1" "$scripts_folder/lib/find_torch.py" 2>/dev/null)" || status=$?
  if [[ $status -eq 3 ]]; then
    say "   Not used: torch ${line%% *} of $(command -v "$1"): only 2.9 or newer, complete with its CMake files, will do."
  fi
  [[ $status -eq 0 && -n "$line" ]] || return 1
  read -r _ torch_kind torch_cmake_folder <<<"$line"
}

# In order: Torch_DIR, then the active python3 (an activated .venv of ours does not count: it has to be complete first).
find_own_torch() {
  if [[ -n "${Torch_DIR:-}" ]]; then
    if [[ ! -f "$Torch_DIR/TorchConfig.cmake" ]]; then
      say "error: Torch_DIR=$Torch_DIR has no TorchConfig.cmake. It is <libtorch>/share/cmake/Torch."
      exit 2
    fi
    torch_cmake_folder="$(cd "$Torch_DIR" && pwd)"
    torch_kind=cpu
    local libraries="$torch_cmake_folder/../../../lib"
    if [[ -e "$libraries/libtorch_cuda.so" ]]; then torch_kind=cuda; fi
    if [[ -e "$libraries/libtorch_hip.so" ]]; then torch_kind=rocm; fi
    return 0
  fi
  if [[ "$(dirname "$(command -v python3)")" -ef "$virtual_environment/bin" ]]; then return 1; fi
  find_torch_of python3
}

# find_given_torch <folder>: of a Python environment, or a folder such as Torch_DIR is. Sets the two variables above.
find_given_torch() {
  if [[ -x "$1/bin/python" ]]; then
    find_torch_of "$1/bin/python" && return 0
  elif [[ -f "$1/TorchConfig.cmake" ]]; then
    Torch_DIR="$1" find_own_torch
    return 0
  fi
  say "error: --torch-dir '$1' must be <libtorch>/share/cmake/Torch, or a Python environment with a torch, 2.9 or newer."
  exit 2
}

# A stamp inside .venv says which set of requirements, of what content and for which place, is completely installed.
environment_stamp_value() { # <requirements file>
  printf '%s\n' "$project_root" | cat - "$1" | cksum
}
environment_has() { # <requirements file>
  local stamp="$virtual_environment/.complete_${1##*/}"
  [[ -x "$virtual_python" && -f "$stamp" && "$(<"$stamp")" == "$(environment_stamp_value "$1")" ]]
}

# A .venv whose Python or pip does not answer (an interrupted creation, a removed interpreter, a moved checkout) is made anew.
make_virtual_environment() {
  if "$virtual_python" -m pip --version >/dev/null 2>&1; then
    if [[ "$("$virtual_python" -c 'import sys; print(sys.prefix)')" -ef "$virtual_environment" ]]; then return 0; fi
  fi
  rm -rf "$virtual_environment"
  python3 -m venv "$virtual_environment"
}

# install_requirements <file>: into .venv. pip takes a package whose files an interruption left half there for installed, so a
# marker tells the next run to write all of them again.
install_requirements() {
  local file="$1" name marker options=()
  name="$(basename "$1")"
  marker="$virtual_environment/.installing_$name"
  make_virtual_environment
  if [[ -f "$marker" ]]; then options+=(--ignore-installed); fi
  : >"$marker"
  "$virtual_python" -m pip install --disable-pip-version-check --progress-bar off "${options[@]}" -r "$file"
  rm "$marker"
  environment_stamp_value "$file" >"$virtual_environment/.complete_$name.new"
  mv "$virtual_environment/.complete_$name.new" "$virtual_environment/.complete_$name"
}

install_torch() {
  install_requirements "$project_root/requirements.txt"
  # This also loads the libraries, which a file cut short would not survive.
  "$virtual_python" -W ignore -c 'import torch; print("torch", torch.__version__)' || {
    rm -f "$virtual_environment"/.complete_requirements.txt
    : >"$virtual_environment/.installing_requirements.txt"
    return 1
  }
}

# After find_own_torch found none.
set_up_torch() {
  if ! environment_has "$project_root/requirements.txt" || ! find_torch_of "$virtual_python"; then
    if [[ -e /dev/kfd || -n "${ROCM_PATH:-}" ]]; then
      say "   This machine seems to have an AMD GPU, but no torch for ROCm was found, and pip's own choice has no ROCm: the"
      say "   benchmark will only see the CPU. To use the GPU, install torch for ROCm (or set Torch_DIR) and run this again."
    fi
    local wanted
    wanted="$(sed -nE 's/^(torch==[^ ;]+).*/\1/p' "$project_root/requirements.txt")"
    say "   pip chooses the build of torch: 0.2 GB to download for a CPU, several GB with the CUDA libraries where its index has"
    say "   those first. To use another one, install it yourself or set Torch_DIR; it is then taken as it is."
    require_step "libtorch: pip install $wanted into .venv" torch install_torch
    find_torch_of "$virtual_python" || {
      say "error: pip installed torch, but it is not complete. Remove .venv and run this again."
      exit 2
    }
  fi
}

# set_up_tools <requirements file> <what it holds> <log name>
set_up_tools() {
  if environment_has "$project_root/$1"; then return 0; fi
  require_step "$2: pip install -r $1 into .venv" "$3" install_requirements "$project_root/$1"
}

# The first Python that has torch and the oracle's packages; status 1 where none has. A user's own Python, which holds the torch
# of its device, is never installed into.
find_oracle_python() {
  local python
  for python in "$virtual_python" python3; do
    if "$python" -c 'import safetensors, torch, transformers' 2>/dev/null; then
      printf '%s\n' "$python"
      return
    fi
  done
  say "error: no Python here has torch, transformers and safetensors. In the environment that has your torch:"
  say "   python3 -m pip install -r $project_root/requirements-oracle.txt"
  return 1
}
