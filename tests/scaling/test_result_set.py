"""Files of one run as a set: rounds together, products by shape, other machines refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.result_set import ProductRate, read_result_set
from tinyllama_tools.suite_run import PROJECT, Json

MEASURED = PROJECT / "results/reference/tiny_f32_2core_xeon_avx512.json"
NAME = "embedding/forward_backward/baseline/tiny/f32/batch:8/seq:128"


def document() -> Json:
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def write(folder: Path, name: str, content: Json) -> Path:
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def of_case(content: Json, name: str) -> list[Json]:
    return [e for e in content["benchmarks"] if e["run_name"].startswith(name)]


def gemm_row(name: str, tflops: float) -> Json:
    full_name = f"{name}/iterations:1/manual_time"
    return {
        "name": full_name,
        "run_name": full_name,
        "run_type": "iteration",
        "repetition_index": 0,
        "iterations": 1,
        "real_time": 1.0,
        "time_unit": "ms",
        "TFLOPS": tflops,
        "label": "oneDNN",
    }


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


def test_a_case_that_failed_in_one_round_has_failed(tmp_path: Path) -> None:
    content = document()
    for entry in of_case(content, NAME):
        entry |= {"error_occurred": True, "error_message": "wrong result"}
    found = read_result_set([MEASURED, write(tmp_path, "second.json", content)])
    assert NAME not in found.cases
    assert [(one.name, one.reason, one.is_failure) for one in found.left_out] == [
        (NAME, "wrong result", True)
    ]


def test_a_case_skipped_in_one_round_keeps_the_others(tmp_path: Path) -> None:
    content = document()
    for entry in of_case(content, NAME):
        entry |= {"skipped": True, "skip_message": "too long"}
    second = write(tmp_path, "second.json", content)
    assert len(read_result_set([MEASURED, second]).cases[NAME].seconds) == 1
    alone = read_result_set([second])
    assert [(one.name, one.is_failure) for one in alone.left_out] == [(NAME, False)]


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


def test_products_alone_are_a_set(tmp_path: Path) -> None:
    content = document() | {"benchmarks": [gemm_row("peak/gemm/f32/8x8x8", 0.2)]}
    found = read_result_set([write(tmp_path, "products.json", content)])
    assert len(found.products) == 1
    assert not found.cases


@pytest.mark.parametrize(
    ("key", "value"), [("torch_version", "2.9.0"), ("threads", 64), ("git_commit", "0" * 40)]
)
def test_other_circumstances_are_refused(tmp_path: Path, key: str, value: object) -> None:
    content = document()
    content["context"][key] = value
    other = write(tmp_path, "other.json", content)
    with pytest.raises(BadInputError, match=f"other.json: {key} is"):
        read_result_set([MEASURED, other])


def test_another_device_is_refused(tmp_path: Path) -> None:
    content = document()
    content["context"]["device"]["name"] = "AMD Instinct MI300X"
    with pytest.raises(BadInputError, match=r"device\.name is 'AMD Instinct MI300X'"):
        read_result_set([MEASURED, write(tmp_path, "other.json", content)])


def test_nothing_measured_is_refused(tmp_path: Path) -> None:
    content = document() | {"benchmarks": []}
    with pytest.raises(BadInputError, match="no case was measured"):
        read_result_set([write(tmp_path, "empty.json", content)])
    with pytest.raises(BadInputError, match="no file"):
        read_result_set([])
    with pytest.raises(BadInputError, match="is no result of the suite"):
        read_result_set([write(tmp_path, "foreign.json", {"a": 1})])
