"""Execution traces of tiny_llama_bench, of what ran and of what nobody could run, read and checked
by scripts/traces."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_program import QUICK, SMALL_MODEL, Program

from built_programs import Json, message_of, read_json
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.execution_trace import collectives, count_flops, file_name, read_trace
from tools import traces

MODEL = [option for option in SMALL_MODEL if not option.startswith("--variants")]
# 40 positions: more than a tile of our attention
POINT = [*MODEL, "--batch=2", "--seq=40"]
SWITCHES = "baseline,sdpa,fused_attention,optimized,checkpoint,fused_loss,qkv+gate_up,tiled_gemm"
STEP = ["--components=full_step", "--variants=baseline"]
STEP_TRACE = file_name("full_step/train/baseline/custom/f32/batch:2/seq:40")


@pytest.fixture
def program(bench_program: Path) -> Program:
    return Program(bench_program)


def dry_run(program: Program, folder: Path, *options: str) -> Path:
    """The document of a dry run that wrote traces into this folder."""
    asked = ["--dry-run", "--benchmark_format=json", f"--execution-trace={folder}"]
    completed = program.run(*POINT, *asked, *options)
    assert completed.returncode == 0, completed.stderr[-2000:]
    document = folder.parent / "dry_run.json"
    document.write_text(completed.stdout, encoding="utf-8")
    return document


@pytest.fixture(scope="module")
def traced_step(bench_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the trace of one step, and the document beside it."""
    folder = tmp_path_factory.mktemp("step") / "traces"
    dry_run(Program(bench_program), folder, *STEP)
    return folder.parent


@pytest.fixture
def step(traced_step: Path, tmp_path: Path) -> Path:
    """A trace of a step that a test may damage."""
    return shutil.copytree(traced_step, tmp_path / "step") / "traces" / STEP_TRACE


@pytest.mark.parametrize("world", [[], ["--world=1024", "--rank=17"]])
def test_flops_of_every_case_are_its_hardware_flops(
    program: Program, tmp_path: Path, world: list[str]
) -> None:
    folder = tmp_path / "traces"
    every = [f"--variants={SWITCHES}", "--dtypes=f32,amp_bf16", *world]
    document = dry_run(program, folder, *every)
    possible = [case for case in read_json(document)["cases"] if not case["reason"]]
    assert len(list(folder.iterdir())) == len(possible) > 100
    assert traces([folder, "--against", document]) == 0


def test_what_ran_has_the_flops_of_its_row(program: Program, tmp_path: Path) -> None:
    folder, out = tmp_path / "traces", tmp_path / "out.json"
    cases = ["--components=full_step,attention", "--variants=baseline,optimized"]
    options = [*POINT, *cases, f"--execution-trace={folder}", f"--benchmark_out={out}"]
    completed = program.run(*options, *QUICK)
    assert completed.returncode == 0, completed.stderr
    assert "Execution Trace Observer" not in completed.stderr
    assert len(list(folder.iterdir())) == 8
    assert traces([folder, "--against", out]) == 0


