"""Points under the roofline, GEMMs and their least times, the machine."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from result_documents import MEASURED
from roofline_sets import (
    AXES,
    BATCH,
    CACHE,
    PEAK,
    PRODUCTS,
    SEQ,
    SIZES,
    STEP,
    STEP_FLOPS,
    case,
    context,
    least_seconds,
    name_of,
    part,
    products_of,
    rates,
    result_set,
    seconds_of,
    step_cases,
)

from tinyllama_tools.core.app import PROJECT, BadInputError, problem_sizes
from tinyllama_tools.data.machine import Machine, ProductRate
from tinyllama_tools.data.results import MeasuredCase, read_result_set
from tinyllama_tools.models.roofline import (
    CHUNK_LOGITS,
    DIMENSIONS,
    FEWEST_TOKENS,
    Product,
    ProductRates,
    ProductTimes,
    RooflinePoint,
    chunk_of,
    launch_cost,
    left_out_of_roofline,
    product_points,
    product_times,
    roofline_points,
    step_products,
)
from tinyllama_tools.models.speed_of_light import speed_of_light

FFN, NORM = f"ffn/forward_backward/{AXES}", f"rms_norm/forward_backward/{AXES}"


def only(*cases: MeasuredCase) -> RooflinePoint:
    """The point of the first."""
    return roofline_points(result_set(cases))[0]


@pytest.mark.parametrize(
    ("name", "counters", "intensity", "attainable", "percent", "bound"),
    [
        (FFN, {"model_flops": 2000.0, "bytes": 1000.0}, 2.0, PEAK, 50.0, "compute"),
        (FFN, {"model_flops": 500.0, "bytes": 1000.0}, 0.5, 0.5 * CACHE, 25.0, "bandwidth"),
        # no compute roof for elementwise work: above what products reach
        (NORM, {"elementwise_flops": 5000.0, "bytes": 1000.0}, 5.0, 5 * CACHE, 25.0, "bandwidth"),
        # what really ran counts
        (FFN, {"model_flops": 2e3, "hardware_flops": 1.5e3}, 15.0, PEAK, 37.5, "compute"),
    ],
)
def test_points_by_hand(
    name: str,
    counters: dict[str, float],
    intensity: float,
    attainable: float,
    percent: float,
    bound: str,
) -> None:
    point = only(case(name, 4e-6, **counters))
    assert point.intensity == pytest.approx(intensity)
    assert point.attainable == pytest.approx(attainable)
    assert (point.percent, point.bound) == (pytest.approx(percent), bound)
    assert point.flops_per_second == pytest.approx(percent / 100 * attainable)
    assert point.case == name_of(name)
    assert point.why.startswith("of 4 us, products at the peak take ")


def test_a_case_above_a_peak_has_its_point_and_the_reason() -> None:
    above = replace(case(FFN, 4e-6, model_flops=2000.0), above_peak="106 % of the peak")
    point = only(above)
    assert point.flops_per_second == pytest.approx(5e8)
    assert (point.percent, point.error) == (None, "106 % of the peak")


def test_faster_than_the_roofline_is_an_error_and_no_number() -> None:
    point = only(case(FFN, 1e-6, model_flops=2000.0))
    assert point.percent is None
    assert "200.0 % of what the roofline allows" in point.error
    assert not only(case(FFN, 2.0001e-6, model_flops=2000.0)).error


def test_launches_bound_what_they_explain_mostly() -> None:
    # the small norm: 10 operators and nothing to move, so 0.9 us each
    small = case(NORM, 9.01e-6, bytes=10.0, operators=10.0)
    other = f"loss/forward_backward/{AXES}"
    found = only(case(other, 2e-4, model_flops=5e4, operators=150.0), small)
    assert found.bound == "latency"
    assert (
        "the start of 150 operators at most 135 us (900 ns each, inferred from rms_norm"
        in found.why
    )
    # products take longer than launches do
    assert only(case(other, 3e-4, model_flops=2e5, operators=150.0), small).bound == "compute"
    # the same where launches take more than half of it
    assert only(case(other, 2e-4, model_flops=1.5e5, operators=130.0), small).bound == "compute"
    # launches take longer than products, but most of the time is neither's
    assert only(case(other, 4e-4, model_flops=5e4, operators=150.0), small).bound == "compute"


def test_the_case_that_shows_what_a_launch_costs_is_not_bound_by_it() -> None:
    small, larger = (
        case(f"{name}/forward_backward/{AXES}", seconds, bytes=10.0, operators=10.0)
        for name, seconds in (("rms_norm", 9e-6), ("loss", 10e-6))
    )
    source, other = roofline_points(result_set([small, larger]))
    assert other.bound == "latency"
    assert source.bound == "bandwidth"
    assert "inferred from this very case" in source.why


@pytest.mark.parametrize(
    ("cells", "source", "seconds"),
    [
        # of the cell that shows it best; one that is nearly at its roof shows scatter
        (
            [
                case(f"loss/forward_backward/{AXES}", 1e-3, bytes=1000.0, operators=20.0),
                case(NORM, 3e-5, bytes=1000.0, operators=10.0),
                case(FFN, 1e-3, model_flops=0.99e6, operators=10.0),
            ],
            NORM,
            (3e-5 - 1e-6) / 10,
        ),
        # no cell can start its operators longer than it takes
        (
            [case(FFN, 1e-5, model_flops=9e3, operators=10.0), case(NORM, 5e-5, operators=10.0)],
            FFN,
            1e-6,
        ),
        # large ones show nothing
        ([case(NORM, 1e-3, bytes=1e4, operators=10.0)], None, None),
    ],
)
def test_what_the_start_of_an_operator_costs(
    cells: list[MeasuredCase], source: str | None, seconds: float | None
) -> None:
    found = launch_cost(result_set(cells), Machine.from_context(context()))
    assert (found.source if found else None) == source
    assert (found.seconds if found else None) == pytest.approx(seconds)
    assert ("no cell is small enough" in only(*cells).why) == (source is None)


def test_cases_without_costs_are_named() -> None:
    cases = [
        case(FFN, 1e-3, model_flops=10.0),
        case(NORM, 1e-3, bytes=0.0),
        case(f"loss/forward_backward/{AXES.replace('f32', 'amp_bf16')}", 1e-3, model_flops=10.0),
    ]
    found = result_set(cases)
    assert [point.name for point in roofline_points(found)] == [FFN]
    first, second = left_out_of_roofline(found)
    assert first == f"{NORM}: its counters lack bytes or FLOPs"
    assert second.endswith("no peak of bf16 products was measured")


def test_products_of_their_own() -> None:
    rows = [
        ProductRate("f32", 1, 10, 10, 10, PEAK / 2, "a path"),
        ProductRate("f32", 8, 10, 10, 1, PEAK / 100, "a path"),
        ProductRate("bf16", 1, 10, 10, 10, PEAK, "a path"),
    ]
    rows.append(ProductRate("i8", 1, 2, 2, 2, PEAK, "a path"))
    of = context(f32=PEAK, i8=PEAK)
    square, thin = product_points(result_set([], rows, of))
    assert left_out_of_roofline(result_set([], rows, of)) == [
        "peak/gemm/bf16/10x10x10: no peak of bf16 products was measured",
        "peak/gemm/i8/2x2x2: how many bytes a value of i8 has is not known",
    ]
    assert square.name == "peak/gemm/f32/10x10x10"
    assert square.intensity == pytest.approx(2000 / (4 * 300))
    # 1.2 us of traffic at the bandwidth against 2 us at the peak, 4 us measured
    assert (square.percent, square.bound) == (pytest.approx(50.0), "compute")
    assert thin.name == "peak/gemm/f32/8x10x10x1"
    assert thin.bound == "bandwidth"


def test_of_a_real_run() -> None:
    points = {point.name: point for point in roofline_points(read_result_set([MEASURED]))}
    assert len(points) == 11
    assert all(point.percent and 0 < point.percent <= 100 for point in points.values())
    for name, point in points.items():
        if name.startswith(("block", "loss", "full_step")):
            assert point.bound == "compute"
        elif name.startswith(("embedding", "rms_norm")):
            assert point.bound == "bandwidth"
    # the update of one tensor after another is a thousand starts, and shows best what one costs; as
    # one operator it is traffic
    tail = "tiny/f32/batch:8/seq:128"
    assert "inferred from this very case" in points[f"optimizer/update/baseline/{tail}"].why
    assert points[f"optimizer/update/optimized/{tail}"].bound == "bandwidth"


NAMED_SIZES = problem_sizes()
TINY = NAMED_SIZES["tiny"]


def flops_by_hand(size: dict[str, int], batch: int, seq: int) -> int:
    """Forward of a layer: projections, scores and values, network; of the head; three times."""
    hidden, inner = size["hidden_dim"], size["intermediate_dim"]
    kv_width = hidden * size["n_kv_heads"] // size["n_heads"]
    tokens = batch * seq
    layer = (
        2 * tokens * hidden * (2 * hidden + 2 * kv_width)
        + 4 * batch * seq * seq * hidden
        + 6 * tokens * hidden * inner
    )
    return 3 * (size["n_layers"] * layer + 2 * tokens * hidden * size["vocab_size"])


def total(size: dict[str, int], batch: int, seq: int, **options: tuple[str, ...]) -> int:
    return sum(product.flops for product in step_products(size, batch, seq, **options))


def counted(component: str) -> int:
    """model_flops of a case of the tiny size, as the suite wrote it."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["benchmarks"]
    start = f"{component}/baseline/tiny/f32/batch:8/seq:128"
    return next(int(row["model_flops"]) for row in rows if row["run_name"].startswith(start))


