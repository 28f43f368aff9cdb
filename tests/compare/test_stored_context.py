"""What to know before any number: the two sides were not measured in the same circumstances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stored_samples import CONTEXT, TIMES, document, write

from tinyllama_tools.compare.context_differences import (
    axis_differences,
    context_differences,
    one_after_the_other,
    work_differences,
)
from tinyllama_tools.compare.stored import read_sides, stored_warnings

Json = dict[str, Any]


def changed(key: str, value: object) -> Json:
    """The context with another value under `a.b`."""
    first, _, second = key.partition(".")
    return {**CONTEXT, first: {**CONTEXT[first], second: value} if second else value}


def test_equal_contexts_differ_in_nothing() -> None:
    assert context_differences([CONTEXT, CONTEXT], [CONTEXT]) == []


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("threads", 4, "threads: 2 in the base, 4 in the new"),
        ("device.name", "Other", "device name: Some CPU in the base, Other in the new"),
        ("device.driver_version", "6.4", "device driver_version: not said in the base, 6.4 in the"),
        ("torch_version", "2.9.0", "torch_version: 2.13.0 in the base, 2.9.0 in the new"),
        ("cold_cache", True, "cold_cache: False in the base, True in the new"),
        ("verify", "off", "verify: before in the base, off in the new"),
        ("seed", 1, "seed: 42 in the base, 1 in the new"),
        ("host_name", "b", "host_name: host in the base, b in the new"),
        ("library_build_type", "debug", "debug build in the new: its figures mean nothing"),
        ("git_dirty", True, "the new was built from files that are in no commit (git_dirty)"),
        ("settings.env.OMP", "1", "setting env.OMP: not said in the base, 1 in the new"),
        ("settings.torch_threads", "4", "setting torch_threads: 2 in the base, 4 in the new"),
        ("weights", {"fingerprint": "f"}, "weights fingerprint: not said in the base, f in the"),
    ],
)
def test_a_difference_is_named_with_both_values(key: str, value: object, expected: str) -> None:
    (text,) = context_differences([CONTEXT], [changed(key, value)])
    assert text.startswith(expected)


def test_files_of_one_side_that_differ_are_named_too() -> None:
    (text,) = context_differences([CONTEXT, changed("threads", 4)], [CONTEXT])
    assert text == "threads: 2, 4 in the base, 2 in the new"


def test_debug_builds_of_both_sides_and_another_device_come_first() -> None:
    debug = changed("library_build_type", "debug")
    other = {**debug, "device": {**CONTEXT["device"], "name": "Other"}, "threads": 8}
    found = context_differences([debug], [other])
    assert [text.split(":")[0] for text in found] == [
        "debug build in the base",
        "debug build in the new",
        "device name",
        "threads",
    ]


def test_a_machine_in_another_state_is_told_by_its_own_peaks() -> None:
    peaks = {"measured": {"f32": {"flops_per_second": 2e11, "source": "product"}}}
    (text,) = context_differences([CONTEXT], [changed("peaks", peaks)])
    assert "measured peak (f32) is -33 % in the new" in text
    near = {"measured": {"f32": {"flops_per_second": 2.9e11, "source": "product"}}}
    assert context_differences([CONTEXT], [changed("peaks", near)]) == []


def test_dtypes_sizes_and_variants_of_one_side_only() -> None:
    other = [name.replace("/f32/", "/bf16/").replace("baseline", "qkv") for name in TIMES]
    assert axis_differences(list(TIMES), list(TIMES)) == []
    assert axis_differences(list(TIMES), [*TIMES, *other]) == [
        "dtype: f32 in the base, bf16, f32 in the new",
        "variant: baseline in the base, baseline, qkv in the new",
    ]


def dated(*dates: object) -> list[Json]:
    return [changed("date", date) for date in dates]


MONDAY = ("2026-03-02T09:00:00+01:00", "2026-03-02T10:00:00+01:00")
TUESDAY = ("2026-03-03T09:00:00Z", "2026-03-03T10:00:00+01:00")


def test_sides_that_were_measured_one_after_the_other_are_named() -> None:
    for base, new in ((MONDAY, TUESDAY), (TUESDAY, MONDAY)):
        found = one_after_the_other(dated(*base), dated(*new))
        assert found is not None
        assert "alpha does not hold" in found
    by_turns = ((MONDAY[0], TUESDAY[1]), (MONDAY[1], TUESDAY[0]))
    assert one_after_the_other(*(dated(*side) for side in by_turns)) is None
    # nobody can say when these were
    assert one_after_the_other(dated(None), dated(*TUESDAY)) is None
    assert one_after_the_other(dated("yesterday"), dated(*TUESDAY)) is None


def test_the_order_of_the_sides_is_the_first_warning_of_several_files(tmp_path: Path) -> None:
    paths = [
        [
            write(tmp_path / f"{side}_{i}.json", document(TIMES, context={"date": date, **more}))
            for i, date in enumerate(dates)
        ]
        for side, dates, more in (("base", MONDAY, {}), ("new", TUESDAY, {"git_dirty": True}))
    ]
    for files, expected in ((2, "measured one after the other"), (1, "the new was built from")):
        sides = read_sides(*(side[:files] for side in paths))
        assert stored_warnings(*sides, ())[0].startswith(expected)


def test_training_runs_of_other_work() -> None:
    base = {"batch_size": 8, "dtype": "f32", "variant": "baseline"}
    assert work_differences([base], [dict(base)]) == []
    assert work_differences([base], [{**base, "batch_size": 16}]) == [
        "not the same work: batch_size: 8 in the base, 16 in the new"
    ]
