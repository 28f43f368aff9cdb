"""Which libtorch is taken, and a .venv that an interruption left half-made. No network."""

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import find_torch

if TYPE_CHECKING:
    from conftest import ScriptCheckout


def make_torch(site_folder: Path, version: str, library: str = "libtorch_cpu.so") -> Path:
    """A torch package with nothing in it but what the search looks at."""
    package = site_folder / "torch"
    for name, text in {
        "__init__.py": "raise RuntimeError('the search must not import torch')",
        "version.py": f"__version__ = '{version}'",
        "share/cmake/Torch/TorchConfig.cmake": "",
        f"lib/{library}": "",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


@pytest.mark.parametrize(
    ("version", "library", "kind", "status"),
    [
        ("2.9.0", "libtorch_cpu.so", "cpu", 0),
        ("2.13.1+cu130", "libtorch_cuda.so", "cuda", 0),
        ("2.12.0a0+git12ab", "libtorch_hip.so", "rocm", 0),
        ("2.8.0", "libtorch_cpu.so", "cpu", 3),
        ("3.0.0", "libtorch_cpu.so", "cpu", 0),
        ("", "libtorch_cpu.so", "cpu", 3),
    ],
)
def test_kind_and_version_of_torch(
    tmp_path: Path, version: str, library: str, kind: str, status: int
) -> None:
    line, found = find_torch.describe(make_torch(tmp_path, version, library))
    assert (line.split()[1], found) == (kind, status)


def stub_python_with(checkout: "ScriptCheckout", site_folder: Path) -> None:
    checkout.stub("python3", f'PYTHONPATH="{site_folder}" exec "{sys.executable}" "$@"')


def test_users_torch_is_taken_without_a_download(checkout: "ScriptCheckout") -> None:
    package = make_torch(checkout.root / "site", "2.10.0+rocm7.1", "libtorch_hip.so")
    stub_python_with(checkout, package.parent)
    result = checkout.run('find_own_torch && echo "$torch_kind|$torch_cmake_folder"')
    assert result.stdout == f"rocm|{package}/share/cmake/Torch\n"


def test_users_torch_of_another_version_is_named_and_left_alone(checkout: "ScriptCheckout") -> None:
    package = make_torch(checkout.root / "site", "2.5.1")
    stub_python_with(checkout, package.parent)
    result = checkout.run("find_own_torch || echo none")
    assert result.stdout == "none\n"
    assert "torch 2.5.1" in result.stderr


def test_wrong_torch_dir_is_an_error(checkout: "ScriptCheckout") -> None:
    result = checkout.run("find_own_torch", {"Torch_DIR": "/no/such/folder"})
    assert result.returncode == 2
    assert "Torch_DIR=/no/such/folder" in result.stderr


def test_torch_of_an_environment_or_its_cmake_folder(checkout: "ScriptCheckout") -> None:
    package = make_torch(checkout.root / "site", "2.11.0+cu130", "libtorch_cuda.so")
    stub_python_with(checkout, package.parent)
    (checkout.root / "bin").mkdir()
    shutil.copy(checkout.stubs / "python3", checkout.root / "bin/python")
    for folder in (".", "site/torch/share/cmake/Torch"):
        result = checkout.run(f'find_given_torch {folder}; echo "$torch_kind|$torch_cmake_folder"')
        assert result.stdout == f"cuda|{package}/share/cmake/Torch\n"

    (package / "version.py").write_text("__version__ = '2.8.0'")
    result = checkout.run("find_given_torch .; echo unreached")
    assert (result.returncode, result.stdout) == (2, "")
    assert "torch 2.8.0" in result.stderr
    assert "'.' must be" in result.stderr


def stub_python(checkout: "ScriptCheckout", pip_status: int) -> None:
    """A python3 whose venvs hold a script that notes pip's arguments: no network, no ensurepip."""
    inner = checkout.root / "inner"
    inner.write_text(
        "#!/bin/bash\n"
        'case "$*" in "-m pip --version") exit 0;; '
        '*sys.prefix*) dirname "$(dirname "$0")";; '
        f'*install*) echo "$*" >> "{checkout.root}/pip_calls"; exit {pip_status};; esac\n'
    )
    inner.chmod(0o755)
    make = f'mkdir -p "$3/bin" && cp "{inner}" "$3/bin/python"'
    checkout.stub("python3", f'if [[ "$2" == venv ]]; then {make}; else exit 1; fi')


def test_half_made_environment_is_made_anew(checkout: "ScriptCheckout") -> None:
    stub_python(checkout, pip_status=0)
    (checkout.root / ".venv/bin").mkdir(parents=True)
    (checkout.root / ".venv/left_over").touch()
    file = '"$project_root/requirements-test.txt"'
    result = checkout.run(f"install_requirements {file}; environment_has {file}")
    assert result.returncode == 0, result.stderr
    assert not (checkout.root / ".venv/left_over").exists()


def test_interrupted_pip_writes_every_file_again(checkout: "ScriptCheckout") -> None:
    file = '"$project_root/requirements-test.txt"'
    stub_python(checkout, pip_status=1)
    failed = checkout.run(f"install_requirements {file}")
    assert failed.returncode == 1
    assert checkout.run(f"environment_has {file}").returncode == 1

    stub_python(checkout, pip_status=0)
    shutil.copy(checkout.root / "inner", checkout.root / ".venv/bin/python")
    assert checkout.run(f"install_requirements {file}").returncode == 0
    first, second = (checkout.root / "pip_calls").read_text().splitlines()
    assert "--ignore-installed" not in first
    assert "--ignore-installed" in second
    assert checkout.run(f"environment_has {file}").returncode == 0


def test_changed_requirements_are_installed_again(checkout: "ScriptCheckout") -> None:
    stub_python(checkout, pip_status=0)
    file = '"$project_root/requirements.txt"'
    assert checkout.run(f"install_requirements {file}").returncode == 0
    assert checkout.run(f"environment_has {file}").returncode == 0
    with (checkout.root / "requirements.txt").open("a") as stream:
        stream.write("another==1.0\n")
    assert checkout.run(f"environment_has {file}").returncode == 1


def test_tools_are_installed_once(checkout: "ScriptCheckout") -> None:
    stub_python(checkout, pip_status=0)
    for _ in range(2):
        result = checkout.run("set_up_tools requirements-oracle.txt 'the oracle' oracle")
        assert result.returncode == 0, result.stderr
    (call,) = (checkout.root / "pip_calls").read_text().splitlines()
    assert call.endswith("/requirements-oracle.txt")


# Each part of the set-up says that it was called, and does nothing.
PARTS = """
find_own_torch() { return OWN_TORCH; }
set_up_packages() { :; }
set_up_library_sources() { :; }
set_up_torch() { echo torch; }
set_up_tools() { echo "$1"; }
set_up_build() { echo build "${@:3}"; }
"""


@pytest.mark.parametrize(
    ("purpose", "has_own_torch", "parts"),
    [
        ("bench", False, "torch build programs"),
        (
            "test",
            False,
            "torch requirements-test.txt requirements-tools.txt requirements-pictures.txt "
            "requirements-oracle.txt build",
        ),
        (
            "test",
            True,
            "requirements-test.txt requirements-tools.txt requirements-pictures.txt build",
        ),
        ("peers", False, "torch requirements-oracle.txt build programs"),
        ("peers", True, "build programs"),
        ("golden", False, "torch requirements-oracle.txt"),
        ("golden", True, ""),
        ("tools", False, "requirements-tools.txt"),
        ("tools", True, "requirements-tools.txt"),
    ],
)
def test_what_each_command_sets_up(
    checkout: "ScriptCheckout", purpose: str, has_own_torch: bool, parts: str
) -> None:
    functions = PARTS.replace("OWN_TORCH", "0" if has_own_torch else "1")
    result = checkout.run(f"{functions}set_up {purpose}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == parts.split()


def test_comparing_needs_nothing_of_the_build(checkout: "ScriptCheckout") -> None:
    """Neither a compiler nor a torch is looked for, and a second call finds its packages there."""
    stub_python(checkout, pip_status=0)
    packages = checkout.root / "scripts/lib/packages.txt"
    packages.write_text("no-compiler command:no-such-compiler required\n")
    refused = "set_up_torch() { exit 9; }; find_own_torch() { exit 9; }; set_up_build() { exit 9; }"
    for _ in range(2):
        result = checkout.run(f"{refused}; set_up tools")
        assert result.returncode == 0, result.stderr
    (call,) = (checkout.root / "pip_calls").read_text().splitlines()
    assert call.endswith("/requirements-tools.txt")


def test_comparing_names_a_missing_python(checkout: "ScriptCheckout") -> None:
    packages = checkout.root / "scripts/lib/packages.txt"
    packages.write_text("python3-venv python:no_such_module required\n")
    checkout.stub("id", "echo 1000")
    result = checkout.run("set_up tools")
    assert result.returncode == 2
    assert "python3-venv" in result.stderr


def test_comparing_does_not_wait_for_a_build(checkout: "ScriptCheckout") -> None:
    stub_python(checkout, pip_status=0)
    assert checkout.run("set_up tools").returncode == 0
    waits = 'lock_set_up() { echo "waited for the lock"; }'
    assert checkout.run(f"{waits}; set_up tools").stdout == ""


PINNED = re.compile(r"^([\w.-]+)==([\w.+!]+)(?: *; *([^\\\n]*?))?(?: \\)?$", re.MULTILINE)


def test_a_package_has_one_version(project_root: Path) -> None:
    """Of each Python; in whatever order the requirements are installed, none undoes another's."""
    versions: dict[tuple[str, str], set[str]] = {}
    # that of a build for CUDA goes into an environment of its own
    for path in {*project_root.glob("requirements*.txt")} - {
        project_root / "requirements-cuda.txt"
    }:
        for name, version, python in PINNED.findall(path.read_text()):
            older = "older" if "< '3.11'" in python or '< "3.11"' in python else ""
            versions.setdefault((name.lower(), older), set()).add(version)
    assert len(versions["numpy", ""]) == len(versions["numpy", "older"]) == 1
    assert {name: found for name, found in versions.items() if len(found) != 1} == {}


def test_requirements_are_complete_and_pinned_by_their_content(project_root: Path) -> None:
    """All but those of libtorch, whose build the index in use decides."""
    for source in project_root.glob("requirements-*.in"):
        text = source.with_suffix(".txt").read_text()
        pinned = {name.lower() for name, _, _ in PINNED.findall(text)}
        wanted = re.findall(r"^([\w.-]+)==", source.read_text(), re.MULTILINE)
        assert wanted
        assert {name.lower() for name in wanted} <= pinned
        blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
        assert all("--hash=sha256:" in block for block in blocks)


def test_oracle_runs_in_the_python_that_has_it(checkout: "ScriptCheckout") -> None:
    checkout.stub("python3", "exit 0")
    assert checkout.run("find_oracle_python").stdout == "python3\n"
    checkout.stub("python3", "exit 1")
    result = checkout.run("find_oracle_python")
    assert result.returncode == 1
    assert "pip install -r" in result.stderr
