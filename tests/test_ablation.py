"""scripts/ablation: what it measures of a fake program, its ratios and rules, page and files."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import tools
from fake_ablation import OTHER, POINT, FakeProgram, measurement, study
from tinyllama_tools.commands import ablation
from tinyllama_tools.commands.ablation import (
    Effort,
    compile_rows,
    newest_peers,
    parse_options,
    run_study,
    write_study,
)
from tinyllama_tools.commands.ablation_page import ablation_page, impact_rows, success_table
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import CaseRun
from tinyllama_tools.models.ablations import (
    SWITCHES,
    VERSIONS,
    WITHOUT,
    Cell,
    Kind,
    Point,
    RowName,
    Study,
    Table,
    check_rule,
    fit_exponent,
    ratio_text,
    read_study,
    resolved_switches,
    result_text,
    row_at,
    shows_difference,
)


def run(program: FakeProgram, *arguments: str) -> Study:
    base = ["--switches=qkv,sdpa,graph", "--dtypes=f32", "--points=8x128", "--only=main"]
    chosen = parse_options([*base, "--turns=6", *arguments])
    made = study(*chosen.switches, combinations=chosen.combinations)
    effort = Effort(chosen.turns, chosen.steps, chosen.seed, chosen.slow_seconds)
    run_study(made, measurement(program, effort), chosen, lambda: None)
    return made


@pytest.fixture(scope="module")
def whole() -> Study:
    """A study with every part, of the fake; checkpoint's result is wrong."""
    program = FakeProgram()
    program.wrong.add("checkpoint")
    options = parse_options(["--switches=qkv,sdpa,graph,checkpoint", "--turns=6"])
    made = study(*options.switches)
    measured = measurement(program, Effort(6))
    run_study(made, measured, options, lambda: None)
    made.context = measured.context
    made.meta |= {"date": "2026-01-31 08:00 UTC", "command": "scripts/ablation --turns=6"}
    return made


def test_all_parts_have_their_cells(whole: Study) -> None:
    assert len(whole.main.points()) == 6
    assert [p.batch for p in whole.batches.points()] == [1, 2, 4, 8, 16, 32]
    assert {p.dtype for p in whole.types.points()} == {"f16", "amp_f16"}
    steps = [p for p in whole.memory.points() if p.component == "full_step" and p.batch == 1]
    assert [p.seq for p in steps] == [128, 256, 512, 1024, 2048, 4096, 8192]
    attention = [p.seq for p in whole.memory.points() if p.component == "attention"]
    assert attention == [1024, 2048, 4096, 8192]
    assert all(c.failure or c.counter("peak_memory_MiB") for c in whole.memory.cells.values())


def test_page_says_what_was_skipped_or_wrong(whole: Study) -> None:
    page = ablation_page(whole)
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert len(headings) == 8
    for text in ("0123456789ab", "AMD EPYC", "2026-01-31", "scripts/ablation --turns=6"):
        assert text in page
    # three dtypes at two shapes
    assert page.count("| skipped: graph: only a GPU captures its work |") == 6 + 3
    assert "failed: wrong result: loss differs by 0.5" in page


