"""Latency and bandwidth, formulas of collectives and projections against closed forms."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from made_up_scaling import LINK, World, analysis_of, document, step_name
from tinyllama_tools.commands.scaling_page import overview_lines, page, scaling_document
from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.models.collectives import (
    FIXTURE,
    MIB,
    NONE,
    RING,
    TREE,
    AlphaBeta,
    FitRefusedError,
    Hierarchy,
    Interconnect,
    Link,
    SourcedLink,
    all_reduce,
    buckets_of,
    fit_alpha_beta,
    flat_all_reduce,
    link_of_ring,
    parameter_counts,
    plan_buckets,
    read_interconnects,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)
from tinyllama_tools.models.local_steps import LocalStep, local_steps
from tinyllama_tools.models.scaling_projection import (
    ALL_REDUCES,
    BACKWARD_SHARE,
    MEASURED,
    RANKS,
    STEP_BOUNDS,
    STEP_LOCAL,
    Analysis,
    Communication,
    ProjectedStep,
    Setting,
    project,
    projections_of,
    step_bounds,
)

ALPHA, BANDWIDTH = 30e-6, 1.5e9


SIZES = [1024 * 4**i for i in range(9)]


def times(
    noise: float, seed: int = 0, of: Callable[[int], float] | None = None
) -> dict[int, float]:
    chance = random.Random(seed)
    exact = of or (lambda size: ALPHA + size / BANDWIDTH)
    return {size: exact(size) * math.exp(chance.gauss(0, noise)) for size in SIZES}


def fitted(noise: float, seed: int = 0) -> AlphaBeta:
    return fit_alpha_beta("all_reduce", 2, times(noise, seed))


def test_exact_times_give_back_what_made_them() -> None:
    fit = fitted(0.0)
    assert fit.alpha == pytest.approx(ALPHA, rel=1e-6)
    assert fit.bandwidth == pytest.approx(BANDWIDTH, rel=1e-6)
    assert fit.scatter < 1e-4
    assert fit.worst_held_out is not None and fit.worst_held_out < 1e-4
    assert (fit.sizes, fit.smallest, fit.largest) == (9, SIZES[0], SIZES[-1])


def test_the_intervals_hold_the_truth_as_often_as_they_say() -> None:
    draws = 200
    fits = [fitted(0.05, seed) for seed in range(draws)]
    alphas = sum(f.alpha_range.low <= ALPHA <= f.alpha_range.high for f in fits)
    rates = sum(f.bandwidth_range.low <= BANDWIDTH <= f.bandwidth_range.high for f in fits)
    # 190 expected; below 180 has a chance of 1 in 500 at 95 %
    assert min(alphas, rates) >= 180
    # and they are no wider than they need be
    assert max(alphas, rates) < draws


def test_small_and_large_sizes_count_alike() -> None:
    """The largest size is 65,536 times the smallest; its error must not decide alone."""
    changed = times(0.0)
    changed[SIZES[-1]] *= 1.1
    fit = fit_alpha_beta("all_reduce", 2, changed)
    assert fit.alpha == pytest.approx(ALPHA, rel=0.03)


def test_too_few_sizes_are_refused() -> None:
    few = dict(list(times(0.0).items())[:2])
    with pytest.raises(FitRefusedError, match=r"all_reduce, 2 ranks: 2 sizes, at least 3"):
        fit_alpha_beta("all_reduce", 2, few)


@pytest.mark.parametrize(
    ("of", "term"),
    [
        (lambda size: 1e-3 + 1e-12 * (SIZES[-1] - size), "time a byte"),
        (lambda size: size**1.5 * 1e-12, "latency"),
    ],
)
def test_a_term_below_zero_is_refused(of: Callable[[int], float], term: str) -> None:
    with pytest.raises(FitRefusedError, match=f"the fit has a {term} of -"):
        fit_alpha_beta("all_gather", 4, times(0.0, of=of))


def test_every_operation_of_a_run_is_fitted(weak: Analysis) -> None:
    found = {(fit.operation, fit.ranks): fit for fit in weak.fits}
    assert len(found) == 3 * 2
    for (operation, ranks), fit in found.items():
        model = ring_all_reduce if operation == "all_reduce" else ring_reduce_scatter
        for size in (0, 1 << 20):
            exact = model(ranks, size, World().link)
            assert fit.seconds(size) == pytest.approx(exact, rel=0.1)
    assert weak.refused == ()


WIRE = Link(1e-5, 1e9)


NODE = Hierarchy(8, Link(1e-5, 5e9), Link(2e-6, 4e11))


POWERS = [2**power for power in range(13)]


MESSAGES = [1 << 10, 1 << 16, 1 << 20, 1 << 25, 1 << 30]


def test_a_ring_sends_an_nth_in_each_of_its_steps() -> None:
    assert ring_reduce_scatter(4, 4e9, WIRE) == pytest.approx(3 * (1e-5 + 1.0))
    assert ring_all_reduce(4, 4e9, WIRE) == pytest.approx(6 * (1e-5 + 1.0))
    assert ring_all_gather(2, 1e9, WIRE) == pytest.approx(1e-5 + 0.5)


@pytest.mark.parametrize("size", MESSAGES)
def test_one_rank_has_nobody_to_talk_to(size: int) -> None:
    assert ring_all_reduce(1, size, WIRE) == 0
    assert tree_all_reduce(1, size, WIRE) == 0
    assert all_reduce(1, size, NODE).seconds == 0
    assert all_reduce(1, size, NODE).algorithm == NONE


def test_a_tree_is_at_its_best_with_the_best_number_of_packets() -> None:
    size, steps = 1e8, 2 * 6
    whole = size / WIRE.bandwidth
    tried = [2 * (steps + k) * (WIRE.latency + whole / k) for k in range(1, 5000)]
    found = tree_all_reduce(64, size, WIRE)
    assert found <= min(tried)
    assert found == pytest.approx(min(tried), rel=1e-4)
    closed = 2 * ((steps * WIRE.latency) ** 0.5 + whole**0.5) ** 2
    assert found == pytest.approx(closed)


@pytest.mark.parametrize("ranks", [16, 64, 1024, 4096])
def test_trees_win_small_messages_and_rings_large_ones(ranks: int) -> None:
    assert flat_all_reduce(ranks, 1 << 10, WIRE).algorithm == TREE
    assert flat_all_reduce(ranks, 1 << 40, WIRE).algorithm == RING
    for size in MESSAGES:
        best = min(ring_all_reduce(ranks, size, WIRE), tree_all_reduce(ranks, size, WIRE))
        assert flat_all_reduce(ranks, size, WIRE).seconds == best


@pytest.mark.parametrize("links", [NODE, Hierarchy(1, WIRE)])
def test_more_bytes_or_more_nodes_take_no_less_time(links: Hierarchy) -> None:
    for ranks in POWERS:
        of_size = [all_reduce(ranks, size, links).seconds for size in MESSAGES]
        assert of_size == sorted(of_size)
    for size in MESSAGES:
        of_ranks = [all_reduce(ranks, size, links).seconds for ranks in POWERS]
        assert of_ranks == sorted(of_ranks)


def test_a_hierarchy_is_its_three_parts() -> None:
    size = float(1 << 26)
    device = NODE.device
    assert device is not None
    within = ring_reduce_scatter(8, size, device) + ring_all_gather(8, size, device)
    between = flat_all_reduce(16, size / 8, NODE.network)
    found = all_reduce(128, size, NODE)
    assert found.seconds == pytest.approx(within + between.seconds)
    assert found.algorithm == between.algorithm
    assert all_reduce(8, size, NODE) == flat_all_reduce(8, size, device)


def test_nodes_must_be_full() -> None:
    with pytest.raises(ValueError, match="12 ranks: must be a multiple of the 8 devices"):
        all_reduce(12, 1024, NODE)


def test_a_measured_ring_gives_back_its_link() -> None:
    ranks = 4
    alpha, whole = 2 * (ranks - 1) * WIRE.latency, WIRE.bandwidth * ranks / (2 * (ranks - 1))
    found = link_of_ring(alpha, whole, ranks)
    assert (found.latency, found.bandwidth) == pytest.approx((WIRE.latency, WIRE.bandwidth))
    with pytest.raises(ValueError, match="at least 2"):
        link_of_ring(1e-5, 1e9, 1)


def test_buckets_hold_every_gradient_once() -> None:
    for size, of in problem_sizes().items():
        counts = parameter_counts(of)
        buckets = buckets_of(of, "f32", 25 * MIB)
        assert sum(buckets) == 4 * sum(counts), size
        assert sum(buckets_of(of, "bf16", 25 * MIB)) == 2 * sum(counts)
    assert sum(parameter_counts(problem_sizes()["tiny"])) == 2_873_600


def test_buckets_are_cut_where_they_would_grow_too_large() -> None:
    # from the last parameter: the first bucket holds 1 MiB, the others what was asked for
    sizes = [3 * MIB, 2 * MIB, 2 * MIB, MIB // 2, MIB // 2, MIB // 2]
    assert plan_buckets(sizes, 4 * MIB) == [MIB, 5 * MIB // 2, 2 * MIB, 3 * MIB]
    assert plan_buckets([10 * MIB, 1], MIB) == [1, 10 * MIB]


def test_every_link_has_its_sources() -> None:
    found = read_interconnects()
    assert {"nvlink4_ndr", "mi300x_ndr", "mi250x_slingshot11", "ethernet_10g"} <= {
        one.name for one in found
    }
    for one in found:
        assert (one.device is None) == (one.devices_per_node == 1)
        for of in one.links:
            assert of.is_assumed == of.latency_source.startswith("Assumption: "), one.name
            assert "http" in of.bandwidth_source or "IEEE" in of.bandwidth_source
            assert of.is_assumed or "http" in of.latency_source


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.update(devices_per_node=6), "devices_per_node: 6 is not one of [1, 2, 4"),
        (lambda one: one.update(device_link=None), "device_link: None is not of type 'object'"),
        (
            lambda one: one["network_link"].pop("latency_us"),
            "network_link: 'latency_us' is a required property",
        ),
        (
            lambda one: one["network_link"].update(GB_per_second=-1),
            "GB_per_second: -1 is less than",
        ),
        (lambda one: one["network_link"].update(latency_us=math.nan), "latency_us: nan is not"),
        (lambda one: one["network_link"]["source"].update(latency=""), "source.latency: '' "),
        (
            lambda one: one["network_link"].update(latency_is_assumption="no"),
            "latency_is_assumption: 'no' is not of type 'boolean'",
        ),
    ],
)
def test_a_bad_link_is_named(tmp_path: Path, change: object, said: str) -> None:
    changed = json.loads(FIXTURE.read_text(encoding="utf-8"))
    change(changed["interconnects"][0])  # type: ignore[operator]
    path = tmp_path / "links.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(BadInputError, match=r"interconnects\[0\]") as refused:
        read_interconnects(path)
    assert said in str(refused.value)


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


def test_the_whole_run_as_a_document_and_a_page(weak: Analysis) -> None:
    links = read_interconnects(names=["nvlink4_ndr", "ethernet_10g"])
    projections = projections_of(
        weak,
        lambda dtype, variant: local_steps(weak.results, [], NO_PROGRAM, dtype, variant),
        links,
    )
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
