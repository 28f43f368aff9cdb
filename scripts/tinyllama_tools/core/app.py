"""How commands end, reading and checking JSON, writing whole files, and git."""

import codecs
import contextlib
import datetime
import functools
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tinyllama_tools.core.installation import DATA, IS_CHECKOUT, RESULTS, ROOT, typed

Json = dict[str, Any]


class ToolError(Exception):
    """Ends a command with `exit_status`; the message names the value, the rule and what to do."""

    exit_status = 2


class BadInputError(ToolError):
    """Bad input, or nothing to work on; the message names the value, the rule and what to do."""


# of our programs
REFUSED_OPTIONS, INTERRUPTED = 2, 130
ASKING_TO_END = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handling(handlers: Mapping[signal.Signals, Callable[..., object]]) -> Iterator[None]:
    """These handlers of signals meanwhile. A signal that is ignored, as under nohup, stays so. Does
    nothing outside the main thread, where Python cannot handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def ended_as_by_ctrl_c() -> contextlib.AbstractContextManager[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt too, so that what was measured is judged and
    written."""
    return handling(dict.fromkeys(ASKING_TO_END, signal.default_int_handler))


def _let_go_of_output() -> None:
    """Standard output goes to /dev/null from now on: a buffer that could not be written would fail
    again when the interpreter ends, and change the exit status."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Piped(io.FileIO):
    """Standard output whose broken pipe, as of `| head`, is no error."""

    def write(self, data: Any, /) -> int | None:  # noqa: ANN401
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def _open_output() -> None:
    """Makes standard output and error write characters that their encoding lacks, and lone
    surrogates from JSON, as escapes. ToolError where standard output is closed, which is better
    told before hours of work."""
    if sys.stderr is None:
        # print() would take standard output instead
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise ToolError("standard output is closed; give it a file, such as /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is sys.__stdout__:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Piped(sys.stdout.fileno(), "w", closefd=False)),
            sys.stdout.encoding,
            sys.stdout.errors,
            line_buffering=sys.stdout.line_buffering,
        )


def run_command(name: str, run: Callable[[], int]) -> int:
    """Runs the command of this name; its exit status. After an interruption that is 130, after a
    ToolError the error's, after any other error 2, with a line that says why: status 1 is a
    verdict, which the command alone gives."""

    def say(text: str) -> None:
        print(f"{typed(name)}: {text}", file=sys.stderr)

    try:
        _open_output()
        with ended_as_by_ctrl_c():
            status = run()
        sys.stdout.flush()
        return status
    except ToolError as error:
        say(str(error))
        return error.exit_status
    except OSError as error:
        _let_go_of_output()
        named = f"{error.filename or 'output'}: {error.strerror}"
        say(named if error.strerror else str(error))
    except KeyboardInterrupt:
        say("interrupted")
        # One that came out of an exec() of text, which dataclasses are made by while modules are
        # imported, sets a flag in CPython: at its end the interpreter would kill itself by SIGINT
        # instead of returning this status. Only another exec() clears the flag.
        exec("")
        return INTERRUPTED
    except Exception as error:
        traceback.print_exc()
        say(f"not foreseen: {type(error).__name__}: {error}; the lines above say where")
    return ToolError.exit_status


# No measured value is larger, and none but 0 smaller. Within these, powers and sums stay finite, so
# that no formula has to check.
LARGEST, SMALLEST = 1e50, 1e-50


def is_number(value: object) -> bool:
    """Whether it can be a measured or computed value: a finite number within these limits, and no
    bool."""
    is_numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_numeric and (value == 0 or SMALLEST <= abs(value) <= LARGEST)


MEASURE_AGAIN = "measure again, or name another file"


def bad_file(path: Path, what: str, remedy: str) -> BadInputError:
    """The error that names the file, what is wrong with it and what to do."""
    return BadInputError(f"{path}: {what}; {remedy}")


@contextlib.contextmanager
def made_by(command: str, path: Path) -> Iterator[None]:
    """Turns an exception of code that reads a file of this command into an error that names the
    file, which must have been changed."""
    # imported here: `bench` runs without any package
    import jinja2

    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, jinja2.TemplateError) as error:
        what = f"is no result of {command} as it wrote it: {error}"
        raise bad_file(path, what, MEASURE_AGAIN) from error


def parse_json(text: str) -> Json | list | str | float | None:
    """The value of a JSON text from outside. A whole number beyond any float is infinite;
    ValueError also for a text that nests too deep."""
    try:
        # Python refuses to convert very long numbers to int
        return json.loads(text, parse_int=lambda n: int(n) if len(n) < 300 else float(n))
    except RecursionError as error:
        raise ValueError(f"nests too deep: {error}") from error


# byte order marks, with which editors and shells of Windows begin a text
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def decoded(data: bytes) -> str:
    """The text in these bytes, in UTF-8 or as a byte order mark says; ValueError where it is
    not."""
    return data.decode(
        next((name for mark, name in MARKS.items() if data.startswith(mark)), "utf-8")
    )


def read_json(path: Path) -> tuple[Json, bytes]:
    """The JSON object in a file, and the file's bytes. NaN and infinity are let through: readers
    check the values that they use. BadInputError for a file that is missing, empty, cut short,
    malformed or no object.
    """
    text = ""
    try:
        data = path.read_bytes()
        text = decoded(data)
        document = parse_json(text)
    except OSError as error:
        what = "is a folder" if path.is_dir() else f"cannot be read: {error.strerror}"
        raise bad_file(path, what, "name a JSON file, such as results.json") from error
    # from json and from decoding UTF-8
    except ValueError as error:
        ends = isinstance(error, json.JSONDecodeError) and (
            error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        )
        kind = "is empty" if not data.strip() else "is cut short" if ends else "is no JSON"
        raise bad_file(path, f"{kind}: {error}", MEASURE_AGAIN) from error
    if not isinstance(document, dict):
        raise bad_file(path, "holds no object", "name a result file of tiny_llama_bench")
    return document, data


def read_lines(path: Path, schema: Json) -> tuple[list[Json], bytes]:
    """The values in a file of JSON lines, which as a list must keep the schema; and the bytes after
    the last line end, of a line that was cut short. BadInputError names the line that is wrong."""
    found: list[Json] = []
    try:
        *lines, rest = path.read_bytes().split(b"\n")
        for line in lines:
            found.append(parse_json(line.decode("utf-8")))
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadInputError(f"{path}: line {len(found) + 1} cannot be read: {error}") from error
    if problem := schema_problem(found, schema):
        raise BadInputError(f"{path}: {problem}")
    return found, rest


@functools.cache
def _validator_class() -> Any:  # noqa: ANN401
    """A validator whose numbers are those of is_number(); plain JSON Schema accepts infinity.
    Cached, since making it takes as long as reading some hundred rows."""
    # imported here: commands that run beside a user's own torch have no jsonschema
    import jsonschema

    base = jsonschema.Draft202012Validator
    numbers = base.TYPE_CHECKER.redefine_many(
        {
            "number": lambda _, value: is_number(value),
            "integer": lambda _, value: is_number(value) and value % 1 == 0,
        }
    )
    return jsonschema.validators.extend(base, type_checker=numbers)


@functools.cache
def _file_validator(schema: Path) -> Any:  # noqa: ANN401
    return _validator_class()(json.loads(schema.read_text(encoding="utf-8")))


def schema_problem(document: object, schema: Path | Mapping[str, Any]) -> str:
    """What is wrong with a document by its schema, as `key: what`; empty where nothing is. Of
    several errors the one that jsonschema finds most relevant."""
    from jsonschema.exceptions import best_match

    is_file = isinstance(schema, Path)
    validator = _file_validator(schema) if is_file else _validator_class()(schema)
    errors = list(validator.iter_errors(document))
    if not errors:
        return ""
    error = best_match(errors)
    key = error.json_path.removeprefix("$").removeprefix(".") or "the file"
    # the message begins with the value, which may be a whole table
    is_long = len(error.message) > 160
    return f"{key}: {'...' + error.message[-160:] if is_long else error.message}"


PROBLEM_SIZES = DATA / "fixtures/problem_sizes.json"
# the result in the folder of a run of the suite
SUITE_FILE = "results.json"


def now_text() -> str:
    """The time now, in UTC to the second: `2026-11-24T12:00:00+00:00`."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def say_line(text: str) -> None:
    """Prints to standard output and flushes, so that a pipe has it at once."""
    print(text, flush=True)


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Gives an OSError the name of this file if it has none, as errors of write and close do."""
    try:
        yield
    except OSError as failure:
        if failure.filename is None:
            failure.filename = str(file)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file whole or not at all, whatever ends the process, and also while another process
    writes it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        # lone surrogates, which JSON from outside may hold, cannot be encoded
        data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        with naming(path):
            part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def shown_path(path: Path) -> str:
    """The path, relative to the working folder if it is inside."""
    whole, here = path.resolve(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(path)


# where an absolute path begins in a text (not the `//` of an address), and what its part behind the
# last existing folder consists of
_PATH_BEGINS = re.compile(r"(?<![^\s=:;,'\"()`])/(?![/\s])")
_PATH_GOES_ON = re.compile(r"[^\s=:;,'\"()`]*")


def _published(path: str) -> str:
    whole, here = Path(os.path.normpath(path)), Path.cwd()
    # everything is below the root folder
    is_below = here.name and whole.is_relative_to(here)
    return str(whole.relative_to(here)) if is_below else whole.name


def without_folders(text: str) -> str:
    """The text with each absolute path made relative to the working folder, or cut to its last name
    where it is outside: a file that is passed on does not name its owner's folders. Names of
    existing folders may contain blanks and other characters that end a path."""
    found, end = [], 0
    for begin in (match.start() for match in _PATH_BEGINS.finditer(text)):
        if begin < end:
            continue
        found.append(text[end:begin])
        end = begin
        # for a name that is too long os.path answers False, where Path raises
        while (slash := text.find("/", end + 1)) > 0 and os.path.isdir(text[begin:slash]):  # noqa: PTH112
            end = slash
        end = _PATH_GOES_ON.match(text, end).end()
        found.append(_published(text[begin:end]))
    return "".join([*found, text[end:]])


def command_text(words: Iterable[str]) -> str:
    """A command as it is published, without_folders(). An argument that is a path, or --name=path,
    is taken as one path, whatever characters it has."""
    path = re.compile(r"(-[\w-]+=)?(/[^/].*)", re.DOTALL)
    parts = ((path.fullmatch(word), word) for word in words)
    return shlex.join(
        (found[1] or "") + _published(found[2]) if found else without_folders(word)
        for found, word in parts
    )


def run_folder(kind: str, results: Path = RESULTS) -> Path:
    """results/<UTC time>_<kind>, not yet made."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return results / f"{now.strftime('%Y%m%dT%H%M%SZ')}_{kind}"


