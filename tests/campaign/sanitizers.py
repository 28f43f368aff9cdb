"""Every C++ test under the address and undefined-behaviour sanitizers, and under the thread
sanitizer.

Both builds are made by their presets, which takes half an hour each. What a sanitizer says of
libtorch's own code, which is not watched, is counted apart.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from campaign.runs import OfLibrary, Scope, Tally, scratch
from campaign.workloads import PROJECT
from tinyllama_tools.proofs.run_tests import Program, gtest_programs, run_program

# ten times as long as without
TIME_LIMIT_S = 4 * 3600
SUPPRESSIONS = Path(__file__).with_name("thread_sanitizer.txt")
# of each preset: what its programs start with. Leaks: libtorch keeps memory until the end.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "asan": {
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:log_path={log}",
        "UBSAN_OPTIONS": "print_stacktrace=1:log_path={log}",
    },
    "tsan": {
        # what code without the sanitizer does with its own locks is not seen, and looks like a race
        "TSAN_OPTIONS": f"suppressions={SUPPRESSIONS}:ignore_noninstrumented_modules=1:"
        "halt_on_error=0:exitcode=0:history_size=4:log_path={log}",
    },
}
# a report's beginning; each of its frames; and how the last line names it
REPORT = re.compile(
    r"(?:^(?:==\d+==ERROR|WARNING): (?:Address|Thread)Sanitizer|: runtime error: )", re.MULTILINE
)
FRAME = re.compile(r"^\s+#\d+ .*$", re.MULTILINE)
OWN_SOURCE = re.compile(rf"{re.escape(str(PROJECT))}/(?:model|benchmarks|tests)/\S+")
# of a frame that nobody wrote on purpose: the compiler's, the standard library's, the sanitizer's
HELPER = re.compile(r"/usr/include/|/include/c\+\+/|libsanitizer|lib[atu]san|compiler-rt|/gtest/")


def reports_in(text: str) -> Iterator[str]:
    """Each report of a sanitizer, from its first line to the next one's."""
    starts = [found.start() for found in REPORT.finditer(text)]
    for start, end in pairwise([*starts, len(text)]):
        begin = text.rfind("\n", 0, start) + 1
        yield text[begin:end]


def verdict_on(report: str) -> str:
    """The report in one line; of a library where its innermost frame is no source of ours."""
    first = report.partition("\n")[0].strip()
    frames = [f.strip() for f in FRAME.findall(report) if not HELPER.search(f)]
    innermost = frames[0] if frames else first
    words = f"{first}: {innermost}"[:300]
    return words if OWN_SOURCE.search(innermost) else OfLibrary(words)


def run_watched(program: Program, preset: str) -> list[str]:
    """One program; what its sanitizer reports, and tests that fail."""
    with scratch() as folder:
        log = folder / "report"
        options = {name: text.format(log=log) for name, text in OPTIONS[preset].items()}
        watched = replace(program, environment={**program.environment, **options})
        outcome = run_program(watched, folder / "tests.xml", TIME_LIMIT_S)
        logs = [path.read_text(errors="replace") for path in sorted(folder.glob("report*"))]
        # where both sanitizers are in a program, one of them says it on standard error
        said = "\n".join([*logs, outcome.output])
    found = [verdict_on(report) for report in reports_in(said)]
    # the sanitizer ends the program at the first: its tests did not run to their end
    is_explained = bool(found) and preset == "asan"
    return found + [f"failed: {name}" for name in outcome.counts.failures if not is_explained]


def build(preset: str, names: tuple[str, ...], jobs: int) -> Path:
    """The folder of the preset, configured and built; with names only these programs."""
    folder = PROJECT / f"build-{preset}"
    targets = [f"--target={name}" for name in names]
    for command in (
        ["cmake", "--preset", preset],
        ["cmake", "--build", str(folder), f"-j{jobs}", *targets],
    ):
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}")
    return folder


def sanitizers(scope: Scope) -> Iterator[Tally]:
    """every C++ test under the address and undefined-behaviour sanitizers, and under the thread
    sanitizer: no report of ours."""
    for preset in OPTIONS:
        folder = build(preset, scope.names, scope.jobs)
        for program in gtest_programs(folder):
            name = program.name.rpartition("/")[2]
            if not scope.has(name):  # names in the scope are those of programs
                continue
            problems = run_watched(program, preset)
            print(f"{preset}, {name}: {problems or 'nothing'}", flush=True)
            # what a library does is the same whoever calls it
            named = [p if isinstance(p, OfLibrary) else f"{name}: {p}" for p in problems]
            tally = Tally()
            tally.add(f"test program under {preset}", named)
            yield tally
