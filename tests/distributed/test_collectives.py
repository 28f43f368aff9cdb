"""Latency and bandwidth, formulas of collectives and projections against independent ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

from built_programs import read_json
from published import analysis_of, reference
from tinyllama_tools.core.app import RESULTS, BadInputError, problem_sizes, write_whole
from tinyllama_tools.models.collectives import (
    FIXTURE,
    MIB,
    AlphaBeta,
    Link,
    all_reduce,
    buckets_of,
    fit_alpha_beta,
    flat_all_reduce,
    link_of_ring,
    plan_buckets,
    read_interconnects,
)
from tinyllama_tools.models.data_parallel import local_steps, projection_of, read_step_source

ALPHA, BANDWIDTH = 30e-6, 1.5e9
SIZES = np.array([1024.0 * 4**i for i in range(9)])


def fitted(seconds: np.ndarray) -> AlphaBeta:
    """Of the first sizes."""
    times = {int(size): float(time) for size, time in zip(SIZES, seconds, strict=False)}
    return fit_alpha_beta("all_reduce", 2, times)


def test_a_fit_is_that_of_scipy() -> None:
    """Its weights, its covariance, its misfits and what it predicts of a size left out."""
    noise = np.random.default_rng(0).normal(0, 0.1, len(SIZES))
    seconds = (ALPHA + SIZES / BANDWIDTH) * np.exp(noise)
    fit = fitted(seconds)

    def expected(sizes: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def line(size: np.ndarray, a: float, b: float) -> np.ndarray:
            return ALPHA * a + size / BANDWIDTH * b

        scale = np.array([ALPHA, 1 / BANDWIDTH])
        found, covariance = optimize.curve_fit(line, sizes, times, p0=(1, 1), sigma=times)
        return found * scale, np.sqrt(np.diag(covariance)) * scale

    (alpha, per_byte), errors = expected(SIZES, seconds)
    assert (fit.alpha, 1 / fit.bandwidth) == pytest.approx((alpha, per_byte), rel=1e-4)
    reach = 2.364624 * errors  # Student's, of 7 degrees of freedom
    assert fit.alpha_range["high"] == pytest.approx(alpha + reach[0], rel=1e-4)
    assert fit.bandwidth_range["low"] == pytest.approx(1 / (per_byte + reach[1]), rel=1e-4)
    misfits = 100 * np.abs((alpha + per_byte * SIZES) / seconds - 1)
    assert fit.scatter == pytest.approx(misfits.max(), rel=1e-3)
    off = []
    for i, (size, time) in enumerate(zip(SIZES, seconds, strict=True)):
        (alpha, per_byte), _ = expected(np.delete(SIZES, i), np.delete(seconds, i))
        off.append(100 * abs((alpha + per_byte * size) / time - 1))
    found = (fit.median_held_out, fit.worst_held_out)
    assert found == pytest.approx((np.median(off), max(off)), rel=1e-3)
    assert fitted(seconds[:3]).worst_held_out is None


def test_a_fit_that_the_data_does_not_support_is_refused() -> None:
    for seconds, said in (
        (SIZES[:2] / BANDWIDTH, "all_reduce, 2 ranks: 2 sizes, at least 3"),
        (1e-3 + 1e-12 * (SIZES[-1] - SIZES), "has a time a byte of -"),
        (SIZES**1.5 * 1e-12, "has a latency of -"),
    ):
        with pytest.raises(BadInputError, match=said):
            fitted(seconds)


def ring(ranks: int, size: float, link: Link) -> float:
    """N - 1 messages of an Nth, there and back."""
    return 2 * sum(link.latency + size / ranks / link.bandwidth for _ in range(ranks - 1))


def tree(ranks: int, size: float, link: Link) -> float:
    """The best number of packets, each of which goes up and down a level of two trees a step."""
    steps, whole = 2 * math.ceil(math.log2(ranks)), size / link.bandwidth
    packets = np.arange(1, 20_000)
    return float((2 * (steps + packets) * (link.latency + whole / packets)).min())


@pytest.mark.parametrize("ranks", [2, 5, 80, 4096])
@pytest.mark.parametrize("size", [1.0, 1 << 20, 1e8, 1 << 40])
def test_an_all_reduce_is_the_faster_of_ring_and_tree(ranks: int, size: float) -> None:
    link = Link(1e-5, 1e9)
    ways = {"ring": ring(ranks, size, link), "tree": tree(ranks, size, link)}
    seconds, algorithm = flat_all_reduce(ranks, size, link)
    # between whole numbers of packets the formula may be a little faster
    assert seconds == pytest.approx(min(ways.values()), rel=5e-3)
    assert ways[algorithm] == pytest.approx(min(ways.values()), rel=2e-3)
    # the link of a measured ring
    alpha, per_byte = 2 * (ranks - 1) * link.latency, 2 * (ranks - 1) / ranks / link.bandwidth
    found = link_of_ring(alpha, 1 / per_byte, ranks)
    assert (found.latency, found.bandwidth) == pytest.approx((1e-5, 1e9))


def test_projections_are_bounds_of_what_links_and_buckets_allow() -> None:
    """Nothing hidden, and all that can be; over nodes of one device and of several."""
    analysis = analysis_of(reference("ranks"))
    links = [one for one in read_interconnects() if one.name in {"nvlink4_ndr", "ethernet_10g"}]
    assert sorted(link.devices_per_node for link in links) == [1, 8]
    over = {one.name: one for one in (analysis.interconnect, *links)}
    rows = projection_of(analysis, None, links)["steps"]
    assert len(rows) == 3 * 10 and {row["size"] for row in rows} == {"small"}
    local = analysis.results[0].steps["alone"].median_seconds
    for row in rows:
        one, ranks = over[row["interconnect"]], row["ranks"]
        each, per_node = [], one.devices_per_node
        for size in analysis.results[-1].distributed["bucket_bytes"]:
            within = ring(per_node, size, one.device.link) if one.device else 0
            of = (ranks // per_node, size / per_node, one.network.link)
            between = min(ring(*of), tree(*of)) if ranks > per_node else 0
            each.append(within + between)
        # of the last bucket all is seen
        least = max(each[-1], sum(each) - 2 / 3 * local)
        for key, other, seconds in (("low", "high", least), ("high", "low", sum(each))):
            assert row[f"seconds_{key}"] - local == pytest.approx(seconds, rel=5e-3)
            efficiency = 100 * local / row[f"seconds_{key}"]
            assert row[f"efficiency_{other}"] == pytest.approx(efficiency)
    with pytest.raises(ValueError, match="12 ranks: must be a multiple of the 8 devices"):
        all_reduce(12, 1024, over["nvlink4_ndr"])


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


def test_local_steps_are_measured_before_they_are_predicted() -> None:
    weak, strong = (analysis_of(reference(kind)).results for kind in ("ranks", "ranks_strong"))
    steps, missing = local_steps(weak, None, "f32", "baseline")
    # of the world with the fewest ranks
    assert steps["small"].seconds == weak[0].steps["alone"].median_seconds
    assert str(steps["small"].name) == "full_step/train/baseline/small/f32/batch:8/seq:256"
    assert [*steps, *missing] == ["small", "tiny", "medium", "large", "very_large"]
    assert "--local-step" in missing["large"]
    # of one batch for all ranks, the whole one
    assert local_steps(strong, None, "f32", "baseline")[0]["small"].name.batch == 8
    # a named result counts more than the rank alone
    source = read_step_source(RESULTS / "reference/tiny_f32_2core_xeon_avx512.json")
    steps, missing = local_steps(weak, source, "f32", "baseline")
    assert source.path.name in steps["tiny"].source
    assert "it has no costs of other sizes" in missing["medium"]
    # and predicts the others where it has their costs
    study = read_step_source(RESULTS / "reference/study_2core_xeon_avx512")
    steps, missing = local_steps(weak, study, "f32", "baseline")
    kinds = ["measured"] * 2 + ["predicted"] * 3
    assert ([step.kind for step in steps.values()], missing) == (kinds, {})
    assert steps["medium"].low < steps["medium"].seconds < steps["medium"].high
    assert steps["tiny"].name.batch == 8 and "round_1.json" in steps["small"].source
    # a size's own batch and sequence before longer ones
    own = next(c for c in study.results.cases.values() if str(c.name) == str(steps["tiny"].name))
    longer = replace(own, name=replace(own.name, batch=16, seq=512))
    more = study._replace(results=replace(study.results, cases={"own": own, "longer": longer}))
    assert local_steps(weak, more, "f32", "baseline")[0]["tiny"].name == own.name
    no_step = study._replace(results=replace(study.results, cases={}))
    found, missing = local_steps(weak, no_step, "f32", "baseline")
    assert list(found) == ["small"] and "measure embedding" in missing["tiny"]
