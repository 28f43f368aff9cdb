# shellcheck shell=bash
# For `scripts/test --rocm-build`: ROCm 7, which is this machine's or, in a chroot, Debian's, whose packages of it are still on their way
# from experimental into a release; and a libtorch for it, which is an active one or made of one for CPUs (hipify_torch.py).

rocm_folder="$project_root/build-rocm"
rocm_root="$rocm_folder/root"
rocm_major=7
rocm_release=forky
rocm_tools="g++ cmake ninja-build git python3 ccache libcli11-dev nlohmann-json3-dev libgtest-dev"
rocm_packages="hipcc libamdhip64-dev librccl-dev"
# Of these only the headers, which libtorch's include: the libraries behind them are 1.6 GB, and nothing links them.
rocm_headers="libhipblas-dev libhipblas-common-dev libhipblaslt-dev libhipsolver-dev libhipsparse-dev libgloo-dev"

# Folder of this machine's ROCm: the one whose hipcc is of that version; status 1 where there is none.
find_own_rocm() {
  local hipcc
  for hipcc in "${ROCM_PATH:-/opt/rocm}/bin/hipcc" "$(command -v hipcc)"; do
    [[ -x "$hipcc" && "$("$hipcc" --version 2>/dev/null)" == *"HIP version: $rocm_major."* ]] || continue
    dirname "$(dirname "$hipcc")"
    return
  done
  return 1
}

# Where this machine's own release comes from: mirror and proxies stay what its owner chose.
# shellcheck source=/dev/null
own_release() { (. /etc/os-release && echo "${VERSION_CODENAME:-}"); }
own_mirror() {
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
    awk -v release="$(own_release)" '$2 == release && $3 == "main" && !mirror { mirror = $1 } END { print mirror }'
}

rocm_root_stamp() { printf '%s\n' "$rocm_release" "$rocm_tools" "$rocm_packages" "$rocm_headers" | cksum; }
rocm_root_is_complete() { [[ -f "$rocm_root/.complete" && "$(<"$rocm_root/.complete")" == "$(rocm_root_stamp)" ]]; }

# in_rocm_root <command>...: a program, or a function of ours, in the chroot, where this checkout has its own path. Only the command sees
# what is mounted for it, which ends with it. Devices are not: no GPU is seen.
in_rocm_root() {
  # shellcheck disable=SC2016
  unshare --mount --propagation private bash -euc '
    mkdir -p "$0$1"
    mount --bind "$1" "$0$1"
    mount --bind /proc "$0/proc"
    exec chroot "$0" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -euo pipefail -c "
      source \"\$0\"
      trap - EXIT
      cd \"\$project_root\"
      \"\$@\"" "${@:2}"' "$rocm_root" "$project_root" "$scripts_folder/lib/set_up.sh" "$@"
}

install_rocm() { # inside
  export DEBIAN_FRONTEND=noninteractive
  local install=(apt-get install --yes --no-install-recommends) tools packages headers
  read -ra tools <<<"$rocm_tools"
  read -ra packages <<<"$rocm_packages"
  read -ra headers <<<"$rocm_headers"
  apt-get update
  "${install[@]}" "${tools[@]}"
  "${install[@]}" -t experimental "${packages[@]}"
  cd "$(mktemp -d)"
  apt-get download -t experimental "${headers[@]}"
  find . -name '*.deb' -exec dpkg --extract {} / ';'
  apt-get clean
}

make_rocm_root() { # <mirror>
  command -v debootstrap >/dev/null || { update_package_lists && install_packages debootstrap; }
  rm -rf "$rocm_root"
  # An older debootstrap has no script of the name of a later release. What it mounts ends with it, however it ends.
  unshare --mount --propagation private debootstrap --variant=minbase "$rocm_release" "$rocm_root" "$1" sid
  local apt="$rocm_root/etc/apt" archive
  for archive in "$rocm_release" sid experimental; do echo "deb $1 $archive main"; done >"$apt/sources.list"
  for archive in sid:100 experimental:50; do
    printf 'Package: *\nPin: release n=%s\nPin-Priority: %s\n\n' "${archive%:*}" "${archive#*:}"
  done >"$apt/preferences"
  # The mirror may be one of a past day.
  { apt-config dump | grep -E '^Acquire::[a-z]+::(P|.*::P)roxy ' || true; echo 'Acquire::Check-Valid-Until "false";'; } >"$apt/apt.conf"
  in_rocm_root install_rocm
  rocm_root_stamp >"$rocm_root/.complete"
}

