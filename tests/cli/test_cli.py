"""tiny_llama_bench, run as a user would: every component, pass and dtype, JSON on stdout, limits of
memory, failures and weights; what is said without measuring, and refused; the schema of results,
which refuses what is missing or impossible; a run that is killed or interrupted, and what --resume
makes of its journal; and --serve, which opens, times and closes cases as it is asked."""

import contextlib
import copy
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import (
    AGGREGATES,
    BASELINE,
    COMPONENTS,
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
    write_journal,
)
from jsonschema import Draft202012Validator as Validator

from built_programs import (
    ON_CPU,
    PROJECT_ROOT,
    TIMEOUT_S,
    Completed,
    FinishedRun,
    Json,
    finish,
    message_of,
    read_journal,
    read_json,
    strict_json,
    wait_until,
)
from tinyllama_tools.core.app import PLACING
from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.data.results import SCHEMA_VERSION, read_rows

OWN_PASSES = {
    "model": ["forward", "forward_loss", "backward", "forward_backward"],
    "optimizer": ["update"],
    "full_step": ["train"],
}
FFN = ["--components=ffn", "--passes=forward"]
Process = subprocess.Popen[str]


@pytest.fixture(scope="session")
def program(bench_program: Path) -> Program:
    return Program(bench_program)


@pytest.fixture(scope="session")
def validator() -> Validator:
    return Validator(read_json(PROJECT_ROOT / "results/schema.json"))


