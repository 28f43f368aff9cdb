"""Our full training step beside LlamaForCausalLM in its forms: measures, writes, prints."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import PROJECT, RESULTS, changed_files, run_folder, write_whole
from tinyllama_tools.data.programs import SuiteCase, SuiteError, SuiteProgram
from tinyllama_tools.peer_forms import FORMS, PeerForm
from tinyllama_tools.peer_malloc import caching_malloc
from tinyllama_tools.peer_process import PeerProcess, start_peer
from tinyllama_tools.peer_tuning import tune
from tinyllama_tools.peers_options import Options, parse_options
from tinyllama_tools.peers_page import peers_page
from tinyllama_tools.peers_result import merged, peers_document
from tinyllama_tools.peers_sides import OurSide, PeerSide
from tinyllama_tools.peers_turns import CaseRun, measure_case

Json = dict[str, Any]
# The quickest case there is: it says what our program runs on, and that it runs.
QUICKEST = SuiteCase("tiny", "f32", 1, 16, component="rms_norm", pass_name="forward")


def say(text: str) -> None:
    """Progress, a line at a time."""
    print(text, file=sys.stderr, flush=True)


def our_program(options: Options) -> SuiteProgram:
    """The peers run on the CPU, so ours does."""
    threads = (f"--threads={options.threads}",) if options.threads else ()
    return SuiteProgram(("--device=cpu", *threads))


class BadOptionError(Exception):
    """What the options ask for cannot be done; the message names value and rule."""


class Measurement:
    """One run: its sides and what they have done so far."""

    def __init__(self, options: Options, program: SuiteProgram, context: Json) -> None:
        self.options = options
        self.context = context
        self.malloc = caching_malloc()
        self.results: list[CaseRun] = []
        limit = options.effort.max_seconds
        self.ours = [OurSide(variant, program, limit) for variant in options.variants]
        threads = context["threads"]
        self.peers = [PeerSide(FORMS[name], self._start, threads, limit) for name in options.forms]

    def _start(self, form: PeerForm) -> PeerProcess:
        return start_peer(form, self.malloc)

    def run(self, save: Callable[[], None]) -> None:
        """All cases; `save` after each."""
        begin = time.monotonic()
        try:
            for number, case in enumerate(self.options.cases, start=1):
                spent = time.monotonic() - begin
                name = f"{case.size} {case.dtype} {case.batch} x {case.seq}"
                say(f"[{number}/{len(self.options.cases)}] {name}  ({spent:.0f} s so far)")
                sides = [*self.ours, *self.peers]
                measure_case(case, sides, self.options.effort, say, self.results.append)
                save()
        finally:
            for peer in self.peers:
                peer.close()

    def document(self) -> Json:
        """The result file."""
        return peers_document(
            self.results,
            self.ours,
            self.peers,
            self.context,
            self.options.effort,
            self.malloc.description,
            self.options.cases,
        )

    def failed(self) -> bool:
        """Whether some side failed at some case."""
        return any(run.failed for result in self.results for run in result.sides.values())


def output_files(options: Options) -> list[tuple[Path, str]]:
    """Where what goes: (file, "json" or "markdown")."""
    folder = run_folder("peers", RESULTS)
    return [
        (options.out or folder / "peers.json", "json"),
        (options.markdown or folder / "PEERS.md", "markdown"),
    ]


def published_files(machine: str) -> list[tuple[Path, str]]:
    """Those of --publish."""
    return [
        (RESULTS / "reference" / f"peers_{machine}.json", "json"),
        (RESULTS / "PEERS.md", "markdown"),
    ]


def write(document: Json, page: str, files: Sequence[tuple[Path, str]]) -> None:
    """Writes each file whole."""
    for path, kind in files:
        write_whole(path, page if kind == "markdown" else json.dumps(document, indent=1) + "\n")


def check_writable(files: Sequence[tuple[Path, str]]) -> None:
    """Before anything is measured. Raises BadOptionError."""
    for path, _ in files:
        if path.is_dir():
            raise BadOptionError(f"'{path}': must be a file, not a folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise BadOptionError(f"'{path}': cannot be written: {error}") from error


def check_publishable(options: Options) -> None:
    """What is published has to be of a commit. Raises BadOptionError."""
    changed = changed_files(PROJECT) if options.publish else ""
    if changed:
        raise BadOptionError(f"--publish: commit first, these files are changed:\n{changed}")


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ends at Ctrl-C, or when the process is asked to end; the value then says so."""
    state = {"interrupted": False}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        yield lambda: state["interrupted"]
    except KeyboardInterrupt:
        state["interrupted"] = True
        say("interrupted")


def rewrite(options: Options) -> int:
    """--from: one result of earlier ones. What they lack of the cases asked for is said in it."""
    files = output_files(options)
    if options.publish:
        files += published_files(options.publish)
    check_writable(files)
    try:
        documents = [json.loads(path.read_text(encoding="utf-8")) for path in options.sources]
        document = merged(documents, options.cases)
        page = peers_page(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadOptionError(f"--from: no results of scripts/peers that fit: {error}") from error
    write(document, page, files)
    for path, _ in files:
        say(f"wrote {path}")
    print(page, end="")
    return 0


def measure(options: Options) -> int:
    """The whole run; its exit status."""
    files = output_files(options)
    published = published_files(options.publish) if options.publish else []
    check_writable([*files, *published])
    check_publishable(options)
    program = our_program(options)
    context = program.run([QUICKEST], 1).context
    if options.tune:
        for line in tune(options.cases[0], options.effort, context["threads"], say):
            print(line)
        return 0
    measurement = Measurement(options, program, context)

    def save() -> str:
        document = measurement.document()
        page = peers_page(document)
        write(document, page, files)
        return page

    with interruptible() as interrupted:
        measurement.run(save)
    if measurement.results:
        page = save()
        if published and not interrupted():
            write(measurement.document(), page, published)
            files += published
        for path, _ in files:
            say(f"wrote {path}")
        print(page, end="")
    if interrupted():
        return 130
    return 1 if measurement.failed() else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the options and measures."""
    try:
        options = parse_options(arguments)
        return rewrite(options) if options.sources else measure(options)
    except BadOptionError as error:
        say(f"scripts/peers: {error}")
        return 2
    except (SuiteError, OSError) as error:
        say(f"scripts/peers: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted before anything was measured")
        return 130


if __name__ == "__main__":
    sys.exit(main())
