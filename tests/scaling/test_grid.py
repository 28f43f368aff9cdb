"""scripts/study --grid with a fake program: files, faults, kills and options; and with the built
one, that it understands what is asked of it."""

import itertools
import json
import signal
import subprocess
from pathlib import Path

import pytest

from built_programs import Json, read_json, start_tool, wait_until, write_json
from fake_bench import FAILED, SKIPPED, make_build, noted, runs_of
from tinyllama_tools.commands import grid
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import full_step, parse_case_name
from tinyllama_tools.data.programs import SuiteProgram, ask_costs
from tinyllama_tools.report.inputs import read_inputs, source_of
from tools import run_tool

# 2 x 2 x 1 cells of two components with one pass each
SMALL = ("--grid", "tiny", "--batch=1,64", "--seq=8,16", "--components=ffn,full_step")
CASES = 8
CASE_NAMES = {
    f"{component}/baseline/tiny/f32/batch:{batch}/seq:{seq}"
    for component in ("ffn/forward_backward", "full_step/train")
    for batch, seq in itertools.product((1, 64), (8, 16))
}
FILES = ["results.json", "products.json", "check.json"]
HELD = "ffn/forward_backward/baseline/tiny/f32/batch:64/seq:16"


def places(tmp_path: Path) -> list[str]:
    return [f"--out={tmp_path / 'grid'}", f"--build-folder={tmp_path / 'build'}"]


def tell(tmp_path: Path, **behaviour: object) -> None:
    """How the program behaves from now on."""
    make_build(tmp_path / "build", cases={}, **behaviour)


def run_grid(tmp_path: Path, *arguments: str) -> int:
    return run_tool(["study", *arguments, *places(tmp_path)])


def document(tmp_path: Path, name: str = "study.json") -> Json:
    return read_json(tmp_path / "grid" / name)


def names_in(tmp_path: Path, name: str = "results.json") -> list[str]:
    rows = document(tmp_path, name)["benchmarks"]
    return list(dict.fromkeys(row["run_name"].removesuffix("/manual_time") for row in rows))


def journaled(tmp_path: Path) -> list[str]:
    """The lines of cases in the journal so far, in order."""
    text = (tmp_path / "grid/results.journal.jsonl").read_text()
    return [line for line in text.split("\n")[:-1] if '"case"' in line]


def measured_files(tmp_path: Path) -> list[str]:
    return [Path(run["benchmark_out"]).name for run in runs_of(tmp_path / "build")]


def test_a_grid_leaves_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(tmp_path)
    assert run_grid(tmp_path, *SMALL, "--device=cpu") == 0
    record = document(tmp_path)
    assert (record["kind"], record["schema_version"]) == ("grid", 1) and record["finished"]
    # what may be published names no folder of its owner
    assert record["command"].startswith("scripts/study --grid tiny --batch=1,64")
    assert str(tmp_path) not in json.dumps(record)
    assert set(names_in(tmp_path)) == CASE_NAMES
    assert f"results.json: {CASES} measured, 0 left out, 0 failed" in capsys.readouterr().out
    assert measured_files(tmp_path) == FILES
    run, products, check = runs_of(tmp_path / "build")
    assert all({"journal", "resume"} < of.keys() for of in (run, products, check))
    # the grid's cases are proved and timed in one run
    assert "verify" not in run
    assert (run["device"], run["benchmark_repetitions"]) == ("cpu", "3")
    # GEMMs of tiny at its own batch; steps of a size that is not in the grid
    assert "batch" not in products and names_in(tmp_path, "products.json")
    assert (check["max-seconds-per-case"], check["verify"]) == ("60", "off")
    start = "full_step/train/baseline/medium/f32/batch:"
    steps = [f"{start}{batch}/seq:512" for batch in (1, 2, 4, 8, 16)]
    assert names_in(tmp_path, "check.json") == steps
    # of the grid, every size at its own shape, and what is checked, with all parts
    names = [case["name"] for case in document(tmp_path, "costs.json")["cases"]]
    assert len(names) == len(set(names)) and set(names) > CASE_NAMES
    assert "rms_norm/forward_backward/baseline/medium/f32/batch:4/seq:512" in names
    sizes = {name.split("/")[3] for name in names if name.startswith("full_step/train")}
    assert sizes == set(problem_sizes())
    # whole files need no journal
    assert not list((tmp_path / "grid").glob("*.jsonl"))


