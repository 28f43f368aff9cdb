"""`tiny-llama` as a user meets it below a prefix: from an empty folder, with HOME unset, in a path
with blanks and accents, in a prefix that cannot be written; and what is wrong with a prefix, its
data, programs or Python, each a message and exit status 2."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from built_programs import PROJECT_ROOT, Completed, finish, start, write_program
from prefix import VERSION, Prefix
from published import MEASURED
from tinyllama_tools.commands import peers
from tinyllama_tools.core import subcommands
from tinyllama_tools.core.app import ToolError

if TYPE_CHECKING:
    from conftest import ScriptCheckout

# that of the tests, which has the packages of the tools
PYTHON = {"TINY_LLAMA_PYTHON": sys.executable}
NOBODY = 65534


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    return Prefix(tmp_path / "a préfix", tmp_path / "own folder")


def said(done: Completed) -> str:
    """The one line of a command that was refused."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_help_names_the_commands_and_the_version_of_tools_and_programs(prefix: Prefix) -> None:
    prefix.program("tiny_llama_bench", "")
    done = prefix.run("--help", HOME=None, **PYTHON)
    assert done.returncode == 0 and done.stdout.startswith("usage: tiny-llama COMMAND"), done.stderr
    listed = re.findall(r"^  (\w+)  ", done.stdout, re.MULTILINE)
    assert {"bench", "train", "report", "compare"} < set(listed) and "dev/" not in done.stdout
    for words in (["--version"], ["report", "--version"], ["compare", "run", "--version"]):
        done = prefix.run(*words, **PYTHON)
        assert done.stdout == f"tiny-llama {VERSION}\ntiny_llama_bench {VERSION}\n", done.stderr
    # what follows -- is another program's
    done = prefix.run("scaling", "--from=x", "--", "--version", **PYTHON)
    assert done.returncode == 2 and "--version" not in done.stdout
    usage = prefix.run(**PYTHON)
    assert (usage.returncode, usage.stdout) == (2, "") and "usage: tiny-llama" in usage.stderr
    assert "did you mean report?" in said(prefix.run("reprot", **PYTHON))
    # for developers, in a checkout
    assert "must be one of bench" in said(prefix.run("dev/prove", **PYTHON))


def test_messages_and_help_name_the_command_as_it_is_typed(prefix: Prefix) -> None:
    done = prefix.run("compare", "--help", **PYTHON)
    assert "usage: tiny-llama compare" in done.stdout and "scripts/" not in done.stdout
    done = prefix.run("report", "no_such.json", **PYTHON)
    assert done.returncode == 2 and "scripts/" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("tiny-llama report: ")
    assert "--setup-only" not in prefix.run("bench", "--help", **PYTHON).stdout


def test_results_go_to_the_working_folder_and_out_says_where_else(prefix: Prefix) -> None:
    shutil.copy(MEASURED, prefix.work / "results.json")
    done = prefix.run("report", "results.json", "--format=md", "-o", "page.md", HOME=None, **PYTHON)
    assert done.returncode == 0, done.stderr
    assert "`tiny-llama report`" in (prefix.work / "page.md").read_text(encoding="utf-8")
    sides = ["results.json", "results.json"]
    done = prefix.run("compare", *sides, "--format=json", "--out", "öut/deep", **PYTHON)
    assert (prefix.work / "öut/deep/comparison.json").is_file(), done.stderr
    done = prefix.run("compare", "history", "add", "results.json", **PYTHON)
    assert done.returncode == 0, done.stderr
    assert (prefix.work / "results/history.jsonl").is_file()


