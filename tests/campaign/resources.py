"""What a run needs fails or is not there: a call that writes, memory, the network."""

import errno
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial

from built_programs import read_json
from campaign.runs import (
    TIME_LIMIT_S,
    Note,
    OfLibrary,
    Scope,
    Tried,
    end_of,
    ended,
    finish,
    next_run,
    run,
    scratch,
    start,
    uncaught,
    undisturbed,
)
from campaign.workloads import (
    FAILED,
    INTERRUPTED,
    PROJECT,
    REFUSED,
    SUITE,
    TRAINING,
    WORKLOADS,
    Workload,
    journal_rows,
    once,
)

SHORT = "short"
FAULTS = {"no space": errno.ENOSPC, "I/O error": errno.EIO, "read-only": errno.EROFS, SHORT: 0}
TOLD = (
    *("no space", "input/output error", "read-only"),
    # of what a library wrote and did not look at
    "is the disk full",
)
# whose failure may go unsaid: one that is there is made again, and not every file system can say
# that the name of a file, which is on the disk itself, is there too
OF_FOLDERS = ("mkdir", "fsync")


def chosen_faults(calls: list[str]) -> list[tuple[int, str]]:
    """Numbers of calls, from 1, with the kind of their failure. Calls that differ only in numbers
    in a file's name are alike: of these the first, second and last fail in every kind, the others
    in one."""
    alike: dict[str, list[int]] = {}
    for number, call in enumerate(calls, start=1):
        alike.setdefault(re.sub(r"\d+", "#", call), []).append(number)
    faults = []
    for call, numbers in alike.items():
        kinds = [kind for kind in FAULTS if kind != SHORT or "write" in call.split()[0]]
        for place, number in enumerate(numbers):
            is_typical = place < 2 or number == numbers[-1]
            mine = kinds if is_typical else [kinds[place % len(kinds)]]
            faults += [(number, kind) for kind in mine]
    return sorted(faults)


def failed(workload: Workload, fault: tuple[int, str]) -> list[str] | None:
    """One call of a run fails, and in the next run none. None: the run made fewer calls, as where a
    buffer was larger or a journal shorter."""
    number, kind = fault
    with scratch() as folder:
        status, said, calls = run(workload, folder, FAIL_CALL=number, FAIL_WITH=FAULTS[kind])
        if len(calls) < number:
            return None
        call, name = calls[number - 1].split(maxsplit=1)
        folders = {path.name for path in (folder, *folder.rglob("*")) if path.is_dir()}
        left = [path.name for end in ("tmp", "part") for path in folder.rglob(f"*.{end}")]
        problems = [f"{left} are left"] * bool(left)
        if status and kind == SHORT:
            problems.append(f"a short write is no error, and the status {status}")
        elif kind != SHORT and (status or not (call in OF_FOLDERS and name in folders)):
            # of a file that is written beside it first, hidden or not
            whole = re.split(r"(\.\d+)*\.(part|tmp)\b", name)[0].lstrip(".")
            reasons = [line for line in said.splitlines() if any(r in line.lower() for r in TOLD)]
            if not any(re.search(rf"/\.?{re.escape(whole)}", line) for line in reasons):
                problems.append(f"no reason with its file: {reasons} in ...{end_of(said)!r}")
        # every line of the journal that was written before is there
        written = sum(one.split() == ["write", "journal.jsonl"] for one in calls[: number - 1])
        if written and (folder / "journal.jsonl").read_bytes().count(b"\n") < written:
            problems.append(f"fewer than {written} lines are in the journal")
        problems += ended(workload, folder, status, {0, FAILED, REFUSED})
        return [f"call {number}, {call} of {name}, {kind}: {problem}" for problem in problems]


def closed(workload: Workload, draw: random.Random) -> list[str] | None:
    """Who reads standard output goes away after some bytes. None: there were no more."""
    size = draw.choice((0, 1, 20, 100, 1000))
    with scratch() as folder:
        process = start(workload.command(folder), folder, stdout=subprocess.PIPE)
        if len(process.stdout.read(size)) < size:
            return None
        process.stdout.close()
        return ended(workload, folder, process.wait(TIME_LIMIT_S), {0, REFUSED, INTERRUPTED})


def writes(scope: Scope) -> Iterator[Tried]:
    """each write, sync, rename and opening of a file fails once: documented exit status, a message
    that names the file, what was measured before is kept."""
    # of a smaller share every n-th
    step = max(1, round(1 / scope.share))
    for workload in WORKLOADS:
        name = workload.name
        if scope.has(name):
            _, calls = undisturbed(workload)
            chosen = chosen_faults(calls)[scope.seed % step :: step]
            yield from scope.tried(f"failing write of {name}", chosen, partial(failed, workload))
            note = Note(f"a run of {name} makes {len(calls)} such calls")
            yield Tried(f"failing write of {name}", [note], 0)
        yield from scope.tried(f"closed pipe of {name}", 10, partial(closed, workload))


# too little for libraries to be loaded, and more than enough, as measured
SPACE_MIB = (350, 800)
# what asks for the memory of tensors; libraries ask for their own
OF_TENSORS = "tiny_llama_bench"
# oneDNN, inside of it, does not look whether its matmul_pd_t got memory
OF_ONEDNN = "libtorch_cpu.so"


def of_onednn(status: int, calls: list[str]) -> list[str]:
    """The crash of oneDNN where a request of its own fails; empty for any other end."""
    is_theirs = status == -signal.SIGSEGV and calls[-1:] and calls[-1].split()[0] == "crash"
    is_theirs = is_theirs and calls[-1].split()[1] == OF_ONEDNN
    return [OfLibrary(f"{OF_ONEDNN} crashes where a request of its own fails")] * bool(is_theirs)


