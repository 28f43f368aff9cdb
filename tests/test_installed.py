"""What `cmake --install` puts under a prefix, in a path with blanks and accents: programs that run
there and where the prefix was moved to, by a user who owns none of it; no name of the source or the
build tree; refusals; and examples/installed, an outside project, built and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from built_programs import ON_CPU, PROJECT_ROOT, SMALL_OPTIONS, Completed, finish, give_up, start

BUILD = PROJECT_ROOT / "build"
VERSION = (PROJECT_ROOT / "VERSION").read_text(encoding="utf-8").strip()
PROGRAMS = ("tiny_llama_bench", "tiny_llama_scaling", "tiny_llama_train")
NOBODY = 65534
ONE_CASE = (*ON_CPU, *SMALL_OPTIONS, "--batch=1", "--seq=4", "--components=rms_norm")


def cached(variable: str) -> str:
    """Of CMake's cache."""
    text = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(rf"^{variable}:\w+=(.*)$", text, re.MULTILINE)[1]


def install(prefix: Path, *components: str) -> None:
    for component in components:
        command = ["cmake", "--install", BUILD, "--prefix", prefix, "--component", component]
        done = finish(start(command))
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def prefix() -> Iterator[Path]:
    """Everything but the packages that pip would fetch; installed at one place, moved to another,
    and nobody may write there."""
    if not all((BUILD / "benchmarks" / name).is_file() for name in PROGRAMS):
        give_up("the programs are not built: run scripts/bench --setup-only")
    # pytest's own folders cannot be entered by others
    with tempfile.TemporaryDirectory(prefix="tiny llama é ") as name:
        folder = Path(name)
        folder.chmod(0o755)
        install(folder / "first", "programs", "tools", "development")
        moved = folder / "moved/to here"
        moved.parent.mkdir()
        (folder / "first").rename(moved)
        yield moved


def run(
    prefix: Path, name: str, *arguments: str, folder: Path, user: int | None = None, **more: str
) -> Completed:
    """A program of the prefix with next to no environment, HOME unset too."""
    user_or_not = {} if user is None or os.getuid() != 0 else {"user": user, "group": user}
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **more}
    command = [prefix / "bin" / name, *arguments]
    return finish(start(command, cwd=folder, env=environment, **user_or_not))


@pytest.fixture
def empty() -> Iterator[Path]:
    """A working folder of the user without rights."""
    with tempfile.TemporaryDirectory() as name:
        if os.getuid() == 0:
            os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def test_programs_run_where_the_prefix_was_moved_to_for_a_user_without_rights(
    prefix: Path, empty: Path
) -> None:
    out = f"--benchmark_out={empty}/out.json"
    done = run(prefix, "tiny_llama_bench", *ONE_CASE, out, folder=empty, user=NOBODY)
    assert done.returncode == 0, done.stderr
    rows = json.loads((empty / "out.json").read_text(encoding="utf-8"))["benchmarks"]
    assert {row["run_name"].split("/")[0] for row in rows} == {"rms_norm"}
    training = (*ON_CPU, *SMALL_OPTIONS, "--batch-size=1", "--seq-len=8", "--num-steps=2")
    done = run(prefix, "tiny_llama_train", *training, folder=empty, user=NOBODY)
    assert done.returncode == 0, done.stderr
    for name in PROGRAMS:
        done = run(prefix, name, "--version", folder=empty, user=NOBODY)
        first, *rest = done.stdout.splitlines()
        assert first == f"{name} {VERSION}"
        assert [line.split()[0] for line in rest] == ["commit", "libtorch", "build"]


def test_nothing_installed_names_the_source_or_the_build_tree(prefix: Path) -> None:
    roots = {str(PROJECT_ROOT), str(PROJECT_ROOT.resolve()), str(BUILD.resolve())}
    # what this could not find it would not find anywhere
    needle = [root.encode() for root in roots]
    assert any(root in (BUILD / "CMakeCache.txt").read_bytes() for root in needle)
    named = [
        str(path.relative_to(prefix))
        for path in prefix.rglob("*")
        if path.is_file() and "torch" not in path.parts
        for content in [path.read_bytes()]
        if any(root in content for root in needle)
    ]
    assert named == []


