"""The loops of the ablation: what is asked for, in which order, and what stays visible."""

import pytest

from ablation_stand_in import OTHER, POINT, StandIn, measurement, study
from tinyllama_tools.ablation.command import Effort, parse_options, plan_main, run_study
from tinyllama_tools.ablation.study import (
    Kind,
    Spelling,
    SpellingBook,
    Study,
    planned_rows,
    resolved_switches,
    without,
)


def options(*arguments: str) -> object:
    base = ["--switches=qkv,sdpa,graph", "--dtypes=f32", "--points=8x128", "--only=main"]
    return parse_options([*base, "--turns=6", *arguments])


def run(program: StandIn, *arguments: str) -> Study:
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
    made = run(StandIn())
    names = ["baseline", "qkv", "sdpa", "graph", "fused", "optimized"]
    names += ["optimized without qkv", "optimized without sdpa"]
    assert [row.name for row in made.rows] == names
    turns = {name: sorted(made.main.get(name, POINT).turns) for name in names}
    assert turns == {name: [] if name == "graph" else list(range(6)) for name in names}
    assert made.meta["turns_done"] == 6
    assert made.main.get("optimized without qkv", POINT).variant == "sdpa"


def test_verified_first_then_a_process_a_case_in_changing_order() -> None:
    program = StandIn()
    run(program)
    verified = [names for names, verify in program.calls if verify]
    # all that is known, in one process; then what follows from the label of `optimized`
    assert [len(names) for names in verified] == [6, 2]
    timed = [names for names, verify in program.calls if not verify]
    assert program.calls[:2] == [(names, True) for names in verified]
    assert {len(names) for names in timed} == {1}
    orders = {tuple(names for (names,) in timed[i : i + 7]) for i in range(0, len(timed), 7)}
    assert len(orders) > 1
    again = StandIn()
    run(again)
    assert again.calls == program.calls


def test_skipped_refused_and_wrong_stay_with_their_reason() -> None:
    program = StandIn()
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
    program = StandIn()
    program.crashes.add("fused")
    made = run(program)
    assert made.main.get("fused", POINT).failure == "tiny_llama_bench ended with -11"
    assert made.main.get("qkv", POINT).turns
    assert made.main.get("qkv", POINT).counter("max_rel_error") == 1e-6


def test_slow_cells_get_five_turns_of_a_step() -> None:
    program = StandIn({"baseline": 5.0})
    made = run(program)
    assert {steps for names, steps in program.steps if "/baseline/" in names} == {1}
    assert {steps for names, steps in program.steps if "/qkv/" in names} == {5}
    assert sorted(made.main.get("baseline", POINT).turns) == [0, 1, 2, 3, 4]
    assert sorted(made.main.get("qkv", POINT).turns) == [0, 1, 2, 3, 4, 5]


def test_interruption_keeps_what_was_measured() -> None:
    program = StandIn()
    program.interrupt_after = 20
    chosen = options()
    made = study(*chosen.switches)
    with pytest.raises(KeyboardInterrupt):
        run_study(made, measurement(program, Effort(6)), chosen, lambda: None, 120)
    assert len(made.main.get("baseline", POINT).turns) in {2, 3}


def test_removed_rows_only_where_optimized_has_the_switch() -> None:
    class OnlyInF32(StandIn):
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
    program = StandIn()
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