def outcome(status: int, said: str) -> list[str]:
    """What does not hold of a run for which memory ended somewhere."""
    problems = [] if status in {0, FAILED, REFUSED} else [f"status {status}: {said[-200:]!r}"]
    if status in {FAILED, REFUSED} and not re.search(r"out of memory|no room for|bad_alloc", said):
        words = "could not create a primitive"
        is_theirs = said.rstrip().endswith(words)
        theirs = OfLibrary(f"oneDNN says '{words}' where it has no memory")
        problems.append(theirs if is_theirs else f"no word of memory: {said[-200:]!r}")
    return problems + uncaught(said)


@once
def requests() -> list[int]:
    """The numbers of a run's requests for tensors."""
    with scratch() as folder:
        _, _, calls = run(SUITE, folder, FAIL_CALL=0, FAIL_MEMORY=1)
        return [number for number, call in enumerate(calls, 1) if call.split()[-1] == OF_TENSORS]


def one_request(draw: random.Random) -> list[str] | None:
    """A request fails: its case fails for want of memory, and the others are measured; before the
    first case the run ends and says why. None: it was no request for a tensor this time."""
    asked = requests()
    # each power of ten as likely as the next
    number = asked[int(len(asked) ** draw.random()) - 1]
    with scratch() as folder:
        status, said, calls = run(SUITE, folder, FAIL_CALL=number, FAIL_WITH=0, FAIL_MEMORY=1)
        if len(calls) < number or calls[number - 1].split()[-1] != OF_TENSORS:
            return None
        problems = outcome(status, said) + SUITE.problems(folder, status in {0, FAILED})
        out = folder / "out.json"
        entries = read_json(out)["benchmarks"] if out.exists() and not problems else []
        words = {e["run_name"]: e["error_message"] for e in entries if "error_message" in e}
        # a library may do without what it asked for
        if len(words) != int(status == FAILED) or not all("memory" in w for w in words.values()):
            problems.append(f"status {status}, failed: {words}")
        if status == REFUSED and journal_rows(folder / "journal.jsonl"):
            problems.append("the run did not go on")
        return [f"request {number}: {problem}" for problem in problems]


def address_space(draw: random.Random) -> list[str] | None:
    """A limit between nothing and enough; what happens before main is not ours. None: it was
    enough, or too little to begin."""
    workload = draw.choice((SUITE, TRAINING))
    limit = draw.randrange(*SPACE_MIB) << 20
    with scratch() as folder:
        limited = ("prlimit", f"--as={limit}")
        status, said, calls = run(workload, folder, *limited, FAIL_CALL=0)
        if status == 0 or "error while loading shared libraries" in said:
            return None
        if theirs := of_onednn(status, calls):
            return theirs
        problems = outcome(status, said)
        if problems and status == -signal.SIGABRT:
            # an uncaught std::bad_alloc of libtorch, which registers its operators at the start
            program = workload.command(folder)[0]
            status, _ = finish([*limited, program, "--help"], folder)
            if status == -signal.SIGABRT:
                return [OfLibrary("libtorch aborts where its start finds no memory")]
        problems += workload.problems(folder, False) + next_run(workload, folder)
        words = f"{workload.name} in {limit >> 20} MiB"
        return [p if isinstance(p, OfLibrary) else f"{words}: {p}" for p in problems]


def memory(scope: Scope) -> Iterator[Tried]:
    """a request for a tensor's memory fails, or the address space ends: the case fails, the run
    goes on; no abort."""
    yield from scope.tried("request that fails", 60, one_request)
    yield from scope.tried("limited address space", 60, address_space)


# whoever is not root may have a network of his own only as the root of his own users
ALONE = ("unshare", "-n") if os.geteuid() == 0 else ("unshare", "-rn")
# tracked files of the set-up that may name what is downloaded
SET_UP = ("CMakeLists.txt", "cmake/*", "scripts/*", "scripts/lib/*", "scripts/dev/*", ".ci/*")


def undigested(text: str) -> list[str]:
    """The archives in a CMake or shell file that no SHA-256 follows."""
    return re.findall(
        r"https?://[^\s\"]+\.(?:tar\.\w+|tgz|zip|whl)\b(?!\"?\s+[0-9a-f]{64}\b)", text
    )


def without_network(workload: Workload) -> list[str]:
    """A run in a network of its own, in which only the loopback address answers."""
    inside = 'ip link set lo up 2>/dev/null || true; exec "$@"'
    with scratch() as folder:
        command = [*ALONE, "sh", "-c", inside, "sh", *workload.command(folder)]
        return ended(workload, folder, finish(command, folder)[0], {0})


def supply(scope: Scope) -> Iterator[Tried]:
    """no network at run time; sources with digests (pip itself asks for those of requirements)."""
    for path in sorted(path for kind in SET_UP for path in PROJECT.glob(kind) if path.is_file()):
        found = undigested(path.read_text(encoding="utf-8"))
        problems = [f"{path.name}: {url} has no digest" for url in found]
        yield Tried("file that may name sources", problems)
    alone = subprocess.run([*ALONE, "true"], capture_output=True, text=True, check=False)
    if alone.returncode:
        why = Note(f"no run without a network, which the system refuses: {alone.stderr.strip()}")
        yield Tried("run without a network", [why], 0)
        return
    for workload in (w for w in WORKLOADS if scope.has(w.name)):
        yield Tried("run without a network", without_network(workload))
