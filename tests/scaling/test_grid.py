"""The grid of scripts/study with a fake program: files, rounds, faults, kills and options; and with
the built one, that it understands what is asked of it."""

import itertools
import json
import signal
import subprocess
from pathlib import Path

import pytest
from grid_fake import HELD, Json, measuring_calls, tell, value

from built_programs import start_tool, wait_until
from tinyllama_tools.commands import grid as grid_command
from tinyllama_tools.commands.grid import BATCH, COMPONENTS, SEQ, GridPlan, GridStudy
from tinyllama_tools.commands.study import parse_options
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import full_step, parse_case_name
from tinyllama_tools.data.programs import SuiteProgram, ask_costs
from tinyllama_tools.report.inputs import read_inputs, source_of
from tools import run_tool

# 2 x 2 x 1 cells of two components with one pass each
SMALL = ("--grid", "tiny", "--grid-batch=1,64", "--grid-seq=8,16")
SMALL += ("--grid-components=ffn,full_step",)
CASES = 8
CASE_NAMES = {
    f"{component}/baseline/tiny/f32/batch:{batch}/seq:{seq}"
    for component in ("ffn/forward_backward", "full_step/train")
    for batch, seq in itertools.product((1, 64), (8, 16))
}


def run_grid(tmp_path: Path, *arguments: str) -> int:
    places = [f"--results={tmp_path / 'results'}", f"--build-folder={tmp_path / 'build'}"]
    return run_tool(["study", *arguments, *places])


def grid_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "results").glob("*_grid")
    return folder


def document(tmp_path: Path, name: str = "study.json") -> Json:
    return json.loads((grid_folder(tmp_path) / name).read_text())


def names_in(tmp_path: Path, name: str) -> list[str]:
    rows = document(tmp_path, name)["benchmarks"]
    return [row["run_name"].removesuffix("/manual_time") for row in rows]


def journaled(tmp_path: Path, number: int) -> list[str]:
    """The lines of cases in the journal of a round so far, in order."""
    text = (grid_folder(tmp_path) / f"round_{number}.journal.jsonl").read_text()
    return [line for line in text.split("\n")[:-1] if '"case"' in line]


def test_a_study_leaves_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(tmp_path)
    assert run_grid(tmp_path, *SMALL, "--rounds=2", "--device=cpu") == 0
    record = document(tmp_path)
    wanted = {
        **{"kind": "grid", "schema_version": 1, "sizes": ["tiny"], "batch": [1, 64]},
        **{"seq": [8, 16], "components": ["ffn", "full_step"], "variants": ["baseline"]},
        **{"dtypes": ["f32"], "rounds": 2, "rounds_done": 2, "check_size": "medium"},
    }
    assert {key: record[key] for key in wanted} == wanted
    # what may be published names no folder of its owner
    assert record["finished"] and str(tmp_path) not in json.dumps(record)
    first, second = (names_in(tmp_path, f"round_{number}.json") for number in (1, 2))
    # each in an order of its own
    assert set(first) == set(second) == CASE_NAMES and first != second
    assert f"round 1/2: {CASES} measured, 0 left out, 0 failed" in capsys.readouterr().err
    *rounds, products, check = measuring_calls(tmp_path)
    asked = [(value(call, "verify"), value(call, "device")) for call in rounds]
    assert asked == [("before", "cpu"), ("off", "cpu")]
    # GEMMs of tiny at its own batch; steps of a size that is not in the grid
    assert value(products, "batch") == "" and names_in(tmp_path, "products.json")
    assert (value(check, "max-seconds-per-case"), value(check, "verify")) == ("60", "off")
    start = "full_step/train/baseline/medium/f32/batch:"
    steps = [f"{start}{batch}/seq:512" for batch in (1, 2, 4, 8, 16)]
    assert names_in(tmp_path, "check.json") == steps
    # of the grid, every size at its own shape, and what is checked, with all parts
    names = [case["name"] for case in document(tmp_path, "costs.json")["cases"]]
    assert len(names) == len(set(names)) and set(names) > CASE_NAMES
    assert "rms_norm/forward_backward/baseline/medium/f32/batch:4/seq:512" in names
    sizes = {name.split("/")[3] for name in names if name.startswith("full_step/train")}
    assert sizes == set(problem_sizes())


# ---- faults


