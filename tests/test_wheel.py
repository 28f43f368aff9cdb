"""The wheel: built of this checkout as docs/install.md says, installed beside a torch, and used
from an empty folder; and what it says where no torch fits.

Its build folder is one of its own. Where ccache has what build/ was made of that takes a minute,
and elsewhere as long as a first build: then with --long only.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from built_programs import (
    ON_CPU,
    PROJECT_ROOT,
    SMALL_OPTIONS,
    finish,
    give_up,
    start,
    write_program,
)
from test_installed import cached

VERSION = (PROJECT_ROOT / "VERSION").read_text(encoding="utf-8").strip()
LIMIT_S = 1800.0
NAME = f"tiny_llama_bench-{VERSION}"


def torch_cmake() -> Path:
    return Path(cached("Torch_DIR"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    if not request.config.getoption("--long") and shutil.which("ccache") is None:
        pytest.skip("without ccache a wheel takes as long as a first build: --long")
    if not (PROJECT_ROOT / "build/CMakeCache.txt").is_file():
        give_up("build/ is not configured: run scripts/bench --setup-only")
    folder = tmp_path_factory.mktemp("wheels")
    same = ("TINY_LLAMA_WARNINGS_AS_ERRORS", "FETCHCONTENT_SOURCE_DIR_BENCHMARK")
    text = (PROJECT_ROOT / "build/CMakeCache.txt").read_text(encoding="utf-8")
    given = [f"-Ccmake.define.{name}={cached(name)}" for name in same if f"\n{name}:" in text]
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    command += [
        "--disable-pip-version-check",
        "--wheel-dir",
        str(folder),
        *given,
        str(PROJECT_ROOT),
    ]
    # the same compiler by the same name, which ccache tells apart
    build = {**os.environ, "Torch_DIR": str(torch_cmake()), "CXX": cached("CMAKE_CXX_COMPILER")}
    done = finish(start(command, env=build), timeout=LIMIT_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel_names_its_torch_and_no_folder_of_the_machine_that_built_it(wheel: Path) -> None:
    assert re.fullmatch(rf"{NAME}-py3-none-linux_\w+\.whl", wheel.name)
    stated = (torch_cmake() / "TorchConfigVersion.cmake").read_text(encoding="utf-8")
    torch = re.search(r'PACKAGE_VERSION "([0-9.]+)', stated)[1]
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{NAME}.dist-info/METADATA").decode()
        assert f"\nRequires-Dist: torch=={torch}\n" in metadata
        names = archive.namelist()
        data = "tiny_llama_bench/share/tiny_llama"
        for expected in ("VERSION", "fixtures/problem_sizes.json", "results/schema.json"):
            assert f"{data}/{expected}" in names
        assert f"{data}/scripts/tinyllama_tools/__main__.py" in names
        assert not [
            name for name in names if "fixtures/golden" in name or name.endswith((".a", ".hpp"))
        ]
        named = [name for name in names if str(PROJECT_ROOT).encode() in archive.read(name)]
        assert named == []


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Site packages of links to the torch of the build, with the wheel unpacked beside them by pip,
    and this test's own Python with its packages."""
    site = tmp_path_factory.mktemp("environment of é") / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    done = finish(start([*command, "--target", str(site), str(wheel)]))
    assert done.returncode == 0, done.stderr
    torch = torch_cmake().parents[2]
    for folder in (torch, torch.parent / "torch.libs"):
        if folder.exists():
            (site / folder.name).symlink_to(folder)
    return site


def test_an_installed_wheel_measures_from_an_empty_folder(
    environment: Path, tmp_path: Path
) -> None:
    entry = environment / "bin/tiny-llama"
    # pip --target leaves it to the user to say where packages are
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(environment)}
    done = finish(start([entry, "--version"], cwd=tmp_path, env=variables))
    assert done.returncode == 0, done.stderr
    assert VERSION in done.stdout.splitlines()[0]
    options = [*ON_CPU, *SMALL_OPTIONS, "--batch=1", "--seq=4", "--components=rms_norm"]
    done = finish(start([entry, "bench", *options], cwd=tmp_path, env=variables))
    assert done.returncode == 0, done.stderr
    (result,) = tmp_path.glob("results/*/results.json")
    assert result.stat().st_size > 0


def test_a_wheel_needs_a_torch(tmp_path: Path) -> None:
    # a Python without site-packages
    bare = write_program(tmp_path / "python", f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    code = (
        f"import sys, wheel_dependencies as wheel; sys.executable = {str(bare)!r};"
        "print(wheel.dynamic_metadata('dependencies', {}))"
    )
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT_ROOT / "scripts/lib")}
    done = finish(start([bare, "-c", code], env=variables))
    assert done.returncode == 1
    assert "no torch of 2.9 or newer here: set Torch_DIR" in done.stderr
    (tmp_path / "TorchConfigVersion.cmake").write_text('set(PACKAGE_VERSION "2.12.1")\n')
    done = finish(start([bare, "-c", code], env=variables | {"Torch_DIR": str(tmp_path)}))
    assert "'torch==2.12.1'" in done.stdout, done.stderr