@pytest.fixture(scope="session")
def smoke_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Every component, pass and dtype of a small model, and every peak."""
    folder = tmp_path_factory.mktemp("smoke")
    files = [f"--benchmark_out={folder / OUT}", f"--journal={folder / JOURNAL}"]
    completed = program.run(*SMOKE, *QUICK, *files)
    # whether it went well is for a test to say, and not for all that look at its files
    assert completed.returncode in {0, 1}, completed.stderr
    return FinishedRun(completed, folder, read_json(folder / OUT))


@pytest.fixture
def with_peaks(smoke_run: FinishedRun, tmp_path: Path) -> list[str]:
    """Options of a run that takes its peaks from a journal with nothing else in it, such as a run
    leaves that was killed right after measuring them."""
    journal = write_journal(tmp_path / JOURNAL, read_journal(smoke_run.folder / JOURNAL)[0])
    return [f"--journal={journal}", "--resume"]


def aim(with_peaks: list[str], **goals: object) -> list[str]:
    """The same, of a run with these goals."""
    journal = Path(with_peaks[0].partition("=")[2])
    (line,) = read_journal(journal)
    line["header"]["goals"] |= {name.replace("__", "-"): value for name, value in goals.items()}
    write_journal(journal, line)
    return with_peaks


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
    aim(with_peaks, memory__limit=800 << 20)
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
    assert re.search(r"ffn/forward/baseline/custom/f32/\S+", done.stdout)


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


def test_a_dry_run_predicts_what_the_first_case_of_a_run_does(program: Program) -> None:
    # narrow rows, of which libtorch is asked how it multiplies them; in each process once
    size = ("--hidden-dim=20", "--n-heads=2", "--n-kv-heads=2", "--seq=30", "--batch=1", ON_CPU[0])
    case = ("--components=attention", "--passes=forward", BASELINE, "--dtypes=f32", *size)
    json_format = "--benchmark_format=json"
    (asked,) = strict_json(shown(program, *case, "--dry-run", json_format))["cases"]
    done = program.run(*case, json_format, "--verify=off", "--benchmark_min_time=1x")
    rows = strict_json(done.stdout)["benchmarks"]
    assert rows[0]["predicted_memory_MiB"] * MIB == pytest.approx(asked["predicted_memory_bytes"])


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
--benchmark_enable_random_interleaving  scripts/compare run interleaves
--benchmark_speed=9                 --benchmark_speed: is no flag of Google Benchmark
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
        (other_size, "was written with sizes/custom/", "--seed=42"),
        (whole, '--benchmark_min_time = "1x", this run has "0.1s"', "--seed=42"),
    ):
        file = tmp_path / JOURNAL
        file.write_text(content, encoding="utf-8")
        goals = [] if "min_time" in expected else QUICK
        options = [*SMALL, *FFN, *goals, option, f"--journal={file}", "--resume"]
        message = message_of(program.run(*options))
        assert str(file) in message and expected in message
        assert file.read_text(encoding="utf-8") == content


def test_flags_of_the_environment_count(
    program: Program, tmp_path: Path, with_peaks: list[str]
) -> None:
    """Google Benchmark reads them by itself, before anything else runs: what it writes then is no
    result of the suite."""
    aim(with_peaks, benchmark_repetitions=3)
    variables = {
        "BENCHMARK_OUT": str(tmp_path / OUT),
        "BENCHMARK_MIN_TIME": "1x",
        "BENCHMARK_REPORT_AGGREGATES_ONLY": "true",
    }
    environment = os.environ | variables
    completed = program.run(*SMALL, *FFN, *with_peaks, env=environment)
    assert completed.returncode == 0, completed.stderr
    result = read_json(tmp_path / OUT)
    assert result["context"]["goals"]["benchmark_min_time"] == "1x"
    assert [row["aggregate_name"] for row in result["benchmarks"]] == AGGREGATES
    assert read_rows(result, tmp_path / OUT).cases
    environment = os.environ | {"BENCHMARK_OUT_FORMAT": "csv"}
    message = message_of(program.run(*SMALL, *FFN, env=environment))
    assert "environment variable BENCHMARK_OUT_FORMAT: --benchmark_out_format 'csv'" in message


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

STEP = "full_step/train/baseline/custom/bf16/batch:2/seq:8"
NORM = "rms_norm/forward/baseline/custom/f32/batch:2/seq:8"
PEAK = "peak/gemm/f32"
# of a row, and of the context
OPTIONAL = {
    *("label", "mean_ns", "interval_ns", "samples_ns", "library_scratch_MiB"),
    *("speedup", "speedup_low", "speedup_high"),
    # which files of the same schema lack that were written before
    *("component", "pass", "variant", "size", "dtype", "batch", "seq", "timer"),
    *("load_avg", "goals", "sizes", "weights"),
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
    every = [result for result in map(read_json, files) if "benchmarks" in result]
    published = [of for of in every if of["context"]["schema_version"] == SCHEMA_VERSION]
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


# ---- journals, and cases that are served

PARTS = [*SMALL_MODEL, "--batch=2,3", "--seq=8", "--components=ffn,loss,rms_norm"]
# 18 cases of more than half a second: long enough to be interrupted in the midst of them, even
# where a busy machine brings the signal some seconds late
SLOW = ["--benchmark_min_time=0.25s", "--benchmark_repetitions=2", "--precision=99"]


def resume(
    program: Program, folder: Path, choice: list[str], status: int = 0
) -> tuple[Completed, Json]:
    """The same run once more from its journal."""
    journal = [f"--journal={folder / JOURNAL}", "--resume"]
    return program.measure(folder / "resumed.json", *choice, *journal, status=status)


def measured_now(completed: Completed) -> list[str]:
    return re.findall(r"^\[\d+/\d+\] (\S+)", completed.stderr, re.MULTILINE)


def test_what_a_journal_holds_is_kept_and_the_rest_measured(
    smoke_run: FinishedRun, program: Program, tmp_path: Path, validator: Validator
) -> None:
    """A failure counts still; of a last line that was cut short the case is measured again.
    tests/campaign kills such runs at any moment."""
    choice = [*SMALL, "--components=ffn,loss"]
    names, (header, *lines) = program.names(*choice), read_journal(smoke_run.folder / JOURNAL)
    journaled = [copy.deepcopy(line) for line in lines if line["case"] in names[:4]]
    failed = journaled[1]
    reason = {"error_occurred": True, "error_message": "wrong result"}
    failed["entries"] = [not_measured(failed["entries"][0], **reason)]
    journal = write_journal(tmp_path / JOURNAL, header, *journaled)
    *whole, last = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    journal.write_text("".join(whole) + last[:40], encoding="utf-8")
    completed, result = resume(program, tmp_path, choice, status=1)
    assert validator.is_valid(result)
    assert f"FAILED\n  {failed['case']}: wrong result\n" in completed.stdout
    assert measured_now(completed) == names[3:]
    assert "measured peak" not in completed.stderr
    cases = entries_by_case(result)
    assert list(cases) == [line["case"] for line in read_journal(journal)[1:]] == names
    # but what follows from the peaks, or from other rows, in the end
    late = {*SHARES, "above_peak", "speedup", "speedup_low", "speedup_high"}
    for line in journaled[:3]:
        found = [{k: v for k, v in e.items() if k not in late} for e in cases[line["case"]]]
        assert found == line["entries"]
    before, after = rates_of(header["header"]), rates_of(result["context"])
    assert after.keys() == before.keys() and all(after[of] >= before[of] > 0 for of in before)


def rates_of(context: Json) -> dict[str, float]:
    """Measured peaks by name, of the bandwidth curve by bytes of traffic."""
    measured = dict(context["peaks"]["measured"])
    found = {str(point["bytes"]): point for point in measured.pop("bandwidth_curve")}
    every = (measured | found).items()
    return {name: peak.get("bytes_per_second") or peak["flops_per_second"] for name, peak in every}


def test_a_complete_run_measures_nothing_again(
    smoke_run: FinishedRun, program: Program, tmp_path: Path
) -> None:
    """And its tables are the same, but for sums of parts, which are measured. Cases that are not
    asked for again stay in the journal alone."""
    journal = Path(shutil.copy(smoke_run.folder / JOURNAL, tmp_path))
    completed, result = resume(program, tmp_path, SMOKE)
    assert measured_now(completed) == []
    assert result["benchmarks"] == smoke_run.result["benchmarks"]
    tables = [run.stdout.partition("sum of parts")[0] for run in (completed, smoke_run.completed)]
    assert tables[0] == tables[1]
    _, result = resume(program, tmp_path, [*SMOKE, "--components=ffn"])
    assert {name.partition("/")[0] for name in entries_by_case(result)} == {"ffn"}
    assert journal.read_bytes() == (smoke_run.folder / JOURNAL).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE])
def test_an_interrupted_run_writes_what_it_has(
    program: Program,
    tmp_path: Path,
    with_peaks: list[str],
    validator: Validator,
    number: signal.Signals,
) -> None:
    journal, out = tmp_path / JOURNAL, tmp_path / OUT
    aim(with_peaks, benchmark_min_time="0.25s", precision=99.0)
    process = program.start(*PARTS, *SLOW, *with_peaks, f"--benchmark_out={out}")
    wait_until(lambda: len(read_journal(journal)) > 2 or process.poll() is not None)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, stderr
    result = read_json(out)
    assert validator.is_valid(result)
    names = program.names(*PARTS)
    done = list(entries_by_case(result))
    assert 2 <= len(done) < len(names)
    assert done == names[: len(done)]
    assert f"{len(done)} of {len(names)} cases done" in stderr.splitlines()[-1]
    assert f"--resume --journal {journal}" in stderr.splitlines()[-1]
    assert "tokens/s" in stdout
    # every signal leaves the same journal; what is made of that takes longer
    if number != signal.SIGINT:
        return
    _, whole = resume(program, tmp_path, [*PARTS, *SLOW])
    assert_complete(whole, names)
    assert whole["benchmarks"][: len(result["benchmarks"])] == result["benchmarks"]


@contextlib.contextmanager
def on_terminal(program: Program, *options: str) -> Iterator[tuple[Process, int]]:
    """With a terminal for standard error, which the descriptor reads; killed in the end."""
    ours, theirs = pty.openpty()
    process = program.start(
        *SMALL, "--components=ffn", *options, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_progress_on_a_terminal_says_which_case_runs_and_how_long_the_rest_takes(
    program: Program, with_peaks: list[str]
) -> None:
    written = b""
    with on_terminal(program, *with_peaks, *QUICK) as (process, terminal):
        # until nobody has it open any more
        with contextlib.suppress(OSError):
            while chunk := os.read(terminal, 4096):
                written += chunk
        assert process.wait(TIMEOUT_S) == 0
    said = written.decode()
    assert "1 of 3: ffn/forward/" in said
    assert re.search(r"2 of 3, about \d+ s left: ffn/backward/", said)


def test_a_second_interrupt_ends_at_once(program: Program, with_peaks: list[str]) -> None:
    """On a terminal. The first lets the case that is running finish, which here takes minutes."""
    endless = ["--benchmark_min_time=20000000x", "--max-seconds-per-case=10000"]
    goals = {"benchmark_min_time": "20000000x", "benchmark_repetitions": 3}
    aim(with_peaks, max__seconds__per__case=10000.0, **goals)
    with on_terminal(program, *with_peaks, *endless) as (process, terminal):
        written = b""
        while b"1 of 3: ffn/" not in written:
            written += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=TIMEOUT_S) == -signal.SIGINT


# ---- --serve: requests and answers, a line each

SERVED = "ffn/forward/baseline/custom/f32/batch:2/seq:8"
FIXED_COUNTERS = ["peak_memory_MiB", "allocations", "operators", "model_flops", "hardware_flops"]


def send(process: Process, action: str, case: str, **more: object) -> None:
    assert process.stdin
    print(json.dumps({"do": action, "case": case, **more}), file=process.stdin, flush=True)


def answer(process: Process) -> Json:
    assert process.stdout
    return strict_json(process.stdout.readline())


def resident(program: Program, *arguments: str) -> tuple[Process, Json]:
    """And what it says first. It ends with its input."""
    process = program.start("--serve", *SMALL, *arguments, stdin=subprocess.PIPE)
    return process, answer(process)


def test_cases_are_served_with_the_counters_of_an_ordinary_run(
    program: Program, smoke_run: FinishedRun
) -> None:
    """Those that do not depend on time, to the byte."""
    usual, (process, greeting) = entries_by_case(smoke_run.result), resident(program)
    context = greeting["context"]
    assert {"schema_version", "git_commit", "device", "torch_version", "settings"} <= set(context)
    assert [context[key] for key in ("threads", "seed", "verify")] == [1, 42, "on request"]
    if len(os.sched_getaffinity(0)) > 1 and not {*PLACING} & {*os.environ}:
        # of fewer threads than processors none is bound: two such programs would share one
        assert "env.OMP_PROC_BIND" not in context["settings"]
        assert re.search("[-,]", context["settings"]["cpu_affinity"])
    assert len(greeting["cases"]) == 27
    for name in greeting["cases"]:
        send(process, "open", name, verify=True, meter=True)
        opened, (entry, *_) = answer(process), usual[name]
        assert opened["max_rel_error"] == pytest.approx(entry["max_rel_error"])
        counters = {key: entry[key] for key in FIXED_COUNTERS}
        assert {key: opened["counters"][key] for key in FIXED_COUNTERS} == counters, name
        send(process, "time", name, seconds=0.001)
        assert all(0 < seconds < 1 for seconds in answer(process)["seconds"] or [0])
        send(process, "close", name)
        assert answer(process) == {"closed": name}
    assert finish(process).returncode == 0


def test_a_signal_waits_for_the_answer_and_a_client_that_goes_away_ends_it(
    program: Program,
) -> None:
    process, _ = resident(program, "--components=ffn")
    send(process, "open", SERVED)
    answer(process)

    def bytes_read() -> int:
        return int(Path(f"/proc/{process.pid}/io").read_text().split()[1])

    before, began = bytes_read(), time.monotonic()
    send(process, "time", SERVED, seconds=0.5)
    wait_until(lambda: bytes_read() > before + 50)
    process.send_signal(signal.SIGINT)
    assert answer(process)["seconds"]
    # all of it, and not what was left when the signal came
    assert time.monotonic() - began >= 0.5
    assert process.wait(TIMEOUT_S) == 130
    waiting, _ = resident(program, "--components=ffn")
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(TIMEOUT_S) == 130
    left, _ = resident(program, "--components=ffn")
    left.stdout.close()
    send(left, "close", SERVED)
    assert left.wait(TIMEOUT_S) == 0
