"""Absent packages of the oracle: a skip that says what to install, in CI a failure; --help."""

import subprocess
import sys
from pathlib import Path

import pytest

from oracle_packages import require_oracle_packages

ABSENT = "tiny_llama_no_such_package"


@pytest.mark.parametrize("ci", ["", "false"])
def test_absent_package_skips_with_the_command(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match=r"pip install -r requirements-oracle\.txt"):
        require_oracle_packages((ABSENT,))


def test_absent_package_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"{ABSENT} is not in this Python"):
        require_oracle_packages((ABSENT,))


def test_module_without_its_packages_fails_a_run_in_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project_root: Path
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PYTHONPATH", str(project_root / "tests"))
    (tmp_path / "test_absent.py").write_text(
        "from oracle_packages import require_oracle_packages\n"
        f"require_oracle_packages(('{ABSENT}',))\n"
        "def test_nothing(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode not in {0, 5}
    assert f"{ABSENT} is not in this Python" in result.stdout


def test_no_test_of_the_oracle_skips_by_itself(project_root: Path) -> None:
    names = ("oracle", "golden", "golden_command", "flop_oracle", "training_oracle", "weights")
    for name in names:
        text = (project_root / f"tests/test_{name}.py").read_text()
        assert "require_oracle_packages()" in text, name
        assert "importorskip" not in text, name


@pytest.mark.parametrize("script", ["golden", "prove"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_needs_no_set_up(tmp_path: Path, project_root: Path, script: str, option: str) -> None:
    (tmp_path / "lib").mkdir()
    real = project_root / "scripts/lib"
    (tmp_path / "lib/set_up.sh").write_text(
        f"source '{real}/set_up.sh'\nset_up() {{ echo 'was set up' >&2; exit 9; }}\n"
    )
    (tmp_path / script).symlink_to(project_root / "scripts" / script)
    result = subprocess.run(
        ["bash", str(tmp_path / script), option],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"scripts/{script} [")
    assert "Exit status" in result.stdout
    assert result.stderr == ""
