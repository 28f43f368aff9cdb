# shellcheck shell=bash
# The set-up as a whole: each part looks whether its work is already done, which costs milliseconds.

library_folder="$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/lib/common.sh
source "$library_folder/common.sh"
# shellcheck source=scripts/lib/packages.sh
source "$library_folder/packages.sh"
# shellcheck source=scripts/lib/python_environment.sh
source "$library_folder/python_environment.sh"
# shellcheck source=scripts/lib/google_benchmark.sh
source "$library_folder/google_benchmark.sh"
# shellcheck source=scripts/lib/build.sh
source "$library_folder/build.sh"

# set_up <bench|test>
set_up() {
  local purpose="$1" own_torch="" not_needed=(python3-venv)
  lock_set_up
  if find_own_torch; then own_torch=yes; fi
  if [[ -z "$own_torch" ]] && ! environment_has "$project_root/requirements.txt"; then not_needed=(); fi
  if [[ "$purpose" == test ]] && ! environment_has "$project_root/requirements-test.txt"; then not_needed=(); fi
  if [[ "$torch_kind" == cuda ]]; then not_needed+=(libamdhip64-dev); fi
  set_up_packages "${not_needed[@]}"
  if [[ -z "$own_torch" ]]; then set_up_torch; fi
  if [[ "$purpose" == test ]]; then set_up_test_tools; fi
  set_up_google_benchmark
  set_up_build "$(choose_preset)" "$project_root/build"
  unlock_set_up
}
