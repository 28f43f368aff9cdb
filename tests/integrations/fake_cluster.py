"""A fake Slurm, and a fake `tiny_llama_bench --figures-of-merit` with made-up numbers."""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

# options of the program itself: a step of a few milliseconds, measured once
QUICK_STEP = ["--batch=2", "--seq=16", "--threads=1", "--benchmark_min_time=1x"]
QUICK_STEP += ["--benchmark_repetitions=1"]
PASSES = {"full_step": "train", "optimizer": "update"}
# a case's, in the program's order; so many tokens that they are written with an exponent
FIGURES = (
    "time {seconds:.6g} s|samples_per_second {samples:.6g} samples/s|"
    "tokens_per_second {tokens:.6g} tokens/s|TFLOPS 0.241826 TFLOP/s|MFU_percent 64.5247 %|"
    "peak_percent 64.5247 %|roof_percent 64.5247 %|peak_memory 97.5664 MiB"
)
OF_GEMMS = {"TFLOPS", "MFU_percent", "peak_percent"}
WITHOUT_GEMMS = {"embedding", "rms_norm", "rotary", "optimizer"}


def fake_bench(folder: Path) -> Path:
    """A program called tiny_llama_bench that runs main()."""
    program = folder / "tiny_llama_bench"
    program.write_text(f'#!/bin/bash\nexec "{sys.executable}" "{__file__}" "$@"\n')
    program.chmod(0o755)
    return program


def figure_lines(case: str, behaviour: str) -> list[str]:
    """The lines of a case, with numbers of six digits."""
    seconds = 0.0706086 if "/optimized/" in case else 0.0928359
    text = FIGURES.format(seconds=seconds, samples=8 / seconds, tokens=102400 / seconds)
    if behaviour == "not_a_number":
        text = text.replace("0.241826", "nan")
    lost = {"samples_per_second"} if behaviour == "lost_figure" else set()
    lost |= OF_GEMMS if case.split("/")[0] in WITHOUT_GEMMS else set()
    figures = [figure.partition(" ") for figure in text.split("|")]
    return [f"FOM {case}/{name} = {value}" for name, _, value in figures if name not in lost]


def main() -> int:
    """FAKE in the environment says how it behaves, for all or as `tiny/baseline=fails,...`: fails,
    skips, interrupted, crashes (no last line), lost_figure, not_a_number, miscounts; without it all
    is measured. Options that change nothing here are not looked at."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    lists = {"components": "full_step", "sizes": "tiny", "variants": "baseline,optimized"}
    for name, default in (lists | {"dtypes": "f32"}).items():
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--benchmark_out", type=Path)
    options, _ = parser.parse_known_args()
    asked = os.environ.get("FAKE", "")
    by_case = dict(entry.split("=") for entry in asked.split(",") if "=" in entry)
    behaviour = by_case.get(f"{options.sizes}/{options.variants}", "" if by_case else asked)
    if "FAKE_LOCK" in os.environ:
        # two measurements at once would disturb each other: the second ends with an error
        lock = os.open(os.environ["FAKE_LOCK"], os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    axes = (options.components, options.variants, options.sizes, options.dtypes)
    cases = [
        f"{component}/{PASSES.get(component, 'forward_backward')}/{'/'.join(of)}/batch:8/seq:128"
        for component, *of in product(*(axis.split(",") for axis in axes))
    ]
    for file in filter(None, (options.benchmark_out, options.journal)):
        file.write_text("{}\n", encoding="utf-8")
    if behaviour == "skips":
        lines = "\n".join(f"  {case}: needs 80 GiB, 12 GiB are free" for case in cases)
        print(f"skipped\n{lines}\n\nNOTHING MEASURED: {len(cases)} cases skipped")
        return 0
    if behaviour == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "fails":
        print(f"FAILED: 1 of {len(cases)} cases failed")
        return 1
    for case in cases:
        print("\n".join(figure_lines(case, behaviour)))
    print(f"SUCCESS: {len(cases) + (behaviour == 'miscounts')} cases measured")
    # a success line does not excuse a status
    return 130 if behaviour == "interrupted" else 0


# srun runs the command, sbatch runs the script at once, sacct remembers. Only what the project's
# scripts and ReFrame's Slurm scheduler ask for is answered; anything else ends with status 64.
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
    """The commands are in folder/bin; environment finds them before any others. Each call's
    arguments are kept in calls.txt, a line each."""

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

    def srun_calls(self) -> list[str]:
        lines = (self.folder / "calls.txt").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith("srun ")]


if __name__ == "__main__":
    sys.exit(main())
