"""The ReFrame tests, run by ReFrame with a program that prints made-up numbers, here and on a fake
Slurm cluster, and with the built program."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from fake_cluster import QUICK_STEP, FakeSlurm, fake_bench

from built_programs import PROJECT_ROOT, give_up

FOLDER = PROJECT_ROOT / "integrations" / "reframe"
STEP = "full_step/train"
RATE = f"{STEP}/samples_per_second"
# by '<size>/<variant>': how the fake behaves, and the reason for which the test fails; "" passes.
# The fake's numbers: baseline 86.1736 samples/s, optimized 113.301.
CASES = {
    "components": ("", ""),
    "tiny/baseline": ("", ""),
    "tiny/optimized": ("", f"{RATE}=113.301 samples/s, expected 200"),
    "small/baseline": ("fails", "FAILED: 1 of 1 cases failed"),
    "small/optimized": ("skips", "needs 80 GiB, 12 GiB are free"),
    "medium/baseline": ("crashes", "no line 'SUCCESS: <n> ...' in the output"),
    "medium/optimized": ("interrupted", "exit status 130"),
    "large/baseline": ("lost_figure", "no line 'FOM full_step/train/baseline/large/f32/batch:8/"),
    "large/optimized": ("not_a_number", "not a number: FOM full_step/train/optimized/large/f32/"),
    "very_large/baseline": ("", "full_step/train/kernels has a reference and was not measured"),
    "very_large/optimized": ("miscounts", "figures of 1 cases, not of 2"),
}
FIGURES = {
    f"{STEP}/time": (0.0928359, "s"),
    RATE: (86.1736, "samples/s"),
    f"{STEP}/tokens_per_second": (1.10302e6, "tokens/s"),
    f"{STEP}/TFLOPS": (0.241826, "TFLOP/s"),
    **dict.fromkeys((f"{STEP}/{of}_percent" for of in ("MFU", "peak", "roof")), (64.5247, "%")),
    f"{STEP}/peak_memory": (97.5664, "MiB"),
}
REFERENCES = f"""
TinyLlamaStep:
  $index: [$partition, size, variant, dtype]
  "local:default":
    tiny:
      baseline: {{f32: {{{RATE}: [86.0, -0.05, null, samples/s]}}}}
      optimized: {{f32: {{{RATE}: [200.0, -0.05, null, samples/s]}}}}
    very_large:
      baseline: {{f32: {{{STEP}/kernels: [1.0, null, 0.05, kernels]}}}}