def test_they_add_up_to_what_the_suite_counts() -> None:
    products = step_products(TINY, 8, 128)
    flops = Counter[str]()
    for product in products:
        flops[product.component] += product.flops
    assert sum(flops.values()) == counted("full_step/train") == 17678991360
    layers = TINY["n_layers"]
    assert flops["attention"] + flops["ffn"] == layers * counted("block/forward_backward")
    assert flops["loss"] == counted("loss/forward_backward")


@pytest.mark.parametrize("name", NAMED_SIZES)
@pytest.mark.parametrize("shape", [None, (1, 2), (3, 65)])
def test_every_size_adds_up(name: str, shape: tuple[int, int] | None) -> None:
    size = NAMED_SIZES[name]
    batch, seq = shape or (size["batch"], size["seq"])
    expected = flops_by_hand(size, batch, seq)
    assert total(size, batch, seq) == expected
    assert total(size, batch, seq, fused=("qkv", "gate_up")) == expected


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_groups_of_any_width_add_up(kv_heads: int) -> None:
    size = {**TINY, "n_kv_heads": kv_heads}
    assert total(size, 2, 16) == flops_by_hand(size, 2, 16)


def test_backward_is_twice_forward() -> None:
    forward = backward = 0
    for product in step_products(NAMED_SIZES["small"], 8, 256):
        if product.direction == "forward":
            forward += product.flops
        else:
            backward += product.flops
    assert backward == 2 * forward


