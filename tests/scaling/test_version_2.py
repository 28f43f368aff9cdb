"""Result files of schema version 2 as every reader sees them: in the meaning of version 3."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from result_documents import write

from made_up_context import CONTEXT, DEVICE
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.data.results import current_result, read_result_set

MODEL, CAUSAL, BYTES, BATCH = 1_000_000, 800_000, 2_000, 4
PEAK, OLD_PEAK, BANDWIDTH = 1e9, 8e8, 1e7
BASELINE, OPTIMIZED, CHECKPOINT = "baseline", "optimized", "sdpa+checkpoint"
# of the variants: seconds, what rates were made of, and what really ran
VARIANTS = {
    BASELINE: (1.31e-2, MODEL, MODEL),
    OPTIMIZED: (1.00e-2, 850_000, 900_000),
    CHECKPOINT: (1.50e-2, 850_000, 1_200_000),
}
MEDIAN, DEVIATION, VARIATION = "median", "stddev", "cv"


def case(variant: str, dtype: str = "f32") -> str:
    return f"full_step/train/{variant}/tiny/{dtype}/batch:{BATCH}/seq:32"


def repetition(variant: str, *, dtype: str = "f32", seconds: float = 0.0, index: int = 0) -> Json:
    """As version 2 wrote it, in percent of the peak that was known first."""
    usual, useful, hardware = VARIANTS[variant]
    seconds = seconds or usual
    name, rate = f"{case(variant, dtype)}/manual_time", useful / seconds
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "repetition_index": index,
        "iterations": 1,
        "real_time": 1e3 * seconds,
        "time_unit": "ms",
        "samples_per_second": BATCH / seconds,
        "TFLOPS": rate / 1e12,
        "MFU_percent": 100 * rate / OLD_PEAK,
        "peak_percent": 100 * rate / OLD_PEAK,
        "roof_percent": 100 * rate / OLD_PEAK,
        "GB_per_second": BYTES / seconds / 1e9,
        "model_flops": MODEL,
        "causal_flops": CAUSAL,
        "useful_flops": useful,
        "hardware_flops": hardware,
        "elementwise_flops": 5,
        "bytes": BYTES,
        "flop_per_byte": MODEL / BYTES,
    }


def statistic(of: Json, name: str, factor: float) -> Json:
    """A row of Google Benchmark's statistics; of a spread, that of what does not vary is 0."""
    rates = ("real_time", "samples_per_second", "TFLOPS", "GB_per_second")
    shares = [key for key in SHARES if key in of]
    spread = {
        key: 0.0 for key, value in of.items() if isinstance(value, (int, float)) and name != MEDIAN
    }
    varying = {key: factor * of[key] if name != VARIATION else factor for key in (*rates, *shares)}
    kind = {"run_type": "aggregate", "aggregate_name": name}
    return {**of, **spread, **varying, **kind}


def older(*entries: Json) -> Json:
    peaks = {
        "measured": {
            "f32": {"flops_per_second": PEAK, "source": "a product"},
            "memory_bandwidth": {"bytes_per_second": BANDWIDTH, "source": "a triad"},
            "cache_bandwidth": {"bytes_per_second": BANDWIDTH, "source": "a triad"},
        },
        "superseded": [{"flops_per_second": OLD_PEAK, "source": "a product", "type": "f32"}],
    }
    context = {**CONTEXT, "schema_version": 2, "device": DEVICE, "peaks": peaks}
    return {"context": context, "benchmarks": list(entries)}