def test_a_plug_in_reaches_every_process(tmp_path: Path) -> None:
    """All files of a grid are of one run, so also what measures GEMMs alone."""
    tell(tmp_path)
    assert run_grid(tmp_path, *SMALL, "--device=cpu", "--plugin=x.so") == 0
    starts = [start["arguments"] for start in noted(tmp_path / "build", "starts")]
    asked = [words for words in starts if any("--components" in word for word in words)]
    assert len(asked) > len(FILES) and sum("--plugin=x.so" not in words for words in asked) == 2


# ---- faults


def test_what_cannot_be_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_grid(tmp_path, *SMALL) == 2
    assert "tiny_llama_bench: no such program that can be started" in capsys.readouterr().err
    # values on axes are the program's to judge
    tell(tmp_path, refuse="tiny_llama_bench: --variants 'foo': must be one of baseline")
    assert run_grid(tmp_path, "--grid", "tiny", "--variants=foo") == 2
    assert "--variants 'foo': must be one of baseline" in capsys.readouterr().err
    tell(tmp_path)
    assert run_grid(tmp_path, *SMALL, "--dry-run") == 0
    assert f"Grid: {CASES} cases" in capsys.readouterr().out
    assert not (tmp_path / "grid").exists() and measured_files(tmp_path) == []
    (tmp_path / "grid").write_text("")
    assert run_grid(tmp_path, *SMALL) == 2
    assert str(tmp_path / "grid") in capsys.readouterr().err


def test_a_case_that_fails_or_is_left_out_does_not_end_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = "ffn/forward_backward/baseline/tiny/f32/batch:1/seq:8"
    tell(tmp_path, rows={failing: FAILED, "seq:16": SKIPPED})
    assert run_grid(tmp_path, *SMALL, "--check-size=tiny") == 1
    assert document(tmp_path)["finished"]
    # the model is fitted to it
    assert not (tmp_path / "grid/check.json").exists()
    said = capsys.readouterr()
    assert f"{failing}: FAILED: wrong" in said.err
    assert "results.json: 3 measured, 4 left out, 1 failed" in said.out


@pytest.mark.parametrize(
    ("told", "words", "left"),
    [
        ({"full_step": "signal"}, "results: tiny_llama_bench was ended by signal", FILES),
        ({"/medium/": "signal"}, "check: tiny_llama_bench was ended by", FILES[2:]),
        ({"full_step": "full"}, "results.json lacks 8 of 8 cases; last words", FILES),
    ],
)
def test_a_program_that_dies_leaves_what_it_measured_and_can_go_on(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    told: dict[str, str],
    words: str,
    left: list[str],
) -> None:
    tell(tmp_path, trouble=told)
    assert run_grid(tmp_path, *SMALL) == 1
    said = capsys.readouterr().err
    assert words in said
    assert "the same command with --resume continues, with the build, commit and machine" in said
    assert document(tmp_path)["finished"] == ""
    kept = journaled(tmp_path) if left == FILES else []
    assert len(kept) == (CASES // 2 if left == FILES else 0)
    # what an interrupted process leaves beside its journal is not whole
    (tmp_path / "grid" / left[0]).write_text('{"benchmarks": []}')
    before = len(measured_files(tmp_path))
    tell(tmp_path)
    assert run_grid(tmp_path, *SMALL, "--resume") == 0
    assert (f"results: {CASES - len(kept)} cases" in capsys.readouterr().err) == bool(kept)
    assert measured_files(tmp_path)[before:] == left
    assert set(names_in(tmp_path)) == CASE_NAMES
    assert len(names_in(tmp_path, "check.json")) == 5


# ---- interrupts and kills


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_study_that_is_ended_keeps_what_it_measured_and_is_resumed(
    tmp_path: Path, by: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path, trouble={HELD: "hold"})
    said, words, is_asked = tmp_path / "said", f"results [3/{CASES}", by != signal.SIGKILL
    with said.open("w") as stream:
        process: subprocess.Popen[str] = start_tool(
            "study", *SMALL, *places(tmp_path), stderr=stream
        )
    # From then on it listens; that the case is in the journal says no more than that the program
    # runs, which the study may still be starting, in the midst of Popen.
    wait_until(lambda: words in said.read_text() or process.poll() is not None)
    process.send_signal(by)
    status, heard = process.wait(60), said.read_text()
    assert status == (130 if is_asked else -by), heard
    kept = journaled(tmp_path)
    # the one in hand was ended, if it had begun when the signal came
    assert len(kept) in {3, 4}
    if is_asked:
        assert "nothing is lost; the same command with --resume continues" in heard
        assert "Ctrl-C once more ends at once" in heard
        assert len(names_in(tmp_path)) == len(kept)
    else:
        with (tmp_path / "grid/results.journal.jsonl").open("a") as stream:
            stream.write('{"case": "cut sho')
        # a report says what is lacking
        (omission,) = read_inputs([source_of(tmp_path / "grid")]).omissions
        assert (
            f"{len(kept)} cases in its journal; the same command with --resume" in omission.reason
        )
    tell(tmp_path)
    # without --resume nothing is touched, and another grid is not mixed in
    assert run_grid(tmp_path, *SMALL) == 2
    assert "holds files; name another folder, or add --resume" in capsys.readouterr().err
    assert run_grid(tmp_path, *SMALL, "--variants=fused", "--resume") == 2
    assert "was begun as: scripts/study --grid tiny" in capsys.readouterr().err
    assert journaled(tmp_path)[: len(kept)] == kept
    before = len(measured_files(tmp_path))
    assert run_grid(tmp_path, *SMALL, "--resume") == 0
    assert document(tmp_path)["finished"] and set(names_in(tmp_path)) == CASE_NAMES
    assert measured_files(tmp_path)[before:] == FILES


def test_the_newest_grid_that_did_not_end_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid, "RESULTS", tmp_path / "results")
    tell(tmp_path)
    command = ["study", *SMALL, f"--build-folder={tmp_path / 'build'}"]
    assert run_tool([*command, "--resume"]) == 2
    assert "holds no grid that did not end" in capsys.readouterr().err
    assert run_tool(command) == 0
    (folder,) = (tmp_path / "results").glob("*_grid")
    record = read_json(folder / "study.json")
    for day, finished in ((1, ""), (2, ""), (3, record["finished"])):
        older = folder.with_name(f"2026010{day}T000000Z_grid")
        older.mkdir()
        write_json(older / "study.json", record | {"finished": finished})
    assert run_tool([*command, "--resume"]) == 0
    done = [path.parent.name[:8] for path in (tmp_path / "results").glob("*/check.json")]
    assert sorted(done) == ["20260102", folder.name[:8]]


