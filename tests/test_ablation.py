"""scripts/ablation: measuring, tables, page."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import tools
from fake_ablation import OTHER, POINT, FakeProgram, measurement, study
from tinyllama_tools.commands import ablation as ablation
from tinyllama_tools.commands.ablation import (
    Effort,
    compile_rows,
    newest_peers,
    parse_options,
    plan_main,
    run_study,
    run_tests,
    write_study,
)
from tinyllama_tools.commands.ablation_page import (
    DETERMINISM,
    HELD,
    NOT_HELD,
    PARITY,
    UNKNOWN,
    ablation_page,
    gates_of,
    impacts,
    in_quadrant,
    terminal_text,
)
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.data.programs import PROGRAM
from tinyllama_tools.models.ablations import (
    SWITCHES,
    VERSIONS,
    WITHOUT,
    Cell,
    GateRun,
    Kind,
    Point,
    Row,
    RowName,
    Rule,
    Study,
    Table,
    check_rule,
    fit_exponent,
    planned_rows,
    ratio_text,
    read_study,
    resolved_switches,
    result_text,
    row_at,
    shows_difference,
)

SECTIONS = (
    "Is optimized the best of them?",
    "Each switch, alone and removed",
    "Impact and effort",
    "Success metrics of version 2",
    "Mixed precision",
    "Batch size",
    "Memory over the sequence",
    "torch.compile",
    "How it was measured",
)


@pytest.fixture(scope="module")
def whole() -> Study:
    """A study with every part, of the fake."""
    arguments = ["--switches=qkv,sdpa,graph,checkpoint", "--without=gates", "--turns=6"]
    options = parse_options(arguments)
    made = study(*options.switches)
    program = FakeProgram()
    program.wrong.add("checkpoint")
    measured = measurement(program, Effort(6))
    run_study(made, measured, options, lambda: None, 120)
    made.context = measured.context
    made.meta |= {"date": "2026-01-31 08:00 UTC", "command": "scripts/ablation --turns=6"}
    made.gates = [GateRun("training parity", "golden_test", ran=6)]
    return made


def test_page_has_every_section_in_order(whole: Study) -> None:
    page = ablation_page(whole)
    headings = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert headings == list(SECTIONS)
    for text in ("0123456789ab", "AMD EPYC", "2026-01-31", "scripts/ablation --turns=6"):
        assert text in page
    assert page.endswith("\n")


def test_what_was_skipped_or_wrong_is_on_the_page(whole: Study) -> None:
    page = ablation_page(whole)
    # three dtypes at two shapes
    lines = [line for line in page.splitlines() if line.startswith("| graph ")]
    assert len([line for line in lines if line.count("|") == 13]) == 6
    assert "skipped: graph: only a GPU captures its work" in page
    assert "failed: wrong result: loss differs by 0.5" in page
    assert "- **checkpoint at tiny f32, batch 8 x sequence 128 and" in page
    assert "no result of torch.compile at these points: `scripts/peers`" in page


def test_terminal_shows_main_tables_and_rule(whole: Study) -> None:
    text = terminal_text(whole)
    assert "**" not in text
    assert "optimized without qkv" in text
    assert "Held (test points): nowhere shown slower" in text
    assert "Memory over" not in text


def test_result_can_be_read_again(whole: Study, tmp_path: Path) -> None:
    write_study(whole, tmp_path)
    again = read_study(tmp_path / "ablation.json")
    assert ablation_page(again) == ablation_page(whole)
    assert result_text(again) == result_text(whole)
    assert list(tmp_path.glob("*.part")) == []


def test_tables_anew_from_a_result(
    whole: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(whole, tmp_path)
    (tmp_path / "ABLATION.md").unlink()
    # a wrong result stays one
    assert tools.ablation(["--from", str(tmp_path / "ablation.json")]) == 1
    assert (tmp_path / "ABLATION.md").exists()
    assert "speedup over baseline" in capsys.readouterr().out
    (tmp_path / "other.json").write_text('{"benchmarks": []}')
    assert tools.ablation(["--from", str(tmp_path / "other.json")]) == 2
    assert "other.json: no result of scripts/ablation" in capsys.readouterr().err


def test_aligned_table() -> None:
    lines = markdown_table(("a", "note"), [("1", "x|y\nz"), ("22", "w" * 60)])
    assert lines[0] == "| a   | note   |"
    assert lines[2] == "| 1   | x\\|y z |"
    assert lines[3] == f"| 22  | {'w' * 60} |"
    with pytest.raises(ValueError, match="1 cells under 2"):
        markdown_table(("a", "b"), [("1",)])


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
    [("--help", 0, "--grid"), ("--bogus", 2, "--bogus"), ("--from=absent.json", 2, "absent.json")],
)
def test_script_answers_without_a_set_up(
    project_root: Path, option: str, status: int, words: str
) -> None:
    command = ["bash", str(project_root / "scripts/ablation"), option]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == status
    assert words in said.stdout + said.stderr
    assert "--" not in [line[:2] for line in said.stderr.splitlines()]


def step(variant: str, dtype: str = "f32") -> str:
    return f"full_step/train/{variant}/tiny/{dtype}/batch:8/seq:128"


@pytest.fixture(scope="module")
def peers(project_root: Path) -> dict:
    """A real result of scripts/peers without its rows."""
    path = project_root / "results/reference/peers_2core_xeon_avx512.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    return found | {"benchmarks": [], "row": found["benchmarks"][0]}


def peers_file(path: Path, peers: dict, *names: tuple[str, float], ratios: object = ()) -> Path:
    context = peers["context"] | {"date": "today"}
    context["peers"] = context["peers"] | {"ratios": list(ratios)}
    count = {name: 0 for name, _ in names}
    rows = []
    for name, ms in names:
        times = {"real_time": ms, "time_unit": "ms", "repetition_index": count[name]}
        rows.append(peers["row"] | {"name": name, "run_name": f"{name}/manual_time"} | times)
        count[name] += 1
    name = step("peer:compile_default")
    skipped = {"name": name, "run_name": name, "skipped": True, "skip_message": "too slow"}
    rows.append(peers["row"] | skipped)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"context": context, "benchmarks": rows}))
    return path


def test_compiled_rows(whole: Study, tmp_path: Path, peers: dict) -> None:
    tuned = "peer:compile_tuned"
    times = [(step(tuned), 50.0), (step(tuned), 60.0), (step(tuned), 70.0)]
    times += [(step("peer:eager"), 99.0), (step(tuned, "bf16"), 40.0)]
    ratios = [
        {"case": step("baseline"), "peer": tuned, "of_each_turn": [0.5, 0.4, 0.625]},
        {"case": step("optimized"), "peer": tuned, "of_each_turn": [1.2, 1.1, 1.3]},
    ]
    path = peers_file(tmp_path / "run/p.json", peers, *times, ratios=ratios)
    first, skipped, narrow = compile_rows(path, whole.main)
    assert first["row"] == "torch.compile (compile_tuned)"
    assert (first["point"], narrow["point"]) == (POINT.title, OTHER.title)
    assert first["seconds"] == pytest.approx(0.06)
    assert first["speedup"]["median"] == pytest.approx(2.0)
    assert first["over_optimized"]["median"] == pytest.approx(1.2)
    assert first["source"] == "run/p.json, today"
    assert (skipped["note"], skipped["seconds"]) == ("skipped: too slow", None)
    # no turns beside a baseline of its own: over this run's, which says so
    assert narrow["against"] == "this run's baseline, not in turn"
    assert narrow["speedup"]["interval"] is None
    page = ablation_page(Study([], peers=json.loads(json.dumps([first, skipped, narrow]))))
    assert "2.00 (1.60 to 2.50 at 75 %)" in page
    assert "skipped: too slow" in page


def test_newest_peers_is_of_this_machine_and_format(tmp_path: Path, peers: dict) -> None:
    machine = peers["context"]
    assert newest_peers(machine, tmp_path) is None
    reference = tmp_path / "results/reference/peers_old.json"
    reference.parent.mkdir(parents=True)
    reference.write_text('{"rows": []}')
    assert newest_peers(machine, tmp_path) is None
    with pytest.raises(BadInputError, match="peers_old"):
        compile_rows(reference, study().main)
    older = peers_file(tmp_path / "results/20260101T000000Z_peers/peers.json", peers)
    newer = peers_file(tmp_path / "results/20260102T000000Z_peers/peers.json", peers)
    assert newest_peers(machine, tmp_path) == newer != older
    assert newest_peers(machine | {"threads": 64}, tmp_path) is None
    other = {"device": {"name": "another"}, "threads": machine["threads"]}
    assert newest_peers(other, tmp_path) is None


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
    found = read_study(tmp_path / "ablation.json")
    assert found.main.get("baseline", POINT).turns


def test_switches_are_those_of_the_program(bench_program: Path) -> None:
    refused = subprocess.run(
        [bench_program, "--list", "--variants=nonsense"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    names = refused.stderr.rpartition(": ")[2].strip()
    assert names.split(", ") == list(SWITCHES)


def test_smoke_with_the_program(
    bench_program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_program == PROGRAM
    arguments = ["--quick", "--only=main", "--turns=1", "--switches=qkv,graph"]
    assert tools.ablation([*arguments, "--output", str(tmp_path)]) == 0, capsys.readouterr().err
    found = read_study(tmp_path / "ablation.json")
    for point in found.main.points():
        for row in ("baseline", "qkv", "fused", "optimized"):
            cell = found.main.get(row, point)
            assert cell.turns, cell.note
            assert cell.counter("max_rel_error") < 1e-4
        graph = found.main.get("graph", point)
        assert graph.note or found.context["device"]["backend"] != "cpu"
    assert (tmp_path / "ABLATION.md").exists()


def options(*arguments: str) -> object:
    base = ["--switches=qkv,sdpa,graph", "--dtypes=f32", "--points=8x128", "--only=main"]
    return parse_options([*base, "--turns=6", *arguments])


def run(program: FakeProgram, *arguments: str) -> Study:
    chosen = options(*arguments)
    made = study(*chosen.switches, combinations=chosen.combinations)
    effort = Effort(chosen.turns, chosen.steps, chosen.seed, chosen.slow_seconds)
    run_study(made, measurement(program, effort), chosen, lambda: None, 120)
    return made


@pytest.mark.parametrize(
    ("label", "switches"),
    [
        ("optimized = qkv+fused_adamw", ["qkv", "fused_adamw"]),
        ("verified at batch:4; optimized = onednn; more", ["onednn"]),
        ("optimized = baseline", []),
        ("nothing of it", None),
    ],
)
def test_label_of_optimized(label: str, switches: list[str] | None) -> None:
    assert resolved_switches(label) == switches


def test_every_row_is_measured_in_every_turn() -> None:
    made = run(FakeProgram())
    names = ["baseline", "qkv", "sdpa", "graph", "fused", "optimized"]
    names += ["optimized without qkv", "optimized without sdpa"]
    assert [row.name for row in made.rows] == names
    turns = {name: sorted(made.main.get(name, POINT).turns) for name in names}
    assert turns == {name: [] if name == "graph" else list(range(6)) for name in names}
    assert made.meta["turns_done"] == 6
    assert made.main.get("optimized without qkv", POINT).variant == "sdpa"


def test_verified_first_then_a_process_a_case_in_changing_order() -> None:
    program = FakeProgram()
    run(program)
    verified = [names for names, verify in program.calls if verify]
    # all that is known, in one process; then what follows from the label of `optimized`
    assert [len(names) for names in verified] == [6, 2]
    timed = [names for names, verify in program.calls if not verify]
    assert program.calls[:2] == [(names, True) for names in verified]
    assert {len(names) for names in timed} == {1}
    orders = {tuple(names for (names,) in timed[i : i + 7]) for i in range(0, len(timed), 7)}
    assert len(orders) > 1
    again = FakeProgram()
    run(again)
    assert again.calls == program.calls


def test_skipped_refused_and_wrong_stay_with_their_reason() -> None:
    program = FakeProgram()
    program.wrong.add("qkv")
    made = run(program, "--combinations=sdpa+fused_attention")
    assert made.main.get("graph", POINT).note == "skipped: graph: only a GPU captures its work"
    refused = made.main.get("sdpa+fused_attention", POINT)
    assert refused.note == "skipped: sdpa and fused_attention exclude each other"
    assert made.main.get("qkv", POINT).note == "failed: wrong result: loss differs by 0.5"
    # the cell without sdpa is qkv, and as wrong
    assert {cell.row for cell in made.failures} == {"qkv", "optimized without sdpa"}
    assert not any("graph" in name for names, verify in program.calls[2:] for name in names)


def test_a_crash_costs_only_the_variant_that_crashes() -> None:
    program = FakeProgram()
    program.crashes.add("fused")
    made = run(program)
    assert made.main.get("fused", POINT).failure == "tiny_llama_bench ended with -11"
    assert made.main.get("qkv", POINT).turns
    assert made.main.get("qkv", POINT).counter("max_rel_error") == 1e-6


def test_slow_cells_get_five_turns_of_a_step() -> None:
    program = FakeProgram({"baseline": 5.0})
    made = run(program)
    assert {steps for names, steps in program.steps if "/baseline/" in names} == {1}
    assert {steps for names, steps in program.steps if "/qkv/" in names} == {5}
    assert sorted(made.main.get("baseline", POINT).turns) == [0, 1, 2, 3, 4]
    assert sorted(made.main.get("qkv", POINT).turns) == [0, 1, 2, 3, 4, 5]


def test_interruption_keeps_what_was_measured() -> None:
    program = FakeProgram()
    program.interrupt_after = 20
    chosen = options()
    made = study(*chosen.switches)
    with pytest.raises(KeyboardInterrupt):
        run_study(made, measurement(program, Effort(6)), chosen, lambda: None, 120)
    assert len(made.main.get("baseline", POINT).turns) in {2, 3}


def test_removed_rows_only_where_optimized_has_the_switch() -> None:
    class OnlyInF32(FakeProgram):
        def case_run(self, case: object, repetitions: int, verify: bool) -> object:
            run = super().case_run(case, repetitions, verify)
            if case.dtype == "bf16" and run.label:
                return run.__class__(run.name, run.seconds, run.counters, "optimized = sdpa")
            return run

    chosen = options("--dtypes=f32,bf16")
    made = study(*chosen.switches)
    plan_main(made, measurement(OnlyInF32(), Effort()), chosen)
    assert made.main.get("optimized without qkv", POINT) is not None
    assert made.main.get("optimized without qkv", OTHER) is None
    assert made.main.get("optimized without sdpa", OTHER).variant == "baseline"
    removed = [row.name for row in made.rows if row.kind == Kind.removed]
    assert removed == ["optimized without qkv", "optimized without sdpa"]


def test_all_parts_have_their_cells() -> None:
    program = FakeProgram()
    chosen = parse_options(["--switches=qkv,checkpoint", "--without=gates", "--turns=1"])
    made = Study(planned_rows(chosen.switches, ()))
    run_study(made, measurement(program, Effort(1)), chosen, lambda: None, 120)
    assert len(made.main.points()) == 6
    assert [p.batch for p in made.batches.points()] == [1, 2, 4, 8, 16, 32]
    assert {p.dtype for p in made.types.points()} == {"f16", "amp_f16"}
    steps = [p for p in made.memory.points() if p.component == "full_step" and p.batch == 1]
    assert [p.seq for p in steps] == [128, 256, 512, 1024, 2048, 4096, 8192]
    attention = [p.seq for p in made.memory.points() if p.component == "attention"]
    assert attention == [1024, 2048, 4096, 8192]
    assert [cell.row for cell in made.memory.cells_at(steps[0])] == [
        "baseline",
        "fused",
        "optimized",
        "checkpoint",
    ]
    assert all(c.counter("peak_memory_MiB") for c in made.memory.cells.values())


QKV = RowName("qkv", Kind.single)
BASELINE, FUSED, OPTIMIZED = VERSIONS
OTHER_SHAPE = Point("tiny", "f32", 16, 256)


def cell(row: str, times: list[float], peak: float = 100.0, point: Point = POINT) -> Cell:
    counters = {"peak_memory_MiB": peak, "model_flops": 1e10, "TFLOPS": 0.1, "MFU_percent": 50.0}
    return Cell(row, point, row, counters=counters, turns=dict(enumerate(times)))


def table(*cells: Cell) -> Table:
    made = Table()
    for one in cells:
        made.add(one)
    return made


# Times that drift from turn to turn by more than the two differ.
DRIFT = [1.0, 1.3, 0.8, 1.1, 1.6, 0.9, 1.2]


def scaled(*factors: float) -> list[float]:
    """The drifting times, each times its factor."""
    return [time * factor for time, factor in zip(DRIFT, factors, strict=True)]


def test_speedup_is_of_the_same_turn() -> None:
    faster = [time / 1.25 for time in DRIFT]
    row = row_at(table(cell("baseline", DRIFT), cell("qkv", faster, 50.0)), QKV, POINT)
    assert row.ratio.median == pytest.approx(1.25)
    assert row.ratio.interval.low == pytest.approx(1.25)
    assert shows_difference(row.ratio)
    assert row.memory_ratio == 0.5
    assert row.samples_per_second == pytest.approx(8 / (1.1 / 1.25))


def test_only_turns_that_both_have_count() -> None:
    some = cell("qkv", [])
    some.turns = {2: 0.4, 5: 0.45}
    row = row_at(table(cell("baseline", DRIFT), some), QKV, POINT)
    assert row.ratio.of_each_turn == pytest.approx((2.0, 2.0))


def test_mfu_is_at_the_median_time_and_absent_above_the_peak() -> None:
    # 50 % is 0.1 TFLOP/s; 1e10 FLOPs in 0.2 s are 0.05
    found = cell("baseline", [0.2, 0.2, 0.3])
    assert row_at(table(found), BASELINE, POINT).mfu_percent == pytest.approx(25.0)
    del found.counters["MFU_percent"]
    found.above_peak = "107 % of the measured f32 peak"
    row = row_at(table(found), BASELINE, POINT)
    assert (row.cell.seconds, row.mfu_percent) == (0.2, None)
    assert row.cell.note == "107 % of the measured f32 peak"


def test_no_difference_is_marked() -> None:
    noisy = scaled(1, 0.9, 1.1, 1.05, 0.95, 1, 1.2)
    row = row_at(table(cell("baseline", DRIFT), cell("qkv", noisy)), QKV, POINT)
    assert ratio_text(row.ratio).startswith("~ 1.00 (")
    assert ratio_text(None) == "-"
    few = row_at(table(cell("baseline", [1.0, 1.0]), cell("qkv", [0.5, 0.5])), QKV, POINT)
    assert ratio_text(few.ratio) == "~ 2.00 (2.00 to 2.00 at 50 %)"


def test_removed_row_is_compared_with_optimized() -> None:
    slower = [time * 1.1 for time in DRIFT]
    name = RowName(f"{WITHOUT}qkv", Kind.removed)
    cells = table(
        cell("baseline", [9.0] * 7), cell("optimized", DRIFT, 50), cell(name.name, slower, 60)
    )
    row = row_at(cells, name, POINT)
    assert row.ratio.median == pytest.approx(1.1)
    assert row.memory_ratio == pytest.approx(1.2)


ROWS = [BASELINE, QKV, FUSED, OPTIMIZED]


def rule_of(optimized: list[float], qkv: list[float]) -> Rule:
    cells = table(cell("baseline", [2.0] * 7), cell("qkv", qkv), cell("optimized", optimized))
    return check_rule(cells, ROWS)


def test_rule_holds_where_optimized_is_fastest_or_ties() -> None:
    rule = rule_of(DRIFT, scaled(1.1, 0.9, 1, 1, 1, 1.1, 0.9))
    assert rule.held
    assert [c.row for c in rule.comparisons] == ["baseline", "qkv"]
    # two intervals of 98.4 %
    assert rule.expected_false == pytest.approx(2 / 2**7)


def test_rule_breaks_where_a_switch_is_faster() -> None:
    rule = rule_of(DRIFT, [time / 1.1 for time in DRIFT])
    assert not rule.held
    (broken,) = rule.broken
    assert broken.row == "qkv"
    assert broken.slowdown.median == pytest.approx(1.1)


def test_too_few_turns_break_no_rule_and_hold_none() -> None:
    rule = rule_of([1.0, 1.0, 1.0], [0.9, 0.9, 0.9])
    assert not rule.held
    assert rule.broken == []
    assert "qkv" in [c.row for c in rule.undecided]


def test_rule_without_a_number_is_not_held() -> None:
    skipped = Cell("optimized", POINT, reason="too long")
    rule = check_rule(table(cell("baseline", DRIFT), skipped), ROWS)
    assert not rule.held
    assert rule.unmeasured == [f"{POINT.title}: skipped: too long"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"qkv": 0.04}, "**Not held** (test points) at 1 of 3 comparisons"),
        ({}, "**Held** (test points): nowhere shown slower, in 3 comparisons"),
    ],
)
def test_page_says_whether_the_rule_holds(seconds: dict[str, float], words: str) -> None:
    assert words in ablation_page(run(FakeProgram(seconds)))


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_exponent_of_a_power_law(power: float) -> None:
    growth = fit_exponent({2**i: 3.0 * (2**i) ** power for i in range(7, 14)})
    assert growth.exponent == pytest.approx(power)
    assert (growth.first, growth.last) == (1024, 8192)
    assert growth.verdict == {1.0: "linear", 1.5: "between", 2.0: "quadratic"}[power]


def test_exponent_leaves_the_constant_part_out_and_needs_three_lengths() -> None:
    # weights of 40 MiB beside what grows
    memory = {2**i: 40.0 + 1e-3 * (2**i) ** 2 for i in range(7, 14)}
    assert fit_exponent(memory).verdict == "quadratic"
    assert fit_exponent({128: 1.0, 1024: 2.0}) is None
    assert fit_exponent({128: 1.0, 256: 2.0, 512: 4.0}).exponent == pytest.approx(1.0)


def test_types_are_against_float32_and_batches_against_the_smallest() -> None:
    made = study()
    half = Point("tiny", "f16", 8, 128)
    made.main = table(cell("fused", [0.2] * 6))
    made.types = table(cell("fused", [0.1] * 6, 40.0, half))
    points = [Point("tiny", "f32", batch, 128) for batch in (1, 4)]
    times = (0.1, 0.2)
    made.batches = table(
        *(cell("fused", [s] * 6, 9.0, at) for s, at in zip(times, points, strict=True))
    )
    page = re.sub(" +", " ", ablation_page(made))
    assert (
        "| 8 x 128 | fused | f16 | 100.0 | 80.0 | 2.00 (2.00 to 2.00) | - | 40.0 | 0.40 |" in page
    )
    assert "| 4 | fused | 200.0 | 20.0 | 2.00 | - | 9.00 |" in page


def test_impact_is_the_mean_over_shapes_of_a_dtype() -> None:
    cells = table(
        cell("baseline", DRIFT),
        cell("qkv", [t / 1.2 for t in DRIFT]),
        cell("baseline", DRIFT, 100, OTHER_SHAPE),
        cell("qkv", [t / 1.8 for t in DRIFT], 100, OTHER_SHAPE),
        cell("fused_loss", DRIFT, 60.0),
        cell("sdpa", [t * 1.3 for t in DRIFT]),
        Cell("graph", POINT, reason="no GPU"),
    )
    rows = [RowName(name, Kind.single) for name in ("qkv", "fused_loss", "sdpa", "graph")]
    found = {impact.entry.switch: impact for impact in impacts(cells, rows, "f32")}
    assert found["qkv"].speedup == pytest.approx((1.2 * 1.8) ** 0.5)
    words = {name: impact.impact for name, impact in found.items()}
    # equal times in all turns: the interval is 1 alone
    expected = {"qkv": "high", "fused_loss": "none shown", "sdpa": "slower", "graph": ""}
    assert words == expected
    assert next(iter(found)) == "qkv"

    def names(is_high: bool, is_low_effort: bool) -> list[str]:
        inside = in_quadrant(list(found.values()), is_high, is_low_effort)
        return [impact.entry.switch for impact in inside]

    assert names(True, True) == ["qkv"]
    assert names(True, False) == ["fused_loss"]
    assert names(False, False) == ["sdpa"]
    assert found["graph"].note == "skipped: no GPU"


def fused_row(times: list[float], peak: float = 100.0) -> Row:
    baseline = cell("baseline", DRIFT[: len(times)])
    return row_at(table(baseline, cell("fused", times, peak)), FUSED, POINT)


# what a baseline's time becomes; the last has an interval on both sides of the gate
AROUND = (1.1, 1.5, 1.2, 1.4, 1.3, 1.45, 1.25)


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ([1.31] * 7, HELD),
        ([1.29] * 7, NOT_HELD),
        ([1.5] * 3, UNKNOWN),
        ([1.5], UNKNOWN),
        (AROUND, UNKNOWN),
    ],
)
def test_throughput_gate(factors: list[float], verdict: str) -> None:
    row = fused_row([time / factor for time, factor in zip(DRIFT, factors, strict=False)])
    assert gates_of(study(), row)[3].verdict == verdict


@pytest.mark.parametrize(("peak", "verdict"), [(100.0, HELD), (99.0, HELD), (100.1, NOT_HELD)])
def test_memory_gate(peak: float, verdict: str) -> None:
    assert gates_of(study(), fused_row(DRIFT, peak))[2].verdict == verdict


PASSED = [GateRun(name, "golden_test", ran=2) for name in (PARITY, DETERMINISM)]
FAILED = GateRun(PARITY, "golden_test", ran=2, failed=("Training.Curve",))
ABSENT = GateRun(DETERMINISM, "golden_test", reason="no such test ran")


@pytest.mark.parametrize(
    ("gates", "failure", "verdicts"),
    [
        (PASSED, "", [HELD, HELD]),
        (PASSED, "wrong result", [NOT_HELD, HELD]),
        ([FAILED, PASSED[1]], "", [NOT_HELD, HELD]),
        ([PASSED[0], ABSENT], "", [HELD, "not measured"]),
        ([], "", ["not measured"] * 2),
    ],
)
def test_gates_of_tests(gates: list[GateRun], failure: str, verdicts: list[str]) -> None:
    made, row = study(), fused_row(DRIFT)
    made.gates, row.cell.failure = gates, failure
    row.cell.counters["max_rel_error"] = 3e-7
    found = gates_of(made, row)[:2]
    assert [gate.verdict for gate in found] == verdicts
    assert failure or "3.0e-07" in found[0].evidence


GOOD, BAD = {"name": "A"}, {"name": "B", "failures": [{"failure": "no"}]}
SKIPPED = {"name": "A", "result": "SKIPPED"}


@pytest.mark.parametrize(
    ("tests", "status", "ran", "failed", "reason"),
    [
        ([GOOD, BAD], 1, 2, ("Determinism.B",), ""),
        ([], 0, 0, (), "no such test ran"),
        ([SKIPPED], 0, 0, (), "no such test ran"),
        ([GOOD], 7, 1, (), "ended with status 7 although no test failed"),
        (None, 3, 0, (), "ended with status 3 before it wrote its report"),
    ],
)
def test_report_of_a_gate(
    tmp_path: Path,
    tests: list[dict[str, object]] | None,
    status: int,
    ran: int,
    failed: tuple[str, ...],
    reason: str,
) -> None:
    assert run_tests(tmp_path, PARITY, "A*").reason == "model/golden_test is not built"
    program = tmp_path / "model/golden_test"
    program.parent.mkdir()
    suites = [{"name": "Determinism", "testsuite": tests}]
    report = json.dumps({"tests": len(tests or ()), "testsuites": suites})
    write = "" if tests is None else f"echo '{report}' > \"${{2#*json:}}\"\n"
    program.write_text(f"#!/bin/sh\n{write}exit {status}\n")
    program.chmod(0o755)
    gate = run_tests(tmp_path, PARITY, "A*")
    assert (gate.ran, gate.failed, gate.reason) == (ran, failed, reason)