def test_shapes_of_the_tiny_step() -> None:
    shapes = {p.role: (p.component, p.count, p.shape) for p in step_products(TINY, 8, 128)}
    # 1024 tokens, 8 heads of 32 in 4 groups of 2, so 2 x 128 queries a group
    assert shapes == {
        "q_proj forward": ("attention", 4, "1024x256x256"),
        "q_proj input gradient": ("attention", 4, "1024x256x256"),
        "q_proj weight gradient": ("attention", 4, "256x256x1024"),
        "k_proj forward": ("attention", 4, "1024x128x256"),
        "k_proj input gradient": ("attention", 4, "1024x256x128"),
        "k_proj weight gradient": ("attention", 4, "128x256x1024"),
        "v_proj forward": ("attention", 4, "1024x128x256"),
        "v_proj input gradient": ("attention", 4, "1024x256x128"),
        "v_proj weight gradient": ("attention", 4, "128x256x1024"),
        "scores forward": ("attention", 4, "32x256x128x32"),
        "scores gradient of q": ("attention", 4, "32x256x32x128"),
        "scores gradient of k": ("attention", 4, "32x128x32x256"),
        "values forward": ("attention", 4, "32x256x32x128"),
        "values gradient of probabilities": ("attention", 4, "32x256x128x32"),
        "values gradient of v": ("attention", 4, "32x128x32x256"),
        "o_proj forward": ("attention", 4, "1024x256x256"),
        "o_proj input gradient": ("attention", 4, "1024x256x256"),
        "o_proj weight gradient": ("attention", 4, "256x256x1024"),
        "gate_proj forward": ("ffn", 4, "1024x512x256"),
        "gate_proj input gradient": ("ffn", 4, "1024x256x512"),
        "gate_proj weight gradient": ("ffn", 4, "512x256x1024"),
        "up_proj forward": ("ffn", 4, "1024x512x256"),
        "up_proj input gradient": ("ffn", 4, "1024x256x512"),
        "up_proj weight gradient": ("ffn", 4, "512x256x1024"),
        "down_proj forward": ("ffn", 4, "1024x256x512"),
        "down_proj input gradient": ("ffn", 4, "1024x512x256"),
        "down_proj weight gradient": ("ffn", 4, "256x512x1024"),
        "lm_head forward": ("loss", 1, "1024x1000x256"),
        "lm_head input gradient": ("loss", 1, "1024x256x1000"),
        "lm_head weight gradient": ("loss", 1, "1000x256x1024"),
    }


