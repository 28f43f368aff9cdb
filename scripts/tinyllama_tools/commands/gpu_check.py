"""scripts/gpu_check: whether a GPU, its libraries and this build do what the figures rest on, as
far as a card can show it in ten minutes. gpu_steps.py has what is run."""

import argparse
import hashlib
import json
import re
import socket
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.commands.gpu_steps import BENCH, DEVICE_TEST, TRAIN, Session, Step, steps_of
from tinyllama_tools.commands.ranks import PROGRAM as RANKS
from tinyllama_tools.compare.sides import CaseFailedError, CaseSkippedError
from tinyllama_tools.core.app import (
    BadInputError,
    Json,
    ToolError,
    command_text,
    now_text,
    problem_sizes,
    shown_path,
    without_folders,
    write_whole,
)
from tinyllama_tools.core.installation import GET_PROGRAMS, RESULTS, program_path, typed
from tinyllama_tools.core.options import (
    add_build_folder,
    add_out,
    did_you_mean,
    list_of,
    script_parser,
    seconds,
)
from tinyllama_tools.core.process import Progress, TimedOutError, program_in, run_program
from tinyllama_tools.core.text import duration, slug
from tinyllama_tools.data.gpu_cards import NODES, driver_node
from tinyllama_tools.data.gpu_checks import (
    GPU_FILE,
    Finding,
    GpuCheck,
    State,
    StepRecord,
    Verdict,
    read_gpu_check,
    state_of,
)
from tinyllama_tools.data.programs import SuiteError, ask_dry_run

STATUSES = {Verdict.PASSED: 0, Verdict.FAILED: 1, Verdict.INCOMPLETE: 3, Verdict.FAKE: 4}
SIZES, LARGEST = ("tiny", "small", "medium", "large"), "very_large"

DESCRIPTION = """\
Checks a GPU, its libraries and this build in about ten minutes, step by step: libraries and device,
our kernels, proofs, graphs, clocks, peaks, what bounds a step, memory, power, two ranks, and steps
beside eager and torch.compile. Each finding has its figure, its limit and the commands."""
EPILOG = """\
Writes results/gpu_check_<device>/gpu_check.json after every step, and the programs' results beside
it; scripts/report shows the file. Steps that it has of the same device, build and settings are not
run again; a step that timed out is, once --limit gives it more.

Steps: device, kernels, proofs, graphs, clocks, peaks, host, memory, power, ranks, and speed_SIZE of
each of --sizes. docs/gpu_check.md says what each looks at.

Exit status: 0 passed; 1 failed; 2 no GPU, a bad option, or a file that cannot be written; 3
incomplete: a step cannot tell, timed out, or was not run; 4 fake: a GPU answered, but its driver
has no device node, so that no card was there; 130 interrupted, with the steps before it written."""


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|(cuda|hip)(:\d{1,2})?", text):
        raise argparse.ArgumentTypeError(f"device '{text}': must be auto, cuda[:N] or hip[:N]")
    return text


def _limit(text: str) -> tuple[str, float]:
    step, _, value = text.partition("=")
    return step, seconds(value)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """A bad option ends the program with status 2."""
    parser = script_parser("gpu_check", DESCRIPTION, EPILOG)
    add, known = parser.add_argument, tuple(problem_sizes())
    add("--device", type=_device, default="auto", help="auto, cuda[:N] or hip[:N] (default: auto)")
    sizes_help = f"from small to large (default: {','.join(SIZES)})"
    add("--sizes", type=list_of(known, "size"), default=SIZES, metavar="LIST", help=sizes_help)
    largest_help = f"size whose block the device has to bind (default: {LARGEST})"
    add("--largest", choices=known, default=LARGEST, metavar="SIZE", help=largest_help)
    steps_help = "only these steps, with commas (default: all)"
    add("--steps", metavar="LIST", default="", help=steps_help)
    limit_help = "a step's time limit; may be repeated"
    add("--limit", action="append", type=_limit, default=[], metavar="STEP=S", help=limit_help)
    add("--again", action="store_true", help="also run the steps that the file has")
    add_build_folder(parser)
    add_out(parser, "default: results/gpu_check_<device>")
    given = parser.parse_args(arguments)
    given.steps = tuple(filter(None, given.steps.split(",")))
    own = Session("", "hip", Path(), Path(), given.sizes, given.largest)
    names = [step.name for step in steps_of(own)]
    for option, named in (("--steps", given.steps), ("--limit", [name for name, _ in given.limit])):
        for name in named:
            if name not in names:
                words = f"must be one of {', '.join(names)}{did_you_mean(name, names)}"
                parser.error(f"{option}: step '{name}': {words}")
    return given


