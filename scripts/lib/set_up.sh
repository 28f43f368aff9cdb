# shellcheck shell=bash
# The set-up as a whole: each part looks whether its work is already done, which costs milliseconds.

library_folder="$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/lib/common.sh
source "$library_folder/common.sh"
# shellcheck source=scripts/lib/packages.sh
source "$library_folder/packages.sh"
# shellcheck source=scripts/lib/python_environment.sh
source "$library_folder/python_environment.sh"
# shellcheck source=scripts/lib/library_sources.sh
source "$library_folder/library_sources.sh"
# shellcheck source=scripts/lib/build.sh
source "$library_folder/build.sh"
# shellcheck source=scripts/lib/rocm_build.sh
source "$library_folder/rocm_build.sh"

# No compiler, no libtorch: stored results can be compared where nothing could be built, and while something is being built.
set_up_group_alone() { # <group>
  if environment_has "$1"; then return 0; fi
  local others=()
  lock_set_up
  mapfile -t others < <(sed -E '/^python3(-venv)? /d; s/ .*//' <<<"$package_list")
  set_up_packages "${others[@]}"
  set_up_group "$1"
  unlock_set_up
}

# Needs what builds a program, and nothing of a GPU's: the model's tests and the suite with another libtorch, on the CPU, in a folder of
# its own.
set_up_torch_trial() { # <folder>; sets trial_folder
  find_given_torch "$1"
  lock_set_up
  trial_folder="$project_root/build-torch-$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$torch_cmake_folder/TorchConfigVersion.cmake")"
  set_up_packages python3-venv libamdhip64-dev python3-dev chromium openmpi-bin
  set_up_library_sources "${libraries_not_installed[@]}"
  set_up_configured release "$trial_folder" TINY_LLAMA_WITH_HIP=OFF TINY_LLAMA_WITH_CUDA=OFF
  require_step "build in $(basename "$trial_folder")/" "build_$(basename "$trial_folder")" build "$trial_folder" model/all tests/fuzzing/all tiny_llama_bench
  unlock_set_up
}

# The whole project for CUDA, on any machine: a GPU is not needed, and compiler and libtorch come as packages of a Python environment.
set_up_cuda_build() { # sets gpu_folder
  gpu_folder="$project_root/build-cuda"
  lock_set_up
  set_up_packages libamdhip64-dev python3-dev chromium openmpi-bin
  set_up_library_sources "${libraries_not_installed[@]}"
  export TINY_LLAMA_ENVIRONMENT="$gpu_folder/environment"
  virtual_environment="$TINY_LLAMA_ENVIRONMENT" virtual_python="$TINY_LLAMA_ENVIRONMENT/bin/python"
  mkdir -p "$gpu_folder"
  set_up_group cuda
  export TORCH_CUDA_ARCH_LIST=""
  find_given_torch "$virtual_environment"
  [[ "$torch_kind" == cuda ]] || {
    say "error: the package index gave a torch for $torch_kind instead of CUDA; see the group cuda of pyproject.toml."
    exit 2
  }
  set_up_configured release "$gpu_folder" TINY_LLAMA_WARNINGS_AS_ERRORS=ON \
    "TINY_LLAMA_CUDA_ARCHITECTURES=8.0;9.0;10.0"
  require_step "build in $(basename "$gpu_folder")/" build_cuda build "$gpu_folder"
  unlock_set_up
}

# are_built <program>...
are_built() {
  local name
  for name in "$@"; do
    if [[ ! -x "$project_root/build/benchmarks/$name" ]]; then return 1; fi
  done
}

