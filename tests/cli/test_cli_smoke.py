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
    case_name,
    entries_by_case,
    mappings,
    was_measured,
)
from jsonschema import Draft202012Validator

DTYPES = ["f32", "bf16", "amp_bf16", "f16", "amp_f16"]
# which vary in the smoke run
SHARED_BY_ALL = ["size custom", "batch 2", "seq 8", "variant baseline"]


def measured_iterations(result: Json) -> list[Json]:
    return [
        entry
        for entry in result["benchmarks"]
        if entry["run_type"] == "iteration"
        and was_measured(entry)
        and not entry["name"].startswith("peak/")
    ]


def measured_cases(result: Json) -> dict[str, list[Json]]:
    cases = entries_by_case(result)
    return {name: entries for name, entries in cases.items() if was_measured(entries[0])}


def measured_dtypes(result: Json, component: str) -> list[str]:
    """Those in which all passes of the component were measured."""
    cases = entries_by_case(result)
    missing = {name.split("/")[4] for name in cases if name.startswith(f"{component}/")} - {
        name.split("/")[4] for name in measured_cases(result) if name.startswith(f"{component}/")
    }
    return [dtype for dtype in DTYPES if dtype not in missing]


def tables(stdout: str) -> dict[str, list[str]]:
    """The paragraphs of the summary, by the first word of each."""
    paragraphs = [text.splitlines() for text in stdout.strip().split("\n\n")]
    return {lines[0].split()[0].rstrip(","): lines for lines in paragraphs}


def test_schema_accepts_the_result(smoke_run: FinishedRun, validator: Draft202012Validator) -> None:
    errors = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in validator.iter_errors(smoke_run.result)
    ]
    assert errors == []


def test_every_planned_case_is_there_once(smoke_run: FinishedRun, program: Program) -> None:
    cases = entries_by_case(smoke_run.result)
    assert list(cases) == program.names(*smoke_run.arguments)
    measured = measured_cases(smoke_run.result)
    kept = [entry for entries in measured.values() for entry in entries]
    assert_complete({"benchmarks": kept}, list(measured), repetitions=2)
    assert [name for name, entries in cases.items() if len(entries) not in {1, 6}] == []


def test_every_component_has_every_dtype_and_pass(smoke_run: FinishedRun) -> None:
    passes = ["forward", "backward", "forward_backward"]
    own = {
        "model": ["forward", "forward_loss", "backward", "forward_backward"],
        "optimizer": ["update"],
        "full_step": ["train"],
    }
    expected = {
        f"{component}/{name}/baseline/custom/{dtype}/batch:2/seq:8"
        for component in COMPONENTS
        for name in own.get(component, passes)
        for dtype in DTYPES
    }
    peaks = {"peak/gemm/f32", "peak/gemm/bf16", "peak/gemm/f16", "peak/bandwidth"}
    assert set(entries_by_case(smoke_run.result)) >= expected | peaks


def test_nothing_was_skipped_or_failed(smoke_run: FinishedRun) -> None:
    reasons = [entry for entry in smoke_run.result["benchmarks"] if not was_measured(entry)]
    assert reasons == []
    assert smoke_run.completed.returncode == 0


def test_counters_agree_with_each_other(smoke_run: FinishedRun) -> None:
    for entry in measured_iterations(smoke_run.result):
        name = entry["name"]
        seconds = entry["real_time"] * 1e-3
        assert entry["time_unit"] == "ms", name

        def same(value: float, expected: float, name: str = name) -> None:
            assert abs(value - expected) <= 1e-6 * abs(expected), name

        same(entry["samples_per_second"], 2 / seconds)
        same(entry["tokens_per_second"], 16 / seconds)
        same(entry["GB_per_second"], entry["bytes"] / seconds * 1e-9)
        flops = entry["hardware_flops"] or entry["elementwise_flops"]
        same(entry["flop_per_byte"], flops / entry["bytes"])
        if entry["model_flops"]:
            same(entry["TFLOPS"], entry["model_flops"] / seconds * 1e-12)
            assert entry["causal_flops"] <= entry["model_flops"] <= entry["hardware_flops"], name


def test_types_differ_in_bytes_and_not_in_flops(smoke_run: FinishedRun) -> None:
    cases = entries_by_case(smoke_run.result)
    f32 = cases["ffn/forward/baseline/custom/f32/batch:2/seq:8"][0]
    bf16 = cases["ffn/forward/baseline/custom/bf16/batch:2/seq:8"][0]
    assert f32["model_flops"] == bf16["model_flops"]
    assert f32["bytes"] == 2 * bf16["bytes"]
    assert f32["max_rel_error"] < bf16["max_rel_error"]


def test_aggregates_follow_from_the_repetitions(smoke_run: FinishedRun) -> None:
    for name, entries in measured_cases(smoke_run.result).items():
        times = [e["real_time"] for e in entries if e["run_type"] == "iteration"]
        found = {e["aggregate_name"]: e for e in entries if e["run_type"] == "aggregate"}
        assert list(found) == AGGREGATES, name
        mean = sum(times) / len(times)
        assert abs(found["mean"]["real_time"] - mean) <= 1e-6 * mean, name
        assert {case_name(entry) for entry in entries} == {name}


