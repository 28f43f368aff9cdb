"""Runs: one of every component, pass and dtype, JSON on stdout, limits of memory, failures and
weights; what is said without measuring, and refused; and the schema of results, which refuses what
is missing or impossible."""

import copy
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import (
    BASELINE,
    DTYPES,
    JOURNAL,
    OUT,
    QUICK,
    SMALL,
    SMALL_MODEL,
    SMOKE,
    Program,
    assert_complete,
    entries_by_case,
    not_measured,
)
from jsonschema import Draft202012Validator as Validator

from built_programs import (
    ON_CPU,
    PROJECT_ROOT,
    FinishedRun,
    Json,
    message_of,
    read_json,
    strict_json,
)
from tinyllama_tools.data.machine import SHARES

# the contract's, in the order in which they are listed
COMPONENTS = [
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step"),
]
OWN_PASSES = {
    "model": ["forward", "forward_loss", "backward", "forward_backward"],
    "optimizer": ["update"],
    "full_step": ["train"],
}
FFN = ["--components=ffn", "--passes=forward"]


def test_result_is_whole_and_of_its_schema(
    smoke_run: FinishedRun, program: Program, validator: Validator
) -> None:
    completed, _, result = smoke_run
    errors = validator.iter_errors(result)
    assert [f"{error.json_path}: {error.message[:300]}" for error in errors] == []
    assert completed.returncode == 0
    names = program.names(*SMOKE)
    assert_complete(result, names)
    expected = {
        f"{component}/{name}/baseline/custom/{dtype}/batch:2/seq:8"
        for component in COMPONENTS
        for name in OWN_PASSES.get(component, ["forward", "backward", "forward_backward"])
        for dtype in DTYPES
    }
    peaks = {"peak/gemm/f32", "peak/gemm/bf16", "peak/gemm/f16", "peak/bandwidth"}
    assert set(names) >= expected | peaks
    # every counter by hand: rows_test.cpp
    cases = entries_by_case(result)
    for row in (row for name in expected for row in cases[name][:2]):
        assert row["tokens_per_second"] == pytest.approx(16e3 / row["real_time"], rel=1e-6)
    # where stderr is no terminal, progress is a plain line a case
    assert not {"\r", "\x1b"} & set(completed.stderr)
    steps = [line for line in completed.stderr.splitlines() if line.startswith("[")]
    assert [line.split()[1] for line in steps] == names
    # a table a component, and the sum of parts of each dtype
    tables = [text.split()[0] for text in completed.stdout.strip().split("\n\n")]
    assert [name for name in tables if name in COMPONENTS] == COMPONENTS
    assert completed.stdout.count("sum of parts  baseline custom ") == len(DTYPES)


def test_json_on_stdout_is_pure_and_the_same_as_in_the_file(
    program: Program, tmp_path: Path, validator: Validator
) -> None:
    """With what its context has to say: --verify=off, cold caches and a seed."""
    out = tmp_path / OUT
    choice = [*SMALL, *FFN, "--verify=off", "--cold-cache", "--seed=7"]
    completed, result = program.measure(out, *choice, "--benchmark_format=json")
    assert completed.stdout == out.read_text(encoding="utf-8")
    assert validator.is_valid(result)
    assert_complete(result, program.names(*choice))
    context = result["context"]
    assert [context[key] for key in ("verify", "cold_cache", "seed")] == ["off", True, 7]
    assert list(tmp_path.iterdir()) == [out]


