"""Every command, file, key, output line and figure of docs/workshop.md, tried at a small size."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from built_programs import built_program
from tinyllama_tools.core.app import Json
from workshop_page import (
    FILE_TABLE,
    FOLDER_TABLE,
    LINES,
    PROGRAM,
    code,
    commands,
    rows,
    snippets,
    value_at,
)
from workshop_place import WorkshopPlaces, needs

# These would install packages, or take minutes: that the script knows them is all that is checked.
NOT_RUN = {"scripts/bench --setup-only": "--setup-only", "scripts/ablation": "scripts/ablation"}
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")
SERVERS = [command for command in commands() if command.startswith("tensorboard")]
# Each measures the device's peaks, which takes seconds, and more: with --long only.
LONG = ("scripts/bench", "scripts/exercise 2", "scripts/exercise 3")
LONG_PROFILES = ("./bottleneck_retry", "./top_operations", "./version2_analysis")


def run_parameter(command: str) -> ParameterSet:
    """The command, marked where it takes long."""
    is_long = command.startswith(LONG) or command.endswith(LONG_PROFILES)
    return pytest.param(command, marks=[pytest.mark.long] if is_long else [], id=command)


# a guard only: a busy machine may take long to load TensorBoard
SERVER_TIMEOUT_S = 120.0
RUN = [run_parameter(c) for c in commands() if c not in (*SERVERS, *NOT_RUN)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> WorkshopPlaces:
    built_program("benchmarks/tiny_llama_train")
    built_program("benchmarks/tiny_llama_bench")
    return WorkshopPlaces(tmp_path_factory.mktemp("workshop"))


def files_of(command: str) -> list[tuple[str, list[str]]]:
    """Pattern and keys of each file that the page says this command of the program writes."""
    wanted = []
    for text, here, flags, keys in rows(FILE_TABLE):
        names = code(text)[:1] if here == "the same" else code(here)
        switches = [*PROFILERS, "--output-dir"] if "every profiler" in flags else code(flags)
        if any(switch in command for switch in switches):
            wanted.append((names[0], [] if keys.startswith("curves") else code(keys)))
    return wanted


def check_training(command: str, folder: Path, output: str) -> None:
    words = shlex.split(command)
    option = "--profile-dir" if any(flag in words for flag in PROFILERS) else "--output-dir"
    target = words[words.index(option) + 1] if option in words else "profiles"
    last = 5 + (int(words[words.index("--profile-steps") + 1]) if "--profile-steps" in words else 5)
    for name, keys in files_of(command):
        pattern = name.replace("trace_step_5_10", f"trace_step_5_{last}")
        found = list((folder / target).glob(pattern))
        assert len(found) == 1, f"{pattern}: {found}"
        assert found[0].stat().st_size > 0
        for key in keys:
            value = value_at(json.loads(found[0].read_text(encoding="utf-8")), key)
            assert value is not None, f"{found[0]}: {key}"
    for lines, flags in LINES:
        if not flags or any(flag in words for flag in flags):
            for line in lines:
                wanted = re.escape(line.replace("5-10", f"5-{last}")).replace("1/20", r"1/\d+")
                assert re.search(wanted, output), line


def check_folder(script: str, folder: Path) -> None:
    for _, here, writer in rows(FOLDER_TABLE):
        if code(writer) == [script]:
            for pattern in code(here.split(" in ")[0]):
                assert list(folder.glob(pattern)), f"{folder}/{pattern}"


def check_study(command: str, folder: Path, output: str) -> None:
    size = command.split()[1]
    made = list((folder / "results").glob(f"performance_results_{size}_*"))
    assert len(made) == 1, f"{made}\n{output}"
    check_folder("scripts/study", made[0])
    if "--enable-profilers" in command:
        check_folder("scripts/study --enable-profilers", made[0] / "pytorch_profiles")


def check_profile(command: str, folder: Path, output: str) -> None:
    words = shlex.split(command)
    if "--profile-dir" in words:
        check_folder("scripts/profile", folder / words[words.index("--profile-dir") + 1])
    elif "--analyze-existing" in words:
        where = folder / words[words.index("--output-dir") + 1]
        check_folder("scripts/profile --analyze-existing", where)
    else:
        assert "aten::mm" in output


def check_exercise(command: str, folder: Path) -> None:
    page = (folder / f"results/exercise_{command.split()[1]}.md").read_text(encoding="utf-8")
    assert "___" not in page


@pytest.mark.parametrize("command", RUN)
def test_the_command_does_what_the_page_says(command: str, places: WorkshopPlaces) -> None:
    done = places.run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = places.home(command)
    if "--validate-setup" in command:
        for name in ("device", "libtorch", "memory", "HIP runtime", "output"):
            assert re.search(rf"^(ok|warning) +{name}: ", done.stdout, re.MULTILINE), name
    elif PROGRAM in command:
        check_training(command, folder, done.stdout)
    elif command.startswith("scripts/study") and "--dry-run" not in command:
        check_study(command, folder, done.stdout)
    elif command.startswith("scripts/profile"):
        check_profile(command, folder, done.stdout)
    elif command.startswith("scripts/exercise"):
        check_exercise(command, folder)
    elif not command.startswith(("mkdir", "chmod")):
        assert done.stdout.strip()


@pytest.mark.parametrize("command", NOT_RUN)
def test_what_takes_too_long_is_known_to_its_script(command: str, project_root: Path) -> None:
    help_text = [str(project_root / command.split()[0]), "--help"]
    done = subprocess.run(help_text, capture_output=True, text=True, timeout=60, check=True)
    assert NOT_RUN[command] in done.stdout


@pytest.mark.parametrize("text", snippets(), ids=["flops", "intensity", "sizes"])
def test_the_snippet_runs_as_it_is(text: str, places: WorkshopPlaces) -> None:
    for command in needs(text):
        assert places.run(command).returncode == 0
    loops = "performance_results_" in text
    folder = places.home(needs(text)[0])
    done = places.shell(text, folder / "results" if loops else folder)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    if loops:
        for size in ("tiny", "small"):
            assert re.search(rf"^{size}: [\d.]+ samples/sec", done.stdout, re.MULTILINE)
            assert re.search(rf"^{size}: \d+ MB", done.stdout, re.MULTILINE)
    else:
        figures = re.findall(r"^[\w /]+: (\S+)", done.stdout, re.MULTILINE)
        assert len(figures) == text.count("print(f")
        assert "not available" not in done.stdout


@contextmanager
def tensorboard_of(folder: Path, command: str) -> Iterator[str]:
    """The address of a server started by this command, at a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = shlex.split(re.sub(r" --port \d+", "", command))
    start = [sys.executable, "-m", "tensorboard.main", *words[1:], f"--port={port}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*start, "--host=127.0.0.1"], cwd=folder, **quiet) as server:
        try:
            yield f"http://127.0.0.1:{port}/data/plugin"
        finally:
            server.terminate()


def answer(address: str, is_complete: Callable[[Json], bool]) -> Json:
    """The first complete answer of a server that may still be starting; the last one it gave."""
    found: Json = None
    end = time.monotonic() + SERVER_TIMEOUT_S
    while time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(address, timeout=10) as reply:
            found = json.load(reply)
            if is_complete(found):
                break
        time.sleep(0.3)
    return found


@pytest.mark.parametrize("command", SERVERS)
def test_tensorboard_finds_curves_and_trace_in_the_folder(
    command: str, places: WorkshopPlaces
) -> None:
    for other in needs(command):
        assert places.run(other).returncode == 0
    folder = places.home(command)
    logs = next(word for word in re.split("[ =]", command) if word.startswith("./"))
    curves = EventAccumulator(str(folder / logs))
    curves.Reload()
    assert {"loss", "step_time_seconds", "peak_memory_MiB"} <= set(curves.Tags()["scalars"])
    assert len(list((folder / logs).glob("*.pt.trace.json"))) == 1


def test_the_tensorboard_command_serves_curves_and_profile(places: WorkshopPlaces) -> None:
    command = SERVERS[0]
    for other in needs(command):
        assert places.run(other).returncode == 0
    with tensorboard_of(places.home(command), command) as address:
        tags = answer(f"{address}/scalars/tags", lambda found: bool(found))
        runs = answer(f"{address}/pytorch_profiler/runs", lambda found: bool(found["runs"]))
    assert "loss" in tags["."]
    assert len(runs["runs"]) == 1
