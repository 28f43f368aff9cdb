"""What scripts/gpu_check writes: findings of steps, and the verdict (docs/gpu_check.md)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import Json, bad_file, read_json, schema_problem
from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.text import listed
from tinyllama_tools.data.studies import SCHEMAS

GPU_CHECK, GPU_SCHEMA_VERSION = "gpu_check", 1
GPU_FILE = "gpu_check.json"


class State(str, Enum):
    """Of a finding or a step."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "cannot tell"
    SKIPPED = "skipped"
    TIMED_OUT = "timed out"
    # a figure that nothing judges, and a step that no run came to
    NOTED = "noted"
    NOT_RUN = "not run"


class Verdict(str, Enum):
    """Of the whole check."""

    PASSED = "passed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    FAKE = "fake"


@dataclass(frozen=True)
class Finding:
    """`what`: was looked at; `value`: what was found, in `unit`, None where nothing was; `limit`:
    what it must be; `why`: of any state but passed."""

    what: str
    state: State
    value: float | str | None = None
    unit: str = ""
    limit: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """The value with its unit; empty where nothing was found."""
        value = f"{self.value:.4g}" if isinstance(self.value, (int, float)) else self.value or ""
        return f"{value} {self.unit}".strip() if value else ""


def is_within(low: float, value: float | None, high: float) -> State:
    """PASSED between the limits, which count; UNKNOWN for a value that was not seen."""
    if value is None:
        return State.UNKNOWN
    return State.PASSED if low <= value <= high else State.FAILED


@dataclass(frozen=True)
class StepRecord:
    """A step that was run. `settings`: what decided what it did; with others it is run again.
    `why`: in one line, of any state but passed. `commands`: as a reader can type them."""

    step: str
    title: str
    state: State
    why: str
    seconds: float
    limit_seconds: float
    finished: str
    settings: Json
    commands: Sequence[str]
    findings: Sequence[Finding]

    @property
    def count(self) -> int:
        """How many findings it has."""
        return len(self.findings)


# the worst first
ORDER = (State.FAILED, State.UNKNOWN, State.PASSED, State.SKIPPED)


def state_of(findings: Sequence[Finding]) -> tuple[State, str]:
    """The worst state of a step's findings, and why. A step that looked at nothing cannot tell;
    what was skipped is no fault beside what passed."""
    states = [finding.state for finding in findings]
    for state in ORDER:
        if state in states:
            named: dict[str, list[str]] = {}
            for one in findings:
                if one.state is state:
                    named.setdefault(_reason(one), []).append(one.what)
            reasons = [f"{listed(names, 2)}: {reason}" for reason, names in named.items()]
            return state, "" if state is State.PASSED else "; ".join(reasons)
    return State.UNKNOWN, "it found nothing"


def _reason(finding: Finding) -> str:
    if finding.why:
        return finding.why
    value = finding.text or "nothing was seen"
    return f"{value}, must be {finding.limit}" if finding.limit else value


@dataclass(frozen=True)
class GpuCheck:
    """A verdict file. `plan`: step and title of all steps, in their order. `fake`: why what
    answered is no card; empty where it is one."""

    device: Json
    host: str
    build: Json
    plan: Mapping[str, str]
    fake: str
    started: str
    command: str
    steps: Mapping[str, StepRecord] = field(default_factory=dict)

    @property
    def context(self) -> Json:
        """What a result of the programs would say of device and build; a fake has its name with
        that word, and is never the device that it stands for."""
        commit = self.build.get("git_commit", "unknown")
        name = f"fake {self.device['name']}" if self.fake else self.device["name"]
        device = {**self.device, "name": name}
        return {"device": device, "git_commit": commit, "date": self.started}

    @property
    def verdict(self) -> Verdict:
        """A passed check has every step; those that were skipped had nothing to look at."""
        if self.fake:
            return Verdict.FAKE
        states = {one.state for one in self.in_order()}
        if State.FAILED in states:
            return Verdict.FAILED
        is_whole = states <= {State.PASSED, State.SKIPPED} and State.PASSED in states
        return Verdict.PASSED if is_whole else Verdict.INCOMPLETE

    def in_order(self) -> Iterator[StepRecord]:
        """Every step of the plan; those that were not run too."""
        for step, title in self.plan.items():
            none = StepRecord(step, title, State.NOT_RUN, "", 0.0, 0.0, "", {}, (), ())
            yield self.steps.get(step, none)

    def counts_text(self) -> str:
        """`9 passed, 1 failed`."""
        states = [one.state for one in self.in_order()]
        return ", ".join(f"{states.count(one)} {one.value}" for one in State if one in states)

    def as_json(self) -> Json:
        """The file's content."""
        steps = [asdict(self.steps[name]) for name in self.plan if name in self.steps]
        return {
            "kind": GPU_CHECK,
            "schema_version": GPU_SCHEMA_VERSION,
            "verdict": self.verdict.value,
            "fake": self.fake,
            "command": self.command,
            "started": self.started,
            "device": self.device,
            "host": self.host,
            "build": self.build,
            "plan": self.plan,
            "steps": steps,
        }


def _record(found: Mapping[str, Any]) -> StepRecord:
    findings = [Finding(**{**one, "state": State(one["state"])}) for one in found["findings"]]
    return StepRecord(**{**found, "state": State(found["state"]), "findings": findings})


def read_gpu_check(path: Path) -> GpuCheck:
    """BadInputError for a file that cannot be read or breaks its schema, or whose verdict is not
    that of its steps."""
    document, _ = read_json(path)
    remedy = f"check again into another folder: {typed('gpu_check')} --out DIR"
    if problem := schema_problem(document, SCHEMAS[GPU_CHECK]):
        raise bad_file(path, problem, remedy)
    own = {key: document[key] for key in ("device", "host", "build", "plan", "fake", "started")}
    steps = {one["step"]: _record(one) for one in document["steps"]}
    if unknown := sorted(steps.keys() - document["plan"].keys()):
        raise bad_file(path, f"steps: {unknown[0]} is not in its plan", remedy)
    for one in steps.values():
        if one.state is State.PASSED and state_of(one.findings)[0] is not State.PASSED:
            raise bad_file(path, f"steps: {one.step} passed, and its findings did not", remedy)
    check = GpuCheck(**own, command=document["command"], steps=steps)
    if check.verdict.value != document["verdict"]:
        what = f"verdict: is {document['verdict']}, by its steps {check.verdict.value}"
        raise bad_file(path, what, remedy)
    return check