# ---- the built program


def test_the_program_understands_what_is_asked_of_it(
    bench_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of five points each and of every GEMM, which takes a minute
    monkeypatch.setattr(grid, "FRONTIER_GIVEN", {"seq": (2048,), "batch": (2,)})
    monkeypatch.setattr(grid, "PRODUCTS_ONLY", "--benchmark_filter=^peak/gemm/f32/1024x512")
    where = (f"--out={tmp_path}/grid", f"--build-folder={bench_program.parents[1]}")
    asked = ("--grid", "tiny", "--batch=1", "--seq=8", "--components=rms_norm", "--device=cpu")
    assert run_tool(["study", *asked, *where]) == 0
    found = read_inputs([source_of(tmp_path / "grid")])
    assert found.omissions == () and found.study.costs and found.main.products
    frontier = found.study.frontier
    for key in ("points", "sequences"):
        assert {point["size"] for point in frontier[key]} == set(problem_sizes())
    wanted = ("tiny", "baseline", "f32", 2048)
    keys = ("size", "variant", "dtype", "seq")
    (tiny,) = (p for p in frontier["points"] if tuple(p[key] for key in keys) == wanted)
    # the memory that is free changes meanwhile, what a step needs does not
    step = full_step("tiny", "f32", tiny["largest_batch"], 2048)
    asked = ["--components=full_step", "--sizes=tiny", f"--batch={step.batch}", "--seq=2048"]
    (cost,) = [c for c in ask_costs(bench_program, [*asked, "--device=cpu"]) if c.name == step]
    assert cost.predicted_memory_bytes == tiny["predicted_bytes"] > 2**28


def test_the_program_has_the_cases_of_a_whole_grid(bench_program: Path) -> None:
    options = grid.parse_options(["--grid", "tiny,small", "--variants=baseline,sdpa"])
    bench = SuiteProgram(program=bench_program)
    asked = grid.runs_of(options)
    names = [parse_case_name(text) for text in bench.list_cases(asked["results.json"])]
    components = ("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss")
    passes = {component: {"forward_backward"} for component in components} | {
        **{"model": {"forward_backward", "forward_loss"}, "optimizer": {"update"}},
        "full_step": {"train"},
    }
    # every component and no peak; variants add rows only where they change something
    for component, wanted in passes.items():
        assert {name.pass_name for name in names if name.component == component} == wanted
    cases = sum(map(len, passes.values())) + len(("attention", "block", "model", "model", "step"))
    assert len(names) == len(set(names)) == 2 * 4 * 4 * cases
    assert len(bench.list_cases(asked["products.json"])) > 20
    assert len(bench.list_cases(asked["check.json"])) == 2 * 5
