#!/usr/bin/env bash
# The steps of both container definitions beside this file, written once.
#   install.sh build <prefix>   as root, in a copy of the checkout: sets up, builds, installs
#   install.sh run              as root, in the final image: what the installed programs need of the system
set -euo pipefail

# Images for GPUs have their torch in a Python that is not always the one on PATH; where there is none, pip's is to be one for CPUs, not
# PyPI's own with several GB of CUDA.
export PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-https://download.pytorch.org/whl/cpu}"
for folder in "$(dirname "$(command -v python3 || true)")" /opt/venv/bin /opt/conda/bin /opt/conda/envs/*/bin; do
  if "$folder/python3" -c 'import torch' 2>/dev/null; then
    export PATH="$folder:$PATH"
    break
  fi
done

case "${1:-}" in
  build)
    cd "$(dirname "${BASH_SOURCE[0]}")/../.."
    # what the host built and installed here is of its own system
    rm -rf build* .venv .deps
    scripts/bench --setup-only
    # With a libtorch for CPUs, HIP's runtime would only say what devices there are, and the final image has none.
    if ! ldd build/benchmarks/tiny_llama_bench | grep -q libtorch_hip; then
      cmake -DTINY_LLAMA_WITH_HIP=OFF build
      cmake --build build --target programs
    fi
    cmake --install build --prefix "${2:?which prefix}"
    ;;
  run)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install --yes --no-install-recommends python3
    rm -rf /var/lib/apt/lists/*
    ;;
  *)
    echo "error: install.sh '${1:-}': build <prefix> or run" >&2
    exit 2
    ;;
esac
