"""scripts/bench: runs the suite and keeps what it writes in a folder of results/. It needs no
package.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.core.app import (
    ASKING_TO_END,
    REFUSED_OPTIONS,
    SUITE_FILE,
    ToolError,
    handling,
    run_folder,
)
from tinyllama_tools.core.installation import (
    BUILD,
    IS_CHECKOUT,
    RESULTS,
    as_typed_here,
    program_path,
    typed,
)
from tinyllama_tools.core.options import did_you_mean
from tinyllama_tools.core.process import become, loader_problem, program_in
from tinyllama_tools.core.text import say, slug

PROGRAM = "tiny_llama_bench"
JOURNAL, SUMMARY, UNFINISHED = "journal.jsonl", "summary.txt", ".unfinished"

HELP = """\
scripts/bench {setup}[--quick] [--out DIR] [option of tiny_llama_bench]...

{does}
the component suite, by default the default grid on the best device present.
Results go to results/<UTC time>_<device>/ of the working folder:
  results.json    Google Benchmark's JSON, every repetition kept
  journal.jsonl   each finished case, on disk before the next one starts
  summary.txt     the tables that are printed at the end{setup_help}
--quick           measures the full step of tiny and its components in f32 and bf16, not the
                  default grid: 1 to 2 minutes, 3 on a CPU without bf16 units
-o, --out DIR     into this folder instead
--resume          without --journal: continues the newest run in results/ that did not end, or that
                  of --out
With --benchmark_out=FILE or --journal FILE that file is written instead of the one in the results
folder.

Exit status: 0 all cases measured or skipped with a reason; 1 some case failed; 2 bad option, or
{or_else}; 130 interrupted (the case in hand is finished, the results so far
are written).
"""
OF_A_CHECKOUT = {
    "setup": "[--setup-only] ",
    "does": "Sets up what is missing (packages, libtorch, configure, build), then runs",
    "setup_help": "\n--setup-only      stops after the build",
    "or_else": "the set-up failed",
}
OF_A_PREFIX = {
    "setup": "",
    "does": "Runs",
    "setup_help": "",
    "or_else": "the program cannot be started",
}

# What the program takes, beside --benchmark_*: said here for the time before it is built.
OPTIONS = (
    *("--help", "--version", "--device", "--blas", "--sdpa-backend", "--problem-sizes"),
    *("--threads", "--seed", "--verify", "--memory-limit", "--admit", "--max-seconds-per-case"),
    *("--precision", "--cold-cache", "--journal", "--resume", "--list", "--dry-run", "--columns"),
    *("--trace", "--execution-trace", "--replay", "--world", "--rank", "--find-limit"),
    *("--confirm", "--figures-of-merit", "--describe-device", "--serve", "--plugin"),
    *("--hang-limit", "--exclude", "--components", "--passes", "--variants", "--sizes"),
    *("--dtypes", "--batch", "--seq", "--hidden-dim", "--n-layers", "--n-heads", "--n-kv-heads"),
    *("--intermediate-dim", "--vocab-size", "--config", "--weights", "--tensor-parallel"),
    "--pipeline-parallel",
)
QUICK = (
    *("--components", "embedding,rms_norm,attention,ffn,block,loss,optimizer,full_step"),
    *("--passes", "forward_backward,update,train", "--dtypes", "f32,bf16"),
)
# with one of these the program measures nothing, and no folder is needed
EXPLAINING = {"--list", "--dry-run", "--find-limit", "--replay", "--describe-device"}


class Asked(NamedTuple):
    """`program`: its options. `out`: the folder of the results, where one is named."""

    program: tuple[str, ...]
    out: Path | None


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Of the last `--option value` or `--option=value`; None where it is absent."""
    found = None
    for word, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        if word == option:
            found = following
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def is_given(names: set[str], arguments: Sequence[str]) -> bool:
    """Whether one of these options is there."""
    return any(word.partition("=")[0] in names for word in arguments)


def only_explains(arguments: Sequence[str]) -> bool:
    """Whether these only list, explain or prove."""
    lists = {"--benchmark_list_tests", "--benchmark_list_tests=true"} & set(arguments)
    return bool(
        lists or is_given(EXPLAINING, arguments) or value_of("--verify", arguments) == "only"
    )


