"""The search for the frontier, against a made-up memory law."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from frontier_stand_in import GIB, MIB, PlayedAsker, largest_by_trial, step_bytes

from tinyllama_tools.frontier.asking import TOO_LARGE, UNCOUNTED, Asker, refusal
from tinyllama_tools.frontier.axis import BY_BATCH, BY_SEQ, Line
from tinyllama_tools.frontier.bracket import LARGEST, Bracket, between
from tinyllama_tools.frontier.points import point_of
from tinyllama_tools.frontier.prediction import Found, Grid, Room, predict_lines, room_for
from tinyllama_tools.frontier.proposals import guess, proposals
from tinyllama_tools.prediction.memory_overhead import MemoryOverhead
from tinyllama_tools.suite_run import PROJECT, SuiteError

LIMIT = 3 * GIB
Points = list[SimpleNamespace]
NONE = MemoryOverhead()


def points_of(asker: Asker, grid: Grid, limit: int, overhead: MemoryOverhead = NONE) -> Points:
    """The largest batches as they are written."""
    room = Room(limit, "--memory-limit", overhead)
    found = predict_lines(asker, BY_SEQ, grid, room)
    return [SimpleNamespace(**point_of(BY_SEQ, limit, one)) for one in found]


def of_line(seq: int, size: str = "tiny", variants: tuple[str, ...] = ("baseline",)) -> Grid:
    return Grid((size,), variants, ("f32",), (seq,))


def lines_of(asker: PlayedAsker, by: str, limit: float, *given: int) -> list[Found]:
    axis = BY_SEQ if by == "seq" else BY_BATCH
    grid = Grid(("tiny",), ("baseline",), ("f32",), given)
    return predict_lines(asker, axis, grid, Room(int(limit), "--memory-limit"))


def test_a_bracket_narrows_up_to_the_first_refusal() -> None:
    bracket = Bracket(2, 100).narrowed({10: True, 50: False, 20: True, 70: True})
    assert bracket == Bracket(20, 50)
    assert not bracket.is_closed
    assert Bracket(20, 21).is_closed
    # an answer from outside changes nothing
    assert bracket.narrowed({60: False, 5: True}) == bracket


@pytest.mark.parametrize("most", [1, 2, 16])
def test_dividing_a_bracket_asks_for_no_more_than_is_wanted(most: int) -> None:
    assert len(between(0, 1000, most)) == most
    assert between(5, 6, most) == []
    assert between(5, 7, most) == [6]


def test_points_are_to_the_batch_and_carry_their_bytes() -> None:
    asker = PlayedAsker()
    seqs = (128, 512, 2048)
    grid = Grid(("tiny", "small"), ("baseline", "optimized"), ("f32", "bf16"), seqs)
    points = points_of(asker, grid, LIMIT)
    assert len(points) == 2 * 2 * 2 * 3
    for point in points:
        case = (point.size, point.variant, point.dtype)
        assert point.largest_batch == largest_by_trial(LIMIT, *case, seq=point.seq)
        assert point.predicted_bytes == step_bytes(*case, point.largest_batch, point.seq) <= LIMIT
        assert step_bytes(*case, point.largest_batch + 1, point.seq) > LIMIT
        assert (point.limit_bytes, point.confirmed, point.remark) == (LIMIT, "", "")
    order = [(p.size, p.variant, p.dtype, p.seq) for p in points]
    assert order[:4] == [
        *(("tiny", "baseline", "f32", seq) for seq in seqs),
        ("tiny", "baseline", "bf16", 128),
    ]
    # one for all lines, then one or two for each size and sequence length
    assert len(asker.questions) <= 1 + 2 * (2 * 3)


@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("limit", [70 * MIB, GIB, 300 * GIB])
def test_the_reverse_is_to_the_token(batch: int, limit: int) -> None:
    asker = PlayedAsker()
    (found,) = lines_of(asker, "batch", limit, batch)
    assert found.largest == largest_by_trial(limit, "tiny", "baseline", "f32", batch=batch)
    assert len(asker.questions) <= 5


@pytest.mark.parametrize("limit", [61 * MIB, 63 * MIB, 64 * MIB, 100 * MIB])
def test_few_batches_fit(limit: int) -> None:
    (found,) = lines_of(PlayedAsker(), "seq", limit, 128)
    assert found.largest == largest_by_trial(limit, "tiny", "baseline", "f32", seq=128)


def test_not_even_the_shortest_sequence_fits() -> None:
    (found,) = lines_of(PlayedAsker(), "batch", 61 * MIB, 4096)
    assert found.largest == 0
    assert found.predicted_bytes == step_bytes("tiny", "baseline", "f32", 4096, 2)
    assert found.remark == ""


def test_nothing_fits_and_the_smallest_step_is_named() -> None:
    (point,) = points_of(PlayedAsker(), of_line(128, "very_large"), 8 * GIB)
    assert point.largest_batch == 0
    assert point.predicted_bytes == step_bytes("very_large", "baseline", "f32", 1, 128) > 8 * GIB
    assert point.remark == ""


def test_without_a_limit_it_is_nine_tenths_of_what_is_free() -> None:
    asker = PlayedAsker(free=GIB)
    room = room_for(asker, None)
    assert room.limit_bytes == int(0.9 * GIB)
    assert room.source.startswith("90 % of the 1.00 GiB free on the device: the program")
    assert room_for(asker, 3 * GIB).limit_bytes == 3 * GIB
    # tries happen here, whatever is asked for
    tried = room_for(asker, 3 * GIB, is_tried=True)
    assert (tried.limit_bytes, "below the 3.00 GiB asked for" in tried.source) == (
        room.limit_bytes,
        True,
    )
    assert room_for(asker, GIB // 2, is_tried=True).limit_bytes == GIB // 2


def test_the_measured_overhead_leaves_less_room() -> None:
    overhead = MemoryOverhead(fixed_bytes=64 * MIB, share=0.2, most=1.02, steps=3, sizes=("tiny",))
    (point,) = points_of(PlayedAsker(), of_line(256), LIMIT, overhead)
    formulas = (LIMIT / 1.02 - 64 * MIB) / 1.2
    largest = largest_by_trial(formulas, "tiny", "baseline", "f32", seq=256)
    assert point.largest_batch == largest
    bare = step_bytes("tiny", "baseline", "f32", largest, 256)
    assert point.predicted_bytes == pytest.approx(1.02 * (64 * MIB + 1.2 * bare))
    # the fixed part is that of a step, whatever its size
    (few,) = points_of(PlayedAsker(), of_line(256), 150 * MIB, overhead)
    small = largest_by_trial(
        (150 * MIB / 1.02 - 64 * MIB) / 1.2, "tiny", "baseline", "f32", seq=256
    )
    assert few.largest_batch == small


def test_a_limit_beyond_what_is_free_counts() -> None:
    asker = PlayedAsker(free=100 * MIB)
    (point,) = points_of(asker, of_line(512), 64 * GIB)
    assert point.largest_batch == largest_by_trial(64 * GIB, "tiny", "baseline", "f32", seq=512)


def test_a_variant_that_the_device_refuses_is_named_and_the_others_stay() -> None:
    asker = PlayedAsker(refused={"graph": "graph: needs a GPU"})
    points = points_of(asker, of_line(128, variants=("graph", "baseline")), LIMIT)
    assert [(p.variant, p.largest_batch > 0, p.remark) for p in points] == [
        ("graph", False, "graph: needs a GPU"),
        ("baseline", True, ""),
    ]


@pytest.mark.parametrize("most_tokens", [2**30, 1_000_000_000])
def test_lines_without_an_end_in_memory_say_what_ends_them(most_tokens: int) -> None:
    (uncounted,) = lines_of(PlayedAsker(most_tokens=most_tokens), "seq", 8e18, 2048)
    assert uncounted.largest == most_tokens // 2048
    assert f"count no more than batch {most_tokens // 2048} here" in uncounted.remark
    (longest,) = lines_of(PlayedAsker(), "seq", 8e18, 16)
    assert longest.largest == LARGEST
    assert "takes no more than batch 1048576" in longest.remark


def test_lines_that_memory_ends_are_whole_although_larger_steps_are_not_counted() -> None:
    asker = PlayedAsker(most_tokens=200 * 2048)
    for seq, limit in ((2048, 40 * GIB), (1024, 30 * GIB), (512, 12 * GIB)):
        (found,) = lines_of(asker, "seq", limit, seq)
        assert found.remark == ""
        assert found.largest == largest_by_trial(limit, "tiny", "baseline", "f32", seq=seq)


def test_where_not_even_the_smallest_step_is_counted_that_is_an_error() -> None:
    with pytest.raises(SuiteError, match="do not count"):
        lines_of(PlayedAsker(most_tokens=100), "seq", LIMIT, 128)


def test_what_the_program_refuses_is_an_error() -> None:
    def refuse(_: object) -> None:
        raise SuiteError("tiny_llama_bench: --variants 'x': must be one of")

    with pytest.raises(SuiteError, match="--variants 'x'"):
        points_of(refuse, of_line(128, variants=("x",)), LIMIT)


def test_the_words_of_the_program_are_still_these() -> None:
    harness = PROJECT / "benchmarks" / "harness"
    assert UNCOUNTED in (harness / "plan.cpp").read_text(encoding="utf-8")
    assert f'"{TOO_LARGE} ' in (harness / "admission.cpp").read_text(encoding="utf-8")
    cost = PlayedAsker(free=1).cost(Line("tiny", "baseline", "f32", 128).case(BY_SEQ, 4))
    assert not cost.fits
    assert refusal(cost) == ""


@pytest.mark.parametrize("law", [lambda x: 5.0 + 3.0 * x, lambda x: 5.0 + 3.0 * x + 0.25 * x**2])
def test_a_guess_follows_lines_and_parabolas(law: Callable[[float], float]) -> None:
    known = {x: law(x) for x in (1, 2, 4)}
    for limit in (100.0, 1e4, 1e6):
        found = guess(known, limit)
        assert found is not None
        assert law(found) <= limit < law(found + 2)
    above = {x: law(x) for x in (64, 128, 256)}
    assert guess(above, law(9)) in {8, 9}
    between_them = {x: law(x) for x in (8, 12, 90)}
    assert guess(between_them, law(10)) in {9, 10}
    # smaller values may lie on something else
    assert guess({1: 700.0, 2: 700.0} | known | {8: law(8), 16: law(16)}, law(200)) in {199, 200}


def test_a_guess_is_none_where_nothing_points_anywhere() -> None:
    assert guess({1: 5.0, 2: 6.0}, 100.0) is None
    assert guess({1: 5.0, 2: 5.0, 4: 5.0}, 100.0) is None
    assert guess({1: 5.0, 2: 9.0, 4: 10.0}, 1e9) is None


@pytest.mark.parametrize("known", [{}, {1: 5.0, 2: 5.0, 4: 5.0}, {4: 1.0, 8: 1e9}])
def test_proposals_narrow_every_open_bracket(known: dict[int, float]) -> None:
    for bracket in (Bracket(), Bracket(4, 9), Bracket(4), Bracket(LARGEST - 1), Bracket(7, 10**6)):
        found = proposals(bracket, known, 100.0)
        assert found
        assert all(bracket.contains(value) for value in found)
    assert proposals(Bracket(4, 5), known, 100.0) == []


def test_the_point_has_the_fields_that_reports_read() -> None:
    (found,) = lines_of(PlayedAsker(), "seq", LIMIT, 128)
    assert list(point_of(BY_SEQ, LIMIT, found))[:8] == [
        "size",
        "variant",
        "dtype",
        "seq",
        "largest_batch",
        "predicted_bytes",
        "limit_bytes",
        "confirmed",
    ]
