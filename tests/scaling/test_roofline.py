"""Points under the roofline, the speed of light of a step and its parts, on a machine of round
numbers; tests/report holds both to the published study. At the end, files of one run as one result,
with merged peaks."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT, read_json, write_json
from compare.samples import entry
from published import MEASURED
from tinyllama_tools.core.app import BadInputError, Json, problem_sizes
from tinyllama_tools.data.machine import Machine, ProductRate
from tinyllama_tools.data.names import (
    SLOTS,
    CaseName,
    full_step,
    measured_as,
    parse_case_name,
    parts_of,
    wholes_among,
)
from tinyllama_tools.data.results import MeasuredCase, ResultSet, read_result_set
from tinyllama_tools.models.roofline import (
    Gemm,
    LaunchCost,
    StepTimes,
    TimedPart,
    roofline_of,
    step_gemms,
    step_times,
)

# a second-level cache that holds 500 bytes, a last level, memory
PEAK, MEMORY, CACHE, FAST = 1e9, 1e8, 1e9, 4e9
CURVE = {250: FAST, 500: FAST, 1000: CACHE, 2000: CACHE, 4000: MEMORY}
AXES = "baseline/small/f32/batch:8/seq:256"
STEP = full_step("small", "f32", 8, 256)
GEMMS = step_gemms(problem_sizes()["small"], 8, 256)
FFN, NORM, HEAD = (f"{part}/forward_backward/{AXES}" for part in ("ffn", "rms_norm", "loss"))
UPDATE = f"optimizer/update/{AXES}"


def name_of(text: str) -> CaseName:
    name = parse_case_name(text)
    assert name is not None
    return name


def flops_of(*names: str) -> int:
    """Of the GEMMs of a component or a layer."""
    return sum(p.flops for p in GEMMS if {p.component, p.layer} & set(names))


FLOPS = flops_of("attention", "ffn", "loss")


def case(text: str, seconds: float, **counters: float) -> MeasuredCase:
    """All products run as the model has them where `hardware_flops` does not say otherwise."""
    found = {"bytes": 100.0, "elementwise_flops": 50.0, "model_flops": 0.0, **counters}
    found.setdefault("hardware_flops", found["model_flops"])
    return MeasuredCase(name_of(text), (seconds,), found)


def result_set(cases: Sequence[MeasuredCase], products: Sequence[ProductRate] = ()) -> ResultSet:
    peaks: Json = {
        **{"f32": {"flops_per_second": PEAK}, "memory_bandwidth": {"bytes_per_second": MEMORY}},
        "bandwidth_curve": [{"bytes": of, "bytes_per_second": rate} for of, rate in CURVE.items()],
    }
    context = {"peaks": {"measured": peaks}, "device": {"name": "toy"}}
    by_name = {str(one.name): one for one in cases}
    return ResultSet((Path("toy.json"),), context, by_name, (), tuple(products))


def rate(factor: float, *shape: int) -> ProductRate:
    """Of a GEMM of m, n, k, a share of the peak."""
    return ProductRate("f32", 1, *shape, factor * PEAK, "a path")


def rates(factor: float, products: Sequence[Gemm]) -> list[ProductRate]:
    """A rate of `factor` of the peak for each of these products."""
    return [replace(rate(factor, p.m, p.n, p.k), batch=p.batch) for p in products]


def test_points_by_hand() -> None:
    flops = {"model_flops": 2000.0, "bytes": 1000.0}
    for name, counters, intensity, attainable, percent, bound in (
        (FFN, flops, 2.0, PEAK, 50.0, "compute"),
        (FFN, {**flops, "model_flops": 500.0}, 0.5, 0.5 * CACHE, 25.0, "bandwidth"),
        # no compute roof for elementwise work: above what products reach
        (NORM, {"elementwise_flops": 5000.0, "bytes": 1000.0}, 5.0, 5 * CACHE, 25.0, "bandwidth"),
        # what really ran counts
        (FFN, {"model_flops": 2e3, "hardware_flops": 1.5e3}, 15.0, PEAK, 37.5, "compute"),
        # three quarters of what the last level holds are not the second level's, nor memory's
        (NORM, {"bytes": 1500.0, "elementwise_flops": 1500.0}, 1.0, CACHE, 37.5, None),
        (NORM, {"bytes": 400.0, "elementwise_flops": 400.0}, 1.0, FAST, 2.5, None),
        (NORM, {"bytes": 1e4, "elementwise_flops": 2e3}, 0.2, 0.2 * MEMORY, 2500.0, None),
    ):
        (point,) = roofline_of(result_set([case(name, 4e-6, **counters)])).cases
        found = (point.intensity, point.attainable, point.percent)
        assert found == pytest.approx((intensity, attainable, percent)), counters
        assert (point.bound, point.case) == (bound or "bandwidth", name_of(name)), counters
        assert point.flops_per_second == pytest.approx(percent / 100 * attainable)
    # autocast multiplies in its narrow type
    other_type = case(HEAD.replace("f32", "amp_bf16"), 1e-3, model_flops=10.0)
    nothing = case(NORM, 1e-3, bytes=0.0)
    assert roofline_of(result_set([nothing, other_type])).left_out == {
        NORM: "its counters lack bytes or FLOPs",
        str(other_type.name): "no bf16 GEMM peak was measured",
    }
    # 1.2 us of traffic at the bandwidth against 2 us at the peak, 4 us measured
    (gemm,) = roofline_of(result_set([], [rate(0.5, 10, 10, 10)])).gemms
    found = (gemm.intensity, gemm.percent, gemm.bound)
    assert found == (pytest.approx(2000 / (4 * 300)), 50.0, "compute")
    # nothing stays in a cache that is made cold
    cold = Machine.from_context(result_set([]).context | {"cold_cache": True})
    assert cold.traffic_seconds(100) == pytest.approx(100 / MEMORY)


def test_the_bandwidth_of_traffic_is_read_from_the_curve() -> None:
    machine = Machine.from_context(result_set([]).context)
    read = machine.attainable_bandwidth
    for size, rate in ((1, FAST), (500, FAST), (2000, CACHE), (4000, MEMORY), (1e12, MEMORY)):
        assert read(size) == pytest.approx(rate)
    # half way between two sizes, by factors
    assert read(500 * 2**0.5) == pytest.approx((FAST * CACHE) ** 0.5)
    found = [read(size) for size in range(1, 5000, 7)]
    assert found == sorted(found, reverse=True)
    # what was disturbed is no less than what more traffic reaches
    disturbed = replace(machine, curve=[(250, 1.0), *machine.curve[1:]])
    assert disturbed.attainable_bandwidth(100) == disturbed.attainable_bandwidth(300) == FAST
    with pytest.raises(BadInputError, match="4001 bytes of traffic are beyond the measured curve"):
        replace(machine, memory_bandwidth=None).attainable_bandwidth(4001)


def test_launches_are_told_apart_from_what_bounds_the_roofline() -> None:
    # 10 operators and nothing to move, so 0.9 us each
    small = case(NORM, 9.0025e-6, bytes=10.0, operators=10.0)
    for seconds, flops, operators, is_mostly_launches in (
        (2e-4, 5e4, 150, True),
        # GEMMs take longer than launches do
        (2e-4, 1.5e5, 130, False),
        # launches take longer than GEMMs, but most of the time is neither's
        (4e-4, 5e4, 150, False),
    ):
        large = case(HEAD, seconds, model_flops=flops, operators=float(operators))
        found = roofline_of(result_set([large, small]))
        point, source = found.cases
        assert found.launch == LaunchCost(pytest.approx(0.9e-6), NORM)
        assert (point.bound, point.is_mostly_launches) == ("compute", is_mostly_launches)
        assert point.launch_seconds == pytest.approx(operators * 0.9e-6)
        # the case that the cost was inferred from says nothing of itself
        assert (source.bound, source.is_mostly_launches) == ("bandwidth", False)
        assert source.launch_seconds is None
    # one that is nearly at its roof shows scatter, and a large one nothing
    at_roof = case(FFN, 1e-3, model_flops=0.99e6, operators=10.0)
    best, large = (case(NORM, of, bytes=1e3, operators=10.0) for of in (3e-5, 1e-3))
    assert roofline_of(result_set([at_roof, best])).launch.seconds == pytest.approx(2.9e-6)
    assert roofline_of(result_set([large])).launch is None


# of all products of a step at the peak; of 256 scores a row, 128.5 are not masked
SCORES = flops_of("scores", "values")
LEAST = (FLOPS - 127.5 / 256 * SCORES) / PEAK
HEAD_LEAST = flops_of("loss") / PEAK
# of 4000 and 100 bytes
UPDATE_LEAST, SMALL_LEAST = 4000 / MEMORY, 100 / FAST


def step_cases(without: str = "", **other: float) -> list[MeasuredCase]:
    """A step and all its parts with blocks. `other`: seconds by component in place of 1e-3."""
    took = dict.fromkeys(("embedding", "block", "rms_norm", "loss", "optimizer"), 1e-3) | other
    found = [case(str(STEP), took.pop("step", 1e3), model_flops=FLOPS)]
    for part, seconds in took.items():
        is_update = part == "optimizer"
        name = f"{part}/{'update' if is_update else 'forward_backward'}/{AXES}"
        found += [case(name, seconds, bytes=4e3 if is_update else 100.0)] * (part != without)
    return found


def times_of(cases: Sequence[MeasuredCase], rows: Sequence[ProductRate] = ()) -> StepTimes:
    return step_times(result_set(cases, rows or rates(1.0, GEMMS)), STEP)


def part(found: StepTimes, name: str) -> TimedPart:
    return next(one for one in found.parts if one.name == name)


def test_the_fastest_form_that_was_measured_counts() -> None:
    def fused(by: float) -> list[ProductRate]:
        """Of q, k and v: 2048 tokens, 512 + 256 + 256 outputs."""
        return [rate(by, *of) for of in ((2048, 1024, 512), (2048, 512, 1024), (1024, 512, 2048))]

    def chunks(by: float) -> list[ProductRate]:
        """Of the LM head: as many tokens as have 2^19 logits, in steps of 64."""
        return [rate(by, *of) for of in ((512, 1000, 512), (512, 512, 1000), (1000, 512, 512))]

    of_qkv = flops_of("q_proj", "k_proj", "v_proj") / PEAK
    every = rates(0.25, GEMMS)
    # masked scores do not count, and the others at the peak
    alone = 4 * (LEAST - HEAD_LEAST) - 3 * 128.5 / 256 * SCORES / PEAK
    others = [p for p in GEMMS if p.layer not in ("k_proj", "v_proj", "lm_head")]
    for rows, blocks, head in (
        (every, alone, 4 * HEAD_LEAST),
        (every + fused(0.5) + chunks(0.5), alone - 2 * of_qkv, 2 * HEAD_LEAST),
        (every + fused(0.1) + chunks(0.1), alone, 4 * HEAD_LEAST),
        # a measured form counts before one at the peak
        (rates(0.25, others) + fused(0.5), alone - 2 * of_qkv, HEAD_LEAST),
    ):
        found = times_of(step_cases(), rows)
        least = [part(found, name).least.gemms for name in ("block", "loss")]
        assert least == pytest.approx([blocks, head])
    # and without any the peak stands in by name
    words = "not measured at their own shape, so counted at the measured f32 peak"
    assert found.missing[:1] == [f"{words}: 2048x1000x512, 2048x512x1000, 1000x512x2048"]


def test_the_light_of_a_step_is_the_sum_of_its_parts() -> None:
    found = times_of(step_cases(block=50.0, loss=40.0, optimizer=30.0))
    assert (found.refusal, found.errors) == ("", [])
    expected = {
        **{"embedding": SMALL_LEAST, "block": LEAST - HEAD_LEAST, "rms_norm": SMALL_LEAST},
        **{"loss": HEAD_LEAST, "optimizer": UPDATE_LEAST, "rest": 0.0},
    }
    assert {one.name: one.least.seconds for one in found.parts} == pytest.approx(expected)
    assert part(found, "block").least.traffic == pytest.approx(8 * SMALL_LEAST)
    took = {one.name: (one.count, one.seconds) for one in found.parts}
    assert took["block"] == (8, pytest.approx(400.0))
    assert took["rest"][1] == pytest.approx(1e3 - 400 - 40 - 30 - 2e-3)
    whole = sum(expected.values())
    assert (found.total.least.gemms, found.total.least.seconds) == pytest.approx((LEAST, whole))
    assert found.share_percent == pytest.approx(whole / 10)
    assert sum(one.lost_seconds or 0.0 for one in found.parts) == pytest.approx(1e3 - whole)
    # a little faster than light is scatter of a rate
    found = times_of(step_cases(loss=HEAD_LEAST / 1.01, block=50.0))
    assert found.errors == [] and found.share_percent is not None
    # the larger of products and traffic counts, which any variant tells of
    fused = case(HEAD.replace("baseline", "fused_loss"), 40.0, bytes=2e9)
    traffic = part(times_of([*step_cases(without="loss"), fused]), "loss").least
    assert traffic.seconds == traffic.traffic == pytest.approx(20)


def test_what_is_missing_is_named() -> None:
    found = times_of(step_cases(without="loss"))
    no_bytes = "bytes not known, so its speed of light has only its GEMMs"
    assert found.missing[:2] == [f"{HEAD}: not measured", f"{HEAD}: {no_bytes}"]
    assert part(found, "loss").seconds is None
    # rates of another type are nobody's
    other = times_of(step_cases(), [replace(of, type_name="bf16") for of in rates(1.0, GEMMS)])
    assert other.total.least.gemms == pytest.approx(LEAST) and "every f32" in other.missing[0]
    for step, flops, words in (
        (STEP, 5.0, "model_flops is 5.0, by the dimensions"),
        (replace(STEP, dtype="bf16"), FLOPS, "no bf16 GEMM peak"),
    ):
        found = step_times(result_set([case(str(step), 1.0, model_flops=flops)]), step)
        assert words in found.refusal and found.total.least is found.share_percent is None
        # what was measured is there all the same
        assert found.total.seconds == 1.0


def test_the_products_of_a_real_run_are_those_that_it_counted(measured: Path) -> None:
    found_in = read_result_set([measured])
    peak = Machine.from_context(found_in.context).peak_flops["f32"]
    for variant in ("baseline", "optimized"):
        step = full_step("tiny", "f32", 8, 128, variant)
        found, counters = step_times(found_in, step), found_in.cases[str(step)].counters
        # every product at the peak, without what is masked, and updates come on top
        least = found.total.least.gemms * peak
        assert least == pytest.approx(counters["causal_flops"], rel=1e-12)
        unmasked = counters["causal_flops"] / counters["model_flops"]
        assert counters["roof_percent"] * unmasked - 0.5 < found.share_percent < 100
        # the embedding has no switch, so the baseline's stands in the optimized step
        assert [one.case.split("/")[2] for one in found.parts[:2]] == ["baseline", variant]


def test_phases() -> None:
    forward, both = (f"model/{name}/{AXES}" for name in ("forward_loss", "forward_backward"))
    cases = [*step_cases(step=1e-2, optimizer=1e-3), case(forward, 3e-3), case(both, 8e-3)]
    phases = {"forward": 3e-3, "backward": 5e-3, "optimizer": 1e-3, "other": 1e-3}
    assert times_of(cases).phases == pytest.approx(phases)
    found = times_of(cases[:-1])
    assert found.phases == {} and f"{both}: not measured" in found.missing
    # a switch of the update leaves the model as it is; what `optimized` has depends on the case
    for variant, is_found in (("fused_adamw", True), ("qkv", False), ("optimized", False)):
        step = replace(STEP, variant=variant)
        more = (case(name.replace("baseline", variant), 1e-3) for name in (str(STEP), UPDATE))
        assert bool(step_times(result_set([*cases, *more]), step).phases) == is_found, variant


# ---- rounds of the same cases as one result, with merged peaks

TINY = "baseline/tiny/f32/batch:8/seq:128"
NAME, TINY_STEP = f"embedding/forward_backward/{TINY}", f"full_step/train/{TINY}"


def document(**more: object) -> Json:
    """The measured file, to be changed."""
    return read_json(MEASURED) | more


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_json(tmp_path_factory.mktemp("measured") / MEASURED.name, document())


def gemm_row(name: str, tflops: float, label: str = "oneDNN", repetition: int = 0) -> Json:
    more = {"label": label, "TFLOPS": tflops, "iterations": 1}
    return entry(f"{name}/iterations:1", 1e-3 / tflops, repetition, **more)


TINY_PEAK = document()["context"]["peaks"]["measured"]["f32"]["flops_per_second"]


def test_what_rounds_lack_or_failed_is_named(tmp_path: Path, measured: Path) -> None:
    def changed(name: str, **values: object) -> Path:
        """The measured file with these values in every entry of NAME."""
        rows = document()["benchmarks"]
        found = [row | values if row["run_name"].startswith(NAME) else row for row in rows]
        return write_json(tmp_path / name, document(benchmarks=found))

    failed = changed("a.json", error_occurred=True, error_message="wrong result")
    skipped = changed("b.json", skipped=True, skip_message="too long")
    # a failure in one round is the case's
    found = read_result_set([measured, skipped, failed])
    assert {n: c.failed for n, c in found.left_out.items()} == {NAME: "wrong result"}
    assert NAME not in found.cases
    # a skip leaves the other rounds
    found = read_result_set([measured, skipped, measured])
    assert (found.cases[NAME].rounds, len(found.cases[NAME].seconds)) == ((1, 3), 2)
    assert found.warnings == (f"not measured in every round: {NAME}",)
    found = read_result_set([skipped])
    assert {n: c.skipped for n, c in found.left_out.items()} == {NAME: "too long"}
    # nor is there a speedup over what a round found wrong
    rows = [row for row in document()["benchmarks"] if row["run_name"].startswith(NAME)]
    fast = [json.loads(json.dumps(row).replace("baseline", "optimized")) for row in rows]
    fast = [row | {"speedup": 1.5} for row in fast]
    both = write_json(tmp_path / "d.json", document(benchmarks=[*rows, *fast]))
    (optimized,) = (n for n in read_result_set([both]).cases if n != NAME)
    for files, speedup in (([both, both], 1.5), ([both, failed], None)):
        assert read_result_set(files).cases[optimized].counters.get("speedup") == speedup
    # another build of a plug-in is another run
    known = {"file": "libmy.so", "sha256": 64 * "a", "operators": ["my::rms_norm"]}
    alone, loaded = (
        write_json(tmp_path / f"{n}.json", document(context=document()["context"] | more))
        for n, more in enumerate(({}, {"plugins": [known]}))
    )
    said = r"plugins is 'libmy.so \(SHA-256 a{12}\)', in 0.json it is 'none'"
    with pytest.raises(BadInputError, match=said):
        read_result_set([alone, loaded])
    # machines of one kind are not one machine
    context = document()["context"] | {"host_name": "host_0123abcd"}
    other = write_json(tmp_path / "c.json", document(context=context))
    same = write_json(tmp_path / "e.json", document())
    (said,) = read_result_set([same, other]).warnings
    assert said.startswith("measured on 2 hosts: ") and "host_0123abcd" in said


def test_products_are_the_best_of_each_shape_and_those_without_a_figure_named(
    tmp_path: Path,
) -> None:
    rows = [
        # of repetitions the best with its own label
        gemm_row("peak/gemm/f32/64x128x128x32", 0.1, "L0", 0),
        gemm_row("peak/gemm/f32/64x128x128x32", 0.2, "L1", 1),
        gemm_row("peak/gemm/f32", 0.4),
        gemm_row("peak/gemm/f32/2x8x8", 0.1) | {"error_occurred": True, "error_message": "wrong"},
    ]
    better = [rows[0] | {"TFLOPS": 0.3}]
    both = {"4.json": rows, "1.json": better}
    paths = [write_json(tmp_path / name, document(benchmarks=of)) for name, of in both.items()]
    for files, rate, label in ((paths[:1], 0.2, "L1"), (paths, 0.3, "L0")):
        found = read_result_set(files)
        best = ProductRate("f32", 64, 128, 128, 32, pytest.approx(rate * 1e12), label)
        assert found.products == (best,)
        assert {n: c.failed for n, c in found.left_out.items()} == {"peak/gemm/f32/2x8x8": "wrong"}


def test_the_best_of_all_rounds_is_the_denominator_of_all(tmp_path: Path) -> None:
    def with_peaks(name: str, **factors: float) -> Path:
        content = document()
        for peak, factor in factors.items():
            found = content["context"]["peaks"]["measured"][peak]
            for of in found[:1] if peak == "bandwidth_curve" else [found]:
                unit = next(key for key in of if key.endswith("_per_second"))
                of |= {unit: of[unit] * factor, "source": f"{peak} x {factor}"}
        return write_json(tmp_path / name, content)

    second = with_peaks("b.json", f32=1.25, memory_bandwidth=0.5)
    first, third = with_peaks("a.json"), with_peaks("c.json", bandwidth_curve=2.0)
    one, found = read_result_set([first]), read_result_set([first, second, third])
    machine, of_first = (Machine.from_context(each.context) for each in (found, one))
    assert machine.peak_flops["f32"] == pytest.approx(1.25 * TINY_PEAK)
    assert machine.memory_bandwidth == of_first.memory_bandwidth
    (size, rate), *others = of_first.curve
    assert machine.curve == [(size, pytest.approx(2 * rate)), *others]
    assert found.context["peaks"]["measured"]["f32"]["source"] == "f32 x 1.25"
    # the file's own counter and the point under the roofline are one number
    step, before = found.cases[TINY_STEP].counters, one.cases[TINY_STEP].counters
    assert step["peak_percent"] == pytest.approx(before["peak_percent"] / 1.25)
    for point in roofline_of(found).cases:
        counter = found.cases[point.name].counters["roof_percent"]
        assert point.percent == pytest.approx(counter), point.name


def test_a_file_without_a_curve_keeps_its_times_and_has_no_roofline(tmp_path: Path) -> None:
    now = document()
    old = document()
    old["context"]["schema_version"] = 3
    peaks = old["context"]["peaks"]["measured"]
    # of the second-level cache, for all that fits into the last
    peaks["cache_bandwidth"] = peaks.pop("bandwidth_curve")[0] | {"source": "triad, 1.52 MiB"}
    del peaks["cache_bandwidth"]["bytes"]
    of_now, found = (
        read_result_set([write_json(tmp_path / f"{name}.json", content)])
        for name, content in (("now", now), ("old", old))
    )
    assert found.warnings == (
        "schema_version 3: without a bandwidth curve, so there is no roofline; "
        "measure again, or name another file",
    )
    for name, case in of_now.cases.items():
        assert found.cases[name].seconds == case.seconds
        kept = {key: of for key, of in case.counters.items() if key != "roof_percent"}
        assert found.cases[name].counters == pytest.approx(kept)
    with pytest.raises(BadInputError, match="no bandwidth_curve"):
        roofline_of(found)


def test_what_is_above_the_datasheet_is_no_peak(tmp_path: Path, measured: Path) -> None:
    shapes = {"512x512x512": (2.0, "B"), "256x512x512": (1.4, "C")}
    peak = TINY_PEAK / 1e12
    rows = [gemm_row(f"peak/gemm/f32/{of}", by * peak, x) for of, (by, x) in shapes.items()]
    rounds, products = read_result_set([measured]), document(benchmarks=rows)
    # a file without cases is no round
    found = read_result_set([measured, write_json(tmp_path / "products.json", products)])
    assert (found.paths, found.warnings) == (rounds.paths, ())
    assert found.context["peaks"]["measured"]["f32"]["source"] == "B"
    before, step = rounds.cases[TINY_STEP].counters, found.cases[TINY_STEP].counters
    assert step["MFU_percent"] == pytest.approx(before["MFU_percent"] / 2)
    # MFU is against the datasheet
    content = document(benchmarks=[*rows, *document()["benchmarks"]])
    sheet = {"flops_per_second": {"f32": 1.5 * TINY_PEAK}, "memory_bytes_per_second": 1e12}
    content["context"]["peaks"]["datasheet"] = sheet
    found = read_result_set([write_json(tmp_path / "sheet.json", content)])
    assert found.context["peaks"]["measured"]["f32"]["source"] == "C"
    (warning,) = found.warnings
    is_above = f"peak/gemm/f32/512x512x512: {2 * peak:.4g} TFLOP/s is above the datasheet's"
    assert warning.startswith(is_above)
    step = found.cases[TINY_STEP].counters
    assert step["MFU_percent"] == pytest.approx(before["peak_percent"] / 1.5)
    assert step["peak_percent"] == pytest.approx(before["peak_percent"] / 1.4)


@pytest.mark.parametrize("value", [math.nan, 10**400])
def test_a_peak_that_is_no_rate_is_left_out_and_named(
    tmp_path: Path, measured: Path, value: object
) -> None:
    content = document()
    content["context"]["peaks"]["measured"]["f32"]["flops_per_second"] = value
    bad = write_json(tmp_path / "bad.json", content)
    found = read_result_set([bad])
    assert "f32" not in found.context["peaks"]["measured"]
    (warning,) = found.warnings
    assert warning.startswith("context.peaks.measured.f32.flops_per_second is ")
    assert len(warning) < 130
    # another round's stands in
    both = read_result_set([bad, measured])
    assert both.context["peaks"]["measured"]["f32"]["flops_per_second"] == TINY_PEAK


def test_without_a_bandwidth_of_memory_large_cases_have_no_share_of_the_roofline(
    tmp_path: Path,
) -> None:
    content = document()
    measured = content["context"]["peaks"]["measured"]
    measured["memory_bandwidth"]["bytes_per_second"] = None
    point = measured["bandwidth_curve"][0]
    measured["bandwidth_curve"] = [point | {"bytes": 2**of} for of in (20, 21)]
    found = read_result_set([write_json(tmp_path / "a.json", content)])
    assert "memory_bandwidth.bytes_per_second is None" in found.warnings[0]
    for case in found.cases.values():
        is_cached = case.counters["bytes"] <= 2**21
        assert ("roof_percent" in case.counters) == is_cached, case.name
        assert ("peak_percent" in case.counters) == bool(case.counters["hardware_flops"])
    assert "memory's bandwidth is not known" in roofline_of(found).left_out[TINY_STEP]


def test_parts_of_a_step_with_operators_of_a_plug_in() -> None:
    """Of the variant where an operator changes the part, else of the one without operators, else
    of the baseline."""
    mine, best = (TINY.replace("baseline", name) for name in ("my::rms_norm", "optimized"))
    both = TINY.replace("baseline", "optimized+my::rms_norm")
    parts = ("embedding", "attention", "ffn", "rms_norm", "loss")
    names = [f"{part}/forward_backward/{TINY}" for part in parts]
    names += [f"{part}/forward_backward/{best}" for part in parts[1:]]
    names += [f"rms_norm/forward_backward/{of}" for of in (mine, both)]
    names += [f"optimizer/update/{of}" for of in (TINY, best)]
    steps = {of: f"full_step/train/{of}" for of in (mine, both)}
    found = dict(wholes_among([*names, *steps.values()], {"tiny": 4}))
    for of, rest in ((mine, TINY), (both, best)):
        assert found[steps[of]].missing == ()
        assert found[steps[of]].measured == (
            (f"embedding/forward_backward/{TINY}", 1),
            (f"attention/forward_backward/{rest}", 4),
            (f"ffn/forward_backward/{rest}", 4),
            (f"rms_norm/forward_backward/{of}", 9),
            (f"loss/forward_backward/{rest}", 1),
            (f"optimizer/update/{rest}", 1),
        )
    # what an operator changes is no other variant's
    for name, part in (("my::linear", "loss"), ("my::rotary.fast", "attention")):
        step = parse_case_name(steps[mine].replace("my::rms_norm", name))
        lacking = f"{part}/forward_backward/{TINY}".replace("baseline", name)
        assert lacking in parts_of(step, 4, names).missing
    # nor is the model's time, but where only the update is another one's
    for name, measured in (("my::swiglu", "my::swiglu"), ("my::adamw_step_", "baseline")):
        case = parse_case_name(f"model/forward_loss/{TINY}".replace("baseline", name))
        assert parse_case_name(measured_as(case, names)).variant == measured


def test_slots_are_those_of_the_model() -> None:
    found = re.search(
        r"enum class Slot[^{]*{([^}]*)}", (PROJECT_ROOT / "model/slots.hpp").read_text()
    )
    assert re.findall(r"\w+", found[1]) == list(SLOTS)


def test_parts_of_a_step() -> None:
    """By hand: full_step = embedding + L x attention + L x ffn + (2L + 1) x rms_norm + loss +
    optimizer; of a checkpointed one L x block; parts of a variant as far as it changes them."""
    parts = ("embedding", "attention", "ffn", "rms_norm", "loss", "block")
    names = [f"{part}/forward_backward/{TINY}" for part in parts]
    names += [f"optimizer/update/{TINY}", TINY_STEP]
    fast = TINY.replace("baseline", "checkpoint")
    names += [f"full_step/train/{fast}", f"block/forward_backward/{fast}"]
    found = dict(wholes_among(names, {"tiny": 4}))
    assert [count for _, count in found[TINY_STEP].measured] == [1, 4, 4, 9, 1, 1]
    again = found[f"full_step/train/{fast}"]
    wanted = [(f"block/forward_backward/{fast}", 4), (f"rms_norm/forward_backward/{TINY}", 1)]
    assert [*again.measured[1:3]] == wanted and again.missing == ()
    block = found[f"block/forward_backward/{TINY}"]
    assert [count for _, count in block.measured] == [1, 1, 2]
    # no case without a sample
    assert parse_case_name(TINY_STEP.replace("batch:8", "batch:0")) is None
    # nobody measured the rotation
    assert f"attention/forward_backward/{TINY}" not in found