def test_a_user_without_rights_runs_from_a_prefix_that_cannot_be_written(prefix: Prefix) -> None:
    """From a folder of their own; nothing in the prefix changes."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    prefix.program("tiny_llama_bench", 'echo "$PWD: $*"')
    before = sorted(prefix.root.rglob("*"))
    open_to_all = [prefix.root.parent, *prefix.root.parent.parents[:-2]]
    modes = {folder: folder.stat().st_mode for folder in open_to_all}
    os.chown(prefix.work, NOBODY, NOBODY)
    try:
        for folder in open_to_all:
            folder.chmod(0o755)
        env = {"PATH": "/usr/bin:/bin", "TINY_LLAMA_PYTHON": "python3"}
        if shutil.which("python3", path=env["PATH"]) is None:
            pytest.skip("there is no python3 that another user could run")
        command = [prefix.root / "bin/tiny-llama", "bench", "--list"]
        who = {"user": NOBODY, "group": NOBODY}
        done = finish(start(command, cwd=prefix.work, env=env, **who))
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode & 0o777)
    assert (done.returncode, done.stdout) == (0, f"{prefix.work}: --list\n"), done.stderr
    assert sorted(prefix.root.rglob("*")) == before


def test_it_is_found_through_links(prefix: Prefix) -> None:
    prefix.program("tiny_llama_train", 'echo "trained $*"')
    (prefix.work / "bin").mkdir()
    (prefix.work / "bin/tl").symlink_to(f"../../{prefix.root.name}/bin/tiny-llama")
    (prefix.work / "second").symlink_to("bin/tl")
    env = prefix.environment(**PYTHON, CDPATH="/:/tmp")
    command = ["bash", "-c", 'PATH="$PWD:$PATH"; second train --num-steps 3']
    done = finish(start(command, cwd=prefix.work, env=env))
    assert (done.returncode, done.stdout) == (0, "trained --num-steps 3\n"), done.stderr


def test_nothing_in_the_working_folder_is_taken_for_a_module(prefix: Prefix) -> None:
    for name in ("json", "numpy", "tinyllama_tools"):
        (prefix.work / f"{name}.py").write_text("raise SystemExit('taken')", encoding="utf-8")
    done = prefix.run("--help", **PYTHON)
    assert done.returncode == 0 or sys.version_info < (3, 11), done.stderr


# ---- what is wrong


def test_a_wrong_or_missing_data_folder_is_named(prefix: Prefix, tmp_path: Path) -> None:
    prefix.program("tiny_llama_bench", "")

    def refused(**variables: str) -> str:
        return said(prefix.run("bench", "--list", **PYTHON, **variables))

    (tmp_path / "empty").mkdir()
    for place, what in {
        "/no/such": "is no folder",
        str(tmp_path / "empty"): "is no data folder of tiny_llama, it has no VERSION",
    }.items():
        line = refused(TINY_LLAMA_DATA_DIR=place)
        assert f"TINY_LLAMA_DATA_DIR={place}: {what}" in line and "unset" in line
    shutil.copytree(prefix.data, tmp_path / "other")
    other = {"TINY_LLAMA_DATA_DIR": str(tmp_path / "other")}
    assert prefix.run("bench", "--list", **PYTHON, **other).returncode == 0
    (tmp_path / "other/VERSION").write_text("0.9.0\n", encoding="utf-8")
    assert f"is of version 0.9.0, these tools are of {VERSION}" in refused(**other)
    shutil.rmtree(prefix.data / "fixtures")
    line = refused()
    assert "has no fixtures/problem_sizes.json; install it again into" in line
    (prefix.data / "VERSION").unlink()
    assert "VERSION: is missing" in refused()


def test_programs_that_are_missing_or_of_another_version_are_named(prefix: Prefix) -> None:
    for words in (["bench"], ["train"], ["study", "tiny"], ["--version"]):
        line = said(prefix.run(*words, **PYTHON))
        assert "no such program that can be started; install it again into" in line, line
    for name in ("tiny_llama_bench", "tiny_llama_train"):
        text = f"#!/bin/bash\necho {name} 0.9.0\necho commit abc\n"
        write_program(prefix.root / "bin" / name, text)
    for words in (["bench"], ["train"], ["study", "tiny"], ["--version"]):
        line = said(prefix.run(*words, **PYTHON))
        assert re.search(
            rf"is 'tiny_llama_\w+ 0\.9\.0', these tools are of version {VERSION}", line
        )


def test_a_torch_that_is_not_the_builds_is_named(prefix: Prefix) -> None:
    """By the program itself where it starts, and where the loader gives up by the tools."""
    program = prefix.root / "bin/tiny_llama_bench"
    words = "was built with libtorch 2.9.1, and the one that is loaded is 2.1.7"
    write_program(
        program, f'#!/bin/bash\necho "tiny_llama_bench: this program {words}" >&2\nexit 2\n'
    )
    assert words in said(prefix.run("bench", **PYTHON))
    lost = "error while loading shared libraries: libtorch.so: cannot open shared object file"
    write_program(program, f'#!/bin/bash\necho "$0: {lost}" >&2\nexit 127\n')
    config = prefix.root / "lib/cmake/tiny_llama/tiny_llama-config.cmake"
    config.parent.mkdir(parents=True)
    config.write_text('message("tiny_llama was built with libtorch 2.9.1 (CUDA OFF)")')
    line = said(prefix.run("bench", **PYTHON))
    assert "libtorch.so: cannot open" in line
    assert "it was built with libtorch 2.9.1, and none is found: put that torch back" in line
    # the loader's own words for one of another version, and what it would take
    changed = f"symbol lookup error: {program}: undefined symbol: _ZN5torch"
    write_program(program, f'#!/bin/bash\necho "$0: {changed}" >&2\nexit 127\n')
    library = prefix.root / "torch/lib/libtorch_cpu.so"
    (library.parent).mkdir(parents=True)
    (library.parents[1] / "version.py").write_text("__version__ = '2.1.7+cpu'\n")
    ldd = write_program(
        prefix.work / "bin/ldd", f'#!/bin/bash\necho "  libtorch_cpu.so => {library} (0x00007f)"\n'
    )
    path = f"{ldd.parent}:{os.environ['PATH']}"
    line = said(prefix.run("bench", PATH=path, **PYTHON))
    assert f"libtorch 2.9.1, and torch 2.1.7+cpu of {library.parent} is found" in line


def test_a_git_commit_is_compared_in_a_checkout_alone(prefix: Prefix) -> None:
    prefix.program("tiny_llama_bench", "")
    line = said(prefix.run("compare", "run", "--base", "HEAD", **PYTHON))
    assert "--base HEAD: must be a build folder, a prefix or a program; a git commit can" in line
    # inside one it is asked of that checkout's git
    (prefix.work / "CMakeLists.txt").touch()
    (prefix.work / "scripts/tinyllama_tools").mkdir(parents=True)
    line = said(prefix.run("compare", "run", "--base", "HEAD", **PYTHON))
    assert "git knows no such commit" in line


# ---- which Python


@pytest.fixture
def pythons(prefix: Prefix) -> Iterator[Path]:
    """A PATH with nothing but what a shell needs, for Pythons that a test puts there."""
    folder = prefix.work / "path"
    folder.mkdir()
    for name in ("bash", "sh", "dirname", "readlink", "env"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


def python(folder: Path, name: str, version: str) -> None:
    """One that says which it is, and what it was to run."""
    asks = f'if [[ "$1" == -c ]]; then echo {version}; exit; fi'
    write_program(folder / name, f'#!/bin/bash\n{asks}\necho "{name} $PYTHONPATH $*"\n')


def test_the_python_is_chosen_by_what_the_prefix_has_packages_for(
    prefix: Prefix, pythons: Path
) -> None:
    def ran(**variables: str) -> str:
        done = prefix.run("report", PATH=str(pythons), **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    tools = prefix.data / "scripts"
    python(pythons, "python3", "3.12")
    python(pythons, "python3.11", "3.11")
    assert ran() == f"python3 {tools} -m tinyllama_tools report\n"
    packages = prefix.root / "lib/tiny_llama"
    (packages / "python3.11").mkdir(parents=True)
    own = f"{tools}:/own:{packages}"
    assert ran(PYTHONPATH="/own") == f"python3.11 {own}/python3.11 -m tinyllama_tools report\n"
    # of one of another version there are no packages
    named = ran(TINY_LLAMA_PYTHON=f"{pythons}/python3")
    assert named == f"python3 {tools} -m tinyllama_tools report\n"
    # the active one, where there are packages for both
    (packages / "python3.12").mkdir()
    assert ran().startswith("python3 ")


def test_a_python_that_is_missing_or_too_old_is_named(prefix: Prefix, pythons: Path) -> None:
    def refused(**variables: str) -> str:
        return said(prefix.run("report", PATH=str(pythons), **variables))

    assert "no python3 that can be started; Python 3.10 or newer is needed" in refused()
    python(pythons, "python3", "3.9")
    assert "python3 is Python 3.9; 3.10 or newer is needed" in refused()
    assert "TINY_LLAMA_PYTHON=/no/such: is no Python" in refused(TINY_LLAMA_PYTHON="/no/such")
    # an old one does not matter where another has the packages
    python(pythons, "python3.11", "3.11")
    (prefix.root / "lib/tiny_llama/python3.11").mkdir(parents=True)
    assert prefix.run("report", PATH=str(pythons)).stdout.startswith("python3.11 ")


def test_packages_that_are_missing_are_named_before_anything_is_done(prefix: Prefix) -> None:
    prefix.program("tiny_llama_bench", "")
    bare = write_program(prefix.work / "bare", f'#!/bin/bash\nexec "{sys.executable}" -S "$@"\n')
    python = {"TINY_LLAMA_PYTHON": str(bare)}
    line = said(prefix.run("report", **python))
    assert "needs jinja2, jsonschema, numpy, plotly, scipy, which" in line
    assert "-m pip install jinja2" in line and "TINY_LLAMA_PYTHON" in line
    # these need none
    assert prefix.run("bench", "--list", **python).returncode == 0
    assert prefix.run("report", "--help", **python).returncode in (0, 2)
    assert prefix.run("completion", "bash", **python).returncode == 0


def test_peers_need_a_python_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before our own side is measured for an hour beside nothing."""
    monkeypatch.setattr(peers, "IS_CHECKOUT", False)
    monkeypatch.setattr(subcommands, "find_spec", lambda name: None if name == "torch" else name)
    monkeypatch.delenv(peers.ORACLE_VARIABLE, raising=False)
    with pytest.raises(ToolError, match=r"needs torch, which .* TINY_LLAMA_PYTHON"):
        peers.main([])