def test_what_cannot_be_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_grid(tmp_path, *SMALL) == 2
    assert "tiny_llama_bench cannot be started" in capsys.readouterr().err
    tell(tmp_path, refuse="tiny_llama_bench: --variants 'foo': must be one of baseline")
    assert run_grid(tmp_path, "--grid", "tiny", "--grid-variants=foo") == 2
    assert "--variants 'foo': must be one of baseline" in capsys.readouterr().err
    tell(tmp_path)
    assert run_grid(tmp_path, *SMALL, "--dry-run") == 0
    wanted = f"Grid: {CASES} cases of 2 components, tiny x batch 1, 64 x seq 8, 16"
    assert wanted in capsys.readouterr().out
    assert not (tmp_path / "results").exists() and measuring_calls(tmp_path) == []
    (tmp_path / "results").write_text("")
    assert run_grid(tmp_path, *SMALL) == 2
    assert str(tmp_path / "results") in capsys.readouterr().err


def test_a_case_that_fails_or_is_left_out_does_not_end_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = "ffn/forward_backward/baseline/tiny/f32/batch:1/seq:8"
    tell(tmp_path, fail=failing, skip="seq:16")
    assert run_grid(tmp_path, *SMALL, "--rounds=2", "--check-size=tiny") == 1
    assert document(tmp_path)["rounds_done"] == 2
    # rates are calibrated on it
    assert not (grid_folder(tmp_path) / "check.json").exists()
    said = capsys.readouterr().err
    assert f"{failing}: FAILED: wrong" in said
    assert "round 2/2: 3 measured, 4 left out, 1 failed" in said