def test_rows_keep_the_samples_that_their_times_come_from(smoke_run: FinishedRun) -> None:
    for name, entries in measured_cases(smoke_run.result).items():
        for entry in entries:
            if name.startswith("peak/") or entry["run_type"] != "iteration":
                assert "samples_ns" not in entry
                continue
            samples = entry["samples_ns"]
            assert len(samples) == min(entry["iterations"], 200)
            assert min(samples) - 1 <= entry["median_ns"] <= max(samples) + 1
            if entry["iterations"] > 200:
                continue
            # Samples are whole nanoseconds.
            assert 1e6 * entry["real_time"] == pytest.approx(statistics.mean(samples), abs=1)
            assert entry["median_ns"] == pytest.approx(statistics.median(samples), abs=1)
            interval = entry.get("median_interval_ns")
            assert (interval is not None) == (len(samples) >= 6)
            if interval is not None:
                assert interval[0] <= entry["median_ns"] <= interval[1]


def test_context_says_what_was_measured(smoke_run: FinishedRun) -> None:
    context = smoke_run.result["context"]
    assert context["library_build_type"] == "release"
    assert context["executable"] == "tiny_llama_bench"
    assert context["device"]["backend"] == "cpu"
    assert context["threads"] == 1
    assert context["settings"]["torch_threads"] == "1"
    assert context["settings"]["env.OMP_NUM_THREADS"] == "1"
    assert context["seed"] == 42
    assert context["verify"] == "before"
    assert context["cold_cache"] is False


def test_peaks_are_measured_with_their_sources(smoke_run: FinishedRun) -> None:
    peaks = smoke_run.result["context"]["peaks"]
    measured = peaks["measured"]
    assert set(measured) == {"f32", "bf16", "f16", "memory_bandwidth", "cache_bandwidth"}
    sources = [inner["source"] for inner in mappings(measured) if "source" in inner]
    assert len(sources) == 5
    assert all(sources)
    against = "datasheet" if peaks["datasheet"] else "measured peak"
    assert against in peaks["mfu_is_against"]


def test_progress_is_plain_lines_where_stderr_is_no_terminal(smoke_run: FinishedRun) -> None:
    stderr = smoke_run.completed.stderr
    assert "\r" not in stderr
    assert "\x1b" not in stderr
    names = list(entries_by_case(smoke_run.result))
    steps = [line for line in stderr.splitlines() if line.startswith("[")]
    assert [line.split()[1] for line in steps] == names
    for number, line in enumerate(steps, start=1):
        assert re.match(rf"\[{number}/{len(names)}\] \S+  (\d\S* ms$|FAILED: )", line), line


def test_console_has_one_table_a_component_with_what_varies(smoke_run: FinishedRun) -> None:
    found = tables(smoke_run.completed.stdout)
    assert [name for name in found if name in COMPONENTS] == COMPONENTS
    for component in COMPONENTS:
        heading, header, rule, *rows, beneath = found[component]
        assert beneath.startswith("in all rows: repetitions 2")
        shared = SHARED_BY_ALL + {
            "optimizer": ["pass update"],
            "full_step": ["pass train"],
        }.get(component, [])
        assert heading == f"{component}  ({', '.join(shared)})"
        varying = ["dtype"] if len(shared) > len(SHARED_BY_ALL) else ["dtype", "pass"]
        assert header.split()[: len(varying) + 1] == [*varying, "time"]
        assert set(rule) <= {"-", " "}
        measured = [n for n in measured_cases(smoke_run.result) if n.startswith(f"{component}/")]
        found_rows = [tuple(row.split()[: len(varying)]) for row in rows]
        expected = [(n.split("/")[4], n.split("/")[1])[: len(varying)] for n in measured]
        assert found_rows == expected
        widths = [len(part) for part in rule.split()]
        assert len(widths) == len(re.split(r" {2,}", header.strip())), header
        missing = [row for row in rows if " - " in f"{row} "]
        assert missing == []


def test_console_shows_the_peaks(smoke_run: FinishedRun) -> None:
    peaks = tables(smoke_run.completed.stdout)["peaks"]
    assert [line.split()[0] for line in peaks[1:]] == [
        "peak/gemm/f32",
        "peak/gemm/bf16",
        "peak/gemm/f16",
        "peak/bandwidth",
    ]


def test_the_sum_of_parts_adds_up_the_parts_of_each_dtype(smoke_run: FinishedRun) -> None:
    output = smoke_run.completed.stdout.splitlines()
    sums = [
        "\n".join(output[i : i + 2])
        for i, line in enumerate(output)
        if line.startswith("sum of parts")
    ]
    part = r"\d[\d.]* (?:us|ms|s)"
    dtypes = [
        dtype
        for dtype in measured_dtypes(smoke_run.result, "full_step")
        if dtype in measured_dtypes(smoke_run.result, "optimizer")
    ]
    for both, dtype in zip(sums, dtypes, strict=True):
        pattern = (
            rf"sum of parts  baseline custom {dtype} batch 2 seq 8: [\d.]+ % of full_step {part}"
            rf" \(interleaved.*\)\n  embedding {part} \+ 2 x block {part} \+ rms_norm {part}"
            rf" \+ loss {part} \+ optimizer {part} = {part}"
        )
        assert re.fullmatch(pattern, both), both
