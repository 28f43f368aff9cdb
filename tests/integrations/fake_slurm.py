"""A fake Slurm: srun runs the command, sbatch runs the script at once, sacct remembers.

Each call's arguments are kept in calls.txt, a line each. Only what the project's scripts and
ReFrame's Slurm scheduler ask for is answered; anything else ends with status 64.
"""

import os
import shutil
import subprocess
from pathlib import Path

COMMANDS = {
    # the options that take effect here are none: they are kept for the test to look at
    "srun": r"""
if [[ "${1:-}" == --version ]]; then echo "slurm 23.11.4"; exit; fi
while [[ "${1:-}" == --* ]]; do
  [[ "$1" == *=* ]] || { echo "srun: $1: only --option=value here" >&2; exit 64; }
  shift
done
exec "$@"
""",
    "sbatch": r"""
script="${*: -1}"
option() { sed -nE "s/^#SBATCH --$1=//p" "$script" | head -1; }
status=0
bash "$script" >"$(option output)" 2>"$(option error)" || status=$?
number=$(($(wc -l <"$FAKE_SLURM/jobs.txt") + 1))
echo "$number|COMPLETED|$status:0|$(date +%s)|node1" >>"$FAKE_SLURM/jobs.txt"
echo "Submitted batch job $number"
""",
    "sacct": r"""cat "$FAKE_SLURM/jobs.txt" """,
    "scontrol": r"""[[ "$1 $2" == "show hostname" ]] || exit 64; echo node1 """,
}


class FakeSlurm:
    """The commands are in folder/bin; environment finds them before any others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name in ("jobs.txt", "calls.txt"):
            (folder / name).touch()
        for name, body in COMMANDS.items():
            path = folder / "bin" / name
            keep = f'echo "{name} $*" >>"$FAKE_SLURM/calls.txt"'
            path.write_text(f"#!/bin/bash\n{keep}\n{body}\n", encoding="utf-8")
            path.chmod(0o755)
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self.environment = {"PATH": path, "FAKE_SLURM": str(folder)}

    def run_script(
        self, script: Path, submitted_from: Path, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """As Slurm runs it: a copy of the file elsewhere, the variables of the job set."""
        copy = shutil.copy(script, self.folder / "slurm_script")
        job = {"SLURM_JOB_ID": "42", "SLURM_SUBMIT_DIR": str(submitted_from)}
        env = os.environ | self.environment | job | environment
        how = {"cwd": self.folder, "env": env, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run(["bash", str(copy), *arguments], **how, check=False)

    def calls(self, command: str) -> list[str]:
        lines = (self.folder / "calls.txt").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith(f"{command} ")]