def test_another_shape_is_found(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = step.parent.parent / "dry_run.json"
    trace = read_json(step)
    gemm = next(node for node in trace["nodes"] if node["name"] == "aten::mm")
    gemm["inputs"]["shapes"][0][0] += 1
    step.write_text(json.dumps(trace), encoding="utf-8")
    assert traces([step, "--against", document]) == 1
    flops = read_json(document)["cases"][0]["hardware_flops"]
    assert f"NOT {flops}" in capsys.readouterr().out


def test_an_operator_that_nobody_counts_is_named(
    step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = step.read_text(encoding="utf-8").replace("aten::silu_backward", "my::fused_linear")
    step.write_text(text, encoding="utf-8")
    assert traces([step]) == 0
    assert "FLOPs not counted of my::fused_linear" in capsys.readouterr().err


def test_a_rank_sends_every_gradient_once(program: Program, tmp_path: Path) -> None:
    share = ["--world=16", "--rank=5", "--tensor-parallel=2"]
    document = dry_run(program, tmp_path / "traces", *STEP, *share)
    (case,) = read_json(document)["cases"]
    (file,) = (tmp_path / "traces").iterdir()
    assert file.name.endswith(".rank-5-of-16.et.json")
    trace = read_trace(file)
    of_batch = [message for message in collectives(trace) if message.ranks == 8]
    assert sum(message.elements for message in of_batch) == case["parameters"]
    assert {message[4:] for message in of_batch} == {(1, 2)}
    assert count_flops(trace).total == case["hardware_flops"]


def test_ranks_of_a_layer_reduce_what_its_cost_says_and_share_its_flops(
    program: Program, tmp_path: Path
) -> None:
    """A step as ranks 4 and 5 of 16, which have the halves of every layer and different gradients
    to sum; with autocast other types are sent, with checkpoint the forward's once more."""
    kinds = ["--variants=baseline,checkpoint,qkv+gate_up", "--dtypes=f32,amp_bf16"]
    steps = ["--components=full_step", *kinds]
    whole = {
        case["name"].replace("custom", "custom-tp2"): case["hardware_flops"]
        for case in read_json(dry_run(program, tmp_path / "whole" / "traces", *steps))["cases"]
    }
    flops = dict.fromkeys(whole, 0)
    for rank in (4, 5):
        folder = tmp_path / f"{rank}" / "traces"
        world = ["--world=16", f"--rank={rank}", "--tensor-parallel=2"]
        document = dry_run(program, folder, *steps, *world)
        assert traces([folder, "--against", document]) == 0
        for case in read_json(document)["cases"]:
            trace = read_trace(folder / file_name(f"{case['name']}/rank:{rank}-of-16"))
            flops[case["name"]] += count_flops(trace).total
            of_layers = [message for message in collectives(trace) if message.ranks == 2]
            assert {message[4:] for message in of_layers} == {(4, 1)}
            assert len(of_layers) == case["comm_calls"]
            assert sum(message.bytes for message in of_layers) == case["comm_bytes"]
    assert flops == whole and len(whole) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--world=8 --rank=8", "--rank 8: must be below --world 8: 0 to 7"),
        ("--rank=3", "--rank 3: needs --world N"),
        ("--world=3 --rank=0 --tensor-parallel=2", "--world 3: must be a multiple of the 2 ranks"),
        ("--world=9 --rank=0 --tensor-parallel=3", "tensor-parallel 3: must divide n_heads = 4"),
        ("--world=8 --rank=0 --tensor-parallel=4", "n_kv_heads 2 over 4 ranks"),
        ("--world=8 --rank=0 --pipeline-parallel=2 --n-layers=3", "n_layers = 3 of custom-pp2"),
    ],
)
def test_an_impossible_world_is_refused(
    program: Program, tmp_path: Path, options: str, message: str
) -> None:
    asked = ["--dry-run", f"--execution-trace={tmp_path / 'traces'}", "--components=block"]
    kept = [option for option in POINT if option.partition("=")[0] not in options]
    refused = program.run(*kept, *asked, *options.split())
    assert message in message_of(refused) and refused.stdout == ""
    assert not (tmp_path / "traces").exists()


def test_a_folder_that_cannot_be_written_is_refused_at_once(
    program: Program, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    for mode in ([], ["--dry-run"]):
        refused = program.run(*POINT, *STEP, *mode, f"--execution-trace={kept}")
        assert f"--execution-trace '{kept}': must be a folder" in message_of(refused)
        assert refused.stdout == ""


def changed(trace: Json, part: str, value: Json | list | str) -> str:
    return json.dumps(trace | {part: value})


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda text, _: text[: len(text) // 2], "is cut short"),
        (lambda *_: "", "is empty"),
        (lambda *_: "[1, 2]", "holds no object"),
        (lambda *_: "traceEvents", "is no JSON"),
        (lambda *_: '{"traceEvents": []}', "is no execution trace"),
        (lambda _, trace: changed(trace, "schema", "2.0-chakra"), "is of schema '2.0-chakra'"),
        (lambda _, trace: changed(trace, "nodes", []), "has no nodes"),
        (lambda _, trace: changed(trace, "nodes", [{"id": 1}]), "nodes[0]: KeyError"),
        (lambda _, trace: changed(trace, "nodes", trace["nodes"][:1]), "is no node"),
        (lambda _, trace: changed(trace, "nodes", trace["nodes"] * 2), "is there twice"),
    ],
)
def test_a_damaged_trace_is_refused(
    step: Path, damage: Callable[[str, Json], str], expected: str
) -> None:
    text = step.read_text(encoding="utf-8")
    step.write_text(damage(text, json.loads(text)), encoding="utf-8")
    with pytest.raises(BadInputError) as refused:
        read_trace(step)
    assert str(step) in str(refused.value) and expected in str(refused.value)
    assert traces([step]) == 2


def test_traces_need_files_and_cases(step: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert traces([empty]) == traces([tmp_path / "absent.et.json"]) == 2
    other = tmp_path / "other.json"
    for document in ('{"cases": []}', '{"cases": 3}', '{"cases": [{"name": "a/b"}]}'):
        other.write_text(document, encoding="utf-8")
        assert traces([step, "--against", other]) == 2
    other.write_text('{"cases": [{"name": "a", "hardware_flops": 3}]}', encoding="utf-8")
    assert traces([step, "--against", other]) == 2
