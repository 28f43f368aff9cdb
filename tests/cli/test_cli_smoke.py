"""One run of every component, pass and dtype: exit status, result file, context, console."""

import re
import statistics

import pytest
from cli_program import (
    AGGREGATES,
    COMPONENTS,
    FinishedRun,
    Json,
    Program,
    assert_complete,
    entries_by_case,
    mappings,
    was_measured,
)
from jsonschema import Draft202012Validator

DTYPES = ["f32", "bf16", "amp_bf16", "f16", "amp_f16"]
# which vary in the smoke run
SHARED_BY_ALL = ["size custom", "batch 2", "seq 8", "variant baseline"]
WITHOUT_GEMMS = {"embedding", "rms_norm", "rotary", "optimizer"}
OWN_PASSES = {
    "model": ["forward", "forward_loss", "backward", "forward_backward"],
    "optimizer": ["update"],
    "full_step": ["train"],
}


def repetitions(run: FinishedRun) -> list[Json]:
    """The entries that were timed, without the peaks'."""
    return [
        entry
        for entry in run.result["benchmarks"]
        if entry["run_type"] == "iteration" and not entry["name"].startswith("peak/")
    ]


def tables(stdout: str) -> dict[str, list[str]]:
    """The paragraphs of the summary, by the first word of each."""
    paragraphs = [text.splitlines() for text in stdout.strip().split("\n\n")]
    return {lines[0].split()[0].rstrip(","): lines for lines in paragraphs}


def test_result_is_whole_and_of_its_schema(
    smoke_run: FinishedRun, program: Program, validator: Draft202012Validator
) -> None:
    errors = validator.iter_errors(smoke_run.result)
    assert [f"{error.json_path}: {error.message[:300]}" for error in errors] == []
    assert [entry for entry in smoke_run.result["benchmarks"] if not was_measured(entry)] == []
    assert smoke_run.completed.returncode == 0
    names = program.names(*smoke_run.arguments)
    assert_complete(smoke_run.result, names)
    expected = {
        f"{component}/{name}/baseline/custom/{dtype}/batch:2/seq:8"
        for component in COMPONENTS
        for name in OWN_PASSES.get(component, ["forward", "backward", "forward_backward"])
        for dtype in DTYPES
    }
    peaks = {"peak/gemm/f32", "peak/gemm/bf16", "peak/gemm/f16", "peak/bandwidth"}
    assert set(names) >= expected | peaks


def test_counters_agree_with_each_other(smoke_run: FinishedRun) -> None:
    def same(value: float, expected: float) -> None:
        assert value == pytest.approx(expected, rel=1e-6)

    for entry in repetitions(smoke_run):
        seconds = entry["real_time"] * 1e-3
        assert entry["time_unit"] == "ms"
        same(entry["samples_per_second"], 2 / seconds)
        same(entry["tokens_per_second"], 16 / seconds)
        same(entry["GB_per_second"], entry["bytes"] / seconds * 1e-9)
        flops = entry["hardware_flops"] or entry["elementwise_flops"]
        same(entry["flop_per_byte"], flops / entry["bytes"])
        if entry["model_flops"]:
            same(entry["TFLOPS"], entry["model_flops"] / seconds * 1e-12)
            assert entry["causal_flops"] <= entry["model_flops"] <= entry["hardware_flops"]
    cases = entries_by_case(smoke_run.result)
    f32, bf16 = (
        cases[f"ffn/forward/baseline/custom/{dtype}/batch:2/seq:8"][0] for dtype in ("f32", "bf16")
    )
    assert f32["model_flops"] == bf16["model_flops"]
    assert f32["bytes"] == 2 * bf16["bytes"]
    assert f32["max_rel_error"] < bf16["max_rel_error"]


def test_times_follow_from_the_samples_that_rows_keep(smoke_run: FinishedRun) -> None:
    for entries in entries_by_case(smoke_run.result).values():
        times = [e["real_time"] for e in entries if e["run_type"] == "iteration"]
        found = {e["aggregate_name"]: e for e in entries if e["run_type"] == "aggregate"}
        assert list(found) == AGGREGATES
        assert found["mean"]["real_time"] == pytest.approx(statistics.mean(times), rel=1e-6)
    timed = repetitions(smoke_run)
    for entry in smoke_run.result["benchmarks"]:
        assert ("samples_ns" in entry) == (entry in timed), entry["name"]
    for entry in timed:
        samples, median = entry["samples_ns"], entry["median_ns"]
        assert len(samples) == min(entry["iterations"], 200)
        assert min(samples) - 1 <= median <= max(samples) + 1
        if entry["iterations"] > 200:
            continue
        # samples are whole nanoseconds
        assert 1e6 * entry["real_time"] == pytest.approx(statistics.mean(samples), abs=1)
        assert median == pytest.approx(statistics.median(samples), abs=1)
        interval = entry.get("median_interval_ns")
        assert (interval is not None) == (len(samples) >= 6)
        if interval is not None:
            assert interval[0] <= median <= interval[1]


