"""Rounds of the same cases as one result, with merged peaks, and costs of cases."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
from result_documents import MEASURED, document, gemm_row, write

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.data.machine import SAME_DEVICE, Machine, ProductRate, first_difference
from tinyllama_tools.data.results import add_products, read_result_set, read_rows, read_stored
from tinyllama_tools.models.roofline import roofline_of

NAME = "embedding/forward_backward/baseline/tiny/f32/batch:8/seq:128"


def of_case(content: Json, name: str) -> list[Json]:
    return [e for e in content["benchmarks"] if e["run_name"].startswith(name)]


def test_one_file() -> None:
    found = read_result_set([MEASURED])
    assert len(found.cases) == len({e["run_name"] for e in document()["benchmarks"]})
    case = found.cases[NAME]
    assert case.name.component == "embedding"
    assert len(case.seconds) == 1
    assert case.counters["bytes"] == 4161536
    assert found.left_out == ()
    assert document()["context"]["git_commit"][:8] in found.title


def test_rounds_are_one_set(tmp_path: Path) -> None:
    paths = []
    for factor in (1.0, 2.0, 4.0):
        content = document()
        for entry in of_case(content, NAME):
            entry["real_time"] *= factor
        paths.append(write(tmp_path, f"round_{factor}.json", content))
    one = read_result_set(paths[:1]).cases[NAME].median_seconds
    case = read_result_set(paths).cases[NAME]
    assert case.seconds == pytest.approx((one, 2 * one, 4 * one))
    assert case.median_seconds == pytest.approx(2 * one)
    assert case.rounds == (1, 2, 3)


def test_a_case_that_failed_in_one_round_has_failed(tmp_path: Path) -> None:
    content = document()
    for entry in of_case(content, NAME):
        entry |= {"error_occurred": True, "error_message": "wrong result"}
    found = read_result_set([MEASURED, write(tmp_path, "second.json", content)])
    assert NAME not in found.cases
    assert [(one.name, one.reason, one.is_failure) for one in found.left_out] == [
        (NAME, "wrong result", True)
    ]


def test_a_case_skipped_in_one_round_keeps_the_others_and_is_named(tmp_path: Path) -> None:
    content = document()
    for entry in of_case(content, NAME):
        entry |= {"skipped": True, "skip_message": "too long"}
    second = write(tmp_path, "second.json", content)
    found = read_result_set([MEASURED, second, write(tmp_path, "third.json", document())])
    assert found.cases[NAME].rounds == (1, 3)
    assert len(found.cases[NAME].seconds) == 2
    assert found.warnings == (f"not measured in second.json: {NAME}: too long",)
    alone = read_result_set([second])
    assert [(one.name, one.is_failure) for one in alone.left_out] == [(NAME, False)]
    assert alone.warnings == ()


def test_cases_that_a_round_lacks_share_a_warning(tmp_path: Path) -> None:
    content = document()
    content["benchmarks"] = of_case(content, NAME)
    found = read_result_set([MEASURED, write(tmp_path, "second.json", content)])
    assert found.cases[NAME].rounds == (1, 2)
    (warning,) = found.warnings
    assert warning.startswith("not measured in second.json: ")
    assert warning.endswith(f" and {len(found.cases) - 4} more: not in the file")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_counter_costs_its_case_only(tmp_path: Path, value: float) -> None:
    content = document()
    of_case(content, NAME)[1]["MFU_percent"] = value
    of_case(content, NAME)[0]["MFU_percent"] = 1.0
    path = write(tmp_path, "bad.json", content)
    found = read_result_set([path])
    assert len(found.cases) == len(read_result_set([MEASURED]).cases) - 1
    assert [(one.name, one.is_failure) for one in found.left_out] == [(NAME, True)]
    assert found.left_out[0].reason == f"counter MFU_percent is {value}, must be finite"
    # a comparison has no use for the rest of such a file
    with pytest.raises(BadInputError, match="counter MFU_percent is"):
        read_stored(path)


def test_products_by_shape_at_their_best(tmp_path: Path) -> None:
    content = document()
    content["benchmarks"] += [
        gemm_row("peak/gemm/f32/1024x512x256", 0.2),
        gemm_row("peak/gemm/f32/64x128x128x32", 0.1),
        gemm_row("peak/gemm/f32", 0.4),
        gemm_row("peak/bandwidth", 0.4),
    ]
    better = copy.deepcopy(content)
    better["benchmarks"][-4]["TFLOPS"] = 0.3
    paths = [write(tmp_path, "a.json", content), write(tmp_path, "b.json", better)]
    assert read_result_set(paths).products == (
        ProductRate("f32", 1, 1024, 512, 256, 0.3e12, "oneDNN"),
        ProductRate("f32", 64, 128, 128, 32, 0.1e12, "oneDNN"),
    )


def test_of_repetitions_the_best_counts_with_its_own_label(tmp_path: Path) -> None:
    rows = [
        gemm_row("peak/gemm/f32/8x8x8", rate, label, number)
        for number, (rate, label) in enumerate([(0.1, "BLAS"), (0.3, "oneDNN"), (0.2, "BLAS")])
    ]
    content = document() | {"benchmarks": rows}
    (product,) = read_result_set([write(tmp_path, "products.json", content)]).products
    assert (product.flops_per_second, product.source) == (pytest.approx(0.3e12), "oneDNN")


def test_products_without_a_figure_are_named(tmp_path: Path) -> None:
    skipped, failed, bad, good = (
        gemm_row(f"peak/gemm/f32/{number}x8x8", 0.1) for number in (1, 2, 3, 4)
    )
    skipped |= {"skipped": True, "skip_message": "does not fit"}
    failed |= {"error_occurred": True, "error_message": "wrong"}
    bad["TFLOPS"] = math.nan
    content = document() | {"benchmarks": [skipped, failed, bad, good]}
    found = read_result_set([write(tmp_path, "products.json", content)])
    assert [product.m for product in found.products] == [4]
    assert [(one.name, one.reason, one.is_failure) for one in found.left_out] == [
        ("peak/gemm/f32/1x8x8", "does not fit", False),
        ("peak/gemm/f32/2x8x8", "wrong", True),
        ("peak/gemm/f32/3x8x8", "counter TFLOPS is nan, must be finite", True),
    ]


def test_products_alone_are_a_set(tmp_path: Path) -> None:
    content = document() | {"benchmarks": [gemm_row("peak/gemm/f32/8x8x8", 0.2)]}
    found = read_result_set([write(tmp_path, "products.json", content)])
    assert len(found.products) == 1
    assert not found.cases


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("torch_version", "2.9.0"),
        ("threads", 64),
        ("git_commit", "0" * 40),
        ("git_dirty", True),
        ("cold_cache", True),
        ("memory_source", "another"),
        ("device.name", "AMD Instinct MI300X"),
        ("device.driver_version", "6.8"),
        ("device.runtime_version", "6.2"),
        ("settings.float32_matmul_precision", "high"),
        ("settings.cpu_affinity", "0-63"),
        ("settings.env.OMP_NUM_THREADS", "1"),
    ],
)
def test_other_circumstances_are_refused(tmp_path: Path, key: str, value: object) -> None:
    content = document()
    part, _, inner = key.partition(".")
    if inner:
        content["context"][part][inner] = value
    else:
        content["context"][part] = value
    other = write(tmp_path, "other.json", content)
    with pytest.raises(BadInputError, match=f"other.json: {key} is {value!r}"):
        read_result_set([MEASURED, other])


def test_a_device_is_the_same_with_another_commit() -> None:
    here, there = document()["context"], document()["context"]
    there["git_commit"] = "0" * 40
    there["device"]["driver_version"] = "2"
    assert first_difference(here, there, SAME_DEVICE) is None
    there["threads"] = 64
    found = first_difference(here, there, SAME_DEVICE)
    assert found is not None
    assert (found.name, found.here, found.there) == ("threads", 2, 64)


def test_nothing_measured_is_refused(tmp_path: Path) -> None:
    content = document() | {"benchmarks": []}
    with pytest.raises(BadInputError, match="no case was measured"):
        read_result_set([write(tmp_path, "empty.json", content)])
    with pytest.raises(BadInputError, match="no file"):
        read_result_set([])
    with pytest.raises(BadInputError, match="is no result of the suite"):
        read_result_set([write(tmp_path, "foreign.json", {"a": 1})])


PEAK = document()["context"]["peaks"]["measured"]["f32"]["flops_per_second"]
STEP = "full_step/train/baseline/tiny/f32/batch:8/seq:128"


def with_peaks(**rates: float) -> Json:
    """The measured file with factors on its peaks."""
    content = document()
    measured = content["context"]["peaks"]["measured"]
    for name, factor in rates.items():
        unit = "bytes_per_second" if name.endswith("bandwidth") else "flops_per_second"
        measured[name] = {unit: measured[name][unit] * factor, "source": f"{name} x {factor}"}
    return content


def test_the_best_of_all_rounds_is_the_denominator_of_all(tmp_path: Path) -> None:
    second = write(tmp_path, "b.json", with_peaks(f32=1.25, memory_bandwidth=0.5))
    third = write(tmp_path, "c.json", with_peaks(cache_bandwidth=2.0))
    one, found = read_result_set([MEASURED]), read_result_set([MEASURED, second, third])
    machine, of_first = (Machine.from_context(each.context) for each in (found, one))
    assert machine.peak_flops["f32"] == pytest.approx(1.25 * PEAK)
    assert machine.memory_bandwidth == of_first.memory_bandwidth
    assert machine.cache_bandwidth == pytest.approx(2 * of_first.cache_bandwidth)
    assert found.context["peaks"]["measured"]["f32"]["source"] == "f32 x 1.25"
    # the file's own counter and the point under the roofline are one number
    step, before = found.cases[STEP].counters, one.cases[STEP].counters
    assert step["peak_percent"] == pytest.approx(before["peak_percent"] / 1.25)
    for point in roofline_of(found).points:
        counter = found.cases[point.name].counters["roof_percent"]
        assert point.percent == pytest.approx(counter), point.name


def test_of_one_file_the_percentages_stay_as_the_suite_wrote_them() -> None:
    stored = read_rows(document(), MEASURED).cases
    for name, case in read_result_set([MEASURED]).cases.items():
        assert dict(case.counters) == pytest.approx(dict(stored[name].counters), rel=1e-9), name


def test_a_faster_product_is_the_peak(tmp_path: Path) -> None:
    content = document()
    content["benchmarks"].append(gemm_row("peak/gemm/f32/512x512x512", 2 * PEAK / 1e12, "B"))
    found = read_result_set([write(tmp_path, "a.json", content)])
    assert found.context["peaks"]["measured"]["f32"] == {
        "flops_per_second": pytest.approx(2 * PEAK),
        "source": "B",
    }
    before = read_result_set([MEASURED]).cases[STEP].counters
    assert found.cases[STEP].counters["MFU_percent"] == pytest.approx(before["MFU_percent"] / 2)


def test_what_is_above_the_datasheet_is_no_peak(tmp_path: Path) -> None:
    content = document()
    sheet = {"flops_per_second": {"f32": 1.5 * PEAK}, "memory_bytes_per_second": 1e12}
    content["context"]["peaks"]["datasheet"] = sheet
    content["benchmarks"] += [
        gemm_row("peak/gemm/f32/512x512x512", 2 * PEAK / 1e12, "B"),
        gemm_row("peak/gemm/f32/256x512x512", 1.4 * PEAK / 1e12, "C"),
    ]
    found = read_result_set([write(tmp_path, "a.json", content)])
    assert found.context["peaks"]["measured"]["f32"]["source"] == "C"
    (warning,) = found.warnings
    assert warning.startswith("peak/gemm/f32/512x512x512: 0.7496 TFLOP/s is above the datasheet's")
    # MFU is against the datasheet
    before = read_result_set([MEASURED]).cases[STEP].counters
    step = found.cases[STEP].counters
    assert step["MFU_percent"] == pytest.approx(before["peak_percent"] / 1.5)
    assert step["peak_percent"] == pytest.approx(before["peak_percent"] / 1.4)


def test_products_of_another_process_are_of_the_same_machine(tmp_path: Path) -> None:
    content = with_peaks(f32=1.1, memory_bandwidth=1.5)
    content["benchmarks"] = [gemm_row("peak/gemm/f32/512x512x512", 1.2 * PEAK / 1e12, "B")]
    others = read_result_set([write(tmp_path, "products.json", content)])
    rounds = read_result_set([MEASURED])
    found = add_products(rounds, others)
    assert [product.name for product in found.products] == ["peak/gemm/f32/512x512x512"]
    machine = Machine.from_context(found.context)
    assert machine.peak_flops["f32"] == pytest.approx(1.2 * PEAK)
    bandwidth = Machine.from_context(rounds.context).memory_bandwidth
    assert machine.memory_bandwidth == pytest.approx(1.5 * bandwidth)
    assert found.cases.keys() == rounds.cases.keys()
    assert not roofline_of(found).left_out
    content["context"]["threads"] = 64
    others = read_result_set([write(tmp_path, "products.json", content)])
    with pytest.raises(BadInputError, match=r"products\.json: threads is 64"):
        add_products(rounds, others)


@pytest.mark.parametrize("value", [None, float("nan"), 0, -1.0, "fast", True, 10**400])
def test_a_peak_that_is_no_rate_is_left_out_and_named(tmp_path: Path, value: object) -> None:
    content = document()
    content["context"]["peaks"]["measured"]["f32"]["flops_per_second"] = value
    bad = write(tmp_path, "bad.json", content)
    found = read_result_set([bad])
    assert "f32" not in found.context["peaks"]["measured"]
    (warning,) = found.warnings
    assert warning.startswith("context.peaks.measured.f32.flops_per_second is ")
    assert len(warning) < 130
    assert any("no peak of f32" in reason for reason in roofline_of(found).left_out.values())
    # another round's stands in
    both = read_result_set([bad, MEASURED])
    assert both.context["peaks"]["measured"]["f32"]["flops_per_second"] == PEAK
