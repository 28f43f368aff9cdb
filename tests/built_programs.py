"""Where the project is, and its programs: how tests run them, and read what they leave. What is
absent is skipped with its reason."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

Json = Any
Completed = subprocess.CompletedProcess[str]

PROJECT_ROOT = Path(__file__).resolve().parents[1]
# so small that a case takes well under a millisecond, and a step some
SMALL_MODEL = {
    "--hidden-dim": "32",
    "--n-layers": "2",
    "--n-heads": "4",
    "--n-kv-heads": "2",
    "--intermediate-dim": "48",
    "--vocab-size": "300",
}
SMALL_OPTIONS = tuple(f"{name}={value}" for name, value in SMALL_MODEL.items())
ON_CPU = ("--device=cpu", "--threads=1")
# a guard only: a busy machine may take long
TIMEOUT_S = 120.0
# whatever surrounds the tests must not look like a launcher
LAUNCHERS = ("SLURM_", "OMPI_", "PMIX_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
# Runs a program and says its largest resident set in KiB. In between because a program inherits
# the figure of the process that starts it, and that of pytest is larger than what is looked for.
MEASURER = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


def give_up(reason: str, *, whole_module: bool = False) -> NoReturn:
    """Skips; in CI, which must not pass untested, fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=whole_module)


def built_program(path: str) -> Path:
    """A program below build/."""
    program = PROJECT_ROOT / "build" / path
    if not program.is_file():
        where = program.relative_to(PROJECT_ROOT)
        give_up(f"{where} is not built: run scripts/bench --setup-only")
    return program


def undo_nohup() -> None:
    """Programs leave a signal ignored that nohup, or a shell's `&`, ignores; one that is handled
    here has its default effect in those that are started."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def environment(**more: str) -> dict[str, str]:
    """Of a program that nobody launched, with one thread in every library, and of the tools;
    without a commit, since one that is made meanwhile would refuse every --resume."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    ours = {"PYTHONPATH": str(PROJECT_ROOT / "scripts"), "GIT_DIR": os.devnull}
    return inherited | ours | {"OMP_NUM_THREADS": "1"} | more


def start(command: Sequence[str | Path], **keywords: Any) -> subprocess.Popen[str]:  # noqa: ANN401
    """Its output can be read, unless `keywords`, which are Popen's, say otherwise."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    usual = pipes | {"env": environment(), "text": True, "errors": "replace"}
    return subprocess.Popen([str(word) for word in command], **(usual | keywords))


def tool(*arguments: str | Path) -> list[str]:
    """A command of tinyllama_tools, as its script starts it once everything is set up."""
    return [sys.executable, "-m", "tinyllama_tools", *map(str, arguments)]


class Program:
    """A built program, run as a user would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, *arguments: str | Path, **keywords: Any) -> subprocess.Popen[str]:  # noqa: ANN401
        return start([self.path, *arguments], **keywords)

    def run(
        self,
        *arguments: str | Path,
        timeout: float = TIMEOUT_S,
        **keywords: Any,  # noqa: ANN401
    ) -> Completed:
        """To its end."""
        return finish(self.start(*arguments, **keywords), timeout)

    def peak_memory(self, *arguments: str | Path) -> tuple[int, Completed]:
        """Its largest resident set in bytes."""
        measurer = Program(Path(sys.executable))
        completed = measurer.run("-S", "-c", MEASURER, self.path, *arguments)
        *said, kibibytes = completed.stderr.splitlines()
        completed.stderr = "".join(f"{line}\n" for line in said)
        completed.args = completed.args[4:]
        return int(kibibytes) * 1024, completed


def start_tool(*arguments: str | Path, **keywords: Any) -> subprocess.Popen[str]:  # noqa: ANN401
    return start(tool(*arguments), **keywords)


class FinishedRun(NamedTuple):
    """A run whose files several tests look at: `result` is the one with its figures."""

    completed: Completed
    folder: Path
    result: Json


def finish(process: subprocess.Popen[str], timeout: float = TIMEOUT_S) -> Completed:
    """Waits for its end; a process that does not come to one is killed."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def message_of(completed: Completed) -> str:
    """The one line that a refused command says in the end; fails unless it is one, with exit status
    2, before anything was measured."""
    said = f"exit status {completed.returncode}, stderr:\n{completed.stderr}"
    assert completed.returncode == 2, said
    start, lines = f"{Path(completed.args[0]).name}: ", completed.stderr.splitlines()
    assert [line for line in lines if line.startswith(start)] == lines[-1:] != [], said
    for foreign in ("terminate called", "frame #", "Exception raised from", "measured peak", "[1/"):
        assert foreign not in completed.stderr, said
    return lines[-1].removeprefix(start)


def strict_json(text: str) -> Json:
    """Parsed as its standard has it: without NaN and infinity, which Python would take."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    found = json.loads(text, parse_constant=refuse)
    json.dumps(found, allow_nan=False)  # 1e999 is infinite too
    return found


def read_json(file: Path) -> Json:
    return strict_json(file.read_text(encoding="utf-8"))


def read_journal(file: Path) -> list[Json]:
    """A journal's header, with the peaks that were written last, then one line a case."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [strict_json(line) for line in text.split("\n")[:-1]]
    for line in lines:
        if "peaks" in line:
            lines[0]["header"]["peaks"] = line["peaks"]
    return [line for line in lines if "peaks" not in line]


def write_json(file: Path, content: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def write_program(file: Path, text: str) -> Path:
    """One that can be started."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    return file


def wait_until(condition: Callable[[], bool], seconds: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