TinyLlamaComponents: {{}}
"""


class Outcome(NamedTuple):
    """What ReFrame says of one test; reason only where it failed."""

    verdict: str
    reason: str
    figures: dict[str, tuple[float, str]]
    output: Path
    script: str
    tags: list[str]
    partition: str


def outcome(case: dict[str, Any]) -> Outcome:
    folders = [Path(of) for of in (case["outputdir"], case["stagedir"]) if of]
    scripts = [path / "rfm_job.sh" for path in folders]
    text = "".join(path.read_text(encoding="utf-8") for path in scripts if path.is_file())
    values = (case.get("perfvalues") or {}).items()
    figures = {name.split(":")[-1]: (entry[0], entry[4]) for name, entry in values}
    said = (case["result"], case["fail_reason"] or "")
    return Outcome(*said, figures, folders[0], text, case["tags"], case["partition"])


def run_reframe(
    folder: Path, settings: str, program: Path, *arguments: str, **environment: str
) -> tuple[str, dict[str, Outcome]]:
    """Runs what the arguments select of tiny_llama.py; everything it writes goes below folder.

    What it printed, and its tests, by '<size>/<variant>', or 'components', with the partition
    after it where that is not the only one.
    """
    if importlib.util.find_spec("reframe") is None:
        give_up("reframe-hpc is not installed: pip install -r requirements-test.txt")
    report = folder / "report.json"
    code = "import sys; from reframe.frontend.cli import main; sys.argv[0] = 'reframe'; main()"
    command = [sys.executable, "-c", code, f"--config-file={FOLDER / settings}"]
    command += [f"--checkpath={FOLDER / 'tiny_llama.py'}", f"--prefix={folder}", "--nocolor"]
    command += [f"--report-file={report}", "--run", f"--setvar=program={program}", *arguments]
    # its topology files go to the home folder, its log to the temporary one
    env = os.environ | {"HOME": str(folder), "TMPDIR": str(folder)} | environment
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert report.is_file(), done.stdout + done.stderr
    runs = json.loads(report.read_text(encoding="utf-8"))["runs"]
    outcomes = {}
    for case in (case for run in runs for case in run["testcases"]):
        kind, size, variant, *_ = (p.split("=")[-1] for p in case["display_name"].split())
        name = "components" if kind == "TinyLlamaComponents" else f"{size}/{variant}"
        outcomes[name if "local" in settings else f"{name} {case['partition']}"] = outcome(case)
    return done.stdout, outcomes


def test_every_size_and_variant_of_the_step_and_its_components(
    tmp_path: Path,
) -> None:
    """One run of ReFrame for all; the fake refuses to be run twice at once."""
    (tmp_path / "references.yaml").write_text(REFERENCES, encoding="utf-8")
    console, outcomes = run_reframe(
        tmp_path,
        "settings_local.py",
        fake_bench(tmp_path),
        "--name=(TinyLlamaStep.*|TinyLlamaComponents%size=tiny%variant=optimized)%dtype=f32",
        RFM_REFERENCE_PREFIX=str(tmp_path),
        FAKE=",".join(f"{case}={how}" for case, (how, _) in CASES.items()),
        FAKE_LOCK=str(tmp_path / "lock"),
    )
    assert outcomes.keys() == CASES.keys()
    quick = {name for name, outcome in outcomes.items() if "quick" in outcome.tags}
    assert quick == {"tiny/baseline", "tiny/optimized", "components"}
    for name, (behaviour, reason) in CASES.items():
        found = outcomes[name]
        is_skipped = behaviour == "skips"
        verdict = "skip" if is_skipped else "fail" if reason else "pass"
        assert found.verdict == verdict, name
        assert reason in (console if is_skipped else found.reason)
    step, components = outcomes["tiny/baseline"], outcomes["components"].figures
    assert step.figures == FIGURES
    assert (step.output / "results.json").is_file()
    # a local job takes the best device present
    assert "--device=auto" in step.script
    assert "--threads" not in step.script
    assert components["attention/forward_backward/TFLOPS"] == (0.241826, "TFLOP/s")
    assert components["optimizer/update/time"] == (0.0706086, "s")
    assert "optimizer/update/TFLOPS" not in components
    assert len({name.split("/")[0] for name in components}) == 8


SBATCH = {
    "gpu": [
        *("#SBATCH --gpus-per-node=1\n", "#SBATCH --cpus-per-task=12\n"),
        *("#SBATCH --partition=gpu\n", "#SBATCH --hint=nomultithread\n"),
        *("srun --cpus-per-task=12 ", "--device=hip --components=full_step --sizes=small"),
    ],
    "cpu": [
        *("#SBATCH --exclusive\n", "#SBATCH --cpus-per-task=128\n"),
        *("--device=cpu", "--threads=128"),
    ],
}


def test_a_partition_measures_on_what_its_job_asks_for(
    tmp_path: Path,
) -> None:
    _, outcomes = run_reframe(
        tmp_path,
        "settings_slurm_amd.py",
        fake_bench(tmp_path),
        "--system=cluster",
        "--name=TinyLlamaStep%size=small%variant=optimized%dtype=bf16",
        **FakeSlurm(tmp_path / "slurm").environment,
    )
    found = {outcome.partition: outcome for outcome in outcomes.values()}
    assert set(found) == {"gpu", "cpu"}
    for partition, outcome in found.items():
        assert (outcome.verdict, outcome.reason) == ("pass", "")
        assert outcome.figures[RATE] == (113.301, "samples/s")
        assert [text for text in SBATCH[partition] if text not in outcome.script] == []
    assert "--exclusive" not in found["gpu"].script
    assert "gpu" not in found["cpu"].script


def test_the_program_measures_what_fits_and_says_what_does_not(
    tmp_path: Path, bench_program: Path
) -> None:
    console, outcomes = run_reframe(
        tmp_path,
        "settings_local.py",
        bench_program,
        "--name=TinyLlamaStep%size=(tiny|small)%variant=optimized%dtype=f32",
        f"--setvar=options={' '.join(QUICK_STEP)} --memory-limit=300MiB",
        "--setvar=device=cpu",
    )
    step = outcomes["tiny/optimized"]
    assert (step.verdict, step.reason) == ("pass", "")
    assert step.figures[RATE][0] > 0
    # the fake prints what the program does
    units = ({name: unit for name, (_, unit) in of.items()} for of in (step.figures, FIGURES))
    assert next(units) == next(units)
    assert (step.output / "results.json").stat().st_size > 0
    assert outcomes["small/optimized"].verdict == "skip"
    assert "exceeds 300.00 MiB (--memory-limit)" in console
