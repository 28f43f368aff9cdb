"""What centres run: the Ramble application, tried with the program and a fake of Ramble, which is
not on PyPI; the ReFrame tests, run by ReFrame with the built program and with a fake one, here and
on a fake Slurm cluster; and the sbatch examples, with a fake srun and fake programs."""

import enum
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest
import yaml

from built_programs import (
    PROJECT_ROOT,
    Completed,
    Json,
    finish,
    give_up,
    read_json,
    start,
    write_program,
)
from fake_bench import FAILED, FIGURES, PROGRAM, SKIPPED, make_build
from prefix import Prefix

FOLDER = PROJECT_ROOT / "integrations"
# options of the program itself: a step of a few milliseconds, measured once
QUICK_STEP = ["--batch=2", "--seq=16", "--threads=1", "--benchmark_min_time=1x"]
QUICK_STEP += ["--benchmark_repetitions=1"]


# of the fake: samples of a step of so long, and so many tokens that they have an exponent
SECONDS = {"baseline": 0.0928359, "optimized": 0.0706086}
RATES = {"samples_per_second": 8.0, "tokens_per_second": 102400.0}
COUNTERS = {"TFLOPS": 0.241826, "peak_memory": 97.5664}
COUNTERS |= dict.fromkeys(("MFU_percent", "peak_percent", "roof_percent"), 64.5247)
WITHOUT_GEMMS = {f"{of}/": {"TFLOPS": None} for of in ("embedding", "optimizer")}


def fake_bench(build: Path, told: Mapping[str, str | Json] = MappingProxyType({})) -> Path:
    """The program of a build folder. `told`: by part of a name the trouble of its run, or what its
    row has, as of fake_bench.py."""
    rows = {case: of for case, of in told.items() if not isinstance(of, str)}
    trouble = {case: of for case, of in told.items() if case not in rows}
    given = {"counters": COUNTERS, "rates": RATES, "rows": WITHOUT_GEMMS | rows}
    factor = {f"/{variant}/": seconds for variant, seconds in SECONDS.items()}
    times = {"seconds": 1.0, "factor": factor, "between": 0.0, "within": 0.0}
    return make_build(build, cases={}, alone=True, trouble=trouble, **times, **given) / PROGRAM


# ---- Slurm, which ReFrame asks too

RANK_PROGRAMS = ("tiny_llama_scaling", "tiny_llama_train")
DATA_PARALLEL = "data_parallel.sbatch"
# of the data-parallel example, which starts two of them
RANK_PROGRAM = """#!/bin/bash
for option in "$@"; do
  if [[ "$option" == --benchmark_out=* ]]; then touch "${option#*=}"; fi
done
exit "${FAKE_STATUS:-0}"
"""
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


# what `tiny-llama bench` asks first
BENCH = """
if [[ "$*" == *--describe-device* ]]; then echo '{{"device": {{"name": "Fake"}}}}'; exit; fi
exec {} "$@"
"""


class Cluster:
    """A prefix, with fakes of the programs, and a fake Slurm, whose commands `environment` finds
    before any others. Each call's arguments are kept in calls.txt, a line each."""

    def __init__(self, root: Path) -> None:
        user = root / "a path" / "with spaces"
        self.prefix = Prefix(user / "prefix", user / "work")
        self.build = root / "build"
        self.bench = fake_bench(self.build)
        self.prefix.program("tiny_llama_bench", BENCH.format(shlex.quote(str(self.bench))))
        for name in RANK_PROGRAMS:
            write_program(self.prefix.root / "bin" / name, RANK_PROGRAM)
        # a checkout, as far as the examples look at one
        self.checkout = user / "checkout"
        for link, target in (("scripts/tiny-llama", "tiny-llama"), ("build/benchmarks", "")):
            (self.checkout / link).parent.mkdir(parents=True)
            (self.checkout / link).symlink_to(self.prefix.root / "bin" / target)
        self.folder = root / "slurm"
        for name, body in COMMANDS.items():
            keep = f'echo "{name} $*" >>"$FAKE_SLURM/calls.txt"'
            write_program(self.folder / "bin" / name, f"#!/bin/bash\n{keep}\n{body}\n")
        for name in ("jobs.txt", "calls.txt"):
            (self.folder / name).touch()
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        self.environment = {"PATH": path, "FAKE_SLURM": str(self.folder)}

    def run(
        self, example: str, *arguments: str, is_installed: bool = True, **environment: str
    ) -> Completed:
        """As Slurm runs it: a copy of the file elsewhere, the variables of the job set; the working
        folder is the one where sbatch was called."""
        copy = shutil.copy(FOLDER / "slurm" / example, self.folder / "slurm_script")
        job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS_PER_NODE": "8"}
        env = self.prefix.environment(**self.environment, **(job | environment))
        if is_installed:
            env["PATH"] = f"{self.prefix.root / 'bin'}:{env['PATH']}"
        return finish(start(["bash", copy, *arguments], cwd=self.prefix.work, env=env))

    def srun_calls(self) -> list[str]:
        lines = (self.folder / "calls.txt").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.startswith("srun ")]

    def results(self) -> list[Path]:
        return sorted((self.prefix.work / "results").glob("*"))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