def test_result_can_be_read_again(
    whole: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(whole, tmp_path)
    again = read_study(tmp_path / "ablation.json")
    assert ablation_page(again) == ablation_page(whole)
    assert result_text(again) == result_text(whole)
    (tmp_path / "ABLATION.md").unlink()
    # a wrong result stays one
    assert tools.ablation(["--from", str(tmp_path / "ablation.json")]) == 1
    assert (tmp_path / "ABLATION.md").read_text() == ablation_page(whole)
    assert "speedup over baseline" in capsys.readouterr().out
    (tmp_path / "other.json").write_text('{"benchmarks": []}')
    assert tools.ablation(["--from", str(tmp_path / "other.json")]) == 2
    assert "other.json: no result of scripts/ablation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--switches=qkv,nonsense"], ["nonsense", "fused_swiglu"]),
        (["--combinations=qkv+nonsense"], ["nonsense", "qkv+nonsense"]),
        (["--dtypes=f8"], ["f8", "amp_bf16"]),
        (["--points=8by128"], ["8by128", "8x128"]),
        (["--size=huge"], ["huge", "tiny"]),
        (["--turns=0"], ["'0'", "1 or more"]),
        (["--slow-seconds=-1"], ["-1", "positive"]),
        (["--only=speed"], ["speed", "memory"]),
        (["--turn=3"], ["--turn=3"]),
    ],
)
def test_bad_options_are_named(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        tools.ablation(arguments)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("option", "status", "words"),
    [("--help", 0, "--quick"), ("--bogus", 2, "--bogus"), ("--from=absent.json", 2, "absent.json")],
)
def test_script_answers_without_a_set_up(
    project_root: Path, option: str, status: int, words: str
) -> None:
    command = ["bash", str(project_root / "scripts/ablation"), option]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == status
    assert words in said.stdout + said.stderr


def step(variant: str) -> str:
    return f"full_step/train/{variant}/tiny/f32/batch:8/seq:128"


def test_compiled_rows_of_this_machine(whole: Study, tmp_path: Path, project_root: Path) -> None:
    reference = project_root / "results/reference/peers_2core_xeon_avx512.json"
    document = json.loads(reference.read_text(encoding="utf-8"))
    machine = document["context"]
    machine["peers"]["ratios"] = [
        {"case": step("baseline"), "peer": "peer:compile_tuned", "of_each_turn": [0.5, 0.4, 0.625]},
        {"case": step("optimized"), "peer": "peer:compile_tuned", "of_each_turn": [1.2, 1.1, 1.3]},
        {"case": step("baseline"), "peer": "peer:eager", "of_each_turn": [1.2, 1.1, 1.3]},
    ]
    assert newest_peers(machine, tmp_path) is None
    for run_name in ("20260101T000000Z_peers", "20260102T000000Z_peers"):
        path = tmp_path / "results" / run_name / "peers.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document))
    assert newest_peers(machine, tmp_path) == path
    assert newest_peers(machine | {"threads": 64}, tmp_path) is None
    (row,) = compile_rows(path, whole.main)
    assert (row["row"], row["point"]) == ("torch.compile (compile_tuned)", POINT.title)
    assert row["speedup"]["median"] == pytest.approx(2.0)
    assert row["over_optimized"]["median"] == pytest.approx(1.2)
    path.write_text('{"rows": []}')
    with pytest.raises(BadInputError, match="no result of scripts/peers"):
        compile_rows(path, whole.main)


def test_bad_peers_file_is_found_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.ablation(["--peers", str(tmp_path / "absent.json")]) == 2
    assert "absent.json" in capsys.readouterr().err