def test_what_only_a_build_folder_has_is_said_of_a_prefix(prefix: Prefix) -> None:
    prefix.program("tiny_llama_bench", "")
    slow = ("--slow", "0.05", "--runs", "1")
    line = said(prefix.run("compare", "calibrate", *slow, **PYTHON))
    assert "a prefix has none: name the build folder of a checkout" in line


# ---- a checkout


def test_in_a_checkout_it_starts_the_scripts() -> None:
    command = [PROJECT_ROOT / "scripts/tiny-llama", "test", "--help"]
    assert finish(start(command)).stdout.startswith("scripts/test ")


# one whose venvs hold a pip that notes what it is asked for
PIP = """#!/bin/bash
case "$*" in
  *version_info\\ *) ;;
  *"python%d.%d"*) echo python3.11 ;;
  "-m pip --version") echo "pip 26.3 from" ;;
  *sys.prefix*) dirname "$(dirname "$0")" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *--target*)
    echo "$*" >>CALLS
    while [[ "$1" != --target ]]; do shift; done
    mkdir -p "$2/jinja2"
    exit "${PIP_STATUS:-0}"
    ;;
esac
"""


def test_packages_of_the_tools_come_into_their_place_as_a_whole(
    checkout: ScriptCheckout, tmp_path: Path
) -> None:
    """With hashes; below DESTDIR where that is set, and what was there before is replaced."""
    calls = tmp_path / "calls"
    write_program(checkout.stubs / "python3", PIP.replace("CALLS", f"'{calls}'"))
    place = tmp_path / "stage/opt/a préfix/lib/tiny_llama"
    (place / "python3.11/old").mkdir(parents=True)
    script = "bash scripts/lib/install_python_packages.sh '/opt/a préfix'"
    stage = {"DESTDIR": str(tmp_path / "stage")}
    done = checkout.run(script, PIP_STATUS="1", **stage)
    assert done.returncode != 0 and "could not be installed" in done.stderr
    assert [path.name for path in place.rglob("*")] == ["python3.11", "old"]
    done = checkout.run(script, **stage)
    assert done.returncode == 0 and f"tools: {place}/python3.11" in done.stdout, done.stderr
    assert [path.name for path in place.rglob("*")] == ["python3.11", "jinja2"]
    asked = calls.read_text().splitlines()
    assert len(asked) == 2 and "--require-hashes" in asked[0] and ":tools " in asked[0]


