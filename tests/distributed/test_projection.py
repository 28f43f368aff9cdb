"""Projections against closed forms, the local steps they start from, and the check by what ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_up_scaling import LINK, World, analysis_of, document, step_name
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.models.collectives import (
    Hierarchy,
    Interconnect,
    Link,
    SourcedLink,
    read_interconnects,
    ring_all_reduce,
)
from tinyllama_tools.models.projection import (
    ALL_REDUCES,
    BACKWARD_SHARE,
    MEASURED,
    RANKS,
    STEP_BOUNDS,
    STEP_LOCAL,
    Analysis,
    Communication,
    LocalStep,
    ProjectedStep,
    Setting,
    project,
    step_bounds,
)
from tinyllama_tools.scaling.output import overview_lines, page
from tinyllama_tools.scaling.results import (
    local_steps,
    projections_of,
    scaling_document,
    steps_predicted,
)

NAME = parse_case_name("full_step/train/baseline/small/f32/batch:8/seq:256")
SECONDS = 0.4
BUCKETS = [1e6, 25e6, 25e6, 2e6]
NO_PROGRAM = Path("no_such_program")


def flat(link: Link) -> Interconnect:
    return Interconnect(
        "flat", "one link", 1, SourcedLink("link", link, "made up", "made up", True)
    )


def local(**more: object) -> LocalStep:
    assert NAME is not None
    return LocalStep(NAME, SECONDS, SECONDS, SECONDS, MEASURED, "made up", **more)  # type: ignore[arg-type]


def setting(overlap: float | None = 0.5, link: Link = LINK) -> Setting:
    return Setting(local(), BUCKETS, flat(link), overlap)


def test_one_device_takes_the_local_step() -> None:
    found = setting().at(1, 8, "weak")
    assert (found.seconds_low, found.seconds_high, found.seconds_between) == (SECONDS,) * 3
    assert (found.efficiency_low, found.efficiency_high) == (100, 100)
    assert found.kind == "projection"


def test_bounds_are_nothing_hidden_and_all_that_can_be() -> None:
    found = setting().at(2, 8, "weak")
    each = [ring_all_reduce(2, size, LINK) for size in BUCKETS]
    assert found.communication_seconds == pytest.approx(sum(each))
    assert found.seconds_high == pytest.approx(SECONDS + sum(each))
    # 53 MB take less than the backward, so only the last bucket is seen
    assert sum(each) < BACKWARD_SHARE * SECONDS
    assert found.seconds_low == pytest.approx(SECONDS + each[-1])
    assert found.seconds_between == pytest.approx(SECONDS + sum(each) / 2)


def test_no_more_is_hidden_than_the_backward_takes() -> None:
    low, high, between = step_bounds(1.0, 0.6, Communication(3.0, 0.1, "ring"), 0.9)
    assert (low, high, between) == pytest.approx((1 + 2.4, 4.0, 1 + 2.4))


def test_weak_and_strong_efficiencies() -> None:
    weak, strong = setting().at(8, 8, "weak"), setting().at(8, 1, "strong")
    assert weak.efficiency_low == pytest.approx(100 * SECONDS / weak.seconds_high)
    # one batch, which is proportional to its samples: an eighth of the step is left to each
    assert strong.local_seconds == pytest.approx(SECONDS / 8)
    assert strong.efficiency_high == pytest.approx(100 * SECONDS / 8 / strong.seconds_low)
    assert strong.efficiency_high < weak.efficiency_high


def test_what_a_small_batch_costs_is_known_from_two_batches() -> None:
    step = local(seconds_by_batch={4: 0.24})
    assert step.knows_small_batches
    # 0.08 + 0.04 a sample
    assert step.seconds_at(1) == pytest.approx(0.12)
    assert step.seconds_at(8) == SECONDS
    assert step.seconds_at(32) == pytest.approx(4 * SECONDS)
    found = Setting(step, BUCKETS, flat(LINK)).at(8, 1, "strong")
    assert found.efficiency_high < 100 * (SECONDS / 8) / 0.12
    assert not local().knows_small_batches
    assert not local(seconds_by_batch={4: 0.1}).knows_small_batches, "a constant below 0"


def test_more_devices_are_no_more_efficient() -> None:
    for one in read_interconnects():
        found = project(Setting(local(), BUCKETS, one, 0.5))
        for scaling in ("weak", "strong"):
            rows = [row for row in found if row.scaling == scaling]
            assert [row.ranks for row in rows] == list(RANKS), one.name
            for figure in ("efficiency_low", "efficiency_between"):
                values = [getattr(row, figure) for row in rows]
                assert values == sorted(values, reverse=True), (one.name, scaling)
            for row in rows:
                assert row.seconds_low <= (row.seconds_between or 0) <= row.seconds_high


def test_strong_scaling_ends_where_a_device_has_no_sample() -> None:
    found = project(setting(), global_batch=64)
    assert max(row.ranks for row in found if row.scaling == "strong") == 64
    with pytest.raises(ValueError, match=r"128 ranks with 0.5 samples each"):
        setting().at(128, 0.5, "strong")


def test_a_free_link_costs_nothing() -> None:
    found = Setting(local(), BUCKETS, flat(Link(1e-15, 1e30))).at(4096, 8, "weak")
    assert found.efficiency_low == pytest.approx(100)


def test_a_link_measured_as_a_ring_is_found_again(weak: Analysis) -> None:
    found = weak.measured_interconnect()
    assert found is not None
    assert found.hierarchy == Hierarchy(1, found.network.link)
    assert found.network.link.latency == pytest.approx(LINK.latency, rel=0.1)
    assert found.network.link.bandwidth == pytest.approx(LINK.bandwidth, rel=0.1)
    assert "4 ranks" in found.title


def test_a_projection_hides_the_share_of_the_all_reduces_by_themselves(tmp_path: Path) -> None:
    """C is made of those, so a share of what they cost within a step would be of something else."""
    world = World()
    changed = document(world)
    for entry in changed["benchmarks"]:
        if entry["run_name"] == step_name(world, "communication"):
            entry["real_time"] *= 2
    path = tmp_path / "ranks_2.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    found = analysis_of(path)
    expected = 1 - (1 - world.hidden) / 2
    assert found.overlap_share == pytest.approx(expected, abs=0.01)


def test_the_model_is_checked_by_what_was_run(weak: Analysis) -> None:
    found = {(c.ranks, c.fitted_at, c.what): c for c in weak.checks}
    assert {(2, 2), (4, 4), (4, 2)} == {key[:2] for key in found}
    world = World(ranks=4)
    for fitted_at in (2, 4):
        check = found[4, fitted_at, ALL_REDUCES]
        assert check.low == pytest.approx(world.communication, rel=0.05)
        assert check.percent_off == pytest.approx(100 * (check.low / check.measured - 1))
        assert abs(check.percent_off) < 10
        assert abs(found[4, fitted_at, STEP_LOCAL].percent_off) < 1
    # slower local work is not in the model: the measured step lies above, or is counted as between
    bounds = found[2, 2, STEP_BOUNDS]
    assert bounds.low < bounds.high
    assert bounds.percent_off == 0 or bounds.measured > bounds.high


def test_local_steps_are_those_of_the_rank_alone(weak: Analysis, strong: Analysis) -> None:
    found = local_steps(weak.results, [], NO_PROGRAM, "f32", "baseline")
    assert list(found.steps) == ["tiny"]
    step = found.steps["tiny"]
    assert step.seconds == pytest.approx(World().alone, rel=0.1)
    assert (step.kind, step.name.is_data_parallel) == (MEASURED, False)
    assert set(found.missing) == {"small", "medium", "large", "very_large"}
    assert "--local-step" in found.missing["large"]
    assert local_steps(weak.results, [], NO_PROGRAM, "bf16", "baseline").steps == {}
    whole = local_steps(strong.results, [], NO_PROGRAM, "f32", "baseline").steps["tiny"]
    assert whole.name.batch == 16
    # strong scaling tells what smaller batches cost
    assert set(whole.seconds_by_batch) == {8, 4}
    assert whole.knows_small_batches
    assert whole.seconds_at(1) / whole.seconds > 1.5 / 16


def test_a_named_result_counts_more_than_the_rank_alone(weak: Analysis, project_root: Path) -> None:
    measured = project_root / "results/reference/tiny_f32_2core_xeon_avx512.json"
    found = local_steps(weak.results, [measured], NO_PROGRAM, "f32", "baseline")
    assert measured.name in found.steps["tiny"].source
    reasons = set(found.missing.values())
    assert len(reasons) == 1 and "no_such_program" in reasons.pop()


def test_steps_that_cannot_be_predicted_say_why(project_root: Path) -> None:
    measured = project_root / "results/reference/tiny_f32_2core_xeon_avx512.json"
    results = read_result_set([measured])
    found, reason = steps_predicted(results, [], "bf16", "baseline")
    assert found == {}
    assert reason.startswith("no part of a baseline step was measured in bf16; measure embedding")


def test_the_whole_run_as_a_document_and_a_page(weak: Analysis) -> None:
    links = read_interconnects(names=["nvlink4_ndr", "ethernet_10g"])
    projections = projections_of(weak, [], links, NO_PROGRAM)
    assert {row.interconnect for row in projections.steps} == {
        *("measured", "nvlink4_ndr", "ethernet_10g")
    }
    assert projections.overlap == pytest.approx(World().hidden, abs=0.01)
    found = scaling_document(weak, projections, "scripts/scaling")
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["projection"]["steps"][0]["kind"] == "projection"
    rows = [ProjectedStep(**row) for row in json.loads(text)["projection"]["steps"]]
    assert rows == list(projections.steps)
    written = page(weak, projections, "scripts/scaling --processes 1,2,4")
    said = "\n".join(overview_lines(weak, projections))
    assert "| 4     | 3    | 0    | 3     |" in written
    for shown in (written, said):
        assert "No projection of small, medium, large, very_large" in shown
        assert "slower local work" in shown
        assert "None" not in shown and "nan" not in shown
    rows = [line for line in written.splitlines() if line.endswith("| projection |")]
    assert len(rows) == len(projections.steps)
    assert said.count("| projection |") == 2 * 3