def test_interrupted_run_writes_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = FakeProgram()
    program.interrupt_after = 12
    monkeypatch.setattr(
        ablation, "Measurement", lambda _program, _ask, effort, _: measurement(program, effort)
    )
    arguments = ["--switches=qkv", "--dtypes=f32", "--points=8x128", "--only=main"]
    assert tools.ablation([*arguments, "--output", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().out
    assert read_study(tmp_path / "ablation.json").main.get("baseline", POINT).turns


def test_switches_are_those_of_the_program(bench_program: Path) -> None:
    command = [bench_program, "--list", "--variants=nonsense"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    names = refused.stderr.rpartition(": ")[2].strip()
    assert names.split(", ") == list(SWITCHES)


@pytest.mark.usefixtures("bench_program")
def test_smoke_with_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--only=main", "--turns=1", "--switches=qkv,graph"]
    assert tools.ablation([*arguments, "--output", str(tmp_path)]) == 0, capsys.readouterr().err
    found = read_study(tmp_path / "ablation.json")
    for point in found.main.points():
        for row in ("baseline", "qkv", "fused", "optimized"):
            cell = found.main.get(row, point)
            assert cell.turns, cell.note
            assert cell.counter("max_rel_error") < 1e-4


@pytest.mark.parametrize(
    ("label", "switches"),
    [
        ("verified at batch:4; optimized = qkv+fused_adamw; more", ["qkv", "fused_adamw"]),
        ("optimized = baseline", []),
        ("nothing of it", None),
    ],
)
def test_label_of_optimized(label: str, switches: list[str] | None) -> None:
    assert resolved_switches(label) == switches


def test_every_row_is_measured_in_every_turn_in_changing_order() -> None:
    program, again = FakeProgram(), FakeProgram()
    made = run(program)
    names = ["baseline", "qkv", "sdpa", "graph", "fused", "optimized"]
    names += ["optimized without qkv", "optimized without sdpa"]
    assert [row.name for row in made.rows] == names
    turns = {name: sorted(made.main.get(name, POINT).turns) for name in names}
    assert turns == {name: [] if name == "graph" else list(range(6)) for name in names}
    assert made.main.get("optimized without qkv", POINT).variant == "sdpa"
    # verified first: all that is known, in one process; then what follows from `optimized`
    assert [len(called) for called, verify in program.calls[:2] if verify] == [6, 2]
    timed = [called for called, verify in program.calls[2:] if not verify]
    assert {len(called) for called in timed} == {1}
    orders = {tuple(called for (called,) in timed[i : i + 7]) for i in range(0, len(timed), 7)}
    assert len(orders) > 1
    run(again)
    assert again.calls == program.calls


def test_skipped_refused_wrong_and_crashed_stay_with_their_reason() -> None:
    program = FakeProgram({"baseline": 5.0})
    program.wrong.add("qkv")
    program.crashes.add("fused")
    made = run(program, "--combinations=sdpa+fused_attention")
    notes = {row: made.main.get(row, POINT).note for row in ("graph", "qkv", "fused")}
    assert notes == {
        "graph": "skipped: graph: only a GPU captures its work",
        "qkv": "failed: wrong result: loss differs by 0.5",
        "fused": "failed: tiny_llama_bench ended with -11",
    }
    refused = made.main.get("sdpa+fused_attention", POINT)
    assert refused.note == "skipped: sdpa and fused_attention exclude each other"
    # the cell without sdpa is qkv, and as wrong
    assert {cell.row for cell in made.failures} == {"qkv", "fused", "optimized without sdpa"}
    # slow cells get five turns of one step
    assert {steps for names, steps in program.steps if "/baseline/" in names} == {1}
    assert {steps for names, steps in program.steps if "/sdpa/" in names} == {5}
    assert sorted(made.main.get("baseline", POINT).turns) == [0, 1, 2, 3, 4]


def test_removed_rows_only_where_optimized_has_the_switch() -> None:
    class OnlyInF32(FakeProgram):
        def case_run(self, case: CaseName, repetitions: int, verify: bool) -> CaseRun:
            run = super().case_run(case, repetitions, verify)
            if case.dtype == "bf16" and run.label:
                return CaseRun(run.name, run.seconds, run.counters, "optimized = sdpa")
            return run

    made = run(OnlyInF32(), "--dtypes=f32,bf16")
    assert made.main.get("optimized without qkv", POINT) is not None
    assert made.main.get("optimized without qkv", OTHER) is None
    assert made.main.get("optimized without sdpa", OTHER).variant == "baseline"


QKV = RowName("qkv", Kind.single)
BASELINE, FUSED, OPTIMIZED = VERSIONS
# Times that drift from turn to turn by more than the two differ.
DRIFT = [1.0, 1.3, 0.8, 1.1, 1.6, 0.9, 1.2]


def cell(row: str, times: list[float], peak: float = 100.0, point: Point = POINT) -> Cell:
    counters = {"peak_memory_MiB": peak, "model_flops": 1e10, "TFLOPS": 0.1, "MFU_percent": 50.0}
    return Cell(row, point, row, counters=counters, turns=dict(enumerate(times)))


def table(*cells: Cell) -> Table:
    return Table({(one.row, one.point): one for one in cells})


def scaled(*factors: float) -> list[float]:
    """The drifting times, each times its factor; of one factor, all."""
    return [t * f for t, f in zip(DRIFT, factors * (7 // len(factors)), strict=True)]


def test_ratios_are_of_the_same_turn() -> None:
    slower = RowName(f"{WITHOUT}qkv", Kind.removed)
    cells = table(
        cell("baseline", DRIFT),
        cell("qkv", scaled(0.8), 50.0),
        cell("optimized", DRIFT, 50),
        cell(slower.name, scaled(1.1), 60),
        Cell("sdpa", POINT, turns={2: 0.4, 5: 0.45}),
    )
    row = row_at(cells, QKV, POINT)
    assert (row.ratio.median, row.ratio.interval.low) == pytest.approx((1.25, 1.25))
    assert shows_difference(row.ratio)
    assert (row.memory_ratio, row.samples_per_second) == (0.5, pytest.approx(8 / (1.1 * 0.8)))
    few = row_at(cells, RowName("sdpa", Kind.single), POINT)
    assert few.ratio.of_each_turn == pytest.approx((2.0, 2.0))
    assert ratio_text(few.ratio) == "~ 2.00 (2.00 to 2.00 at 50 %)"
    without = row_at(cells, slower, POINT)
    assert without.ratio.median == pytest.approx(1.1)
    assert without.memory_ratio == pytest.approx(1.2)
    noisy = table(cell("baseline", DRIFT), cell("qkv", scaled(1, 0.9, 1.1, 1.05, 0.95, 1, 1.2)))
    assert ratio_text(row_at(noisy, QKV, POINT).ratio).startswith("~ 1.00 (")


def test_mfu_is_at_the_median_time_and_absent_above_the_peak() -> None:
    # 50 % is 0.1 TFLOP/s; 1e10 FLOPs in 0.2 s are 0.05
    found = cell("baseline", [0.2, 0.2, 0.3])
    assert row_at(table(found), BASELINE, POINT).mfu_percent == pytest.approx(25.0)
    del found.counters["MFU_percent"]
    assert row_at(table(found), BASELINE, POINT).mfu_percent is None


@pytest.mark.parametrize(
    ("optimized", "qkv", "broken", "undecided", "held"),
    [
        (DRIFT, scaled(1.1, 0.9, 1, 1, 1, 1.1, 0.9), [], [], True),
        (DRIFT, scaled(1 / 1.1), ["qkv"], [], False),
        ([1.0] * 3, [0.9] * 3, [], ["baseline", "qkv"], False),
    ],
)
def test_rule_that_optimized_is_fastest(
    optimized: list[float], qkv: list[float], broken: list[str], undecided: list[str], held: bool
) -> None:
    cells = table(cell("baseline", [2.0] * 7), cell("qkv", qkv), cell("optimized", optimized))
    rule = check_rule(cells, [BASELINE, QKV, FUSED, OPTIMIZED])
    assert rule.held is held
    assert [c.row for c in rule.comparisons] == ["baseline", "qkv"]
    assert [c.row for c in rule.broken] == broken
    assert [c.row for c in rule.undecided] == undecided
    # outside of two intervals over n turns, on one side
    assert rule.expected_false == pytest.approx(2 / 2 ** len(optimized))


def test_rule_without_a_number_is_not_held() -> None:
    skipped = Cell("optimized", POINT, reason="too long")
    rule = check_rule(table(cell("baseline", DRIFT), skipped), [BASELINE, QKV])
    assert not rule.held
    assert rule.unmeasured == [f"{POINT.title}: skipped: too long"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [({"qkv": 0.04}, "**Not held** (test points): 3"), ({}, "**Held** (test points): 3")],
)
def test_page_says_whether_the_rule_holds(seconds: dict[str, float], words: str) -> None:
    assert words in ablation_page(run(FakeProgram(seconds)))


@pytest.mark.parametrize(
    ("power", "verdict"), [(1.0, "linear"), (1.5, "between"), (2.0, "quadratic")]
)
def test_exponent_of_memory(power: float, verdict: str) -> None:
    growth = fit_exponent({2**i: 3.0 * (2**i) ** power for i in range(7, 14)})
    assert growth.exponent == pytest.approx(power)
    assert (growth.first, growth.last, growth.verdict) == (1024, 8192, verdict)
    # weights of 40 MiB beside what grows; and the fewest lengths
    assert fit_exponent({2**i: 40 + 1e-3 * 4**i for i in range(7, 14)}).verdict == "quadratic"
    assert fit_exponent({128: 1.0, 1024: 2.0}) is None
    assert fit_exponent({128: 1.0, 256: 2.0, 512: 4.0}).exponent == pytest.approx(1.0)


def test_types_are_against_float32_and_batches_against_the_smallest() -> None:
    half = Point("tiny", "f16", 8, 128)
    shapes = [(Point("tiny", "f32", batch, 128), t) for batch, t in ((1, 0.1), (4, 0.2))]
    made = study()
    made.main = table(cell("fused", [0.2] * 6))
    made.types = table(cell("fused", [0.1] * 6, 40.0, half))
    made.batches = table(*(cell("fused", [s] * 6, 9.0, at) for at, s in shapes))
    page = re.sub(" +", " ", ablation_page(made))
    of_type = "| 8 x 128 | fused | f16 | 100.0 | 80.0 | 2.00 (2.00 to 2.00) | - | 40.0 | 0.40 |"
    assert of_type in page
    assert "| 4 | fused | 200.0 | 20.0 | 2.00 | - | 9.00 |" in page


def test_impact_is_the_mean_over_shapes_of_a_dtype() -> None:
    other = Point("tiny", "f32", 16, 256)
    made = study("qkv", "fused_loss", "sdpa", "graph")
    made.main = table(
        cell("baseline", DRIFT),
        cell("qkv", scaled(1 / 1.2)),
        cell("baseline", DRIFT, 100, other),
        cell("qkv", scaled(1 / 1.8), 100, other),
        cell("fused_loss", DRIFT, 60.0),
        cell("sdpa", scaled(1.3)),
        Cell("graph", POINT, reason="no GPU"),
    )
    found = {row[1]: row[4:] for row in impact_rows(made, "f32")}
    assert found == {
        # the geometric mean of 1.2 and 1.8; low effort
        "qkv": ["1.47", "1.00", "high", "1", ""],
        # equal times in all turns: the interval is 1 alone; saves memory at medium effort
        "fused_loss": ["1.00", "0.60", "none shown", "2", ""],
        "sdpa": ["0.77", "1.00", "slower", "4", ""],
        "graph": ["-", "-", "-", "-", "skipped: no GPU"],
    }
    assert next(iter(found)) == "qkv"


def verdicts(row: Cell) -> list[str]:
    made = study()
    made.main = table(cell("baseline", DRIFT), row)
    _, lines = success_table(made, POINT)
    return [line[2].partition(":")[0] for line in lines[-3:]]


@pytest.mark.parametrize(
    ("factors", "turns", "verdict"),
    [
        ([1 / 1.31], 7, "held"),
        ([1 / 1.29], 7, "**not held**"),
        ([1 / 1.5], 3, "not shown"),
        # an interval on both sides of the gate
        ([1 / f for f in (1.1, 1.5, 1.2, 1.4, 1.3, 1.45, 1.25)], 7, "not shown"),
    ],
)
def test_throughput_gate(factors: list[float], turns: int, verdict: str) -> None:
    assert verdicts(cell("fused", scaled(*factors)[:turns]))[2] == verdict


def test_gates_of_memory_and_accuracy() -> None:
    assert verdicts(cell("fused", DRIFT, 100.0))[:2] == ["-", "held"]
    wrong = cell("fused", DRIFT, 100.1)
    wrong.failure = "wrong result"
    assert verdicts(wrong)[:2] == ["**not held**"] * 2
    proved = cell("fused", DRIFT)
    proved.counters["max_rel_error"] = 3e-7
    assert verdicts(proved)[0] == "held"
