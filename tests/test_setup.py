"""The set-up on a fresh machine, without a network: packages, sources, which libtorch is taken, a
.venv that an interruption left half-made, failed steps, configure, bad options; and CI's
workflow."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from built_programs import PROJECT_ROOT, finish, start, write_program

if TYPE_CHECKING:
    from conftest import ScriptCheckout

SED = shutil.which("sed")
PACKAGES = """\
have-it   command:bash            required
lib-one   command:no-such,other   required
lib-two   header:no/such.hpp      required
py-three  python:no_such_module   required
nice-one  command:no-such         optional
not-here  command:no-such         optional
"""


def set_packages(checkout: ScriptCheckout, text: str, user: int) -> None:
    """What is needed, and whether the user is root; apt-get notes what it is asked for."""
    with (checkout.root / "scripts/lib/packages.sh").open("a") as file:
        file.write(f"package_list='{text}'\n")
    checkout.stub("id", f"echo {user}")
    checkout.stub("apt-get", f'echo "$@" >> "{checkout.root}/calls"')
    checkout.stub("apt-cache", '[[ "$*" == "show nice-one" ]]')


def test_missing_packages_are_named_with_the_command_or_installed_by_root(
    checkout: ScriptCheckout,
) -> None:
    set_packages(checkout, PACKAGES, user=1000)
    result = checkout.run("set_up_packages py-three; echo unreached")
    assert (result.returncode, result.stdout) == (2, "")
    assert "sudo apt-get install --no-install-recommends lib-one lib-two" in result.stderr
    # only an optional one is missing
    result = checkout.run("set_up_packages lib-one lib-two py-three")
    assert result.returncode == 0
    assert "nice-one" in result.stderr
    assert checkout.calls() == []
    # a header may be under any of the prefixes that are set
    (checkout.root / "a prefix/include/no").mkdir(parents=True)
    (checkout.root / "a prefix/include/no/such.hpp").touch()
    result = checkout.run("set_up_packages py-three", ROCM_PATH=f"{checkout.root}/a prefix")
    assert "sudo apt-get install --no-install-recommends lib-one\n" in result.stderr
    set_packages(checkout, PACKAGES, user=0)
    result = checkout.run("set_up_packages py-three")
    assert result.returncode == 0
    assert "which this release does not have: not-here\n" in result.stderr
    install = "install --yes --no-install-recommends"
    required, optional = f"{install} lib-one lib-two", f"{install} nice-one"
    assert checkout.calls() == ["update", required, optional]
    # for an optional one the lists are not fetched again
    checkout.run("set_up_packages lib-one lib-two py-three nice-one")
    assert checkout.calls() == ["update", required, optional]


def test_libraries_that_cannot_be_installed_are_taken_as_sources(checkout: ScriptCheckout) -> None:
    packages = "libcli11-dev header:no/c.h source\nlibgtest-dev header:no/g.h source\n"
    code = 'set_up_packages libgtest-dev; sources_lacking "${libraries_not_installed[@]}"'
    set_packages(checkout, packages, user=1000)
    lines = checkout.run(code).stdout.splitlines()
    assert lines == ["benchmark benchmark 1.9.1", "cli11 cli11 2.4.1"]
    set_packages(checkout, packages, user=0)
    assert checkout.run(code).stdout.splitlines() == ["benchmark benchmark 1.9.1"]
    assert checkout.calls()[-1].endswith(" libcli11-dev")
    # without a network they are left to CMake
    checkout.stub("apt-get", "echo 'no network'; exit 100")
    checkout.stub("apt-cache", "exit 100")
    result = checkout.run("set_up_library_sources libcli11-dev")
    assert result.returncode == 0
    assert "downloads the rest from github.com: benchmark cli11" in result.stderr


ONE_LINE = """\
deb http://mirror.example.org/debian bookworm main contrib  # the mirror
deb [signed-by=/usr/k.gpg trusted=yes] https://example.org/debian bookworm-updates main
deb https://vendor.example.org/apt stable vendor
"""
DEB822 = "Types: deb\nURIs: http://second.example.org/debian\nSuites: bookworm bookworm-updates\n"


def test_the_next_releases_sources_come_from_this_machines_archives(
    checkout: ScriptCheckout,
) -> None:
    apt, found = checkout.root / "apt", checkout.root / "found"
    for folder in (apt / "sources.list.d", found):
        folder.mkdir(parents=True)
    (apt / "sources.list").write_text(ONE_LINE)
    (apt / "sources.list.d/b.sources").write_text(DEB822)
    (apt / "sources.list.d/c.sources.disabled").write_text(DEB822)
    result = checkout.run(f"next_release_sources '{apt}' bookworm '{found}'")
    assert result.returncode == 0, result.stderr
    assert {path.name: path.read_text() for path in found.iterdir()} == {
        "sources.list": ONE_LINE.replace("deb ", "deb-src ").replace("bookworm", "trixie"),
        "b.sources": DEB822.replace("deb\n", "deb-src\n").replace("bookworm", "trixie"),
    }


@pytest.mark.parametrize(
    ("version", "library", "kind"),
    [
        ("2.9.0", "libtorch_cpu.so", "cpu"),
        ("2.13.1+cu130", "libtorch_cuda.so", "cuda"),
        ("3.0.0a0+git12ab", "libtorch_hip.so", "rocm"),
        ("2.8.0", "libtorch_cpu.so", None),
    ],
)
def test_users_torch_is_taken_if_it_is_new_enough(
    checkout: ScriptCheckout, version: str, library: str, kind: str | None
) -> None:
    """The active Python's, that of an environment, or a CMake folder."""
    package = checkout.root / "site/torch"
    cmake_folder = "share/cmake/Torch"
    for name, text in {
        "__init__.py": "raise RuntimeError('the search must not import torch')",
        "version.py": f"__version__ = '{version}'",
        f"{cmake_folder}/TorchConfig.cmake": "",
        f"lib/{library}": "",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    checkout.stub("python3", f'PYTHONPATH="{package.parent}" exec "{sys.executable}" "$@"')
    (checkout.root / "bin").mkdir()
    shutil.copy(checkout.stubs / "python3", checkout.root / "bin/python")
    show = 'echo "$torch_kind|$torch_cmake_folder"'
    result = checkout.run(f"find_own_torch && {show}")
    given = checkout.run(f"find_given_torch .; {show}")
    expected = f"{kind}|{package / cmake_folder}\n" if kind else ""
    assert result.stdout == given.stdout == expected
    if kind is None:
        assert f"torch {version} of" in result.stderr
        assert given.returncode == 2
        assert "'.' must be" in given.stderr
    else:
        given = checkout.run(f"find_given_torch site/torch/{cmake_folder}; {show}")
        assert given.stdout == expected


def test_a_group_is_installed_once_and_again_after_a_change_or_an_interruption(
    checkout: ScriptCheckout,
) -> None:
    """With hashes, but for torch, by a pip that takes them from a constraints file; and an
    environment whose Python does not answer is made anew."""
    environment, inner = checkout.root / ".venv", checkout.root / "inner"
    (environment / "bin").mkdir(parents=True)
    (environment / "left_over").touch()
    # a python3 whose venvs hold a script that notes pip's arguments: no network, no ensurepip
    write_program(
        inner,
        "#!/bin/bash\n"
        'case "$*" in "-m pip --version") echo "pip $(<"$0.pip") from";; '
        '*sys.prefix*) dirname "$(dirname "$0")";; '
        f'*/dev/stdin) cat >> "{checkout.root}/calls"; echo 26.3 >"$0.pip";; '
        f'*install*) echo "$*" >> "{checkout.root}/calls"; exit ${{PIP_STATUS:-0}};; esac\n',
    )
    make = f'mkdir -p "$3/bin" && cp "{inner}" "$3/bin/python" && echo 23.2 >"$3/bin/python.pip"'
    checkout.stub("python3", f'if [[ "$2" == venv ]]; then {make}; else exit 1; fi')
    assert checkout.run("set_up_group oracle", PIP_STATUS="1").returncode != 0
    assert not (environment / "left_over").exists()
    for changed, installed in ((False, 2), (False, 2), (True, 3)):
        if changed:
            with (checkout.root / "requirements.lock").open("a") as stream:
                stream.write("another==1.0\n")
        result = checkout.run("set_up_group oracle; set_up_group torch")
        assert result.returncode == 0, result.stderr
        pip, *calls = checkout.calls()
        assert re.fullmatch(r"pip==26\.3 --hash=sha256:[0-9a-f]{64}", pip)
        oracle = [call for call in calls if call.split("--group ")[1].split(":")[1][:6] == "oracle"]
        assert len(oracle) == installed
    # what an interrupted pip has left half-written is written again
    assert ["--ignore-installed" in call for call in oracle] == [False, True, False]
    with_hashes = f"--require-hashes --constraint {checkout.root}/requirements.lock"
    assert [with_hashes in call for call in calls] == [call in oracle for call in calls]
    # torch is not in the lock
    assert len(calls) - len(oracle) == 1


# Each part of the set-up says that it was called, and does nothing; programs are `true`.
PARTS = """
find_own_torch() { return OWN_TORCH; }
set_up_packages() { :; }
set_up_library_sources() { :; }
set_up_torch() { echo torch; }
set_up_group() { echo "$1"; }
set_up_build() { echo build "${@:3}"; }
find_oracle_python() { echo true; }
tool() { echo checked; }
virtual_python=true
"""
TESTS = "test tools pictures parquet"
# options are looked at before anything that can take minutes
CHECKED = "checked tools"
PROGRAMS = "tiny_llama_bench tiny_llama_scaling tiny_llama_train"
MEASURES = f"{CHECKED} build {PROGRAMS}"
COMPARES = f"{CHECKED} build tiny_llama_bench"


@pytest.mark.parametrize(
    ("command", "has_own_torch", "parts"),
    [
        ("bench --setup-only", False, f"checked torch build {PROGRAMS}"),
        ("test", False, f"torch {TESTS} oracle build"),
        ("test", True, f"{TESTS} build"),
        ("dev/golden", False, "checked torch oracle"),
        ("dev/prove", True, "checked build"),
        ("peers", False, f"{CHECKED} torch oracle build {PROGRAMS}"),
        ("gpu_check", False, f"{CHECKED} torch oracle build {PROGRAMS} kernels_gpu_device_test"),
        ("gpu_check --build-folder=build-cuda", True, CHECKED),
        ("study tiny", True, MEASURES),
        ("study --help", True, "checked"),
        ("scaling --processes 2 -- --from", True, MEASURES),
        ("scaling --from results/a", True, CHECKED),
        ("profile --compare a b", True, CHECKED),
        ("compare a.json b.json", True, CHECKED),
        ("compare run --base HEAD", True, COMPARES),
        # a build that is there already is measured as it is
        ("compare run --base HEAD --new scripts", True, CHECKED),
        ("compare run --base=scripts --new=HEAD", True, CHECKED),
        ("report --setup-only", False, "tools"),
        ("report a --format=png", False, f"{CHECKED} pictures {CHECKED}"),
        ("report a --format parquet", False, f"{CHECKED} parquet {CHECKED}"),
        ("compare calibrate --record=a.jsonl", True, COMPARES),
    ],
)
def test_what_each_command_sets_up(
    checkout: ScriptCheckout, command: str, has_own_torch: bool, parts: str
) -> None:
    with (checkout.root / "scripts/lib/set_up.sh").open("a") as file:
        file.write(PARTS.replace("OWN_TORCH", "0" if has_own_torch else "1"))
    result = checkout.run(f"scripts/{command}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == parts.split()


@pytest.mark.parametrize("place", [".deps", ".deps/set-up.lock"])
@pytest.mark.parametrize(
    "command", ["bench", "bench --setup-only", "compare run --base HEAD", "report a.json", "test"]
)
def test_a_checkout_that_cannot_be_written_gives_no_verdict(
    checkout: ScriptCheckout, command: str, place: str
) -> None:
    """Status 1 would be a regression, or a case that failed. What stands in the place of a folder
    or file is in the way of root too."""
    if place == ".deps":
        (checkout.root / place).touch()
    else:
        (checkout.root / place).mkdir(parents=True)
    result = checkout.run(f"scripts/{command}")
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    *_, why, said, last = result.stderr.splitlines()
    assert place in why and said.startswith("error: the set-up did not come to its end")
    assert f"git clone '{checkout.root}'" in last


# in namespaces of its own: no root is needed, and no mount is left behind
AS_NOBODY = ("unshare", "--user", "--map-root-user", "--mount", "bash", "-euc")
READ_ONLY = 'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; cd /; exec "$@"'


@pytest.mark.parametrize("built", [True, False])
def test_a_read_only_checkout_is_measured_with_if_it_is_built(
    checkout: ScriptCheckout, built: bool
) -> None:
    root = checkout.root
    if finish(start([*AS_NOBODY, READ_ONLY, root, "true"])).returncode != 0:
        pytest.skip("this kernel or container lets nobody mount in a namespace of their own")
    program = root / "build/benchmarks/tiny_llama_bench"
    program.parent.mkdir(parents=True)
    if built:
        write_program(program, '#!/bin/bash\necho "ran $*"\n')
    done = finish(start([*AS_NOBODY, READ_ONLY, root, f"{root}/scripts/bench", "--dry-run"]))
    if built:
        assert (done.returncode, done.stdout) == (0, "ran --dry-run\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "Read-only" in done.stderr and f"git clone '{root}'" in done.stderr


# /proc/self/cgroup, what it limits, and how many compilers run at once on 8 processors
GROUPS: list[tuple[str, dict[str, str], int]] = [
    ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, 8),
    ("0::/\n", {"cpu.max": "250000 100000"}, 3),
    ("0::/a/b\n", {"a/cpu.max": "20000 100000", "a/b/cpu.max": "max 100000"}, 1),
    ("0::/a\n", {"unified/a/cpu.max": "400000 100000", "memory.max": "3221225472"}, 2),
    (
        "4:memory:/m\n2:cpu,cpuacct:/c d\n",
        {"cpu/c d/cpu.cfs_quota_us": "-1", "cpu/c d/cpu.cfs_period_us": "100000"}
        | {"cpu/cpu.cfs_quota_us": "500000", "cpu/cpu.cfs_period_us": "100000"}
        | {"memory/m/memory.limit_in_bytes": "9223372036854771712"},
        5,
    ),
    ("4:memory:/m\n", {"memory/m/memory.limit_in_bytes": "1073741824"}, 1),
    ("", {}, 8),
]


@pytest.mark.parametrize(("membership", "limits", "jobs"), GROUPS)
def test_compilers_run_at_once_as_the_control_groups_allow(
    checkout: ScriptCheckout, membership: str, limits: dict[str, str], jobs: int
) -> None:
    groups = checkout.root / "groups"
    for name, text in ({"membership": membership} | limits).items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{text}\n")
    checkout.stub("nproc", "echo 8")
    # 64 GiB are free
    checkout.stub("sed", f'[[ "${{*: -1}}" == /proc/meminfo ]] && echo 67108864 || {SED} "$@"')
    code = 'control_groups="$PWD/groups" membership="$PWD/groups/membership"; parallel_jobs'
    done = checkout.run(code)
    assert (done.stdout, done.stderr) == (f"{jobs}\n", "")


@pytest.fixture
def fresh(checkout: ScriptCheckout) -> ScriptCheckout:
    """A python3 without any package, and a set-up that must not be begun."""
    checkout.stub("python3", f'exec "{sys.executable}" -S -B "$@"')
    with (checkout.root / "scripts/lib/set_up.sh").open("a") as file:
        file.write("set_up() { echo 'was set up' >&2; exit 9; }\n")
    return checkout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("scaling --proceses 2", "--proceses"),
        ("compare rn", "did you mean run?"),
        ("compare run --bas HEAD", "--base"),
        ("report --fromat md", "--fromat"),
        ("report a.json --format png --titel x", "--titel"),
        ("study tiny --no-such", "--no-such"),
        ("dev/golden --chek", "--chek"),
        ("dev/prove --without-fautls", "--without-fautls"),
        ("bench --componets ffn", "'--componets'"),
        ("test --bogus", "'--bogus'; allowed: --long, --sanitize"),
        ("test --torch-dir /no/such", "'/no/such' must be <libtorch>/share/cmake/Torch"),
        ("test --torch-dir / --sanitize", "exclude each other"),
        ("test --cuda-build --rocm-build", "--cuda-build and --rocm-build stand alone"),
        ("test --long --campaign kills", "--campaign stands alone"),
    ],
)
def test_a_mistyped_option_is_told_on_a_fresh_machine(
    fresh: ScriptCheckout, command: str, said: str
) -> None:
    result = fresh.run(f"scripts/{command}")
    assert result.returncode == 2 and said in result.stderr, result.stderr
    assert "was set up" not in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "command", ["bench", "test", "compare", "compare run", "study", "dev/golden", "dev/prove"]
)
def test_help_is_there_on_a_fresh_machine(fresh: ScriptCheckout, command: str) -> None:
    result = fresh.run(f"scripts/{command} --help")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"scripts/{command} " in result.stdout.partition("\n")[0]
    assert "xit status" in " ".join(result.stdout.split()) or command == "compare run"


