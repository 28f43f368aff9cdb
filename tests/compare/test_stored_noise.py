"""One file a side, with the machine's recorded noise in place of more files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from stored_samples import FFN, LOSS, TIMES, write, write_runs

from tinyllama_tools.compare import stored as stored_command
from tinyllama_tools.compare.noise import read_noise_profile
from tinyllama_tools.core.app import BadInputError
from tools import compare as main

Json = dict[str, Any]


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
    assert "is of host_name 'other', the results are of 'host'" in capsys.readouterr().err


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
