"""What read_profile accepts, and what it says of what it does not."""

import json
from pathlib import Path

import pytest

from tinyllama_tools.data.profiles import BadProfileError, read_profile
from training_stand_in import ALL_PROFILERS, made_up_summary, write_profile


def refusal(folder: Path) -> str:
    with pytest.raises(BadProfileError) as error:
        read_profile(folder)
    text = str(error.value)
    assert str(folder / "performance_summary.json") in text
    assert "profile again" in text
    return text


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("profilers", [(), *[(name,) for name in ALL_PROFILERS], ALL_PROFILERS])
def test_reads_what_was_written(tmp_path: Path, profilers: tuple[str, ...], gpu: bool) -> None:
    summary = made_up_summary(profilers=profilers, gpu=gpu)
    profile = read_profile(write_profile(tmp_path / "p", summary))
    assert profile.summary == summary
    on = {name for name in ALL_PROFILERS if getattr(profile, name) is not None}
    assert on == set(profilers)


def test_a_captured_step_has_no_phases(tmp_path: Path) -> None:
    changes = {f"summary.average_{phase}_seconds": None for phase in ("forward", "backward")}
    changes |= {"summary.breakdown.forward.percent": None, "steps.0.forward_seconds": None}
    read_profile(write_profile(tmp_path, made_up_summary(changes)))


def test_a_missing_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 200, 5000])
def test_a_file_that_ends_too_early(tmp_path: Path, keep: int) -> None:
    path = write_profile(tmp_path, made_up_summary()) / "performance_summary.json"
    path.write_text(path.read_text()[:keep])
    assert "is no JSON" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000])
def test_a_file_that_is_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "performance_summary.json").write_bytes(content)
    refusal(tmp_path)


def test_a_number_that_json_has_not(tmp_path: Path) -> None:
    write_profile(tmp_path, made_up_summary({"summary.final_loss": float("nan")}))
    assert "NaN" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 2}, "schema_version is 2, must be 1"),
        ({"program": "other"}, "program"),
        ({"operators.table.0.calls": "many"}, "operators.table[0].calls"),
        ({"summary.samples_per_second": -1}, "summary.samples_per_second"),
        ({"configuration.batch_size": 0}, "configuration.batch_size"),
        ({"flops.computational_intensity.memory_bound_vs_compute_bound": "both"}, "both"),
        ({"operators.components": {}}, "operators.components"),
    ],
)
def test_a_wrong_value(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    write_profile(tmp_path, made_up_summary(changes))
    assert words in refusal(tmp_path)


def test_a_missing_key(tmp_path: Path) -> None:
    summary = made_up_summary()
    del summary["memory"]["peak_bytes"]
    (tmp_path / "performance_summary.json").write_text(json.dumps(summary))
    assert "memory: 'peak_bytes' is a required property" in refusal(tmp_path)


def test_an_unknown_key(tmp_path: Path) -> None:
    summary = made_up_summary()
    summary["memory"]["peak_MiB"] = 5
    (tmp_path / "performance_summary.json").write_text(json.dumps(summary))
    assert "memory: Additional properties are not allowed ('peak_MiB'" in refusal(tmp_path)


def test_a_list(tmp_path: Path) -> None:
    (tmp_path / "performance_summary.json").write_text(json.dumps([made_up_summary()]))
    assert "holds no object" in refusal(tmp_path)