def rows_of(document: Json) -> list[Json]:
    return current_result(document, Path("old.json"))["benchmarks"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_share_is_of_what_it_is_called_and_of_the_final_peak(variant: str) -> None:
    seconds, _, hardware = VARIANTS[variant]
    (row,) = rows_of(older(repetition(variant)))
    assert row["TFLOPS"] == pytest.approx(MODEL / seconds / 1e12)
    assert row["MFU_percent"] == pytest.approx(100 * MODEL / seconds / PEAK)
    assert row["MFU_causal_percent"] == pytest.approx(100 * CAUSAL / seconds / PEAK)
    assert row["peak_percent"] == pytest.approx(100 * hardware / seconds / PEAK)
    least = max(hardware / PEAK, BYTES / BANDWIDTH)
    assert row["roof_percent"] == pytest.approx(100 * least / seconds)
    assert row["flop_per_byte"] == hardware / BYTES
    assert "useful_flops" not in row


def test_a_variant_that_is_so_much_faster_has_so_much_more_mfu(tmp_path: Path) -> None:
    path = write(tmp_path, "old.json", older(repetition(BASELINE), repetition(OPTIMIZED)))
    cases = read_result_set([path]).cases
    base, fast = (cases[case(variant)] for variant in (BASELINE, OPTIMIZED))
    speedup = base.median_seconds / fast.median_seconds
    assert speedup == pytest.approx(1.31)
    for counter in ("TFLOPS", "MFU_percent", "MFU_causal_percent"):
        assert fast.counters[counter] / base.counters[counter] == pytest.approx(speedup), counter
    assert fast.counters["peak_percent"] / base.counters["peak_percent"] < speedup


def test_without_the_counter_the_rate_says_what_it_is_of() -> None:
    entry = repetition(OPTIMIZED)
    del entry["useful_flops"]
    assert rows_of(older(entry)) == rows_of(older(repetition(OPTIMIZED)))


def test_statistics_are_converted_with_their_case() -> None:
    first = repetition(OPTIMIZED)
    (row,) = rows_of(older(first))
    factors = {MEDIAN: 1.1, DEVIATION: 0.02, VARIATION: 0.03}
    found = rows_of(older(first, *(statistic(first, *item) for item in factors.items())))[1:]
    for entry, (name, factor) in zip(found, factors.items(), strict=True):
        for counter in ("TFLOPS", *SHARES):
            whole = 1.0 if name == VARIATION else row[counter]
            assert entry[counter] == pytest.approx(factor * whole), (name, counter)
        expected = row["flop_per_byte"] if name == MEDIAN else 0.0
        assert entry["flop_per_byte"] == expected
    # a file may keep nothing but the statistics
    alone = rows_of(older(statistic(first, MEDIAN, 1.1)))
    assert alone[0]["MFU_percent"] == pytest.approx(1.1 * row["MFU_percent"])


def test_of_a_type_whose_peak_is_in_no_context_the_rows_own_shares_say_it() -> None:
    seconds, _, hardware = VARIANTS[OPTIMIZED]
    (row,) = rows_of(older(repetition(OPTIMIZED, dtype="bf16")))
    assert row["MFU_percent"] == pytest.approx(100 * MODEL / seconds / OLD_PEAK)
    assert row["peak_percent"] == pytest.approx(100 * hardware / seconds / OLD_PEAK)


def test_what_ran_again_may_show_that_a_row_is_above_its_peak() -> None:
    """Version 2 compared what was useful with the peak."""
    usual = repetition(CHECKPOINT)
    fast = repetition(CHECKPOINT, seconds=1.2e6 / PEAK / 1.07, index=1)
    for row in rows_of(older(usual, fast)):
        assert row["above_peak"].startswith("107 % of the measured peak")
        assert not row.keys() & set(SHARES)
        assert row["TFLOPS"] > 0
    fast = repetition(CHECKPOINT, seconds=1.2e6 / PEAK / 1.04)
    (row,) = rows_of(older(fast))
    assert row["peak_percent"] == pytest.approx(104)
    assert "above_peak" not in row


def test_without_usable_peaks_there_are_no_shares() -> None:
    document = older(repetition(OPTIMIZED))
    del document["context"]["peaks"]["measured"]["cache_bandwidth"]
    (row,) = rows_of(document)
    assert not row.keys() & set(SHARES)
    assert row["TFLOPS"] == pytest.approx(MODEL / VARIANTS[OPTIMIZED][0] / 1e12)


def test_the_rate_of_a_rank_is_of_its_own_time() -> None:
    entry = repetition(OPTIMIZED)
    name = f"{case(OPTIMIZED)}/ranks:2/overlap"
    entry |= {"run_name": name, "name": name, "samples_per_second": 2 * BATCH / 1e-2}
    for key in ("MFU_percent", "peak_percent", "roof_percent", "hardware_flops", "bytes"):
        del entry[key]
    (row,) = rows_of(older(entry))
    assert row["TFLOPS"] == pytest.approx(MODEL / 1e-2 / 1e12)
    assert not row.keys() & set(SHARES)


def test_the_document_that_was_read_stays_as_it_was() -> None:
    document = older(repetition(BASELINE), repetition(OPTIMIZED))
    before = copy.deepcopy(document)
    found = current_result(document, Path("old.json"))
    assert document == before
    assert found["context"]["schema_version"] == 3
    assert "superseded" not in found["context"]["peaks"]
    assert current_result(found, Path("new.json")) is found


@pytest.mark.parametrize("value", [None, "fast", float("nan"), float("inf"), 10**400, 0, -1.0])
@pytest.mark.parametrize("counter", ["model_flops", "TFLOPS", "samples_per_second", "bytes"])
def test_a_counter_that_is_no_number_is_left_to_the_readers(counter: str, value: object) -> None:
    (row,) = rows_of(older(repetition(BASELINE) | {counter: value}))
    assert row["real_time"] > 0
