#!/usr/bin/env bash
# One step of the set-up in a shell of its own; see run_step in common.sh.
set -euo pipefail
# shellcheck source=scripts/lib/set_up.sh
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"
"$@"
