"""Stored results: what differs beside the code, recorded noise, and training runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from stored_samples import CONTEXT, FFN, LOSS, TIMES, document, write, write_runs

from tinyllama_tools.compare import stored as stored_command
from tinyllama_tools.compare.context_differences import (
    axis_differences,
    context_differences,
    one_after_the_other,
    work_differences,
)
from tinyllama_tools.compare.noise import read_noise_profile
from tinyllama_tools.compare.stored import read_sides, stored_warnings
from tinyllama_tools.core.app import BadInputError
from tools import compare as main

Json = dict[str, Any]


def changed(key: str, value: object) -> Json:
    """The context with another value under `a.b`."""
    first, _, second = key.partition(".")
    return {**CONTEXT, first: {**CONTEXT[first], second: value} if second else value}


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
        assert next(stored_warnings(*sides, ())).startswith(expected)


def test_training_runs_of_other_work() -> None:
    base = {"batch_size": 8, "dtype": "f32", "variant": "baseline"}
    assert work_differences([base], [dict(base)]) == []
    assert work_differences([base], [{**base, "batch_size": 16}]) == [
        "not the same work: batch_size: 8 in the base, 16 in the new"
    ]


def profile(**changes: object) -> Json:
    return {
        "kind": "tiny_llama noise profile",
        "schema_version": 1,
        "host_name": "host",
        "device": "Some CPU",
        "architecture": "x86-64 AVX2",
        "threads": 2,
        "cases": {name: {"scatter": 0.003, "degrees": 60} for name in TIMES if name != LOSS},
        "default": {"scatter": 0.05, "degrees": 60},
    } | changes


@pytest.fixture
def sides(tmp_path: Path) -> list[str]:
    slow = {**TIMES, FFN: TIMES[FFN] * 1.2}
    base = write_runs(tmp_path, "base", 1, TIMES, scatter=0.0)
    return [str(path) for path in base + write_runs(tmp_path, "new", 1, slow, scatter=0.0)]


def outcomes(folder: Path) -> dict[str, Json]:
    written = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    return {case["name"]: case for case in written["cases"]}


def test_a_profile_gives_verdicts_on_one_file_a_side(tmp_path: Path, sides: list[str]) -> None:
    path = write(tmp_path / "noise.json", profile())
    output = tmp_path / "out"
    assert main([*sides, "--noise-profile", str(path), "--output", str(output)]) == 1
    found = outcomes(output)
    assert found[FFN]["outcome"] == "slower"
    assert found[FFN]["ratio"] == pytest.approx(1.2)
    # two-sided, times the seven cases
    one_case = 2 * stats.t.sf(math.log(1.2) / (math.sqrt(2) * 0.003), 60)
    assert found[FFN]["p_value"] == pytest.approx(len(TIMES) * one_case, rel=1e-6, abs=0)
    # 60 degrees of freedom at 95 %: 2.0003 standard errors
    reach = 2.0003 * math.sqrt(2) * 0.003
    assert math.log(found[FFN]["interval"]["high"] / 1.2) == pytest.approx(reach, rel=1e-3)
    # not recorded, so the default's wide scatter holds
    assert found[LOSS]["outcome"] == "unclear"
    assert "not in the noise profile" in found[LOSS]["note"]
    others = {case["outcome"] for name, case in found.items() if name not in {FFN, LOSS}}
    assert others == {"same"}


def test_a_profile_in_its_usual_place_is_used_where_it_is_of_this_machine(
    tmp_path: Path,
    sides: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = write(tmp_path / "noise_profile.json", profile())
    defaults = stored_command.usable_profile.__defaults__
    assert defaults is not None
    monkeypatch.setattr(stored_command.usable_profile, "__defaults__", (usual,))
    assert main(sides) == 1
    said = capsys.readouterr().out
    assert "the recorded noise profile" in said
    assert "holds only as far as log seconds are normal" in said
    write(usual, profile(threads=8))
    assert main(sides) == 0
    said = capsys.readouterr().out
    assert "is of threads '8', the results are of '2'" in said
    assert "no verdict" in said


def test_a_named_profile_of_another_machine_is_refused(
    tmp_path: Path, sides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "noise.json", profile(device="Other"))
    assert main([*sides, "--noise-profile", str(path)]) == 2
    assert "is of device 'Other', the results are of 'Some CPU'" in capsys.readouterr().err
    # another machine of the same make
    write(path, profile(host_name="other"))
    assert main([*sides, "--noise-profile", str(path)]) == 2
    assert "is of host_name 'host_d9298a10', the results are of" in capsys.readouterr().err


def test_several_files_a_side_do_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "noise.json", profile())
    base, new = (map(str, write_runs(tmp_path, s, 2, TIMES)) for s in ("base", "new"))
    assert main(["--base", *base, "--new", *new, "--noise-profile", str(path)]) == 0
    assert "--noise-profile is not used: several files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "other"}, "is no noise profile: kind is 'other'"),
        ({"schema_version": 2}, "schema_version is 2, must be 1"),
        ({"cases": []}, "'cases' is no object"),
        ({"default": None}, "default.scatter is None"),
        ({"default": {"scatter": 0.1, "degrees": 0}}, "default.degrees is 0"),
        ({"cases": {"a": {"scatter": float("nan"), "degrees": 3}}}, "cases.a.scatter is nan"),
        ({"cases": {"a": {"scatter": -1, "degrees": 3}}}, "cases.a.scatter is -1"),
        ({"cases": {"a": {"scatter": True, "degrees": 3}}}, "cases.a.scatter is True"),
    ],
)
def test_a_bad_profile(tmp_path: Path, changes: Json, expected: str) -> None:
    path = write(tmp_path / "noise.json", profile(**changes))
    with pytest.raises(BadInputError, match="record it again") as error:
        read_noise_profile(path)
    assert expected in str(error.value)
    assert str(path) in str(error.value)