def parse_options(arguments: Sequence[str]) -> Asked:
    """Ends the process after the help, and with status 2 for an option that there is not. All else
    the program says itself: nobody waits for a build to be told of a mistyped option."""
    known = ["--quick", "--out", *OPTIONS]
    for name in (word.partition("=")[0] for word in arguments):
        if re.match("--(?!benchmark_)", name) and name not in known:
            near = did_you_mean(name, known) or f"; allowed: {' '.join(known)} --benchmark_*"
            raise SystemExit(refused(f"'{name}': is no option{near}"))
    if is_given({"--help", "-h"}, arguments):
        show_help()
        raise SystemExit(0)
    given: list[str] = []
    out = None
    words = iter(arguments)
    for word in words:
        name, separator, value = word.partition("=")
        if name in ("--out", "-o"):
            out = value if separator else next(words, "")
            if not out:
                raise SystemExit(refused(f"{name}: a folder is missing"))
        elif word == "--quick":
            given += QUICK
        else:
            given.append(word)
    return Asked(tuple(given), Path(out) if out else None)


def refused(message: str) -> int:
    """Says it; the exit status."""
    say(f"{typed('bench')}: {message}")
    return REFUSED_OPTIONS


def show_help() -> None:
    """Ours, and that of the program where there is one."""
    print(as_typed_here(HELP.format(**(OF_A_CHECKOUT if IS_CHECKOUT else OF_A_PREFIX))))
    program = program_path(BUILD, PROGRAM)
    if os.access(program, os.X_OK):
        print("Options of tiny_llama_bench:\n", flush=True)
        subprocess.run([program, "--help"], check=False)
    elif IS_CHECKOUT:
        how = "scripts/bench --setup-only"
        print(f"The options of tiny_llama_bench can be shown once it is built: {how}")


def device_slug(program: Path, arguments: Sequence[str]) -> str:
    """Of the device that --device means: the program says so. SystemExit with its status where it
    refuses that; ToolError where it cannot be started."""
    device = value_of("--device", arguments)
    options = [] if device is None else ["--device", device]
    command = [program, "--describe-device", *options]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if problem := loader_problem(program, done.returncode, done.stderr):
        raise ToolError(problem)
    print(done.stderr, end="", file=sys.stderr, flush=True)
    if done.returncode != 0:
        raise SystemExit(shell_status(done.returncode))
    return slug(json.loads(done.stdout)["device"]["name"])


def shell_status(status: int) -> int:
    """137 for a program that was killed, as a shell has it."""
    return 128 - status if status < 0 else status


# ---- the folder of a run


def unfinished_run(out: Path | None) -> Path:
    """`out`, or the newest run that did not come to its end, which keeps its mark through Ctrl-C,
    kill -9 and a lost machine. ToolError where there is none."""
    folders = [out] if out else sorted(RESULTS.glob("*_*"))
    for folder in reversed(folders):
        journal = folder / JOURNAL
        if (folder / UNFINISHED).is_file() and journal.is_file() and journal.stat().st_size:
            return folder
    raise ToolError(
        f"--resume: {out or RESULTS}/ has no run that did not end. To name a journal: --resume "
        "--journal FILE"
    )


def new_folder(device: str) -> Path:
    """results/<UTC time>_<device>, made. ToolError where it cannot be."""
    # again after two runs in one second
    for pause in (0, 1, 1, 1, 1):
        time.sleep(pause)
        folder = run_folder(device, RESULTS)
        with contextlib.suppress(FileExistsError):
            make(folder)
            return folder
    raise ToolError(f"cannot make the results folder {folder}: it exists")