def describe_gpu(program: Path, device: str) -> Json:
    """The device; BadInputError where there is no GPU, or no program."""
    command = [str(program), f"--device={device}", "--describe-device"]
    found = json.loads(run_program(command, SuiteError, limit_s=60.0).output)["device"]
    if found["backend"] == "cpu":
        nodes = " and ".join(dict.fromkeys(filter(None, map(driver_node, NODES))))
        there = f"a driver's {nodes} is there" if nodes else "no driver's device node is there"
        raise BadInputError(
            f"no GPU: libtorch computes on {found['name']} (cpu), and {there}; build beside a "
            f"torch for ROCm or CUDA, {GET_PROGRAMS}; --device hip or cuda says more"
        )
    return found


def digests(build: Path, device: str) -> Json:
    """What a build is told apart by: its programs; and the commit that they were built from."""
    shape = ("--components=rms_norm", "--passes=forward", "--variants=baseline")
    document, _ = ask_dry_run(program_path(build, BENCH), (f"--device={device}", *shape))
    found = {"git_commit": document["git_commit"]}
    programs = [program_path(build, name) for name in (BENCH, TRAIN, RANKS)]
    for program in (*programs, build / DEVICE_TEST):
        if program.is_file():
            found[program.name] = hashlib.sha256(program.read_bytes()).hexdigest()
    return found


def host_word() -> str:
    """As the programs' results name this machine, without its name."""
    return f"host_{hashlib.sha1(socket.gethostname().encode()).hexdigest()[:8]}"


def why_fake(device: Json) -> str:
    """Why what answered is no card; empty where its driver is there."""
    backend = device["backend"]
    if driver_node(backend):
        return ""
    nodes = " or ".join(f"/dev/{name}" for name in NODES[backend])
    return f"{device['name']} answered, and the driver that would answer for it has no {nodes}"