def test_data_that_are_missing_or_of_another_version_are_refused(
    prefix: Path, empty: Path, tmp_path: Path
) -> None:
    done = run(
        prefix, "tiny_llama_bench", "--list", folder=empty, TINY_LLAMA_DATA_DIR="/no/such/folder"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "TINY_LLAMA_DATA_DIR=/no/such/folder: is no data folder" in done.stderr
    # programs without what was installed beside them
    alone = tmp_path / "alone"
    shutil.copytree(prefix / "bin", alone / "bin")
    (alone / "lib").symlink_to(prefix / "lib")
    done = run(alone, "tiny_llama_train", *ON_CPU, folder=empty)
    assert done.returncode == 2, done.stderr
    assert "share/tiny_llama: is no data folder" in done.stderr
    assert "install again" in done.stderr
    data = alone / "share/tiny_llama"
    shutil.copytree(prefix / "share/tiny_llama/fixtures", data / "fixtures")
    (data / "VERSION").write_text("0.9.0\n", encoding="utf-8")
    done = run(alone, "tiny_llama_scaling", *ON_CPU, folder=empty)
    assert done.returncode == 2, done.stderr
    assert f"holds the data of version 0.9.0, this program is {VERSION}" in done.stderr


OTHER_LIBTORCH = """
#include <map>
#include <string>
namespace caffe2 {
const std::map<std::string, std::string>& GetBuildOptions() {
  static const std::map<std::string, std::string> options{{"TORCH_VERSION", "2.1.7"}};
  return options;
}
}
"""


def test_another_libtorch_than_the_programs_is_refused_and_both_are_named(
    prefix: Path, empty: Path, tmp_path: Path
) -> None:
    source = tmp_path / "other.cpp"
    source.write_text(OTHER_LIBTORCH, encoding="utf-8")
    compiler = cached("CMAKE_CXX_COMPILER")
    other = tmp_path / "other.so"
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", other], check=True)
    for name in PROGRAMS:
        done = run(prefix, name, *ON_CPU, folder=empty, LD_PRELOAD=str(other))
        assert done.returncode == 2, done.stderr
        said = r"built with libtorch (\S+), and the one that is loaded is 2\.1\.7;"
        assert re.search(said, done.stderr), done.stderr


def test_an_outside_project_trains_and_measures_a_component_of_its_own(
    prefix: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(PROJECT_ROOT / "examples/installed", tmp_path / "project")
    build = tmp_path / "project of é/build"
    configure = ["cmake", "-G", "Ninja", "-S", source, "-B", build]
    torch = cached("Torch_DIR")
    options = [
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DTorch_DIR={torch}",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    done = finish(start([*configure, *options]))
    assert done.returncode == 0, done.stderr
    done = finish(start(["cmake", "--build", build]), timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]
    done = finish(start([build / "my_training"]))
    losses = [float(value) for value in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert (done.returncode, len(losses)) == (0, 3), done.stderr
    # on the same batch again
    assert losses == sorted(losses, reverse=True)
    command = [build / "my_bench", *ON_CPU, *SMALL_OPTIONS, "--batch=2", "--seq=8"]
    out = tmp_path / "out.json"
    done = finish(start([*command, "--components=silu,rms_norm", f"--benchmark_out={out}"]))
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))["benchmarks"]
    assert {row["run_name"].split("/")[0] for row in rows} == {"silu", "rms_norm"}
    # and what does not fit together is refused
    other = tmp_path / "other/share/cmake/Torch"
    other.mkdir(parents=True)
    for name in ("TorchConfig.cmake", "TorchConfigVersion.cmake"):
        text = (Path(torch) / name).read_text(encoding="utf-8")
        (other / name).write_text(re.sub(r'(PACKAGE_VERSION )"[^"]*"', r'\1"2.10.9"', text))
    for name in ("lib", "include"):
        (tmp_path / "other" / name).symlink_to(Path(torch).parents[2] / name)
    configure[-1] = tmp_path / "refused"
    done = finish(start([*configure, options[0], f"-DTorch_DIR={other}"]))
    assert done.returncode == 1
    message = " ".join(done.stderr.split())
    assert re.search(r"built with libtorch \S+ .* is 2\.10\.9 .*set Torch_DIR", message), message
