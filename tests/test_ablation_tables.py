"""What follows from measured cells: ratios, the rule, exponents, impact, gates."""

import json
from pathlib import Path

import pytest

from ablation_stand_in import POINT, study
from tinyllama_tools.ablation.page import (
    DETERMINISM,
    HELD,
    NOT_HELD,
    PARITY,
    UNKNOWN,
    accuracy_gate,
    gates_of,
    impacts,
    in_quadrant,
    memory_gate,
    read_gate,
    run_tests,
    throughput_gate,
)
from tinyllama_tools.ablation.study import (
    Cell,
    GateRun,
    Kind,
    Point,
    RowName,
    Series,
    Table,
    check_rule,
    fit_exponent,
    ratio_text,
    removed_row,
    row_at,
    shows_difference,
)

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