def make(folder: Path) -> None:
    """A new folder; ToolError where it cannot be made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        if not folder.parent.is_dir():
            raise ToolError(f"{folder.parent}: is no folder; name another: --out DIR") from None
        raise
    except OSError as error:
        message = f"cannot make the results folder {folder}: {error.strerror}"
        raise ToolError(f"{message}; name another: --out DIR") from error


def folder_for(program: Path, asked: Asked) -> tuple[Path, bool]:
    """The folder of a new run or of that which is resumed, and whether it was made. ToolError where
    there is none."""
    if is_given({"--resume"}, asked.program) and value_of("--journal", asked.program) is None:
        folder = unfinished_run(asked.out)
        say(f"-- resuming {folder}")
        return folder, False
    device = device_slug(program, asked.program)
    if not asked.out:
        return new_folder(device), True
    if not asked.out.exists():
        make(asked.out)
        return asked.out, True
    for name in (SUITE_FILE, JOURNAL, SUMMARY):
        if (asked.out / name).exists():
            raise ToolError(
                f"--out {asked.out}: has {name} of another run; name another folder, or continue "
                "that run with --resume"
            )
    return asked.out, False


# ---- the run


def signals_left_to(process: subprocess.Popen[bytes]) -> AbstractContextManager[None]:
    """Ctrl-C is the program's affair, which gets it from the terminal as we do: it finishes the
    case in hand and writes its results, and we wait. SIGTERM and SIGHUP are passed on as a Ctrl-C,
    since whoever sent them may have sent them to the program too, which a second one would kill."""

    def pass_on(*_: object) -> None:
        process.send_signal(signal.SIGINT)

    return handling({signal.SIGINT: lambda *_: None, **dict.fromkeys(ASKING_TO_END, pass_on)})


class Kept:
    """What the program prints, to the terminal and into a file, as tee does: one that cannot be
    written is named once, and the other goes on."""

    def __init__(self, summary: Path) -> None:
        self._files = {
            str(summary): os.open(summary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        }
        self._summary = self._files[str(summary)]
        sys.stdout.flush()
        self._files["standard output"] = sys.stdout.fileno()

    def write(self, data: bytes) -> bool:
        """Whether somebody may still read the output."""
        for name, file in list(self._files.items()):
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(file, rest) :]
            except BrokenPipeError:
                return False
            except OSError as error:
                say(f"{typed('bench')}: {name}: {error.strerror}")
                del self._files[name]
        return True

    def close(self) -> None:
        """Closes the file."""
        os.close(self._summary)


def run_and_keep(command: Sequence[str | Path], summary: Path) -> int:
    """Runs the program to its end, its output kept; its status as of a shell."""
    kept = Kept(summary)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
        with signals_left_to(process):
            while data := process.stdout.read(65536):
                if not kept.write(data):
                    # the program notices at its next line, and ends as by Ctrl-C
                    break
            process.stdout.close()
            return shell_status(process.wait())
    finally:
        kept.close()


def tidy_up(folder: Path, status: int, was_made: bool) -> bool:
    """Takes the mark from a run that ended, and empty files away; whether anything is left."""
    journal = folder / JOURNAL
    if status <= 1 or not (journal.is_file() and journal.stat().st_size):
        (folder / UNFINISHED).unlink(missing_ok=True)
    for name in (SUITE_FILE, JOURNAL, SUMMARY):
        path = folder / name
        if path.is_file() and not path.stat().st_size:
            path.unlink()
    if was_made and not any(folder.iterdir()):
        # a bad option leaves nothing behind
        folder.rmdir()
        return False
    return True


def main(arguments: Sequence[str]) -> int:
    """The program's exit status."""
    asked = parse_options(arguments)
    program = program_in(BUILD, PROGRAM)
    if only_explains(asked.program):
        become(program, asked.program)
    folder, was_made = folder_for(program, asked)
    options = list(asked.program)
    for option, name in (("--benchmark_out", SUITE_FILE), ("--journal", JOURNAL)):
        if value_of(option, asked.program) is None:
            options.append(f"{option}={folder / name}")
    (folder / UNFINISHED).touch()
    status = run_and_keep([program, *options], folder / SUMMARY)
    if not tidy_up(folder, status, was_made):
        return status
    say(f"Results are in {folder}:")
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            say(f"  {file}")
    if (folder / UNFINISHED).is_file():
        say(
            f"The run did not end (exit status {status}). To continue it, give the same options "
            "and --resume."
        )
    return status