def test_context_says_what_was_measured(smoke_run: FinishedRun) -> None:
    context = smoke_run.result["context"]
    expected = {
        "library_build_type": "release",
        "executable": "tiny_llama_bench",
        "threads": 1,
        "seed": 42,
        "verify": "before",
        "cold_cache": False,
    }
    assert {key: context[key] for key in expected} == expected
    assert context["device"]["backend"] == "cpu"
    assert context["settings"]["torch_threads"] == "1"
    assert context["settings"]["env.OMP_NUM_THREADS"] == "1"
    peaks = context["peaks"]
    measured = peaks["measured"]
    assert set(measured) == {"f32", "bf16", "f16", "memory_bandwidth", "cache_bandwidth"}
    sources = [inner["source"] for inner in mappings(measured) if "source" in inner]
    assert len(sources) == 5
    assert all(sources)
    against = "datasheet" if peaks["datasheet"] else "measured peak"
    assert against in peaks["mfu_is_against"]


def test_progress_is_plain_lines_where_stderr_is_no_terminal(smoke_run: FinishedRun) -> None:
    stderr = smoke_run.completed.stderr
    assert not {"\r", "\x1b"} & set(stderr)
    names = list(entries_by_case(smoke_run.result))
    steps = [line for line in stderr.splitlines() if line.startswith("[")]
    assert [line.split()[1] for line in steps] == names
    for number, line in enumerate(steps, start=1):
        assert re.match(rf"\[{number}/{len(names)}\] \S+  \d\S* ms$", line), line


def test_console_has_one_table_a_component_with_what_varies(smoke_run: FinishedRun) -> None:
    found = tables(smoke_run.completed.stdout)
    assert [name for name in found if name in COMPONENTS] == COMPONENTS
    names = list(entries_by_case(smoke_run.result))
    for component in COMPONENTS:
        heading, header, rule, *rows, beneath = found[component]
        assert beneath.startswith("in all rows: repetitions 2")
        passes = OWN_PASSES.get(component, [])
        shared = SHARED_BY_ALL + ([f"pass {passes[0]}"] if len(passes) == 1 else [])
        assert heading == f"{component}  ({', '.join(shared)})"
        varying = ["dtype", "pass"][: 1 if len(passes) == 1 else 2]
        assert header.split()[: len(varying) + 1] == [*varying, "time"]
        assert set(rule) <= {"-", " "}
        own = [name.split("/") for name in names if name.startswith(f"{component}/")]
        expected = [(name[4], name[1])[: len(varying)] for name in own]
        assert [tuple(row.split()[: len(varying)]) for row in rows] == expected
        assert len(rule.split()) == len(re.split(r" {2,}", header.strip())), header
        assert ("MFU" in f"{header} {beneath}") == (component not in WITHOUT_GEMMS)
        assert [row for row in rows if " - " in f"{row} "] == []
    peaks = ["peak/gemm/f32", "peak/gemm/bf16", "peak/gemm/f16", "peak/bandwidth"]
    assert [line.split()[0] for line in found["peaks"][1:]] == peaks


def test_the_sum_of_parts_adds_up_the_parts_of_each_dtype(smoke_run: FinishedRun) -> None:
    lines = smoke_run.completed.stdout.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("sum of parts")]
    part = r"\d[\d.]* (?:us|ms|s)"
    for start, dtype in zip(starts, DTYPES, strict=True):
        pattern = (
            rf"sum of parts  baseline custom {dtype} batch 2 seq 8: [\d.]+ % of full_step {part}"
            rf" \(interleaved.*\)\n  embedding {part} \+ 2 x block {part} \+ rms_norm {part}"
            rf" \+ loss {part} \+ optimizer {part} = {part}"
        )
        assert re.fullmatch(pattern, "\n".join(lines[start : start + 2])), lines[start]
