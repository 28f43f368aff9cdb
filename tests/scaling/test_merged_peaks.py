"""One machine for all files of a set: the best peaks, their sources, percentages against them."""

from __future__ import annotations

from pathlib import Path

import pytest
from result_documents import MEASURED, document, gemm_row, write

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.data.machine import Machine
from tinyllama_tools.data.results import add_products, read_result_set, read_rows
from tinyllama_tools.models.roofline import left_out_of_roofline, roofline_points

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
    for point in roofline_points(found):
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
    assert not left_out_of_roofline(found)
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
    assert any("no peak of f32" in reason for reason in left_out_of_roofline(found))
    # another round's stands in
    both = read_result_set([bad, MEASURED])
    assert both.context["peaks"]["measured"]["f32"]["flops_per_second"] == PEAK
