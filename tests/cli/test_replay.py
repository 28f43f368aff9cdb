"""--replay: operators of traces, timed one by one; of this program's own traces, of torch's in
Python, and of what is no trace."""

import json
from pathlib import Path

import pytest
from cli_program import QUICK, SMALL, Program

from built_programs import ON_CPU, PROJECT_ROOT, Json, message_of, read_json

STEP = [*SMALL, "--components=full_step"]
CORPUS = PROJECT_ROOT / "tests/fuzzing/corpus/trace"


@pytest.fixture
def program(bench_program: Path) -> Program:
    return Program(bench_program)


def replayed(program: Program, trace: Path, *options: str) -> Json:
    asked = [f"--replay={trace}", "--benchmark_format=json", *QUICK, *ON_CPU, *options]
    completed = program.run(*asked)
    assert completed.returncode == 0, completed.stderr[-2000:]
    return json.loads(completed.stdout)


def test_every_gemm_of_a_step_is_replayed(program: Program, tmp_path: Path) -> None:
    traced = program.run(*STEP, "--dry-run", f"--execution-trace={tmp_path}")
    assert traced.returncode == 0, traced.stderr
    (trace,) = tmp_path.iterdir()
    document = replayed(program, trace)
    names = [node["name"] for node in read_json(trace)["nodes"]]
    count = {name: names.count(f"aten::{name}") for name in ("linear", "mm", "bmm")}
    found = dict.fromkeys(count, 0)
    for case in document["cases"]:
        found[case["name"].split("/")[1]] += case["count"]
    # a linear's forward calls mm
    assert found == count | {"mm": count["mm"] - count["linear"]}
    assert document["total_seconds"] == pytest.approx(
        sum(case["count"] * case["seconds"] for case in document["cases"])
    )
    assert sum(case["share_percent"] for case in document["cases"]) == pytest.approx(100)
    assert document["not_replayed"]["aten::silu"] == names.count("aten::silu")
    assert document["format"].startswith("Chakra 1.")


def test_a_table_has_the_whole_and_what_is_not_in_it(program: Program, tmp_path: Path) -> None:
    model = [option for option in SMALL if not option.startswith("--variants")]
    options = ["--components=attention", "--passes=forward_backward", "--variants=sdpa"]
    measured = program.run(*model, *options, *QUICK, f"--trace={tmp_path}")
    assert measured.returncode == 0, measured.stderr
    (trace,) = tmp_path.iterdir()
    completed = program.run(f"--replay={trace}", *QUICK, *ON_CPU)
    assert completed.returncode == 0, completed.stderr
    lines = completed.stdout.splitlines()
    assert lines[0].split()[:4] == ["case", "count", "time", "+-"]
    cases = [line.split()[0] for line in lines if line.startswith("replay/")]
    assert {"attention", "attention_backward", "mm"} <= {case.split("/")[1] for case in cases}
    said = "\n".join(lines[len(cases) + 2 :])
    for part in ("count x time of all", "from its first operator to its last", "not replayed: "):
        assert part in said
    one = replayed(
        program, trace, f"--benchmark_filter=^{cases[0].replace('[', '.')}".split(",")[0]
    )
    assert one["filtered_calls"] > 0 and len(one["cases"]) < len(cases)


def test_a_trace_of_torch_in_python_is_replayed(program: Program, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with torch.profiler.profile(record_shapes=True) as recording:
        layer(torch.ones(2, 5, 16)).sum().backward()
    trace = tmp_path / "torch.json"
    recording.export_chrome_trace(str(trace))
    kinds = {case["name"].split("/")[1] for case in replayed(program, trace)["cases"]}
    assert {"linear", "mm", "layer_norm", "layer_norm_backward"} <= kinds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("words", "is no JSON, or cut off"),
        ((CORPUS / "chakra").read_text(encoding="utf-8")[:900], "is no JSON, or cut off"),
        ('{"benchmarks": []}', "is no trace"),
        ('{"schema": "3.0-chakra.1", "nodes": []}', 'is of schema "3.0-chakra.1"'),
        ('{"traceEvents": []}', "holds no operators"),
        (
            '{"traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}',
            "have no shapes: record it with record_shapes=True",
        ),
        (
            (CORPUS / "chakra")
            .read_text(encoding="utf-8")
            .replace("[[8,8],[8,8]]", "[[8,8],[9,8]]"),
            "the factors do not fit together",
        ),
    ],
)
def test_what_is_no_trace_is_refused(
    program: Program, tmp_path: Path, text: str, expected: str
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(text, encoding="utf-8")
    refused = program.run(f"--replay={trace}", *ON_CPU)
    assert f"{trace}: " in message_of(refused) and expected in message_of(refused)
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([f"--replay={CORPUS / 'absent'}"], "absent"),
        (["--replay", ""], "--replay '': needs the name of a file"),
        ([f"--replay={CORPUS / 'chakra'}", "--sizes=tiny"], "not with --replay"),
        ([f"--replay={CORPUS / 'chakra'}", "--dry-run"], "--dry-run: not with --replay"),
        ([f"--replay={CORPUS / 'chakra'}", "--benchmark_filter=xyz"], "no case of the trace"),
        ([f"--replay={CORPUS / 'chakra'}", "--benchmark_format=csv"], "has console and json"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(
    program: Program, options: list[str], expected: str
) -> None:
    refused = program.run(*options, *ON_CPU)
    assert expected in message_of(refused) and refused.stdout == ""