# set_up <tools|pictures|parquet|bench|programs|test|peers|gpu_check|golden|prove>: what that command needs; bench is the suite's program alone, which most
# begin with, programs all three; pictures and parquet beside the tools, since few need them and what
# they take is large. The oracle's packages go beside torch: where the user's own Python has that, they are the user's to install. The
# tools need no torch, and so go into .venv in any case.
set_up() {
  local purpose="$1" own_torch="" groups=() not_needed=(python3-venv) targets=() group
  case "$purpose" in
    tools | pictures | parquet)
      set_up_group_alone "$purpose"
      return
      ;;
  esac
  case "$purpose" in
    bench) targets=(tiny_llama_bench) ;;
    programs | peers | gpu_check) targets=(tiny_llama_bench tiny_llama_scaling tiny_llama_train) ;;
  esac
  # Whoever may not write here measures with what the checkout's owner built.
  if [[ "$purpose" =~ ^(bench|programs)$ && ! -w "$project_root" ]] && are_built "${targets[@]}"; then
    find_own_torch || find_torch_of "$virtual_python" || true
    return
  fi
  lock_set_up
  if find_own_torch; then own_torch=yes; elif ! environment_has torch; then not_needed=(); fi
  if [[ "$purpose" == test ]]; then groups=(test tools pictures parquet); fi
  if [[ ! "$purpose" =~ ^(bench|programs)$ && -z "$own_torch" ]]; then groups+=(oracle); fi
  for group in "${groups[@]}"; do
    if ! environment_has "$group"; then not_needed=(); fi
  done
  if [[ "$torch_kind" == cuda ]]; then not_needed+=(libamdhip64-dev); fi
  # what torch.compile includes
  if [[ ! "$purpose" =~ ^(peers|gpu_check|test)$ ]]; then not_needed+=(python3-dev); fi
  # what the pictures and traces are opened in, and a launcher of ranks that the tests start
  if [[ "$purpose" != test ]]; then not_needed+=(chromium openmpi-bin); fi
  set_up_packages "${not_needed[@]}"
  if [[ -z "$own_torch" ]]; then set_up_torch; fi
  for group in "${groups[@]}"; do set_up_group "$group"; done
  if [[ "$purpose" != golden ]]; then
    # a test builds with every library as source
    if [[ "$purpose" == test ]]; then mapfile -t libraries_not_installed < <(packages_as_sources); fi
    set_up_library_sources "${libraries_not_installed[@]}"
    # without targets everything is built, the tests too
    if [[ "$purpose" == gpu_check ]]; then targets+=(kernels_gpu_device_test); fi
    set_up_build "$(choose_preset)" "$project_root/build" "${targets[@]}"
  fi
  unlock_set_up
}

# A command of tinyllama_tools, in .venv: after `set_up tools`.
tool() { PYTHONPATH="$scripts_folder" "$virtual_python" -m tinyllama_tools "$@"; }

# check_options <command> <argument>...: a bad option, and --help, are told before anything is installed or built, which takes minutes.
# A python3 of the system can say; without one, or with an old one, the command itself does, later.
check_options() {
  local python status=0
  python="$(plain_python)" || return 0
  virtual_python="$python" tool --check-options "$@" || status=$?
  if [[ $status -eq 2 ]]; then exit 2; fi
  if [[ $status -eq 0 ]] && given --help,-h,--version "$@"; then exit; fi
}

# A Python for what needs no package; status 1 where none is new enough.
plain_python() { first_python 'import sys; sys.exit(sys.version_info < (3, 10))'; }

# run_plain_tool <command> <argument>...: one that needs no package, with a Python that the user has.
run_plain_tool() {
  virtual_python="$(plain_python)" || {
    say "error: $(python3 --version): 3.10 or newer is needed. Activate an environment that has one."
    exit 2
  }
  PYTHONPATH="$scripts_folder" exec "$virtual_python" -m tinyllama_tools "$@"
}

# run_tool <bench|programs|peers|gpu_check|""> <command> <argument>...
run_tool() {
  local needs="$1"
  shift
  if [[ -n "$needs" ]] || ! environment_has tools; then check_options "$@"; fi
  set_up tools
  if [[ -n "$needs" ]]; then
    set_up "$needs"
    if [[ "$needs" =~ ^(peers|gpu_check)$ ]]; then
      TINY_LLAMA_ORACLE_PYTHON="$(find_oracle_python)" || exit 2
      export TINY_LLAMA_ORACLE_PYTHON
    fi
    # the libtorch of this build also serves the commits that compare builds beside it
    export Torch_DIR="$torch_cmake_folder"
  fi
  PYTHONPATH="$scripts_folder" exec "$virtual_python" -m tinyllama_tools "$@"
}

# run_oracle_tool <golden|prove> <argument>...: that command of dev/, by the Python that has the oracle.
run_oracle_tool() {
  local name="$1" python
  shift
  check_options "dev/$name" "$@"
  set_up "$name"
  python="$(find_oracle_python)" || exit 2
  PYTHONPATH="$scripts_folder" exec "$python" -m tinyllama_tools "dev/$name" "$@"
}

# run_tool_unless <options> <needs> <command> <argument>...: needs nothing where one of these options reads stored results.
run_tool_unless() {
  local options="$1" needs="$2"
  shift 2
  if given "$options" "$@"; then needs=""; fi
  run_tool "$needs" "$@"
}

# given <option>[,<option>]... <argument>...: whether one of these options is there, up to --, whose rest is another program's.
given() {
  local options=",$1," option
  shift
  for option in "$@"; do
    if [[ "$option" == -- ]]; then return 1; fi
    if [[ "$options" == *",${option%%=*},"* ]]; then return 0; fi
  done
  return 1
}
