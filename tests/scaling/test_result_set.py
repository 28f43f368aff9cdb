"""Rounds of the same cases as one result, with merged peaks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from published import MEASURED
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.machine import Machine, ProductRate
from tinyllama_tools.data.names import LeftOut, wholes_among
from tinyllama_tools.data.results import add_products, read_result_set
from tinyllama_tools.models.roofline import roofline_of

AXES = "baseline/tiny/f32/batch:8/seq:128"
NAME, STEP = f"embedding/forward_backward/{AXES}", f"full_step/train/{AXES}"


def document(**more: object) -> Json:
    """The measured file, to be changed."""
    return json.loads(MEASURED.read_text(encoding="utf-8")) | more


def write(folder: Path, name: str, content: Json) -> Path:
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def gemm_row(name: str, tflops: float, label: str = "oneDNN", repetition: int = 0) -> Json:
    full = f"{name}/iterations:1/manual_time"
    return {
        **{"name": full, "run_name": full, "run_type": "iteration", "label": label},
        **{"repetition_index": repetition, "iterations": 1, "TFLOPS": tflops},
        **{"real_time": 1.0 / tflops, "time_unit": "ms"},
    }


PEAK = document()["context"]["peaks"]["measured"]["f32"]["flops_per_second"]


def test_what_rounds_lack_or_failed_is_named(tmp_path: Path) -> None:
    def changed(name: str, **values: object) -> Path:
        """The measured file with these values in every entry of NAME."""
        rows = document()["benchmarks"]
        found = [row | values if row["run_name"].startswith(NAME) else row for row in rows]
        return write(tmp_path, name, document(benchmarks=found))

    failed = changed("a.json", error_occurred=True, error_message="wrong result")
    skipped = changed("b.json", skipped=True, skip_message="too long")
    # a failure in one round is the case's
    found = read_result_set([MEASURED, skipped, failed])
    assert found.left_out == (LeftOut(NAME, "wrong result", is_failure=True),)
    assert NAME not in found.cases
    # a skip leaves the other rounds
    found = read_result_set([MEASURED, skipped, MEASURED])
    assert (found.cases[NAME].rounds, len(found.cases[NAME].seconds)) == ((1, 3), 2)
    assert found.warnings == (f"not measured in every round: {NAME}",)
    found = read_result_set([skipped])
    assert found.left_out == (LeftOut(NAME, "too long", is_failure=False),)


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
    paths = [write(tmp_path, f"{len(of)}.json", document(benchmarks=of)) for of in (rows, better)]
    for files, rate, label in ((paths[:1], 0.2, "L1"), (paths, 0.3, "L0")):
        found = read_result_set(files)
        best = ProductRate("f32", 64, 128, 128, 32, pytest.approx(rate * 1e12), label)
        assert found.products == (best,)
        assert found.left_out == (LeftOut("peak/gemm/f32/2x8x8", "wrong", is_failure=True),)


def test_the_best_of_all_rounds_is_the_denominator_of_all(tmp_path: Path) -> None:
    def with_peaks(name: str, **factors: float) -> Path:
        content = document()
        for peak, factor in factors.items():
            of = content["context"]["peaks"]["measured"][peak]
            unit = next(key for key in of if key.endswith("_per_second"))
            of |= {unit: of[unit] * factor, "source": f"{peak} x {factor}"}
        return write(tmp_path, name, content)

    second = with_peaks("b.json", f32=1.25, memory_bandwidth=0.5)
    third = with_peaks("c.json", cache_bandwidth=2.0)
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


def test_what_is_above_the_datasheet_is_no_peak(tmp_path: Path) -> None:
    shapes = {"512x512x512": (2.0, "B"), "256x512x512": (1.4, "C")}
    rows = [gemm_row(f"peak/gemm/f32/{of}", by * PEAK / 1e12, x) for of, (by, x) in shapes.items()]
    rounds = read_result_set([MEASURED])
    products = read_result_set([write(tmp_path, "products.json", document(benchmarks=rows))])
    found = add_products(rounds, products)
    assert found.context["peaks"]["measured"]["f32"]["source"] == "B"
    before, step = rounds.cases[STEP].counters, found.cases[STEP].counters
    assert step["MFU_percent"] == pytest.approx(before["MFU_percent"] / 2)
    # MFU is against the datasheet
    content = document(benchmarks=[*rows, *document()["benchmarks"]])
    sheet = {"flops_per_second": {"f32": 1.5 * PEAK}, "memory_bytes_per_second": 1e12}
    content["context"]["peaks"]["datasheet"] = sheet
    found = read_result_set([write(tmp_path, "sheet.json", content)])
    assert found.context["peaks"]["measured"]["f32"]["source"] == "C"
    (warning,) = found.warnings
    assert warning.startswith("peak/gemm/f32/512x512x512: 0.7496 TFLOP/s is above the datasheet's")
    step = found.cases[STEP].counters
    assert step["MFU_percent"] == pytest.approx(before["peak_percent"] / 1.5)
    assert step["peak_percent"] == pytest.approx(before["peak_percent"] / 1.4)


@pytest.mark.parametrize("value", [math.nan, 10**400])
def test_a_peak_that_is_no_rate_is_left_out_and_named(tmp_path: Path, value: object) -> None:
    content = document()
    content["context"]["peaks"]["measured"]["f32"]["flops_per_second"] = value
    bad = write(tmp_path, "bad.json", content)
    found = read_result_set([bad])
    assert "f32" not in found.context["peaks"]["measured"]
    (warning,) = found.warnings
    assert warning.startswith("context.peaks.measured.f32.flops_per_second is ")
    assert len(warning) < 130
    # another round's stands in
    both = read_result_set([bad, MEASURED])
    assert both.context["peaks"]["measured"]["f32"]["flops_per_second"] == PEAK


def test_without_a_bandwidth_of_memory_large_cases_have_no_share_of_the_roofline(
    tmp_path: Path,
) -> None:
    content = document()
    content["context"]["peaks"]["measured"]["memory_bandwidth"]["bytes_per_second"] = None
    content["context"]["device"]["last_level_cache_bytes"] = 2**20
    found = read_result_set([write(tmp_path, "a.json", content)])
    assert "memory_bandwidth.bytes_per_second is None" in found.warnings[0]
    for case in found.cases.values():
        is_cached = case.counters["bytes"] <= 2**21
        assert ("roof_percent" in case.counters) == is_cached, case.name
        assert ("peak_percent" in case.counters) == bool(case.counters["hardware_flops"])
    assert "memory's bandwidth is not known" in roofline_of(found).left_out[STEP]


def test_parts_of_a_step() -> None:
    """By hand: full_step = embedding + L x attention + L x ffn + (2L + 1) x rms_norm + loss +
    optimizer; of a checkpointed one L x block; parts of a variant as far as it changes them."""
    parts = ("embedding", "attention", "ffn", "rms_norm", "loss", "block")
    names = [f"{part}/forward_backward/{AXES}" for part in parts]
    names += [f"optimizer/update/{AXES}", STEP]
    fast = AXES.replace("baseline", "qkv+checkpoint")
    names += [f"full_step/train/{fast}", f"block/forward_backward/{fast}"]
    found = dict(wholes_among(names, {"tiny": 4}))
    counts = {case.split("/")[0]: count for case, count in found[STEP].measured}
    assert counts == {
        **{"embedding": 1, "attention": 4, "ffn": 4, "rms_norm": 9, "loss": 1, "optimizer": 1},
    }
    again = found[f"full_step/train/{fast}"]
    assert again.measured[1] == (f"block/forward_backward/{fast}", 4)
    assert again.measured[2] == (f"rms_norm/forward_backward/{AXES}", 1)
    assert again.missing == ()
    block = found[f"block/forward_backward/{AXES}"]
    assert [count for _, count in block.measured] == [1, 1, 2]
    # nobody measured the rotation
    assert f"attention/forward_backward/{AXES}" not in found
