"""Formulas of collectives against closed forms, and the fixture of links."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tinyllama_tools.core.app import BadInputError, Json, problem_sizes
from tinyllama_tools.models.collectives import (
    FIXTURE,
    MIB,
    NONE,
    RING,
    TREE,
    Hierarchy,
    Link,
    all_reduce,
    buckets_of,
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

LINK = Link(1e-5, 1e9)
NODE = Hierarchy(8, Link(1e-5, 5e9), Link(2e-6, 4e11))
RANKS = [2**power for power in range(13)]
SIZES = [1 << 10, 1 << 16, 1 << 20, 1 << 25, 1 << 30]


def test_a_ring_sends_an_nth_in_each_of_its_steps() -> None:
    assert ring_reduce_scatter(4, 4e9, LINK) == pytest.approx(3 * (1e-5 + 1.0))
    assert ring_all_reduce(4, 4e9, LINK) == pytest.approx(6 * (1e-5 + 1.0))
    assert ring_all_gather(2, 1e9, LINK) == pytest.approx(1e-5 + 0.5)


@pytest.mark.parametrize("size", SIZES)
def test_one_rank_has_nobody_to_talk_to(size: int) -> None:
    assert ring_all_reduce(1, size, LINK) == 0
    assert tree_all_reduce(1, size, LINK) == 0
    assert all_reduce(1, size, NODE).seconds == 0
    assert all_reduce(1, size, NODE).algorithm == NONE


def test_a_tree_is_at_its_best_with_the_best_number_of_packets() -> None:
    size, steps = 1e8, 2 * 6
    whole = size / LINK.bandwidth
    tried = [2 * (steps + k) * (LINK.latency + whole / k) for k in range(1, 5000)]
    found = tree_all_reduce(64, size, LINK)
    assert found <= min(tried)
    assert found == pytest.approx(min(tried), rel=1e-4)
    closed = 2 * ((steps * LINK.latency) ** 0.5 + whole**0.5) ** 2
    assert found == pytest.approx(closed)


def test_a_small_message_travels_whole_through_a_tree() -> None:
    assert tree_all_reduce(8, 8, LINK) == pytest.approx(2 * (6 + 1) * (1e-5 + 8e-9))


@pytest.mark.parametrize("ranks", [16, 64, 1024, 4096])
def test_trees_win_small_messages_and_rings_large_ones(ranks: int) -> None:
    assert flat_all_reduce(ranks, 1 << 10, LINK).algorithm == TREE
    assert flat_all_reduce(ranks, 1 << 40, LINK).algorithm == RING
    for size in SIZES:
        best = min(ring_all_reduce(ranks, size, LINK), tree_all_reduce(ranks, size, LINK))
        assert flat_all_reduce(ranks, size, LINK).seconds == best


@pytest.mark.parametrize("links", [NODE, Hierarchy(1, LINK)])
def test_more_bytes_or_more_nodes_take_no_less_time(links: Hierarchy) -> None:
    for ranks in RANKS:
        of_size = [all_reduce(ranks, size, links).seconds for size in SIZES]
        assert of_size == sorted(of_size)
    for size in SIZES:
        of_ranks = [all_reduce(ranks, size, links).seconds for ranks in RANKS]
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
    alpha, whole = 2 * (ranks - 1) * LINK.latency, LINK.bandwidth * ranks / (2 * (ranks - 1))
    found = link_of_ring(alpha, whole, ranks)
    assert (found.latency, found.bandwidth) == pytest.approx((LINK.latency, LINK.bandwidth))
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


@pytest.fixture
def fixture() -> Json:
    return json.loads(FIXTURE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.update(devices_per_node=6), "devices_per_node 6, must be 1, 2, 4"),
        (lambda one: one.update(device_link=None), "no device_link"),
        (lambda one: one["network_link"].pop("latency_us"), "latency_us None"),
        (lambda one: one["network_link"].update(GB_per_second=-1), "GB_per_second -1"),
        (lambda one: one["network_link"]["source"].update(latency=""), "latency '', must be a"),
        (lambda one: one["network_link"].update(latency_is_assumption="no"), "true or false"),
    ],
)
def test_a_bad_link_is_named(tmp_path: Path, fixture: Json, change: object, said: str) -> None:
    changed = copy.deepcopy(fixture)
    change(changed["interconnects"][0])  # type: ignore[operator]
    path = tmp_path / "links.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(BadInputError, match=r"interconnects\[0\]") as refused:
        read_interconnects(path)
    assert said in str(refused.value)


def test_an_unknown_interconnect_is_named_with_the_known_ones() -> None:
    with pytest.raises(BadInputError, match="'token_ring': must be one of nvlink4_ndr, "):
        read_interconnects(names=["token_ring"])
    assert [one.name for one in read_interconnects(names=["ethernet_10g"])] == ["ethernet_10g"]
