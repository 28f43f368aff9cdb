"""scripts/golden --check: what it lets through, and that it names what it does not."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oracle_packages import require_oracle_packages

require_oracle_packages()

import torch
from safetensors.torch import load_file, save_file

from tinyllama_tools.proofs import check as pinned_version
from tinyllama_tools.proofs import golden
from tinyllama_tools.proofs.check import largest_difference
from tinyllama_tools.proofs.golden import (
    F32_FILE,
    F64_FILE,
    GOLDEN_FOLDER,
    WEIGHTS_FILE,
    compare_file,
)

CASE = "seq_1"
TENSOR = "gradient.model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A golden folder with one case, to be spoilt."""
    shutil.copytree(GOLDEN_FOLDER / CASE, tmp_path / CASE)
    return tmp_path


def perturb(path: Path, name: str, relative: float) -> None:
    """Moves one value, by that part of the tensor's largest magnitude."""
    tensors = load_file(path)
    tensors[name][5, 7] += relative * tensors[name].abs().max()
    save_file(tensors, path)


def check(folder: Path) -> int:
    return golden.main([CASE, "--check", "--folder", str(folder)])


def test_untouched_copy_holds(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(copy) == 0
    assert capsys.readouterr().out.endswith("5 files hold, 0 do not\n")


def test_written_again_the_bytes_are_the_same(
    tmp_path: Path, project_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert golden.main([CASE, "--folder", str(first)]) == 0
    # another process, whose hashes come in another order
    command = [sys.executable, "-m", "tinyllama_tools.proofs.golden", CASE, "--folder", str(again)]
    paths = {"PYTHONPATH": str(project_root / "scripts"), "PYTHONHASHSEED": "77"}
    subprocess.run(command, env=os.environ | paths, check=True, capture_output=True, timeout=300)
    names = sorted(path.name for path in (first / CASE).iterdir())
    assert len(names) == 5
    for name in names:
        assert (first / CASE / name).read_bytes() == (again / CASE / name).read_bytes(), name
    capsys.readouterr()
    assert check(again) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [f"ok     {CASE}/{name}: identical" for name in names]


def test_progress_goes_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden.main([CASE, "--folder", str(tmp_path)])
    captured = capsys.readouterr()
    assert captured.err.startswith(f"-- {CASE} (1 of 1)\n")
    assert captured.out == f"{CASE}: written to {tmp_path}\n"


def test_another_version_of_transformers_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = pinned_version.pinned_version("transformers")
    monkeypatch.setattr(pinned_version.transformers, "__version__", "4.99.0")
    assert golden.main([CASE, "--folder", str(tmp_path)]) == 2
    message = f"transformers 4.99.0 is not the pinned {pinned}"
    assert f"error: {message}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_transformers_checks_with_a_warning(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(golden, "other_transformers", lambda: "transformers 4.99.0 is another")
    assert check(copy) == 0
    assert "warning: transformers 4.99.0 is another" in capsys.readouterr().err


def test_pinned_version_is_that_of_the_requirements(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("# transformers==1.0\ntransformers==4.57.1  # why\nsafetensors==0.8.0\n")
    assert pinned_version.pinned_version("transformers", path) == "4.57.1"
    with pytest.raises(RuntimeError, match="no line torch=="):
        pinned_version.pinned_version("torch", path)


@pytest.mark.parametrize(
    ("file", "relative", "status"),
    [(F64_FILE, 1e-9, 1), (F64_FILE, 1e-14, 0), (F32_FILE, 1e-4, 1), (F32_FILE, 1e-6, 0)],
)
def test_one_changed_value(
    copy: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    relative: float,
    status: int,
) -> None:
    perturb(copy / CASE / file, TENSOR, relative)
    assert check(copy) == status
    output = capsys.readouterr().out
    if status:
        assert f"FAILED {CASE}/{file}: {TENSOR}: relative difference" in output
        assert "at index (5, 7)" in output


def test_one_weight_of_another_value_fails(copy: Path) -> None:
    perturb(copy / CASE / WEIGHTS_FILE, "lm_head.weight", 1e-2)
    assert check(copy) == 1


def test_absent_and_superfluous_files_fail(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / CASE / F32_FILE).rename(copy / CASE / "other.safetensors")
    assert check(copy) == 1
    output = capsys.readouterr().out
    assert f"{F32_FILE}: is absent" in output
    assert "other.safetensors: is not one of the golden files" in output


@pytest.mark.parametrize(
    ("key", "value", "held"),
    [("rope_theta", 500000.0, False), ("transformers_version", "4.99.0", True)],
)
def test_changed_configuration(copy: Path, key: str, value: object, held: bool) -> None:
    path = copy / CASE / "config.json"
    config = json.loads(path.read_text())
    config[key] = value
    path.write_text(json.dumps(config))
    verdict = compare_file(path, GOLDEN_FOLDER / CASE / "config.json")
    assert verdict.held == held, verdict
    if not held:
        assert key in verdict.text


def test_unknown_part_is_a_bad_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        golden.main(["no_such_part"])
    assert stop.value.code == 2
    assert "'no_such_part': must be one of gqa_groups_2" in capsys.readouterr().err


def test_difference_of_other_shapes_types_and_nan_is_infinite() -> None:
    zeros = torch.zeros(2, 3)
    for other in (torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.float64)):
        assert largest_difference("x", zeros, other).relative == float("inf")
    spoilt = zeros.clone()
    spoilt[1, 2] = float("nan")
    difference = largest_difference("x", zeros, spoilt)
    assert (difference.relative, difference.index) == (float("inf"), (1, 2))


def test_difference_from_zeros_is_absolute() -> None:
    assert largest_difference("x", torch.zeros(2), torch.full((2,), 0.25)).relative == 0.25