set_up_rocm_root() {
  local mirror
  if rocm_root_is_complete; then return 0; fi
  if ! can_install_packages; then
    say "error: no hipcc of ROCm $rocm_major is here (ROCM_PATH, /opt/rocm, PATH). Install one, or run this as root on a Debian, which makes"
    say "   a chroot with Debian's ROCm in $(basename "$rocm_folder")/ (2 GB)."
    exit 2
  fi
  if ! unshare --mount true; then
    say "error: a chroot needs mounts, which this user may not make: in a container, give it --cap-add SYS_ADMIN (and --security-opt"
    say "   apparmor=unconfined), or set ROCM_PATH to a ROCm $rocm_major."
    exit 2
  fi
  mirror="$(own_mirror)"
  if [[ -z "$mirror" ]]; then
    # a fresh machine's apt has no lists
    run_step "lists of apt" apt_lists apt-get update || true
    mirror="$(own_mirror)"
  fi
  if [[ -z "$mirror" ]]; then
    say "error: apt knows no Debian mirror here to make a chroot from (apt-get indextargets). Set ROCM_PATH to a ROCm $rocm_major."
    exit 2
  fi
  require_step "Debian $rocm_release with ROCm $rocm_major in a chroot, 2 GB" rocm_root make_rocm_root "$mirror"
}

# Sets gpu_folder, and build_place, where what is built there runs.
set_up_rocm_build() {
  local rocm="" libraries="" torch="$rocm_folder/torch" stamp
  gpu_folder="$rocm_folder"
  lock_set_up
  set_up_packages libamdhip64-dev python3-dev chromium openmpi-bin
  if ! find_own_torch; then set_up_torch; fi
  set_up_library_sources "${libraries_not_installed[@]}"
  export PYTORCH_ROCM_ARCH=""
  if rocm="$(find_own_rocm)"; then export ROCM_PATH="$rocm"; fi
  if [[ "$torch_kind" != rocm ]]; then
    [[ "$torch_kind" == cpu ]] || {
      say "error: torch at $torch_cmake_folder is one for CUDA: --rocm-build wants one for ROCm, or for CPUs to make that of; set Torch_DIR."
      exit 2
    }
    # no GPU can run on what is made below
    export HIP_VISIBLE_DEVICES=-1
    libraries="$rocm/lib"
    if [[ -z "$rocm" ]]; then
      set_up_rocm_root
      build_place=(in_rocm_root)
      libraries="$(echo "$rocm_root"/usr/lib/*-linux-gnu)"
    fi
    stamp="$torch_cmake_folder $libraries $(cat "$torch_cmake_folder/TorchConfigVersion.cmake" "$scripts_folder/lib/hipify_torch.py" | cksum)"
    if [[ ! -f "$torch.of" || "$(<"$torch.of")" != "$stamp" ]]; then
      require_step "headers of libtorch for ROCm, by its own hipify" hipify_torch \
        python3 "$scripts_folder/lib/hipify_torch.py" "$torch_cmake_folder/../../.." "$torch" c++ "$libraries"
      printf '%s\n' "$stamp" >"$torch.of"
    fi
    torch_cmake_folder="$torch/share/cmake/Torch"
  fi
  set_up_configured release "$rocm_folder" TINY_LLAMA_WITH_HIP=ON TINY_LLAMA_WARNINGS_AS_ERRORS=ON \
    "TINY_LLAMA_HIP_ARCHITECTURES=gfx90a;gfx942;gfx950"
  require_step "build in $(basename "$rocm_folder")/" build_rocm "${build_place[@]}" build "$rocm_folder"
  unlock_set_up
}
