"""The other tools' rules, and what they make of processes that differ."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from tinyllama_tools.calibrate.draws import Costs, PairedBlocks, from_slices, simulate
from tinyllama_tools.calibrate.rates import Effort, Rule, false_alarm_row
from tinyllama_tools.calibrate.rivals import (
    APART,
    FEWEST_SAMPLES,
    IN_TURN,
    RIVALS,
    Rival,
    Tries,
    compare_by,
    fixed_threshold,
    mann_whitney,
    own_row,
    rival_rows,
)
from tinyllama_tools.stats.looks import Block

COMPARE_PY, BENCHSTAT, THRESHOLD = RIVALS


@cache
def quiet() -> PairedBlocks:
    return simulate("two modes", cases=4, blocks=60, seed=8)


def of(blocks: list[Block]) -> PairedBlocks:
    return from_slices({"case": blocks}, Costs(1.0, {"case": 1.0}))


def test_mann_whitney_claims_what_is_significant_at_five_percent() -> None:
    base, slower = [1.0, 1.1, 1.2, 1.3], [1.4, 1.5, 1.6, 1.7]
    assert mannwhitneyu(base, slower).pvalue < 0.05
    assert mann_whitney(base, slower) == 1
    assert mann_whitney(slower, base) == -1
    # three against three cannot be significant at that level
    assert mann_whitney(base[:3], slower[:3]) == 0
    assert mann_whitney(base, base) == 0


@pytest.mark.parametrize(("factor", "claim"), [(1.06, 1), (1.04, 0), (0.96, 0), (0.94, -1)])
def test_the_threshold_is_five_percent_of_medians(factor: float, claim: int) -> None:
    base = [1.0, 2.0, 3.0]
    assert fixed_threshold(base, [factor * second for second in base]) == claim


def test_apart_compares_a_process_with_the_next_and_in_turn_with_its_own() -> None:
    blocks = of([Block((1.0,) * 4, (1.0,) * 4), Block((2.0,) * 4, (2.0,) * 4)])
    assert compare_by(THRESHOLD, IN_TURN, blocks).claims == {"case": (0, 0)}
    assert compare_by(THRESHOLD, APART, blocks).claims == {"case": (1,)}


@pytest.mark.parametrize("tool", [COMPARE_PY, BENCHSTAT], ids=lambda tool: tool.name)
def test_tools_that_test_have_ten_samples_or_more_a_side(tool: Rival) -> None:
    sizes: list[int] = []

    def seen(base: list[float], new: list[float]) -> int:
        sizes.append(len(base))
        assert len(new) == len(base)
        return 0

    rival = Rival("seen", seen, tool.samples)
    blocks = of([Block((1.0,) * 8, (1.0,) * 8)] * 5)
    assert compare_by(rival, APART, blocks).samples == 16
    assert sizes == [16, 16]
    assert min(sizes) >= FEWEST_SAMPLES


def test_cases_with_fewer_slices_decide_how_many_processes_are_pooled() -> None:
    short, long = [Block((1.0,) * 5, (1.0,) * 5)] * 6, [Block((1.0,) * 10, (1.0,) * 10)] * 6
    data = from_slices({"short": short, "long": long}, Costs(1.0, {"short": 1.0, "long": 1.0}))
    tries = compare_by(COMPARE_PY, APART, data)
    assert {name: len(found) for name, found in tries.claims.items()} == {"short": 3, "long": 3}
    assert tries.samples == 10
    assert tries.per_family(2, 20, seed=1).value == 0


def test_too_few_blocks_are_named() -> None:
    with pytest.raises(ValueError, match="1 blocks of case: Google Benchmark"):
        compare_by(COMPARE_PY, APART, of([Block((1.0,), (1.0,))]))


def test_without_slices_there_is_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="slices"):
        compare_by(COMPARE_PY, APART, quiet().summaries_only())


def test_a_family_claims_where_any_of_its_cases_does() -> None:
    tries = Tries({"a": (1, 0, 0, 0), "b": (0, 0, 0, -1)})
    assert tries.per_case.value == 2 / 8
    assert tries.found.value == 1 / 8
    one = tries.per_family(2, 4000, seed=1).value
    assert one == pytest.approx(1 / 2, abs=0.04)
    assert tries.per_family(4, 4000, seed=1).value == pytest.approx(3 / 4, abs=0.04)
    # of three cases, the third is "a" again
    assert tries.per_family(3, 4000, seed=1).value == pytest.approx(1 - 1 / 2 * 3 / 4, abs=0.04)


def test_every_rival_raises_alarms_where_processes_differ_and_this_comparison_does_not() -> None:
    effort = Effort(families=50, cases=4, tries=1, jobs=1, seed=1)
    rows = rival_rows(quiet(), effort, 20)
    arrangements = (APART, IN_TURN, f"{APART}, 20 blocks", f"{IN_TURN}, 20 blocks")
    assert {(row["tool"], row["arrangement"]) for row in rows} == {
        (rival.name, arrangement) for rival in RIVALS for arrangement in arrangements
    }
    assert {row["samples"] for row in rows if row["arrangement"] in arrangements[2:]} == {"160"}
    rows = [row for row in rows if row["arrangement"] in arrangements[:2]]
    assert {row["tool"]: row["samples"] for row in rows} == {
        COMPARE_PY.name: "16",
        BENCHSTAT.name: "16",
        THRESHOLD.name: "8",
    }
    assert all(row["false_per_case"]["share"] > 0.15 for row in rows if row["arrangement"] == APART)
    assert all(row["false_per_family"]["share"] > row["false_per_case"]["share"] for row in rows)
    # 12 blocks hold no comparison of 8 processes after 8 others
    fewer = rival_rows(quiet().part(0, 12), effort, 8)
    assert {row["arrangement"] for row in fewer} == {APART, IN_TURN, f"{IN_TURN}, 8 blocks"}
    rule = Rule(1e-3, 0.03, 1)
    alarms = false_alarm_row("a", quiet(), rule, effort)
    ours = own_row(alarms, [], 0.03, "56 to 80")
    assert ours["false_per_family"]["count"] == 0
    assert ours["false_per_case"]["trials"] == 200


def test_detection_of_the_rivals_grows_with_the_slowdown() -> None:
    for rival in RIVALS:
        shares = [compare_by(rival, IN_TURN, quiet(), x).found.value for x in (0.0, 0.05, 0.5)]
        assert shares[0] < shares[1] < shares[2]
        assert shares[2] > 0.9
    assert not np.isnan(shares).any()
