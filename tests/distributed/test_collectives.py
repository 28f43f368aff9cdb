"""Latency and bandwidth, formulas of collectives and projections against independent ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

from built_programs import read_json
from published import analysis_of, reference
from tinyllama_tools.core.app import RESULTS, BadInputError, problem_sizes, write_whole
from tinyllama_tools.data.names import full_step
from tinyllama_tools.models.collectives import (
    FIXTURE,
    MIB,
    AlphaBeta,
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
)
from tinyllama_tools.models.data_parallel import MEASURED
from tinyllama_tools.models.projection import LocalStep, local_steps, project, read_step_source

ALPHA, BANDWIDTH = 30e-6, 1.5e9
SIZES = [1024 * 4**i for i in range(9)]


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
    off = []
    for size, time in zip(sizes, seconds, strict=True):
        (alpha, per_byte), _ = expected(sizes[sizes != size], seconds[sizes != size])
        off.append(100 * abs((alpha + per_byte * size) / time - 1))
    assert (fit.median_held_out, fit.worst_held_out) == pytest.approx(
        (np.median(off), max(off)), rel=1e-3
    )
    assert fitted(0.1, count=3).worst_held_out is None


def test_a_fit_that_the_data_does_not_support_is_refused() -> None:
    for of, count, said in (
        (None, 2, "all_reduce, 2 ranks: 2 sizes, at least 3"),
        (lambda size: 1e-3 + 1e-12 * (SIZES[-1] - size), 9, "has a time a byte of -"),
        (lambda size: size**1.5 * 1e-12, 9, "has a latency of -"),
    ):
        with pytest.raises(BadInputError, match=said):
            fitted(0.0, of=of, count=count)


WIRE, DEVICE = Link(1e-5, 1e9), Link(2e-6, 4e11)
POWERS = [2**power for power in range(13)]


def interconnect(network: Link, per_node: int = 1, device: Link | None = None) -> Interconnect:
    links = [of and SourcedLink("link", of, "made up", "made up", True) for of in (network, device)]
    return Interconnect("made up", "made up", per_node, *links)


def by_packets(ranks: int, size: float, link: Link) -> float:
    """Of two trees, the best number of packets, each of which goes up and down a level a step."""
    steps, whole = 2 * math.ceil(math.log2(ranks)), size / link.bandwidth
    packets = np.arange(1, 20_000)
    return float((2 * (steps + packets) * (link.latency + whole / packets)).min())


@pytest.mark.parametrize("ranks", [2, 5, 80, 4096])
@pytest.mark.parametrize("size", [1.0, 1 << 20, 1e8, 1 << 40])
def test_an_all_reduce_is_the_faster_of_ring_and_tree(ranks: int, size: float) -> None:
    # N - 1 messages of an Nth, there and back
    ring = 2 * sum(WIRE.latency + size / ranks / WIRE.bandwidth for _ in range(ranks - 1))
    tree = by_packets(ranks, size, WIRE)
    seconds, algorithm = flat_all_reduce(ranks, size, WIRE)
    # between whole numbers of packets the formula may be a little faster
    assert seconds == pytest.approx(min(ring, tree), rel=5e-3)
    assert algorithm == ("ring" if ring < tree else "tree") or ring == pytest.approx(tree, rel=2e-3)
    # the link of a measured ring
    alpha, per_byte = 2 * (ranks - 1) * WIRE.latency, 2 * (ranks - 1) / ranks / WIRE.bandwidth
    found = link_of_ring(alpha, 1 / per_byte, ranks)
    assert (found.latency, found.bandwidth) == pytest.approx((1e-5, 1e9))


def test_nodes_of_several_devices() -> None:
    over, size = interconnect(Link(1e-5, 5e9), 8, DEVICE), float(1 << 26)
    between = flat_all_reduce(16, size / 8, over.network.link)
    within = 14 * (DEVICE.latency + size / 8 / DEVICE.bandwidth)
    assert all_reduce(128, size, over) == (pytest.approx(within + between[0]), between[1])
    assert all_reduce(8, size, over) == flat_all_reduce(8, size, DEVICE)
    assert all_reduce(1, 1e9, interconnect(WIRE)) == (0.0, "none")
    with pytest.raises(ValueError, match="12 ranks: must be a multiple of the 8 devices"):
        all_reduce(12, 1024, over)
    for links in (over, interconnect(WIRE)):
        times = np.array([[all_reduce(n, 32**i, links)[0] for i in range(2, 7)] for n in POWERS])
        assert (np.diff(times, axis=0) >= 0).all() and (np.diff(times, axis=1) >= 0).all()


def test_buckets() -> None:
    """From the last parameter: the first holds 1 MiB, the others what was asked for."""
    sizes = [3 * MIB, 2 * MIB, 2 * MIB, MIB // 2, MIB // 2, MIB // 2]
    assert plan_buckets(sizes, 4 * MIB) == [MIB, 5 * MIB // 2, 2 * MIB, 3 * MIB]
    assert plan_buckets([10 * MIB, 1], MIB) == [1, 10 * MIB]
    assert sum(buckets_of(problem_sizes()["tiny"], "bf16", MIB)) == 2 * 2_873_600
    # what the program says of itself
    of = read_json(reference("ranks") / "ranks_2.json")["context"]["distributed"]
    found = buckets_of(problem_sizes()["small"], "f32", of["bucket_MiB"] * MIB)
    assert found == of["bucket_bytes"]


def test_links_have_their_sources_and_a_bad_one_is_named(tmp_path: Path) -> None:
    for one in read_interconnects():
        assert (one.device is None) == (one.devices_per_node == 1)
        for of in filter(None, (one.device, one.network)):
            assert of.is_assumed == of.latency_source.startswith("Assumption: "), one.name
            assert "http" in of.bandwidth_source or "IEEE" in of.bandwidth_source
            assert of.is_assumed or "http" in of.latency_source
    (ndr,) = (one for one in read_interconnects() if one.name == "nvlink4_ndr")
    assert ndr.network.link == Link(pytest.approx(9.6e-6), pytest.approx(50e9))
    changed, path = FIXTURE.read_text(encoding="utf-8"), tmp_path / "links.json"
    write_whole(path, changed.replace('"devices_per_node": 8', '"devices_per_node": 6', 1))
    with pytest.raises(BadInputError, match=r"interconnects\[0\].devices_per_node: 6 is not one"):
        read_interconnects(path)


SECONDS, BUCKETS = 0.4, [1e6, 25e6, 25e6, 2e6]
STEP = LocalStep(full_step("small", "f32", 8, 256), *[SECONDS] * 3, MEASURED, "made up")


# 53 MB take less than the backward of 0.27 s, and more
@pytest.mark.parametrize("link", [Link(20e-6, 2e9), Link(1e-6, 53e6 / 3)])
@pytest.mark.parametrize("ranks", [1, 4])
def test_bounds_are_nothing_hidden_and_all_that_can_be(link: Link, ranks: int) -> None:
    each = [2 * (ranks - 1) * (link.latency + size / ranks / link.bandwidth) for size in BUCKETS]
    # of the last bucket all is seen
    least = max(each[-1], sum(each) - 2 / 3 * SECONDS)
    found = project(STEP, BUCKETS, interconnect(link), ranks)
    for key, seconds in (("low", least), ("high", sum(each))):
        assert found[f"seconds_{key}"] == pytest.approx(SECONDS + seconds)
        other = {"low": "high", "high": "low"}[key]
        assert found[f"efficiency_{other}"] == pytest.approx(100 * SECONDS / (SECONDS + seconds))
    assert found["communication_seconds"] == pytest.approx(sum(each))


def test_local_steps_are_measured_before_they_are_predicted() -> None:
    weak, strong = (analysis_of(reference(kind)).results for kind in ("ranks", "ranks_strong"))
    steps, missing = local_steps(weak, None, "f32", "baseline")
    assert list(steps) == ["small"]
    # of the world with the fewest ranks
    assert steps["small"].seconds == weak[0].steps["alone"].median_seconds
    assert str(steps["small"].name) == "full_step/train/baseline/small/f32/batch:8/seq:256"
    assert set(missing) == {"tiny", "medium", "large", "very_large"}
    assert "--local-step" in missing["large"]
    # of one batch for all ranks, the whole one
    assert local_steps(strong, None, "f32", "baseline")[0]["small"].name.batch == 8
    # a named result counts more than the rank alone
    source = read_step_source(RESULTS / "reference/tiny_f32_2core_xeon_avx512.json")
    steps, missing = local_steps(weak, source, "f32", "baseline")
    assert source.path.name in steps["tiny"].source
    (reason,) = set(missing.values())
    assert "it has no costs of other sizes" in reason
    # and predicts the others where it has their costs
    study = read_step_source(RESULTS / "reference/study_2core_xeon_avx512")
    steps, missing = local_steps(weak, study, "f32", "baseline")
    assert {size: step.kind for size, step in steps.items()} == {
        **dict.fromkeys(("tiny", "small"), "measured"),
        **dict.fromkeys(("medium", "large", "very_large"), "predicted"),
    }
    assert missing == {} and steps["medium"].low < steps["medium"].seconds < steps["medium"].high
    assert steps["tiny"].name.batch == 8 and "round_1.json" in steps["small"].source
    no_step = study._replace(results=replace(study.results, cases={}))
    found, missing = local_steps(weak, no_step, "f32", "baseline")
    assert list(found) == ["small"] and "measure embedding" in missing["tiny"]
