"""Latency and bandwidth, formulas of collectives and projections against closed forms."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

from fake_training import set_key
from made_up_scaling import LINK, World, ring_seconds
from tinyllama_tools.core.app import RESULTS, BadInputError, problem_sizes
from tinyllama_tools.data.names import full_step
from tinyllama_tools.models.collectives import (
    FIXTURE,
    MIB,
    RING,
    TREE,
    AlphaBeta,
    FitRefusedError,
    Interconnect,
    Link,
    SourcedLink,
    all_reduce,
    buckets_of,
    fit_alpha_beta,
    flat_all_reduce,
    link_of_ring,
    plan_buckets,
    read_interconnects,
    ring_all_reduce,
    tree_all_reduce,
)
from tinyllama_tools.models.data_parallel import Analysis
from tinyllama_tools.models.scaling_projection import (
    MEASURED,
    LocalStep,
    Setting,
    local_steps,
    read_step_source,
)

ALPHA, BANDWIDTH = 30e-6, 1.5e9
SIZES = [1024 * 4**i for i in range(9)]
NO_PROGRAM = Path("no_such_program")


def fitted(
    noise: float, seed: int = 0, of: Callable[[int], float] | None = None, count: int = 9
) -> AlphaBeta:
    chance = random.Random(seed)
    exact = of or (lambda size: ALPHA + size / BANDWIDTH)
    times = {size: exact(size) * math.exp(chance.gauss(0, noise)) for size in SIZES[:count]}
    return fit_alpha_beta("all_reduce", 2, times)


def test_a_fit_is_that_of_scipy() -> None:
    """Its weights, its covariance, its misfits and what it predicts of a size left out."""
    fit, chance = fitted(0.1), random.Random(0)
    seconds = np.array([(ALPHA + s / BANDWIDTH) * math.exp(chance.gauss(0, 0.1)) for s in SIZES])

    def expected(sizes: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def line(size: np.ndarray, a: float, b: float) -> np.ndarray:
            return ALPHA * a + size / BANDWIDTH * b

        scale = np.array([ALPHA, 1 / BANDWIDTH])
        found, covariance = optimize.curve_fit(line, sizes, times, p0=(1, 1), sigma=times)
        return found * scale, np.sqrt(np.diag(covariance)) * scale

    sizes = np.array(SIZES, dtype=float)
    (alpha, per_byte), errors = expected(sizes, seconds)
    assert (fit.alpha, 1 / fit.bandwidth) == pytest.approx((alpha, per_byte), rel=1e-4)
    reach = 2.364624 * errors  # Student's, of 7 degrees of freedom
    assert fit.alpha_range["high"] == pytest.approx(alpha + reach[0], rel=1e-4)
    assert fit.bandwidth_range["low"] == pytest.approx(1 / (per_byte + reach[1]), rel=1e-4)
    misfits = 100 * np.abs((alpha + per_byte * sizes) / seconds - 1)
    assert fit.scatter == pytest.approx(misfits.max(), rel=1e-3)
    (alpha, per_byte), _ = expected(sizes[1:], seconds[1:])
    off = 100 * ((alpha + per_byte * sizes[0]) / seconds[0] - 1)
    assert fit.held_out[0] == {"bytes": 1024, "percent_off": pytest.approx(off, rel=1e-3)}


def test_the_intervals_hold_the_truth_as_often_as_they_say() -> None:
    fits = [fitted(0.05, seed) for seed in range(200)]
    alphas = sum(f.alpha_range["low"] <= ALPHA <= (f.alpha_range["high"] or 0) for f in fits)
    rates = sum(
        f.bandwidth_range["low"] <= BANDWIDTH <= (f.bandwidth_range["high"] or 0) for f in fits
    )
    # 190 expected; below 180 has a chance of 1 in 500 at 95 %. Nor are they wider than need be
    assert 180 <= min(alphas, rates) <= max(alphas, rates) < 200


def test_a_fit_that_the_data_does_not_support_is_refused() -> None:
    for of, count, said in (
        (None, 2, "all_reduce, 2 ranks: 2 sizes, at least 3"),
        (lambda size: 1e-3 + 1e-12 * (SIZES[-1] - size), 9, "has a time a byte of -"),
        (lambda size: size**1.5 * 1e-12, 9, "has a latency of -"),
    ):
        with pytest.raises(FitRefusedError, match=said):
            fitted(0.0, of=of, count=count)


def test_every_operation_of_a_run_is_fitted(weak: Analysis) -> None:
    assert (len(weak.fits), weak.refused) == (3 * 2, ())
    for fit in weak.fits:
        for size in (0, MIB):
            exact = ring_seconds(fit.operation, fit.ranks, size)
            assert fit.seconds(size) == pytest.approx(exact, rel=0.1)
    found = weak.interconnect
    assert found is not None and "4 ranks" in found.title
    assert found.network.link.latency == pytest.approx(LINK.latency, rel=0.1)
    assert found.network.link.bandwidth == pytest.approx(LINK.bandwidth, rel=0.1)


WIRE = Link(1e-5, 1e9)
POWERS = [2**power for power in range(13)]
MESSAGES = [1 << 10, 1 << 16, 1 << 20, 1 << 25, 1 << 30]


def interconnect(network: Link, per_node: int = 1, device: Link | None = None) -> Interconnect:
    network_link, device_link = (
        SourcedLink("link", link, "made up", "made up", True) if link else None
        for link in (network, device)
    )
    assert network_link is not None
    return Interconnect("made up", "made up", per_node, network_link, device_link)


def test_formulas_by_hand() -> None:
    # 3 steps of a quarter, there and back
    assert ring_all_reduce(4, 4e9, WIRE) == pytest.approx(6 * (1e-5 + 1.0))
    assert all_reduce(1, 1e9, interconnect(WIRE)) == (0.0, "none")
    assert tree_all_reduce(64, 1e8, WIRE) == pytest.approx(
        2 * (math.sqrt(2 * 6 * 1e-5) + math.sqrt(0.1)) ** 2
    )
    # the best of all numbers of packets, and whole where one would be larger than the vector
    steps, whole = 2 * 6, 1e8 / 1e9
    tried = min(2 * (steps + k) * (1e-5 + whole / k) for k in range(1, 5000))
    assert tree_all_reduce(64, 1e8, WIRE) == pytest.approx(tried, rel=1e-4)
    assert tree_all_reduce(5, 1.0, WIRE) == pytest.approx(2 * (2 * 3 + 1) * (1e-5 + 1e-9))
    for ranks in (16, 4096):
        small, large = (flat_all_reduce(ranks, size, WIRE) for size in (1 << 10, 1 << 40))
        assert small == (tree_all_reduce(ranks, 1 << 10, WIRE), TREE)
        assert large == (ring_all_reduce(ranks, 1 << 40, WIRE), RING)
    # the link of a measured ring: 4 ranks, 6 messages, 6 / 4 of the vector
    assert link_of_ring(6e-5, 1e9 * 4 / 6, 4) == Link(
        pytest.approx(WIRE.latency), pytest.approx(WIRE.bandwidth)
    )


def test_nodes_of_several_devices() -> None:
    device = Link(2e-6, 4e11)
    over = interconnect(Link(1e-5, 5e9), 8, device)
    size = float(1 << 26)
    between = flat_all_reduce(16, size / 8, over.network.link)
    within = 14 * (device.latency + size / 8 / device.bandwidth)
    assert all_reduce(128, size, over) == (pytest.approx(within + between[0]), between[1])
    assert all_reduce(8, size, over) == flat_all_reduce(8, size, device)
    with pytest.raises(ValueError, match="12 ranks: must be a multiple of the 8 devices"):
        all_reduce(12, 1024, over)
    for links in (over, interconnect(WIRE)):
        times = np.array([[all_reduce(n, size, links)[0] for size in MESSAGES] for n in POWERS])
        assert (np.diff(times, axis=0) >= 0).all() and (np.diff(times, axis=1) >= 0).all()


def test_buckets() -> None:
    """From the last parameter: the first holds 1 MiB, the others what was asked for."""
    sizes = [3 * MIB, 2 * MIB, 2 * MIB, MIB // 2, MIB // 2, MIB // 2]
    assert plan_buckets(sizes, 4 * MIB) == [MIB, 5 * MIB // 2, 2 * MIB, 3 * MIB]
    assert plan_buckets([10 * MIB, 1], MIB) == [1, 10 * MIB]
    tiny = problem_sizes()["tiny"]
    assert sum(buckets_of(tiny, "f32", 25 * MIB)) == 4 * 2_873_600
    assert sum(buckets_of(tiny, "bf16", MIB)) == 2 * 2_873_600
    for result in (RESULTS / "reference").glob("ranks_*/ranks_2.json"):
        # what the program says of itself
        of = json.loads(result.read_text(encoding="utf-8"))["context"]["distributed"]
        size = problem_sizes()["small"]
        assert buckets_of(size, "f32", of["bucket_MiB"] * MIB) == of["bucket_bytes"]


def test_every_link_has_its_sources() -> None:
    for one in read_interconnects():
        assert (one.device is None) == (one.devices_per_node == 1)
        for of in filter(None, (one.device, one.network)):
            assert of.is_assumed == of.latency_source.startswith("Assumption: "), one.name
            assert "http" in of.bandwidth_source or "IEEE" in of.bandwidth_source
            assert of.is_assumed or "http" in of.latency_source
    (ndr,) = read_interconnects(names=["nvlink4_ndr"])
    assert ndr.network.link == Link(pytest.approx(9.6e-6), pytest.approx(50e9))


def test_a_bad_link_is_named(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    for key, value, said in (
        ("devices_per_node", 6, "devices_per_node: 6 is not one of [1, 2, 4"),
        ("device_link", None, "device_link: None is not of type 'object'"),
        ("network_link.latency_us", math.nan, "latency_us: nan is not"),
        ("network_link.source.latency", "", "source.latency: '' "),
    ):
        changed = json.loads(FIXTURE.read_text(encoding="utf-8"))
        set_key(changed, f"interconnects.0.{key}", value)
        path.write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(BadInputError) as refused:
            read_interconnects(path)
        assert f"interconnects[0].{key.split('.')[0]}" in str(refused.value)
        assert said in str(refused.value)


SECONDS, BUCKETS = 0.4, [1e6, 25e6, 25e6, 2e6]
# of 2 ranks: 53 MB take less than the backward
EACH = [ring_seconds("all_reduce", 2, size) for size in BUCKETS]


def local(**more: object) -> LocalStep:
    name = full_step("small", "f32", 8, 256)
    return LocalStep(name, SECONDS, SECONDS, SECONDS, MEASURED, "made up", **more)  # type: ignore[arg-type]


def setting(step: LocalStep | None = None, link: Link = LINK) -> Setting:
    return Setting(step or local(), BUCKETS, interconnect(link), 0.5)


def test_bounds_are_nothing_hidden_and_all_that_can_be() -> None:
    alone, found = setting().at(1, 8, "weak"), setting().at(2, 8, "weak")
    assert (alone["seconds_low"], alone["seconds_high"], alone["seconds_between"]) == (SECONDS,) * 3
    assert found["communication_seconds"] == pytest.approx(sum(EACH))
    assert found["seconds_high"] == pytest.approx(SECONDS + sum(EACH))
    # only the last bucket is seen
    assert found["seconds_low"] == pytest.approx(SECONDS + EACH[-1])
    assert found["seconds_between"] == pytest.approx(SECONDS + sum(EACH) / 2)
    assert found["efficiency_low"] == pytest.approx(100 * SECONDS / found["seconds_high"])
    # no more is hidden than two thirds of the step, whatever was measured
    slow = setting(link=Link(1e-6, 53e6 / 3)).at(2, 8, "weak")
    least = slow["communication_seconds"] - 2 / 3 * SECONDS
    assert slow["seconds_low"] == slow["seconds_between"] == pytest.approx(SECONDS + least)
    # of several batches one after the other, only the last one's backward
    four = setting(link=Link(1e-6, 53e6 / 3)).at(2, 32, "weak")
    assert four["seconds_low"] == pytest.approx(4 * SECONDS + least)


def test_strong_scaling_shares_a_batch() -> None:
    """Proportional to the samples where only one batch is known; by a line through two."""
    found = setting().at(8, 1, "strong")
    assert found["local_seconds"] == pytest.approx(SECONDS / 8)
    assert found["efficiency_high"] == pytest.approx(100 * SECONDS / 8 / found["seconds_low"])
    step = local(seconds_by_batch={4: 0.24})  # 0.08 + 0.04 a sample
    assert step.knows_small_batches
    times = [step.seconds_at(batch) for batch in (1, 8, 32)]
    assert times == pytest.approx([0.12, SECONDS, 4 * SECONDS])
    found = setting(step).at(8, 1, "strong")
    assert found["efficiency_high"] == pytest.approx(100 * SECONDS / 8 / found["seconds_low"])
    assert found["local_seconds"] == pytest.approx(0.12)
    assert not local(seconds_by_batch={4: 0.1}).knows_small_batches, "a constant below 0"


def test_more_devices_are_no_more_efficient() -> None:
    for one in read_interconnects():
        found = Setting(local(), BUCKETS, one, 0.5).project(64)
        for scaling, largest in (("weak", 4096), ("strong", 64)):
            rows = [row for row in found if row["scaling"] == scaling]
            assert [row["ranks"] for row in rows] == [n for n in POWERS if 8 <= n <= largest]
            for figure in ("efficiency_low", "efficiency_between"):
                values = [row[figure] for row in rows]
                assert values == sorted(values, reverse=True), (one.name, scaling)
            assert all(r["seconds_low"] <= r["seconds_between"] <= r["seconds_high"] for r in rows)


def test_local_steps_are_those_of_the_rank_alone(weak: Analysis, strong: Analysis) -> None:
    steps, missing = local_steps(weak.results, [], NO_PROGRAM, "f32", "baseline")
    assert list(steps) == ["tiny"]
    assert steps["tiny"].seconds == pytest.approx(World().alone, rel=0.1)
    assert str(steps["tiny"].name) == "full_step/train/baseline/tiny/f32/batch:8/seq:128"
    assert set(missing) == {"small", "medium", "large", "very_large"}
    assert "--local-step" in missing["large"]
    assert local_steps(weak.results, [], NO_PROGRAM, "bf16", "baseline")[0] == {}
    whole = local_steps(strong.results, [], NO_PROGRAM, "f32", "baseline")[0]["tiny"]
    # strong scaling tells what smaller batches cost
    assert (whole.name.batch, set(whole.seconds_by_batch)) == (16, {8, 4})
    ratio = World().seconds_alone(1) / World().seconds_alone(16)
    assert whole.seconds_at(1) / whole.seconds == pytest.approx(ratio, rel=0.2)

    # a named result counts more than the rank alone
    source = read_step_source(RESULTS / "reference/tiny_f32_2core_xeon_avx512.json")
    steps, missing = local_steps(weak.results, [source], NO_PROGRAM, "f32", "baseline")
    assert source.path.name in steps["tiny"].source
    (reason,) = set(missing.values())
    assert "no_such_program" in reason
