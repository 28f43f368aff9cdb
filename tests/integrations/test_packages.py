"""`cpack`: what its packages are called, ask for and hold, of a small project with the same
settings; and, with --long, of the build itself, unpacked and run."""

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT, finish, give_up, start

VERSION = (PROJECT_ROOT / "VERSION").read_text(encoding="utf-8").strip()
BUILD = PROJECT_ROOT / "build"
PROGRAM = "bin/tiny_llama_bench"
LIBTORCH = "lib/tiny_llama/torch/libtorch.so"
# A program of the system's for ours, and one of its libraries for libtorch's.
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(tiny_llama VERSION {version} LANGUAGES NONE)
set(Torch_VERSION 2.99.0)
set(TINY_LLAMA_TORCH_LIBRARY_DIR "${{PROJECT_SOURCE_DIR}}/torch/lib")
set(libtorch_is {libtorch_is})
install(PROGRAMS program DESTINATION bin RENAME tiny_llama_bench COMPONENT programs)
install(FILES LICENSE DESTINATION share/tiny_llama COMPONENT tools)
if(libtorch_is STREQUAL COPY)
  install(FILES torch/lib/libtorch.so DESTINATION lib/tiny_llama/torch COMPONENT programs)
endif()
include({packaging})
"""


def run(*command: str | Path, minutes: float = 2, folder: Path | None = None) -> str:
    done = finish(start(list(command), cwd=folder), timeout=60 * minutes)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def packages(build: Path, where: Path, minutes: float = 2) -> dict[str, Path]:
    """The archive and the package of a build folder, by suffix."""
    if shutil.which("dpkg-deb") is None:
        give_up("dpkg-deb, which comes with Debian, is missing")
    made = {}
    for generator, suffix in (("TGZ", "gz"), ("DEB", "deb")):
        config = build / "CPackConfig.cmake"
        run("cpack", "-G", generator, "--config", config, "-B", where, minutes=minutes)
        (made[suffix],) = where.glob(f"*.{suffix}")
    return made


def unpack(package: Path, folder: Path) -> Path:
    """Where the prefix then is."""
    folder.mkdir()
    if package.suffix == ".deb":
        run("dpkg-deb", "--extract", package, folder)
        return folder / "usr"
    with tarfile.open(package) as archive:
        archive.extractall(folder, filter="tar")
    (top,) = folder.iterdir()
    return top


def fields(package: Path) -> dict[str, str]:
    lines = run("dpkg-deb", "--field", package).splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


@pytest.mark.parametrize("libtorch_is", ["COPY", "PLACE"])
def test_archive_and_package_hold_what_is_installed(tmp_path: Path, libtorch_is: str) -> None:
    (tmp_path / "torch/lib").mkdir(parents=True)
    shutil.copy("/bin/true", tmp_path / "program")
    shutil.copy("/bin/true", tmp_path / "torch/lib/libtorch.so")
    shutil.copy(PROJECT_ROOT / "LICENSE", tmp_path)
    packaging = PROJECT_ROOT / "cmake/packaging.cmake"
    text = PROJECT.format(version=VERSION, packaging=packaging, libtorch_is=libtorch_is)
    (tmp_path / "CMakeLists.txt").write_text(text, encoding="utf-8")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build")
    made = packages(tmp_path / "build", tmp_path / "made")
    torch = "torch2.99.0" if libtorch_is == "COPY" else "for-torch2.99.0"
    name = f"tiny-llama-bench-{VERSION}-Linux-{os.uname().machine}-{torch}"
    assert {path.name for path in made.values()} == {f"{name}.tar.gz", f"{name}.deb"}
    for suffix, package in made.items():
        prefix = unpack(package, tmp_path / suffix)
        assert (prefix / PROGRAM).stat().st_mode & 0o111
        assert (prefix / "share/tiny_llama/LICENSE").is_file()
        assert (prefix / LIBTORCH).is_file() == (libtorch_is == "COPY")
    control = fields(made["deb"])
    assert (control["Package"], control["Version"]) == ("tiny-llama-bench", VERSION)
    needs = control["Depends"].split(", ")
    assert needs[0] == "python3 (>= 3.10)"
    if shutil.which("dpkg-shlibdeps"):
        assert any(need.startswith("libc6 (>=") for need in needs[1:]), needs


@pytest.mark.long
def test_the_packages_of_the_build_run(tmp_path: Path) -> None:
    """Unpacked, at another place than the build's, with next to no environment."""
    if not (BUILD / "CPackConfig.cmake").is_file():
        give_up("build/ is not configured: run scripts/bench --setup-only")
    made = packages(BUILD, tmp_path / "made", minutes=30)
    for suffix, package in made.items():
        prefix = unpack(package, tmp_path / suffix)
        for command in (["tiny-llama", "--version"], ["tiny_llama_bench", "--version"]):
            words = [str(prefix / "bin" / command[0]), *command[1:]]
            environment = {"PATH": "/usr/bin:/bin"}
            done = finish(start(words, cwd=tmp_path, env=environment))
            assert (done.returncode, VERSION in done.stdout) == (0, True), done.stderr
    if shutil.which("dpkg-shlibdeps"):
        assert "libstdc++6" in fields(made["deb"])["Depends"]