@pytest.mark.parametrize(
    ("told", "words", "rounds_done", "left"),
    [
        ({"crash_at": "full_step"}, "round 1/1: tiny_llama_bench was ended by signal", 0, 3),
        ({"crash_at": "/medium/"}, "check at medium: tiny_llama_bench was ended by", 1, 1),
        ({"stale_at": "full_step"}, "round_1.json lacks 8 of 8 cases; last words", 0, 3),
    ],
)
def test_a_program_that_dies_leaves_what_it_measured_and_can_go_on(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    told: Json,
    words: str,
    rounds_done: int,
    left: int,
) -> None:
    """`left`: processes of round, GEMMs and check that are still to be run."""
    tell(tmp_path, **told)
    assert run_grid(tmp_path, *SMALL, "--rounds=1") == 1
    said = capsys.readouterr().err
    assert words in said
    assert "scripts/study --resume, with the same --results and --build-folder, continues" in said
    assert "continues, with the build, commit and machine that it was begun with" in said
    record = document(tmp_path)
    assert (record["rounds_done"], record["finished"]) == (rounds_done, "")
    kept, before = journaled(tmp_path, 1), len(measuring_calls(tmp_path))
    assert len(kept) == (CASES if rounds_done else CASES // 2)
    # what an interrupted process leaves beside its journal is not whole
    name = "check.json" if rounds_done else "round_1.json"
    (grid_folder(tmp_path) / name).write_text('{"benchmarks": []}')
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    left_in_round = f"round 1/1: {CASES - len(kept)} cases" in capsys.readouterr().err
    assert left_in_round == (rounds_done == 0)
    assert len(measuring_calls(tmp_path)) == before + left
    assert journaled(tmp_path, 1)[: len(kept)] == kept
    assert set(names_in(tmp_path, "round_1.json")) == CASE_NAMES
    assert len(names_in(tmp_path, "check.json")) == 5


# ---- interrupts and kills


def started(tmp_path: Path, number: int) -> subprocess.Popen[str]:
    """A study of two rounds that has heard of the last case before the one that is held in that
    round. From then on it listens; that the case is in the journal says no more than that the
    program runs, which the study may still be starting, in the midst of Popen."""
    tell(tmp_path, hold_in=f"round_{number}")
    options = ["study", *SMALL, "--rounds=2"]
    options += [f"--results={tmp_path / 'results'}", f"--build-folder={tmp_path / 'build'}"]
    said, words = tmp_path / "said", f"round {number}/2 [{HELD}/{CASES}"
    with said.open("w") as stream:
        process = start_tool(*options, stderr=stream)
    wait_until(lambda: words in said.read_text() or process.poll() is not None)
    return process


@pytest.mark.parametrize(("by", "number"), [(signal.SIGTERM, 2), (signal.SIGKILL, 1)])
def test_a_study_that_is_ended_keeps_what_it_measured_and_is_resumed(
    tmp_path: Path, by: signal.Signals, number: int
) -> None:
    process, is_asked = started(tmp_path, number), by != signal.SIGKILL
    process.send_signal(by)
    status, said = process.wait(60), (tmp_path / "said").read_text()
    assert status == (130 if is_asked else -by), said
    kept = journaled(tmp_path, number)
    # the one in hand was ended, if it had begun when the signal came
    assert len(kept) in {HELD, HELD + 1}
    record, before = document(tmp_path), len(measuring_calls(tmp_path))
    assert (record["rounds_done"], record["finished"]) == (number - 1, "")
    if is_asked:
        what = f"{number - 1} of 2 rounds are done, and nothing is lost; scripts/study --resume"
        assert what in said and "Ctrl-C once more ends at once" in said
        assert len(names_in(tmp_path, f"round_{number}.json")) == len(kept)
    else:
        with (grid_folder(tmp_path) / "round_1.journal.jsonl").open("a") as stream:
            stream.write('{"case": "cut sho')
        (grid_folder(tmp_path) / "round_2.journal.jsonl").write_text('{"journal": "cut in its hea')
    record["round_seconds"] = [*record["round_seconds"][: number - 1], 100.0]
    (grid_folder(tmp_path) / "study.json").write_text(json.dumps(record))
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    done = document(tmp_path)
    assert done["rounds_done"] == 2 and done["finished"]
    assert done["round_seconds"][number - 1] > 100
    assert journaled(tmp_path, number)[: len(kept)] == kept
    assert len(journaled(tmp_path, 2)) == CASES
    rounds = [f"round_{n}.json" for n in range(number, 3)]
    calls = [Path(value(of, "benchmark_out")).name for of in measuring_calls(tmp_path)[before:]]
    assert calls == [*rounds, "products.json", "check.json"]


# ---- options


def test_lists_are_ranges_too() -> None:
    given = "--grid medium,tiny --grid-batch=2:8:*2 --grid-seq=32,1:3:+1 --variant=optimized"
    plan = GridPlan(("medium", "tiny"), (2, 4, 8), (32, 1, 2, 3), variants=("optimized",))
    assert parse_options(given.split()).grid_plan == plan


def test_the_newest_grid_that_did_not_end_is_resumed_and_a_bad_record_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = GridPlan(("tiny",), (1, 2), (8, 16), ("ffn",), rounds=1)
    for day, finished in ((1, ""), (2, ""), (3, "2026-01-03T00:20:00+00:00")):
        folder = tmp_path / f"results/2026010{day}T000000Z_grid"
        folder.mkdir(parents=True)
        GridStudy(folder, Path(), plan).keep(finished=finished)
    (tmp_path / "results/20260104T000000Z_grid").mkdir()
    path = tmp_path / "results/20260102T000000Z_grid/study.json"
    record = json.loads(path.read_text())
    for bad, words in (
        (record | {"kind": "other"}, "kind: "),
        ({"kind": "grid"}, "schema_version"),
    ):
        path.write_text(json.dumps(bad))
        assert run_grid(tmp_path, "--resume") == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert words in said and str(path) in said
    path.write_text(json.dumps(record))
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    assert json.loads(path.read_text())["finished"]
    assert not (path.parent / "check.json").exists()


# ---- the built program


def test_the_program_understands_what_is_asked_of_it(
    bench_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of five points each and of every GEMM, which takes a minute
    monkeypatch.setattr(grid_command, "FRONTIER_GIVEN", {"seq": (2048,), "batch": (2,)})
    monkeypatch.setattr(grid_command, "PRODUCTS_ONLY", "--benchmark_filter=^peak/gemm/f32/1024x512")
    places = (f"--results={tmp_path}/results", f"--build-folder={bench_program.parents[1]}")
    grid = ("--grid", "tiny", "--grid-batch=1", "--grid-seq=8", "--grid-components=rms_norm")
    assert run_tool(["study", *grid, "--rounds=1", "--device=cpu", *places]) == 0
    found = read_inputs([source_of(grid_folder(tmp_path))])
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
    plan = GridPlan(("tiny", "small"), variants=("baseline", "sdpa"))
    bench = SuiteProgram(program=bench_program)
    names = [parse_case_name(text) for text in bench.list_cases(plan.round(1))]
    passes = {c: {"forward_backward"} for c in COMPONENTS} | {
        **{"model": {"forward_backward", "forward_loss"}, "optimizer": {"update"}},
        "full_step": {"train"},
    }
    # every component and no peak; variants add rows only where they change something
    for component, wanted in passes.items():
        assert {name.pass_name for name in names if name.component == component} == wanted
    cases = sum(map(len, passes.values())) + len(("attention", "block", "model", "model", "step"))
    assert len(names) == len(set(names)) == 2 * len(BATCH) * len(SEQ) * cases
    assert len(bench.list_cases(plan.products())) > 20