def test_a_case_beyond_a_limit_is_skipped_and_one_that_is_refused_memory_fails(
    program: Program, tmp_path: Path, with_peaks: list[str], validator: Validator
) -> None:
    """Where the system refuses what the prediction took to be free, that is caught and reported,
    the run goes on, and its exit status is 1. Google Benchmark's compare.py reads the result."""
    # cases that need 82 KiB, 625 MiB and 6 GiB
    choice = [*SMALL_MODEL, *FFN, "--batch=20000,200000,2", "--seq=32", "--memory-limit=800MiB"]
    space, out = (900 << 20, 900 << 20), tmp_path / OUT
    refusing = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, space)}
    completed, result = program.measure(out, *choice, *with_peaks, status=1, **refusing)
    assert validator.is_valid(result)
    cases = entries_by_case(result)
    (failed, (refused,)), (skipped, (large,)), (_, measured) = cases.items()
    assert "out of memory" in refused["error_message"]
    assert f"{failed}  FAILED: out of memory" in completed.stderr
    assert f"\nFAILED\n  {failed}: out of memory" in completed.stdout
    assert "frame #" not in completed.stderr + completed.stdout
    pattern = r"predicted peak memory \d+\.\d+ GiB exceeds 800\.00 MiB \(--memory-limit\)"
    assert large["skipped"] and re.fullmatch(pattern, large["skip_message"])
    assert f"skipped: {large['skip_message']}" in completed.stderr
    assert f"\nskipped\n  {skipped}: {large['skip_message']}" in completed.stdout
    # after the one that failed
    assert len(measured) == 2 + 4

    tool = PROJECT_ROOT / ".deps/sources/benchmark/tools/compare.py"
    if not tool.is_file():
        pytest.skip("Google Benchmark came without its sources, so compare.py is not here")
    command = [sys.executable, str(tool), "-a", "benchmarks", str(out), str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ffn/forward/baseline/custom/f32/\S+/manual_time", done.stdout)


def test_every_component_is_proved_with_the_weights_of_a_folder(program: Program) -> None:
    weights = f"--weights={PROJECT_ROOT / 'fixtures/golden/gqa_groups_2'}"
    choice = [weights, "--batch=2", "--seq=8", BASELINE, *ON_CPU]
    names = [name for name in program.names(*choice) if not name.startswith("peak/")]
    assert {name.split("/")[0] for name in names} == set(COMPONENTS)
    completed = program.run(*choice, "--verify=only")
    assert completed.returncode == 0, completed.stderr
    verdicts = [line.split()[-1] for line in completed.stdout.splitlines()]
    assert verdicts == ["proved"] * len(names)


# ---- without measuring; and what is refused: one line that names the option or file, the value and
# the rule, with exit status 2

ALL_SIZES = "--sizes=tiny,small,medium,large,very_large"
MIB = 1 << 20


def shown(program: Program, *arguments: str) -> str:
    """Standard output of a run with nothing to complain of."""
    completed = program.run(*arguments)
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


def test_a_dry_run_has_the_same_figures_in_json_and_as_a_table(program: Program) -> None:
    choice = ["--components=full_step,ffn", BASELINE, ALL_SIZES, "--memory-limit=8GiB", ON_CPU[0]]
    document = strict_json(shown(program, *choice, "--dry-run", "--benchmark_format=json"))
    assert (
        document["device"] == strict_json(shown(program, ON_CPU[0], "--describe-device"))["device"]
    )
    assert document["device"]["backend"] == "cpu" and document["device"]["memory_bytes"] > 0
    cases = {case["name"]: case for case in document["cases"]}
    assert list(cases) == program.names(*choice)
    tiny, large = (
        cases[f"full_step/train/baseline/{size}/f32/batch:8/seq:{seq}"]
        for size, seq in (("tiny", 128), ("large", 1024))
    )
    assert (tiny["model_flops"], tiny["fits"], tiny["reason"]) == (17_678_991_360, True, "")
    assert large["predicted_memory_bytes"] > 8 * 2**30
    assert not large["fits"] and "exceeds 8.00 GiB" in large["reason"]
    lines = shown(program, *choice, "--dry-run").splitlines()
    rows = [line.split()[:2] for line in lines if "/baseline/" in line]
    assert rows == [[name, str(case["parameters"])] for name, case in cases.items()]
    assert lines[-1].startswith(f"{len(cases)} cases")


def test_dry_run_allocates_nothing(program: Program) -> None:
    listing, _ = program.peak_memory(ALL_SIZES, "--list")
    # the smallest of these steps needs more than the difference that is allowed
    dry_run, completed = program.peak_memory(ALL_SIZES, "--device=cpu", "--dry-run")
    assert completed.returncode == 0, completed.stderr
    assert dry_run < listing + 32 * MIB


# Options, and what the message has to say, with | between: one of each part of the program that
# refuses. The C++ tests of options, their grammar, the plan and the journal have every kind.
BAD_OPTIONS = """\
--frobnicate                        --frobnicate | known options:
--components=ffn,nose               --components 'nose' | must be one of embedding
--seq=9999999                       seq = 9999999 | must be between 1 and
--benchmark_filter=zzz              --benchmark_filter 'zzz' | no case
--serve --list                      --list: not with --serve
--device=cuda:99                    "cuda:99": no such device (allowed: auto, cpu, cuda
--device=cuda:99 --dry-run          "cuda:99": no such device
--weights=nowhere                   nowhere | config.json
--problem-sizes=nowhere             nowhere | cannot be read
"""


@pytest.mark.parametrize("line", BAD_OPTIONS.splitlines())
def test_bad_option_is_refused(program: Program, line: str) -> None:
    options, _, parts = (part.strip() for part in line.partition("  "))
    completed = program.run("--threads=1", *options.split(), timeout=30)
    assert [part for part in parts.split(" | ") if part not in message_of(completed)] == []
    assert completed.stdout == ""


def test_journal_of_another_run_is_refused_and_left_alone(
    smoke_run: FinishedRun, program: Program, tmp_path: Path
) -> None:
    whole = (smoke_run.folder / JOURNAL).read_text(encoding="utf-8")
    # the names of cases are the same
    other_size = whole.replace('"hidden_dim":32', '"hidden_dim":64', 1)
    for content, expected, option in (
        (whole, "was written with seed = ", "--seed=7"),
        (whole, "with settings/sdpa_backends = ", "--sdpa-backend=math"),
        (other_size, "was written with sizes/custom = ", "--seed=42"),
    ):
        file = tmp_path / JOURNAL
        file.write_text(content, encoding="utf-8")
        message = message_of(program.run(*SMALL, *FFN, option, f"--journal={file}", "--resume"))
        assert str(file) in message and expected in message
        assert file.read_text(encoding="utf-8") == content


def test_files_that_cannot_be_written_are_refused_at_once(program: Program, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    for option, file, expected in (
        ("--journal", kept, f"{kept}: exists and is not empty"),
        ("--journal", "/dev/full", "/dev/full: cannot be written: No space left on device"),
        ("--benchmark_out", tmp_path / "no folder/file", "no folder/file"),
        ("--trace", kept, f"--trace '{kept}': "),
    ):
        message = message_of(program.run(*SMALL, *FFN, f"{option}={file}"))
        assert expected in message and option.removeprefix("--") in message
    assert list(tmp_path.iterdir()) == [kept] and kept.read_text() == "mine"


@pytest.mark.parametrize("mode", ["--list", "--dry-run", "--benchmark_format=json"])
def test_standard_output_that_is_full_is_an_error(program: Program, mode: str) -> None:
    with Path("/dev/full").open("w") as full:
        completed = program.run(*SMALL, *FFN, *QUICK, "--verify=off", mode, stdout=full)
    assert completed.returncode == 2
    assert "standard output cannot be written" in completed.stderr


# ---- results/schema.json

STEP = "full_step/train/baseline/custom/bf16/batch:2/seq:8/manual_time"
NORM = "rms_norm/forward/baseline/custom/f32/batch:2/seq:8/manual_time"
PEAK = "peak/gemm/f32/manual_time"
# of a row, and of the context
OPTIONAL = {
    *("label", "median_ns", "median_interval_ns", "samples_ns", "speedup", "library_scratch_MiB"),
    *("load_avg", "sizes", "weights"),
}


@pytest.fixture
def result(smoke_run: FinishedRun) -> Json:
    """One case of each kind, so that hundreds of checks stay quick."""
    runs = {STEP, NORM, PEAK}
    entries = [e for e in smoke_run.result["benchmarks"] if e["run_name"] in runs]
    return copy.deepcopy({"context": smoke_run.result["context"], "benchmarks": entries})


def entry_of(result: Json, name: str) -> Json:
    return next(entry for entry in result["benchmarks"] if entry["name"] == name)


def test_published_results_are_of_this_schema(validator: Validator) -> None:
    files = (PROJECT_ROOT / "results/reference").glob("*.json")
    published = [result for result in map(read_json, files) if "benchmarks" in result]
    for result in published:
        # steps of a case are alike: one of each that has other keys
        one_of = {(row["run_name"], *row): row for row in result["benchmarks"]}
        assert validator.is_valid(result | {"benchmarks": [*one_of.values()]})
    assert published


def test_missing_keys_are_refused(result: Json, validator: Validator) -> None:
    """Whatever the program writes is demanded, but what a case, a machine or an option may lack."""
    Validator.check_schema(validator.schema)
    rows = [entry_of(result, f"{STEP}{kind}") for kind in ("", "_median", "_stddev", "_cv")]
    for place in (*rows, entry_of(result, NORM), result["context"]):
        for key in set(place) - OPTIONAL:
            value = place.pop(key)
            alone = result | {"benchmarks": [rows[0] if place is result["context"] else place]}
            assert not validator.is_valid(alone), key
            place[key] = value
            assert validator.is_valid(alone)


SKIPPED = {"skipped": True, "skip_message": "predicted peak memory exceeds the limit"}
FAILED = {"error_occurred": True, "error_message": "wrong result"}
ABOVE = "107 % of the measured f32 peak: the time, the count or the peak is wrong"
# What is put into a row of that name, or into that place of the context.
IMPOSSIBLE: list[tuple[str, Json]] = [
    (STEP, {"real_time": -1.0}),
    (STEP + "_cv", {"bytes": None}),
    (STEP, {"peak_percent": 106.0}),
    (STEP, {"GFLOPS": 1.0}),
    (PEAK, {"speedup": 1.0}),
    (STEP + "_cv", {"aggregate_name": "best"}),
    (NORM, {"MFU_percent": 50.0}),
    (NORM, {"run_name": "Nose/" + NORM[9:]}),
    (PEAK, {"run_name": "peak/gemm/f8"}),
    ("context", {"schema_version": 2}),
    ("context device", {"backend": "tpu"}),
    # which has to say what its kernels were built for
    ("context device", {"backend": "hip"}),
    ("context peaks measured f32", {"flops_per_second": 0}),
    # in place of its shares
    (STEP, {"above_peak": ABOVE}),
    (STEP, FAILED | {"error_message": ""}),
    (STEP, SKIPPED | FAILED),
    (STEP, SKIPPED | {"TFLOPS": 1.0}),
]


def put(result: Json, place: str, values: Json) -> None:
    found = result if place.startswith("context") else {place: entry_of(result, place)}
    for key in place.split():
        found = found[key]
    if {"error_occurred", "skipped"} & set(values):
        values = not_measured(found, **values)
        found.clear()
    found.update(values)


@pytest.mark.parametrize(("place", "values"), IMPOSSIBLE)
def test_impossible_result_is_refused(
    result: Json, validator: Validator, place: str, values: Json
) -> None:
    put(result, place, values)
    assert not validator.is_valid(result)


def test_what_was_not_measured_not_verified_or_above_its_peak_is_accepted(
    result: Json, validator: Validator
) -> None:
    for reason in (SKIPPED, FAILED):
        stopped = copy.deepcopy(result)
        put(stopped, STEP, reason)
        assert validator.is_valid(stopped)
    for key in SHARES:
        entry_of(result, STEP).pop(key, None)
    assert not validator.is_valid(result)
    put(result, STEP, {"above_peak": ABOVE})
    assert validator.is_valid(result)
    for entry in result["benchmarks"]:
        entry.pop("max_rel_error", None)
    assert not validator.is_valid(result)
    result["context"]["verify"] = "off"
    assert validator.is_valid(result)