# ---- Ramble

RAMBLE = FOLDER / "ramble"
APPLICATION = RAMBLE / "applications/tiny-llama-bench"
WORKSPACES = sorted((RAMBLE / "workspaces").glob("*.yaml"))
FomType = enum.Enum("FomType", ["TIME", "THROUGHPUT", "MEASURE", "CATEGORY", "INFO", "UNDEFINED"])
# Ramble's directives with their parameters, as far as the application needs them.
# https://ramble.readthedocs.io/en/latest/dev_guides/application_dev_guide.html
DIRECTIVES = {
    "executable": lambda name, template, *, use_mpi=False: locals(),
    "workload": lambda name, executables: locals(),
    "workload_variable": lambda name, default, description, values=None, workloads=(): locals(),
    "figure_of_merit_context": lambda name, regex, output_format: locals(),
    "figure_of_merit": lambda name, *, fom_regex, group_name, units, contexts, fom_type: locals(),
    "success_criteria": lambda name, *, mode, match, file: locals(),
}
# what the directives of an application said, by directive
Calls = Mapping[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def application() -> Calls:
    """application.py, imported with these directives in place of Ramble's."""
    calls: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def recording(name: str) -> object:
        return lambda *given, **named: calls[name].append(DIRECTIVES[name](*given, **named))

    appkit = ModuleType("ramble.appkit")
    base = type("ExecutableApplication", (), {})
    vars(appkit).update({name: recording(name) for name in DIRECTIVES}, FomType=FomType)
    vars(appkit).update(ExecutableApplication=base, tags=lambda *_: None)
    path = APPLICATION / "application.py"
    spec = importlib.util.spec_from_file_location("ramble_application", path)
    assert spec is not None and spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ramble", ModuleType("ramble"))
        patch.setitem(sys.modules, "ramble.appkit", appkit)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    (found,) = base.__subclasses__()
    assert found.name == APPLICATION.name
    assert found.__name__ == "".join(word.capitalize() for word in APPLICATION.name.split("-"))
    return calls


def expand(text: str, variables: Mapping[str, object]) -> str:
    """A variable may name others; one that is not defined is an error."""
    while "{" in text:
        text = re.sub(r"\{(\w+)\}", lambda found: str(variables[found[1]]), text)
    return text


def command(calls: Calls, workload: str, settings: Mapping[str, object]) -> list[str]:
    """The words of the workload's command, every variable replaced."""
    (wanted,) = (c["executables"] for c in calls["workload"] if c["name"] == workload)
    (call,) = (call for call in calls["executable"] if [call["name"]] == wanted)
    variables = calls["workload_variable"]
    defaults = {c["name"]: c["default"] for c in variables if workload in c["workloads"]}
    template = ("{mpi_command} " if call["use_mpi"] else "") + call["template"]
    return shlex.split(expand(template, {**defaults, **settings}))


def analyse(calls: Calls, log: str) -> tuple[bool, list[tuple[str, ...]]]:
    """Whether Ramble would call it a success; context, figure, value, unit of all it finds.

    Ramble's default strategy: line by line, success criteria, then contexts, then figures, each
    with re.match from the start of the line.
    """
    active, found = "null", []
    (context,) = calls["figure_of_merit_context"]
    for line in log.splitlines(keepends=True):
        if entered := re.match(context["regex"], line):
            active = context["output_format"].format(**entered.groupdict())
        for figure in calls["figure_of_merit"]:
            assert figure["contexts"] == [context["name"]]
            if matched := re.match(figure["fom_regex"], line):
                value = matched[figure["group_name"]]
                found.append((active, figure["name"], value, figure["units"]))
    criteria = [each["match"] for each in calls["success_criteria"]]
    lines = log.splitlines()
    is_met = all(any(re.match(match, line) for line in lines) for match in criteria)
    return bool(found) and is_met, found


def test_every_figure_is_found_and_success_is_the_success_line(
    application: Calls, tmp_path: Path, bench_program: Path
) -> None:
    """Of the program, of a step and of a component without products. A case is a context, in which
    its figures stand."""
    settings = {"mpi_command": "env", "experiment_run_dir": tmp_path, "program": bench_program}
    settings |= {"device": "cpu", "components": "optimizer,full_step"}
    words = [*command(application, "step", settings), *QUICK_STEP]
    log = finish(start(words), 300).stdout
    figures = re.findall(r"^FOM (\S+)/(\S+) = (\S+) (\S+)$", log, re.MULTILINE)
    assert len({case for case, *_ in figures}) == 2 and len(figures) >= 10
    assert analyse(application, log) == (True, figures)
    success = log.splitlines()[-1]
    for said, is_success in (
        ("SUCCESS: 2 cases measured, 1 skipped", True),
        ("SUCCESS: 21 figures", False),
        ("FAILED: 1 of 3 cases failed", False),
        ("NOTHING MEASURED: 2 cases skipped", False),
        ("", False),
    ):
        assert analyse(application, log.replace(success, said)) == (is_success, figures)
    # a value that is no number is none
    text = log.replace(f" = {figures[0][2]} ", " = nan ", 1)
    assert analyse(application, text) == (True, figures[1:])


@pytest.mark.parametrize("path", WORKSPACES, ids=lambda path: path.stem)
def test_a_workspace_gives_commands_that_the_program_understands(
    application: Calls, bench_program: Path, path: Path
) -> None:
    workspace = yaml.safe_load(path.read_text(encoding="utf-8"))["ramble"]
    is_cluster = path.stem == "slurm_amd"
    assert list(workspace["applications"]) == [APPLICATION.name]
    workloads = workspace["applications"][APPLICATION.name]["workloads"]
    names = []
    for workload, name in ((w, name) for w in workloads for name in workloads[w]["experiments"]):
        experiment = workloads[workload]["experiments"][name]
        # what its Slurm workflow manager adds
        variables = {"experiment_run_dir": "/run", "mpi_command": "srun {srun_args}"}
        variables |= workspace["variables"] | experiment["variables"]
        axes = experiment.get("matrix", [])
        for values in product(*(variables[axis] for axis in axes)):
            chosen = variables | dict(zip(axes, values, strict=True))
            names.append(f"{workload}/{expand(name, chosen)}")
            text = " ".join(command(application, workload, chosen))
            launch, _, options = text.partition(f" {chosen['program']} ")
            assert not is_cluster or ("--device hip" in options and "--threads 8" in options)
            assert not is_cluster or "--cpus-per-task=8" in launch
    # of the last one, on this machine
    words = [bench_program, *options.replace("hip", "cpu").split(), "--list"]
    done = finish(start(words))
    assert (done.returncode, done.stdout != "") == (0, True), done.stderr
    assert len(names) == len(set(names)) > 1, "an experiment's name says what it is"
    assert not is_cluster or workspace["variants"] == {"workflow_manager": "slurm"}


# ---- ReFrame

REFRAME = FOLDER / "reframe"
STEP = "full_step/train"
RATE = f"{STEP}/samples_per_second"
# by '<size>/<variant>': how the fake behaves, or what its row has, and the reason for which the
# test fails; "" passes. The fake's numbers: baseline 86.1736 samples/s, optimized 113.301.
CASES: dict[str, tuple[str | Json, str]] = {
    "components": ("", ""),
    "tiny/baseline": ("", ""),
    "tiny/optimized": ("", f"{RATE}=113.301 samples/s, expected 200"),
    "small/baseline": (FAILED, "FAILED: 1 of 1 cases failed"),
    "small/optimized": (SKIPPED, "too large"),
    "medium/baseline": ("signal", "no line 'SUCCESS: <n> ...' in the output"),
    "medium/optimized": ("interrupted", "exit status 130"),
    "large/baseline": (
        {"samples_per_second": None},
        "no line 'FOM full_step/train/baseline/large/f32/batch:8/",
    ),
    "large/optimized": (
        {"TFLOPS": float("nan")},
        "not a number: FOM full_step/train/optimized/large/f32/",
    ),
    "very_large/baseline": ("", "full_step/train/kernels has a reference and was not measured"),
    "very_large/optimized": ("miscounts", "figures of 1 cases, not of 2"),
}
MEASURED = {"time": SECONDS["baseline"], "samples_per_second": 86.1736}
MEASURED |= {"tokens_per_second": 1.10302e6} | COUNTERS
STEP_FIGURES = {f"{STEP}/{name}": (MEASURED[name], unit) for name, unit in FIGURES.items()}
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


def figures_of(case: Json) -> dict[str, tuple[float, str]]:
    values = (case["perfvalues"] or {}).items()
    return {name.split(":")[-1]: (entry[0], entry[4]) for name, entry in values}


def script_of(case: Json) -> str:
    return Path(case["outputdir"], "rfm_job.sh").read_text(encoding="utf-8")


def run_reframe(
    folder: Path, settings: str, program: Path, *arguments: str, **environment: str
) -> tuple[str, dict[str, Json]]:
    """Runs what the arguments select of tiny_llama.py; everything it writes goes below folder. What
    it printed, and what its report says of each test: by '<size>/<variant>', 'components', or by
    partition where that is not the only one."""
    if importlib.util.find_spec("reframe") is None:
        give_up("reframe-hpc is not installed: run scripts/test")
    report = folder / "report.json"
    code = "import sys; from reframe.frontend.cli import main; sys.argv[0] = 'reframe'; main()"
    command = [sys.executable, "-c", code, f"--config-file={REFRAME / settings}"]
    command += [f"--checkpath={REFRAME / 'tiny_llama.py'}", f"--prefix={folder}", "--nocolor"]
    command += [f"--report-file={report}", "--run", f"--setvar=program={program}", *arguments]
    # its topology files go to the home folder, its log to the temporary one
    env = os.environ | {"HOME": str(folder), "TMPDIR": str(folder)} | environment
    done = finish(start(command, cwd=folder, env=env), 300)
    assert report.is_file(), done.stdout + done.stderr
    runs = read_json(report)["runs"]
    outcomes = {}
    for case in (case for run in runs for case in run["testcases"]):
        kind, size, variant, *_ = (p.split("=")[-1] for p in case["display_name"].split())
        name = "components" if kind == "TinyLlamaComponents" else f"{size}/{variant}"
        outcomes[name if "local" in settings else case["partition"]] = case
    return done.stdout, outcomes


def test_every_size_and_variant_of_the_step_and_its_components(tmp_path: Path) -> None:
    """One run of ReFrame for all; the fake refuses to be run twice at once."""
    (tmp_path / "references.yaml").write_text(REFERENCES, encoding="utf-8")
    told = {"/".join(case.split("/")[::-1]): how for case, (how, _) in CASES.items() if how}
    console, outcomes = run_reframe(
        tmp_path,
        "settings_local.py",
        fake_bench(tmp_path / "build", told),
        "--name=(TinyLlamaStep.*|TinyLlamaComponents%size=tiny%variant=optimized)%dtype=f32",
        RFM_REFERENCE_PREFIX=str(tmp_path),
    )
    assert outcomes.keys() == CASES.keys()
    quick = {name for name, case in outcomes.items() if "quick" in case["tags"]}
    assert quick == {"tiny/baseline", "tiny/optimized", "components"}
    for name, (behaviour, reason) in CASES.items():
        is_skipped = behaviour is SKIPPED
        verdict = "skip" if is_skipped else "fail" if reason else "pass"
        assert outcomes[name]["result"] == verdict, name
        assert reason in (console if is_skipped else outcomes[name]["fail_reason"] or "")
    step, components = outcomes["tiny/baseline"], figures_of(outcomes["components"])
    assert figures_of(step) == STEP_FIGURES
    assert Path(step["outputdir"], "results.json").is_file()
    # a local job takes the best device present
    assert "--device=auto" in script_of(step)
    assert "--threads" not in script_of(step)
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


def test_a_partition_measures_on_what_its_job_asks_for(tmp_path: Path, cluster: Cluster) -> None:
    _, outcomes = run_reframe(
        tmp_path,
        "settings_slurm_amd.py",
        cluster.bench,
        "--system=cluster",
        "--name=TinyLlamaStep%size=small%variant=optimized%dtype=bf16",
        **cluster.environment,
    )
    scripts = {partition: script_of(case) for partition, case in outcomes.items()}
    for partition, lines in SBATCH.items():
        assert (outcomes[partition]["result"], outcomes[partition]["fail_reason"]) == ("pass", None)
        assert figures_of(outcomes[partition])[RATE] == (113.301, "samples/s")
        assert [text for text in lines if text not in scripts[partition]] == []
    assert "--exclusive" not in scripts["gpu"] and "gpu" not in scripts["cpu"]


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
    assert (step["result"], step["fail_reason"]) == ("pass", None)
    assert figures_of(step)[RATE][0] > 0
    # the fake prints what the program does
    units = {name: unit for name, (_, unit) in figures_of(step).items()}
    assert units == {f"{STEP}/{name}": unit for name, unit in FIGURES.items()}
    assert Path(step["outputdir"], "results.json").stat().st_size > 0
    assert outcomes["small/optimized"]["result"] == "skip"
    assert "exceeds 300.00 MiB (--memory-limit)" in console


# ---- the examples for Slurm


@pytest.mark.parametrize(
    ("example", "arguments", "threads", "device"),
    [
        ("one_gpu.sbatch", ["--sizes", "small"], "8", "hip"),
        ("one_node_cpu.sbatch", [], "64", "cpu"),
    ],
)
def test_a_job_measures_on_its_device_into_a_folder_of_its_own(
    cluster: Cluster, example: str, arguments: list[str], threads: str, device: str
) -> None:
    done = cluster.run(example, *arguments, SLURM_CPUS_PER_TASK=threads)
    assert done.returncode == 0, done.stderr
    assert "SUCCESS: 6 cases measured" in done.stdout
    (call,) = cluster.srun_calls()
    words = f"srun --ntasks=1 --cpus-per-task={threads} tiny-llama bench --device {device} "
    words += f"--threads {threads} --figures-of-merit {' '.join(arguments)}"
    assert call.strip() == words.strip()
    (folder,) = cluster.results()
    assert re.fullmatch(r"\d{8}T\d{6}Z_fake", folder.name)
    names = {path.name for path in folder.iterdir()}
    assert {"results.json", "journal.jsonl", "summary.txt"} <= names


def test_a_job_that_ran_out_of_time_is_gone_on_with(cluster: Cluster) -> None:
    fake_bench(cluster.build, {"full_step": "interrupted"})
    assert cluster.run("one_gpu.sbatch").returncode == 130
    (folder,) = cluster.results()
    fake_bench(cluster.build)
    done = cluster.run("one_gpu.sbatch", "--resume")
    assert done.returncode == 0, done.stderr
    assert cluster.results() == [folder]
    fake_bench(cluster.build, {"full_step": FAILED})
    assert cluster.run("one_gpu.sbatch").returncode == 1


@pytest.mark.parametrize("example", ["one_gpu.sbatch", "one_node_cpu.sbatch", DATA_PARALLEL])
def test_a_job_finds_what_is_installed_or_the_checkout(cluster: Cluster, example: str) -> None:
    done = cluster.run(example, is_installed=False)
    assert done.returncode == 2
    assert "is not on PATH: load its module, or set TINY_LLAMA_CHECKOUT" in done.stderr
    assert cluster.srun_calls() == [] == cluster.results()
    done = cluster.run(example, is_installed=False, TINY_LLAMA_CHECKOUT=str(cluster.checkout))
    assert done.returncode == 0, done.stderr
    assert len(cluster.results()) == 1


def test_one_node_and_all_of_them_are_measured_and_then_trained_on(cluster: Cluster) -> None:
    done = cluster.run(DATA_PARALLEL, "--size", "medium", SLURM_CPUS_PER_TASK="7")
    assert (done.returncode, done.stderr) == (0, "")
    one, all_, training = cluster.srun_calls()
    assert one.startswith("srun --nodes=1 --ntasks=8 --ntasks-per-node=8 --cpus-per-task=7 ")
    assert all_.startswith("srun --nodes=4 --ntasks=32 --ntasks-per-node=8 ")
    # a lost rank must not take the results of the others with it
    assert all("--kill-on-bad-exit=0 --wait=" in call for call in (one, all_, training))
    scaling = "tiny_llama_scaling --device hip --threads 7 --size medium"
    assert scaling in one and scaling in all_
    assert "tiny_llama_train --device hip --size small" in training
    (folder,) = cluster.results()
    assert re.fullmatch(r"\d{8}T\d{6}Z_slurm_42_scaling", folder.name)
    assert {path.name for path in folder.iterdir()} == {"ranks_8.json", "ranks_32.json"}
    assert done.stdout == f"Results: results/{folder.name}\n"
    # one node is measured once; a lost rank ends the job
    assert cluster.run(DATA_PARALLEL, SLURM_JOB_NUM_NODES="1").returncode == 0
    assert len(cluster.srun_calls()) == 3 + 2
    assert cluster.run(DATA_PARALLEL, FAKE_STATUS="1").returncode == 1
    assert len(cluster.srun_calls()) == 3 + 2 + 1
