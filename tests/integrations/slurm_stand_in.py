"""Stands in for Slurm: srun runs the command, sbatch runs the script at once, sacct remembers.

Each call's arguments are kept in calls.txt, a line each. Only what the project's scripts and
ReFrame's Slurm scheduler ask for is answered; anything else ends with status 64.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# the options that take effect here are none: they are kept for the test to look at
SRUN = r"""
if [[ "${1:-}" == --version ]]; then echo "slurm 23.11.4"; exit; fi
while [[ "${1:-}" == --* ]]; do
  [[ "$1" == *=* ]] || { echo "srun: $1: only --option=value here" >&2; exit 64; }
  shift
done
exec "$@"
"""
SBATCH = r"""
script="${*: -1}"
option() { sed -nE "s/^#SBATCH --$1=//p" "$script" | head -1; }
status=0
bash "$script" >"$(option output)" 2>"$(option error)" || status=$?
number=$(($(wc -l <"$STAND_IN_SLURM/jobs.txt") + 1))
echo "$number|COMPLETED|$status:0|$(date +%s)|node1" >>"$STAND_IN_SLURM/jobs.txt"
echo "Submitted batch job $number"
"""
SACCT = r"""cat "$STAND_IN_SLURM/jobs.txt" """
SCONTROL = r"""[[ "$1 $2" == "show hostname" ]] || exit 64; echo node1 """
COMMANDS = {"srun": SRUN, "sbatch": SBATCH, "sacct": SACCT, "scontrol": SCONTROL}


@dataclass(frozen=True)
class StandInSlurm:
    """The commands are in folder/bin; environment finds them before any others."""

    folder: Path

    @classmethod
    def install(cls, folder: Path) -> StandInSlurm:
        (folder / "bin").mkdir(parents=True)
        (folder / "jobs.txt").touch()
        (folder / "calls.txt").touch()
        for name, body in COMMANDS.items():
            path = folder / "bin" / name
            keep = f'echo "{name} $*" >>"$STAND_IN_SLURM/calls.txt"'
            path.write_text(f"#!/bin/bash\n{keep}\n{body}\n", encoding="utf-8")
            path.chmod(0o755)
        return cls(folder)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "STAND_IN_SLURM": str(self.folder)}

    def calls(self, command: str) -> list[str]:
        lines = (self.folder / "calls.txt").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith(f"{command} ")]