def test_fused_layers_are_one_product() -> None:
    fused = {p.role: p.shape for p in step_products(TINY, 8, 128, ("qkv", "gate_up"))}
    assert fused["qkv_proj forward"] == "1024x512x256"
    assert fused["gate_up_proj weight gradient"] == "1024x256x1024"
    assert "q_proj forward" not in fused
    assert "up_proj forward" not in fused


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("value", [None, 0, -1, 2.0, True])
def test_bad_dimensions_are_named(dimension: str, value: object) -> None:
    with pytest.raises(BadInputError, match=f"{dimension} is {value!r}"):
        step_products({**TINY, dimension: value}, 8, 128)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_heads": 7, "n_kv_heads": 7}, "hidden_dim 256 must be a multiple of n_heads 7"),
        ({"n_kv_heads": 3}, "n_heads 8 must be a multiple of n_kv_heads 3"),
    ],
)
def test_heads_that_do_not_divide_are_named(changed: dict[str, int], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        step_products({**TINY, **changed}, 8, 128)


TOY = SIZES["toy"]
LONG = 4 * FEWEST_TOKENS


def layers(*names: str) -> list[Product]:
    return [product for product in PRODUCTS if product.layer in names]


SEPARATE = rates(0.25, PRODUCTS)
FUSED = step_products(TOY, BATCH, SEQ, ("qkv", "gate_up"))


def times(rows: list[ProductRate]) -> ProductTimes:
    return product_times(TOY, BATCH, SEQ, ProductRates.among(rows, "f32", PEAK))


def test_the_fastest_form_that_was_measured_counts() -> None:
    qkv = [product for product in FUSED if product.layer == "qkv_proj"]
    gain = seconds_of(qkv, PEAK / 4) - seconds_of(qkv, PEAK / 2)
    attention = times(SEPARATE).seconds["attention"]
    faster = times(SEPARATE + rates(0.5, qkv))
    assert faster.seconds["attention"] == pytest.approx(attention - gain)
    assert faster.at_peak == ()
    slower = times(SEPARATE + rates(0.1, qkv))
    assert slower.seconds["attention"] == pytest.approx(attention)


def test_a_measured_form_counts_before_one_at_the_peak() -> None:
    gates = [product for product in FUSED if product.layer == "gate_up_proj"]
    others = [p for p in PRODUCTS if p.layer not in ("gate_proj", "up_proj")]
    found = times(rates(0.25, others) + rates(0.5, gates))
    expected = seconds_of(gates, PEAK / 2) + seconds_of(layers("down_proj"), PEAK / 4)
    assert found.seconds["ffn"] == pytest.approx(expected)
    assert found.at_peak == ()


def test_without_a_measured_form_the_peak_stands_in_by_name() -> None:
    head = layers("lm_head")
    found = times(rates(0.25, products_of("attention", "ffn")))
    assert found.seconds["loss"] == pytest.approx(seconds_of(head))
    assert set(found.at_peak) == {product.shape for product in head}


def test_scores_count_at_the_peak_without_what_the_mask_hides() -> None:
    scores = layers("scores", "values")
    others = seconds_of(products_of("attention"), PEAK / 4) - seconds_of(scores, PEAK / 4)
    # 1 + 2 + 3 + 4 of 16 scores are not masked
    expected = others + 10 / 16 * seconds_of(scores)
    assert times(SEPARATE).seconds["attention"] == pytest.approx(expected)


def test_the_unmasked_scores_are_those_that_the_suite_counts() -> None:
    step = read_result_set([MEASURED]).cases["full_step/train/baseline/tiny/f32/batch:8/seq:128"]
    tiny = problem_sizes()["tiny"]
    products = step_products(tiny, 8, 128)
    scores = sum(p.flops for p in products if p.layer in ("scores", "values"))
    rows = ProductRates(1.0, {})
    seconds = sum(product_times(tiny, 8, 128, rows).seconds.values())
    assert seconds == pytest.approx(step.counters["causal_flops"], rel=1e-12)
    assert step.counters["model_flops"] == pytest.approx(seconds + scores * 127 / 256)


@pytest.mark.parametrize("factor", [0.5, 0.1])
def test_the_head_in_chunks_counts_where_it_is_the_fastest(factor: float) -> None:
    # so many words that the fewest tokens are a chunk
    size = {**TOY, "vocab_size": CHUNK_LOGITS}
    head = [p for p in step_products(size, 1, LONG) if p.component == "loss"]
    chunks = [chunk_of(product, size) for product in head]
    assert [p.shape for p in chunks] == [
        f"{FEWEST_TOKENS}x{CHUNK_LOGITS}x16",
        f"{FEWEST_TOKENS}x16x{CHUNK_LOGITS}",
        f"{CHUNK_LOGITS}x16x{FEWEST_TOKENS}",
    ]
    rows = rates(0.25, step_products(size, 1, LONG)) + rates(factor, chunks)
    found = product_times(size, 1, LONG, ProductRates.among(rows, "f32", PEAK))
    best = max(factor, 0.25)
    assert found.seconds["loss"] == pytest.approx(seconds_of(head, best * PEAK))
    assert found.at_peak == ()


def test_chunks_are_those_of_the_program() -> None:
    text = (PROJECT / "model/loss.cpp").read_text(encoding="utf-8")
    body = text[text.index("int64_t fused_loss_chunk(") :]
    assert "logits = int64_t{1} << 19;" in body
    assert f"fewest = {FEWEST_TOKENS};" in body
    assert "logits / vocab_size / 64 * 64" in body
    assert CHUNK_LOGITS == 2**19
    # tiny and small have 1000 words: 524 tokens, of which whole 64s are taken
    size = problem_sizes()["tiny"]
    head = next(p for p in step_products(size, 8, 128) if p.component == "loss")
    assert chunk_of(head, size).shape == "512x1000x256"
    few = next(p for p in step_products(size, 1, 128) if p.component == "loss")
    assert chunk_of(few, size) == few


def test_of_a_shape_that_is_there_twice_the_better_rate_counts() -> None:
    rows = [*SEPARATE, *(replace(row, flops_per_second=PEAK / 2) for row in SEPARATE)]
    assert times(rows).seconds["ffn"] == pytest.approx(seconds_of(products_of("ffn"), PEAK / 2))


def other_variant(cases: list[MeasuredCase], variant: str, label: str = "") -> list[MeasuredCase]:
    return [replace(c, name=replace(c.name, variant=variant), label=label) for c in cases]


def layer_cases(moved: float = 100.0) -> list[MeasuredCase]:
    names = ("attention", "ffn")
    return [case(f"{name}/forward_backward/{AXES}", 1e-2, bytes=moved) for name in names]


@pytest.mark.parametrize("variant", ["sdpa+fused_loss", "qkv+gate_up", "optimized"])
def test_the_light_is_the_same_for_every_variant(variant: str) -> None:
    label = "optimized = sdpa+fused_loss+fused_adamw"
    # of a layer: its parts' 2 x 100, 2 norms of 100, and 2 residual additions of 2000
    whole = 2 * 4400.0 + 100 + 100 + 100 + 4000
    cases = step_cases(seconds=1, block=1e-2)
    cases[-1] = case(str(STEP), 1, model_flops=STEP_FLOPS, bytes=whole)
    cases += other_variant(cases, variant, label)
    # one variant by the layers' parts, the other by whole blocks
    cases = [one for one in cases if one.name.component != "block" or one.name.variant == variant]
    found = result_set(cases + layer_cases(), rates(0.25, PRODUCTS))
    fine, coarse = (
        speed_of_light(found, name, SIZES) for name in (STEP, replace(STEP, variant=variant))
    )
    assert [one.name for one in fine.parts[1:4]] == ["attention", "ffn", "rms_norm"]
    assert [one.name for one in coarse.parts[1:3]] == ["block", "rms_norm"]
    for one in (fine, coarse):
        parts = sum(of_part.light_seconds for of_part in one.parts)
        assert one.total.light_seconds == pytest.approx(parts)
    assert fine.total.light_seconds == pytest.approx(coarse.total.light_seconds)
    assert fine.products_seconds == pytest.approx(least_seconds(PEAK / 4))
    assert coarse.products_seconds == pytest.approx(least_seconds(PEAK / 4))
    residuals = 2 * 2 * (2000 / CACHE)
    assert part(fine, "rest").light_seconds == pytest.approx(residuals)
    assert part(coarse, "rest").light_seconds == 0


def test_a_part_that_one_variant_lacks_has_the_bytes_of_another() -> None:
    cases = step_cases(seconds=1, block=1e-2)
    step = replace(STEP, variant="fused_norm")
    cases += other_variant([cases[-1]], "fused_norm")
    found = speed_of_light(result_set(cases, rates(1.0, PRODUCTS)), step, SIZES)
    baseline = speed_of_light(result_set(cases, rates(1.0, PRODUCTS)), STEP, SIZES)
    # of a variant whose layers were not measured, the finest parts are named
    assert [one.measured_seconds is None for one in found.parts[1:4]] == [True] * 3
    assert found.total.light_seconds == pytest.approx(baseline.total.light_seconds)
    (attention, ffn, norm) = found.missing
    assert "attention/forward_backward" in attention
    assert "its light is that of its products" in ffn
    assert norm.endswith(f"{AXES.replace('baseline', 'fused_norm')}: not measured")
