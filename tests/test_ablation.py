"""scripts/ablation: measuring, tables, page."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import tools
from fake_ablation import OTHER, POINT, FakeProgram, measurement, study
from tinyllama_tools.commands import ablation as ablation
from tinyllama_tools.commands.ablation import (
    Effort,
    Spelling,
    SpellingBook,
    parse_options,
    plan_main,
    run_study,
    write_study,
)
from tinyllama_tools.commands.ablation_page import (
    DETERMINISM,
    HELD,
    NOT_HELD,
    PARITY,
    UNKNOWN,
    PeersError,
    ablation_page,
    accuracy_gate,
    compile_lines,
    compile_rows,
    gates_of,
    impacts,
    in_quadrant,
    memory_gate,
    newest_peers,
    read_gate,
    run_tests,
    terminal_text,
    throughput_gate,
)
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.data.programs import PROGRAM
from tinyllama_tools.models.ablations import (
    SWITCHES,
    Cell,
    GateRun,
    Kind,
    Point,
    RowName,
    Series,
    Study,
    Table,
    check_rule,
    fit_exponent,
    planned_rows,
    ratio_text,
    read_study,
    removed_row,
    resolved_switches,
    row_at,
    shows_difference,
    without,
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
    assert json.dumps(again.as_json()) == json.dumps(whole.as_json())
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


MACHINE = {"device": {"name": "a processor"}, "threads": 2}


def peers_file(path: Path, *names: tuple[str, float], **peers: object) -> Path:
    entries = [
        {"run_name": f"{name}/manual_time", "run_type": "iteration"}
        | {"real_time": ms, "time_unit": "ms"}
        for name, ms in names
    ]
    skipped = {"run_name": step("peer:compile_default"), "run_type": "iteration"}
    entries.append(skipped | {"skipped": True, "skip_message": "too slow"})
    context = {"date": "today", "peers": peers, **MACHINE}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"context": context, "benchmarks": entries}))
    return path


def step(variant: str, dtype: str = "f32") -> str:
    return f"full_step/train/{variant}/tiny/{dtype}/batch:8/seq:128"


def test_compiled_rows(whole: Study, tmp_path: Path) -> None:
    tuned = "peer:compile_tuned"
    times = [(step(tuned), 50.0), (step(tuned), 60.0), (step(tuned), 70.0)]
    times += [(step("peer:eager"), 99.0), (step(tuned, "bf16"), 40.0)]
    ratios = [
        {"case": step("baseline"), "peer": tuned, "of_each_turn": [0.5, 0.4, 0.625]},
        {"case": step("optimized"), "peer": tuned, "of_each_turn": [1.2, 1.1, 1.3]},
    ]
    path = peers_file(tmp_path / "run/p.json", *times, ratios=ratios)
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
    lines = compile_lines(Study([], peers=json.loads(json.dumps([first, skipped, narrow]))))
    assert any("2.00 (1.60 to 2.50 at 75 %)" in line for line in lines)
    assert any("skipped: too slow" in line for line in lines)


def test_newest_peers_is_of_this_machine_and_format(tmp_path: Path) -> None:
    assert newest_peers(MACHINE, tmp_path) is None
    reference = tmp_path / "results/reference/peers_old.json"
    reference.parent.mkdir(parents=True)
    reference.write_text('{"rows": []}')
    assert newest_peers(MACHINE, tmp_path) is None
    with pytest.raises(PeersError, match="peers_old"):
        compile_rows(reference, study().main)
    older = peers_file(tmp_path / "results/20260101T000000Z_peers/peers.json")
    newer = peers_file(tmp_path / "results/20260102T000000Z_peers/peers.json")
    assert newest_peers(MACHINE, tmp_path) == newer != older
    assert newest_peers(MACHINE | {"threads": 64}, tmp_path) is None
    assert newest_peers({"device": {"name": "another"}, "threads": 2}, tmp_path) is None


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

    def stand_in_measurement(_program: object, book: object, effort: Effort, _: object) -> object:
        del book
        return measurement(program, effort)

    monkeypatch.setattr(ablation, "Measurement", stand_in_measurement)
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


def test_set_without_a_switch() -> None:
    assert without(["a", "b", "c"], "b") == "a+c"
    assert without(["a"], "a") == "baseline"


def test_each_variant_is_asked_for_once() -> None:
    asked = []
    book = SpellingBook(lambda variant: asked.append(variant) or Spelling(variant))
    assert [book.spelling("qkv").name for _ in range(3)] == ["qkv"] * 3
    assert asked == ["qkv"]


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
    assert made.memory.rows_at(steps[0]) == ["baseline", "fused", "optimized", "checkpoint"]
    assert all(c.counter("peak_memory_MiB") for c in made.memory.cells.values())


FUSED = RowName("fused", Kind.named_set)
QKV = RowName("qkv", Kind.single)
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


def test_mfu_at_the_median_time() -> None:
    # 50 % is 0.1 TFLOP/s; 1e10 FLOPs in 0.2 s are 0.05
    row = row_at(
        table(cell("baseline", [0.2, 0.2, 0.3])), RowName("baseline", Kind.baseline), POINT
    )
    assert row.mfu_percent == pytest.approx(25.0)


def test_a_row_above_its_peak_keeps_its_time_and_says_why() -> None:
    above = cell("baseline", [0.2, 0.2, 0.3])
    del above.counters["MFU_percent"]
    above.above_peak = "107 % of the measured f32 peak"
    row = row_at(table(above), RowName("baseline", Kind.baseline), POINT)
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
    name = removed_row("qkv")
    cells = table(
        cell("baseline", [9.0] * 7), cell("optimized", DRIFT, 50), cell(name.name, slower, 60)
    )
    row = row_at(cells, name, POINT)
    assert row.ratio.median == pytest.approx(1.1)
    assert row.memory_ratio == pytest.approx(1.2)
    assert name.removed_switch == "qkv"


ROWS = [RowName("baseline", Kind.baseline), QKV, FUSED, RowName("optimized", Kind.named_set)]


def rule_of(optimized: list[float], qkv: list[float]) -> object:
    cells = table(cell("baseline", [2.0] * 7), cell("qkv", qkv), cell("optimized", optimized))
    return check_rule(cells, ROWS)


def test_rule_holds_where_optimized_is_fastest_or_ties() -> None:
    rule = rule_of(DRIFT, scaled(1.1, 0.9, 1, 1, 1, 1.1, 0.9))
    assert rule.held
    assert len(rule.comparisons) == 2
    assert rule.closest().row == "qkv"


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
    assert rule.unmeasured == (f"{POINT.title}: skipped: too long",)


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
    series = Series("qkv", {1024: 1.0, 2048: 2.0, 4096: 4.0, 8192: "skipped: too large"})
    assert series.growth.last == 4096


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


@pytest.mark.parametrize(
    ("factor", "turns", "verdict"),
    [(1.31, 7, HELD), (1.29, 7, NOT_HELD), (1.5, 3, UNKNOWN), (1.5, 1, UNKNOWN)],
)
def test_throughput_gate(factor: float, turns: int, verdict: str) -> None:
    after = [time / factor for time in DRIFT[:turns]]
    row = row_at(table(cell("baseline", DRIFT[:turns]), cell("fused", after)), FUSED, POINT)
    assert throughput_gate(row).verdict == verdict


def test_throughput_gate_asks_the_interval() -> None:
    around = scaled(*(1 / f for f in (1.1, 1.5, 1.2, 1.4, 1.3, 1.45, 1.25)))
    row = row_at(table(cell("baseline", DRIFT), cell("fused", around)), FUSED, POINT)
    assert throughput_gate(row).verdict == UNKNOWN


@pytest.mark.parametrize(("peak", "verdict"), [(100.0, HELD), (99.0, HELD), (100.1, NOT_HELD)])
def test_memory_gate(peak: float, verdict: str) -> None:
    row = row_at(table(cell("baseline", DRIFT), cell("fused", DRIFT, peak)), FUSED, POINT)
    assert memory_gate(row).verdict == verdict


def verdicts(*gates: GateRun, failure: str = "") -> list[str]:
    made = study()
    made.gates = list(gates)
    fused = cell("fused", DRIFT)
    fused.failure = failure
    row = row_at(table(cell("baseline", DRIFT), fused), FUSED, POINT)
    return [gate.verdict for gate in gates_of(made, row)[:2]]


def test_gates_of_tests() -> None:
    passed = [GateRun(name, "golden_test", ran=2) for name in (PARITY, DETERMINISM)]
    assert verdicts(*passed) == [HELD, HELD]
    assert verdicts(*passed, failure="wrong result")[0] == NOT_HELD
    failed = GateRun(PARITY, "golden_test", ran=2, failed=("Training.Curve",))
    assert verdicts(failed, passed[1]) == [NOT_HELD, HELD]
    absent = GateRun(DETERMINISM, "golden_test", reason="no such test ran")
    assert verdicts(passed[0], absent) == [HELD, "not measured"]
    assert verdicts() == ["not measured"] * 2


def test_largest_error_stands_beside_the_accuracy_gate() -> None:
    made = study()
    fused = cell("fused", DRIFT)
    fused.counters["max_rel_error"] = 3e-7
    row = row_at(table(cell("baseline", DRIFT), fused), FUSED, POINT)
    assert "3.0e-07" in accuracy_gate(made, [row]).evidence


def report(path: Path, tests: list[dict[str, object]]) -> Path:
    suites = [{"name": "Determinism", "testsuite": tests}] if tests else []
    path.write_text(json.dumps({"tests": len(tests), "testsuites": suites}))
    return path


def test_report_of_a_gate(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    good, bad = {"name": "A"}, {"name": "B", "failures": [{"failure": "no"}]}
    gate = read_gate(GateRun("g", "c"), report(path, [good, bad]), 1)
    assert (gate.ran, gate.failed, gate.reason) == (2, ("Determinism.B",), "")
    gate = read_gate(GateRun("g", "c"), report(path, []), 0)
    assert gate.reason == "no such test ran"
    gate = read_gate(GateRun("g", "c"), report(path, [{"name": "A", "result": "SKIPPED"}]), 0)
    assert gate.reason == "no such test ran"
    gate = read_gate(GateRun("g", "c"), report(path, [good]), -11)
    assert gate.reason == "ended with status -11 although no test failed"


def test_gate_whose_program_is_absent(tmp_path: Path) -> None:
    assert run_tests(tmp_path, PARITY, "A*").reason == "model/golden_test is not built"