class Run:
    """One run of the command. `check`: what the file holds."""

    def __init__(self, session: Session, check: GpuCheck, file: Path) -> None:
        self.session, self.check, self.file = session, check, file
        self.progress = Progress()

    def save(self) -> None:
        """The whole file, or nothing of it."""
        text = json.dumps(self.check.as_json(), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(self.file, text + "\n")

    def is_done(self, step: Step, limit: float) -> bool:
        """Whether the file has it."""
        had = self.check.steps.get(step.name)
        if had is None or had.settings != json.loads(json.dumps(step.settings)):
            return False
        return had.state is not State.TIMED_OUT or had.limit_seconds >= limit

    def findings(self, step: Step, late: list[str]) -> Iterator[Finding]:
        """What the step finds; what ends it early is a finding, or `late`."""
        what = "the step's programs"
        try:
            yield from step.check(self.session)
        except TimedOutError as error:
            late.append(str(error))
        except CaseFailedError as error:
            if self.session.spent >= self.session.limit:
                late.append(str(error))
            else:
                is_skip = isinstance(error, CaseSkippedError)
                state = State.UNKNOWN if is_skip else State.FAILED
                yield Finding(what, state, why=str(error))
        except ToolError as error:
            yield Finding(what, State.FAILED, why=str(error))
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            why = f"their answer cannot be read: {type(error).__name__}: {error}"
            yield Finding(what, State.FAILED, why=why)

    def run(self, step: Step, limit: float) -> StepRecord:
        """Runs a step to its end, or to its time's."""
        session, late, found = self.session, list[str](), list[Finding]()
        session.begin(limit)
        for finding in self.findings(step, late):
            # programs name the folders that they were given
            found.append(replace(finding, why=without_folders(" ".join(finding.why.split()))))
        state, why = state_of(found)
        if late:
            reason = without_folders(" ".join(late[0].split()))
            is_failed = state is State.FAILED
            state, why = (state, f"{why}; {reason}") if is_failed else (State.TIMED_OUT, reason)
        spent = round(session.spent, 3)
        record = (spent, limit, now_text(), step.settings, session.commands, found)
        return StepRecord(step.name, step.title, state, why, *record)

    def run_all(self, steps: Sequence[Step], limits: dict[str, float], again: bool) -> None:
        """Runs what the file lacks, and writes it after each step."""
        for number, step in enumerate(steps, start=1):
            limit = limits.get(step.name, step.limit)
            at = f"[{number}/{len(steps)}] {step.name}"
            if not again and self.is_done(step, limit):
                self.progress.line(f"{at}: {self.check.steps[step.name].state.value} before")
                continue
            self.progress.line(f"{at}: {step.title}, {duration(limit)} at most")
            record = self.run(step, limit)
            self.check = replace(self.check, steps={**self.check.steps, step.name: record})
            self.save()
            why = f": {record.why}" if record.why else ""
            said = f"   {record.state.value} after {record.seconds:.1f} s{why}"
            self.progress.line(textwrap.shorten(said, WIDEST, placeholder=" ..."))


def earlier(file: Path, check: GpuCheck, progress: Progress) -> GpuCheck:
    """The check with the steps that its file has of the same device and build."""
    if not file.exists():
        return check
    found = read_gpu_check(file)
    own = {"device": found.device != check.device, "host": found.host != check.host}
    own |= {"build": found.build != check.build, "fake": found.fake != check.fake}
    if changed := [name for name, differs in own.items() if differs]:
        what = " and ".join(changed)
        progress.line(f"{shown_path(file)} is of another {what}: all of its steps are run again")
        return check
    kept = {name: one for name, one in found.steps.items() if name in check.plan}
    return replace(check, started=found.started, steps=kept)


# of a line on the terminal; the file and its page have the whole of it
WIDEST = 160


def summary(check: GpuCheck) -> str:
    """A line a step, and the verdict."""
    width = max(map(len, check.plan))
    lines = [
        f"{one.step:{width}}  {one.state.value:11}  {one.seconds:6.1f} s  "
        + textwrap.shorten(one.why, WIDEST - width, placeholder=" ...")
        for one in check.in_order()
    ]
    reason = f": {check.fake}" if check.fake else ""
    return "\n".join(
        [*map(str.rstrip, lines), "", f"{check.verdict.value}: {check.counts_text()}{reason}"]
    )


def main(arguments: Sequence[str]) -> int:
    """The command; the exit status is the verdict's."""
    options = parse_options(arguments)
    build = options.build_folder.resolve()
    found = describe_gpu(program_in(build, BENCH), options.device)
    backend = found["backend"]
    folder = options.out or RESULTS / f"gpu_check_{slug(found['name'])}"
    folder = folder.resolve()
    name = backend if options.device == "auto" else options.device
    session = Session(name, backend, build, folder, options.sizes, options.largest)
    steps = steps_of(session)
    check = GpuCheck(
        device=found,
        host=host_word(),
        build=digests(build, name),
        plan={step.name: step.title for step in steps},
        fake=why_fake(found),
        started=now_text(),
        command=command_text([*typed("gpu_check").split(), *arguments]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / GPU_FILE
    run = Run(session, check, file)
    run.check = earlier(file, check, run.progress)
    # a file that cannot be written is told before minutes of work
    run.save()
    wanted = [step for step in steps if not options.steps or step.name in options.steps]
    run.run_all(wanted, dict(options.limit), options.again)
    print(summary(run.check))
    print(f"{shown_path(file)}; its page: {typed('report')} {shown_path(file)}")
    return STATUSES[run.check.verdict]