def test_compiled_code_is_kept_for_the_user_not_in_the_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = ("HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")
    for home, cache, chosen, kept in [
        ("/h", "", "", "/h/.cache/tiny_llama/torchinductor"),
        ("/h", "/c", "", "/c/tiny_llama/torchinductor"),
        ("", "", "", None),
        ("/h", "", "/own", None),
    ]:
        for name, value in zip(variables, (home, cache, chosen), strict=True):
            if value:
                monkeypatch.setenv(name, value)
            else:
                monkeypatch.delenv(name, raising=False)
        assert peers.compiled_code_kept().get("TORCHINDUCTOR_CACHE_DIR") == kept


def test_packages_of_the_tools_can_wait_for_a_network(tmp_path: Path) -> None:
    """What will not work is said; the status is for the caller: `cmake --install` goes on."""
    script = PROJECT_ROOT / "scripts/lib/install_python_packages.sh"
    env = os.environ | {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = finish(start(["bash", script, tmp_path / "a préfix"], env=env))
    assert done.returncode == 1, done.stderr
    assert "could not be installed" in done.stderr and f"'{tmp_path}/a préfix'" in done.stderr
    assert list((tmp_path / "a préfix/lib/tiny_llama").iterdir()) == []
    assert finish(start(["bash", script])).returncode == 2