def test_the_lock_has_what_each_group_asks_for() -> None:
    """Its hashes: pip asks for them. Which build of torch is installed is the index's choice."""
    lock = (PROJECT_ROOT / "requirements.lock").read_text().lower()
    text = (PROJECT_ROOT / "pyproject.toml").read_text()
    groups = re.findall(r"^(\w+) = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in groups][:2] == ["torch", "cuda"] and len(groups) == 8
    for name, lines in groups[2:]:
        wanted = re.findall(r"^  [\"'](\S+==[\w.]+)", lines, re.MULTILINE)
        assert wanted and [w for w in wanted if f"\n{w.lower()} " not in lock] == [], name
    assert "\ntorch==" not in lock


def test_failed_step_names_itself_its_last_lines_and_its_log(checkout: ScriptCheckout) -> None:
    code = "boom() { echo 'No space left on device'; false; echo unreached; }"
    (checkout.root / "scripts/lib/build.sh").open("a").write(code + "\n")
    result = checkout.run("require_step 'the title' boom boom; echo unreached")
    assert result.returncode == 2
    assert "this step failed (exit status 1): the title" in result.stderr
    assert "| No space left on device" in result.stderr
    assert str(checkout.root / ".deps/log/boom.log") in result.stderr
    assert "unreached" not in result.stdout + result.stderr


# a build as ninja reports it into a log
SLOW_BUILD = """
progress_seconds=1
slow() { for i in 1 2 3; do echo "[$i/3] Building a.cpp.o"; sleep 0.9; done; }
quick() { echo '[1/1] Building a.cpp.o'; }
"""


def test_a_long_step_shows_its_progress_and_a_short_one_does_not(checkout: ScriptCheckout) -> None:
    """Lines in a log; on a terminal one line that is written anew."""
    with (checkout.root / "scripts/lib/common.sh").open("a") as file:
        file.write(SLOW_BUILD)
    step = "require_step 'build in build/'"
    ours, terminal = os.openpty()
    try:
        # at once, each with a log of its own
        rare = checkout.start(f"{step} quick quick; progress_seconds=600; {step} rare slow")
        often = checkout.start(f"{step} often slow")
        drawn = finish(checkout.start(f"{step} drawn slow", stderr=terminal))
        said = os.read(ours, 65536).decode()
    finally:
        os.close(terminal)
        os.close(ours)
    assert "Building" not in finish(rare).stderr
    lines = finish(often).stderr.splitlines()
    shown = [line for line in lines if re.fullmatch(r"   \d s  \[\d/3\] Building a.cpp.o", line)]
    assert 1 <= len(shown) <= 3 and lines[0] == "-- build in build/", lines
    assert drawn.returncode == 0
    assert re.search(r"\r   \d s  \[[23]/3\] Building a.cpp.o\x1b\[K\r", said), said


def test_ninja_says_how_far_it_is_whatever_the_users_status(checkout: ScriptCheckout) -> None:
    checkout.stub("cmake", 'echo "$NINJA_STATUS|$*"')
    result = checkout.run("build a_folder a_target", NINJA_STATUS="%e ")
    assert result.stdout.startswith("[%f/%t] |--build a_folder --parallel ")


CACHE = """CMAKE_HOME_DIRECTORY:INTERNAL={root}
Torch_DIR:PATH=/t
CMAKE_BUILD_TYPE:STRING=Release
TINY_LLAMA_WITH_HIP:STRING={hip}
TINY_LLAMA_WARNINGS_AS_ERRORS:BOOL=ON
ADDED:BOOL=ON
"""


@pytest.mark.parametrize(
    ("preset", "hip", "torch", "settings", "configures"),
    [
        ("ci", "ON", "/t", "ADDED=ON", False),
        ("release", "ON", "/t", "", False),  # as preset ci left it
        ("ci", "AUTO", "/t", "", True),
        ("release", "ON", "/other", "", True),
        ("release", "ON", "/t", "ADDED=OFF", True),
    ],
)
def test_a_folder_is_configured_unless_it_was_for_the_same(
    checkout: ScriptCheckout, preset: str, hip: str, torch: str, settings: str, configures: bool
) -> None:
    build = checkout.root / "build"
    build.mkdir()
    (build / "CMakeCache.txt").write_text(CACHE.format(root=checkout.root, hip=hip))
    (build / "build.ninja").touch()
    (checkout.root / "log").write_text(
        "CMake Warning at /t/TorchConfig.cmake:2 (message):\n  of theirs\nCall Stack:\n  a\n"
        "CMake Warning at cmake/find_libtorch.cmake:4 (message):\n  of ours\nCall Stack:\n  b\n"
    )
    note = f'echo "$*" >>"{checkout.root}/calls"; cat "{checkout.root}/log"'
    checkout.stub("cmake", note)
    configure = f'set_up_configured {preset} "$project_root/build" {settings}'
    result = checkout.run(f"torch_cmake_folder={torch}; {configure}")
    assert result.returncode == 0, result.stderr
    setting = f" -D{settings}" if settings else ""
    call = f"--preset {preset} -B {build}{setting} -DTorch_DIR={torch}"
    assert checkout.calls() == ([call] if configures else [])
    # nothing of another libtorch stays
    assert (build / "CMakeCache.txt").exists() == (torch != "/other")
    # of CMake's warnings only our own are shown
    assert not configures or result.stderr.splitlines()[2:] == ["   of ours"]
    # an earlier configure failed
    (build / "build.ninja").unlink()
    (build / "CMakeCache.txt").write_text(CACHE.format(root=checkout.root, hip=hip))
    checkout.run(f"torch_cmake_folder={torch}; {configure}")
    assert len(checkout.calls()) == 1 + configures


@pytest.mark.parametrize(("name", "runs"), [("test", ".ci/run $TEST_OPTIONS"), ("compare", "")])
def test_the_workflows_steps_are_shell_and_run_what_ci_runs(name: str, runs: str) -> None:
    text = (PROJECT_ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    # in `compare` each job has its own: tests/compare
    assert workflow["permissions"] == ({"contents": "read"} if runs else {})
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    for step in steps:
        subprocess.run(["bash", "-n", "-c", step["run"]], check=True)
        # what an event says must not become a part of a command
        assert "${{" not in step["run"]
    assert not runs or runs in [step["run"] for step in steps]