# who runs a command need not own the checkout
GIT = ("git", "-c", "safe.directory=*")


def git(folder: Path, *arguments: str) -> str | None:
    """The output of git in a folder; None where it failed, or is not installed."""
    command = [*GIT, *arguments]
    text = {"encoding": "utf-8", "errors": "replace"}
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, check=False, **text)
    except OSError:
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def checkout_state() -> str:
    """The commit of the checkout, `-dirty` where tracked files differ from it, but for results/;
    `unknown` outside a repository."""
    if not IS_CHECKOUT:
        return "unknown"
    commit = (git(ROOT, "rev-parse", "HEAD") or "unknown")[:12]
    changed = git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", ":!results")
    return commit + "-dirty" * bool(changed)


def processor_name() -> str:
    """As the system has it."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*: (.*)$", info, re.MULTILINE)
    return found[1] if found else "unknown processor"


@functools.cache
def problem_sizes() -> dict[str, dict[str, int]]:
    """The content of fixtures/problem_sizes.json."""
    return json.loads(PROBLEM_SIZES.read_text(encoding="utf-8"))


# Variables that place OpenMP's threads; where none is set, tiny_llama_bench pins them itself.
PLACING = ("OMP_PROC_BIND", "OMP_PLACES", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def placed_threads(inherited: Mapping[str, str], threads: int | None = None) -> dict[str, str]:
    """The environment with OpenMP's threads pinned. It is left as it is where it places threads, or
    where there are fewer threads than processors: two programs would be pinned to the same ones."""
    are_fewer = threads is not None and threads < len(os.sched_getaffinity(0))
    if are_fewer or any(name in inherited for name in PLACING):
        return dict(inherited)
    return {**inherited, "OMP_PROC_BIND": "true"}
