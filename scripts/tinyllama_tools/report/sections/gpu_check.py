"""What scripts/gpu_check found: the verdict, what did not pass, every step and finding."""

from collections.abc import Iterator

from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.gpu_checks import Finding, GpuCheck, State, StepRecord, Verdict
from tinyllama_tools.report.document import Fact, Missing, Section
from tinyllama_tools.report.inputs import ReportInputs

MEANINGS = {
    Verdict.PASSED: "every step was made, and found what it must.",
    Verdict.FAILED: "a step found something wrong.",
    Verdict.INCOMPLETE: "nothing wrong was found, but not every step could tell.",
    Verdict.FAKE: "no card was there, so that nothing below says anything of one.",
}
OPEN = (State.FAILED, State.UNKNOWN, State.TIMED_OUT, State.NOT_RUN)


def facts(inputs: ReportInputs) -> Iterator[Fact]:
    """The verdict of each check."""
    for check in inputs.checks:
        yield Fact("GPU check", check.verdict.value, check.counts_text())


def _findings(check: GpuCheck) -> Iterator[tuple[StepRecord, Finding]]:
    for step in check.in_order():
        for finding in step.findings:
            yield step, finding


def build(page: Section, inputs: ReportInputs) -> None:
    """Of several checks of a device, their tables one below the other."""
    if not inputs.checks:
        raise Missing(f"no check of a GPU was given; make one: {typed('gpu_check')}")
    for number, check in enumerate(inputs.checks, start=1):
        had = len(page.tables)
        _add(page, check)
        if number > 1:
            page.number_tables(number, had)


def _add(page: Section, check: GpuCheck) -> None:
    fake = f" {check.fake[0].upper()}{check.fake[1:]}." if check.fake else ""
    verdict = check.verdict
    page.text.append(
        f"Verdict: {verdict.value}: {MEANINGS[verdict]}{fake} Made by `{check.command}`, begun "
        f"{check.started}, commit {check.build.get('git_commit', 'unknown')[:12]}."
    )
    rows = [
        {"step": step.title, "finding": one, "state": one.state.value}
        for step, one in _findings(check)
        if one.state in OPEN
    ]
    rows += [
        {"step": one.title, "state": one.state.value, "finding": {"what": "", "why": one.why}}
        for one in check.in_order()
        if one.state in (State.TIMED_OUT, State.NOT_RUN)
    ]
    page.table("gpu_open", rows)
    steps = [
        {
            "step": one,
            "state": one.state.value,
            "took": one.seconds if one.finished else None,
            "limit": duration(one.limit_seconds) if one.finished else "",
        }
        for one in check.in_order()
    ]
    page.table("gpu_steps", steps)
    found = _findings(check)
    rows = ({"step": step.step, "finding": one, "state": one.state.value} for step, one in found)
    page.table("gpu_findings", rows)
    commands = [
        {"step": step.step, "command": command}
        for step in check.in_order()
        for command in step.commands
    ]
    page.table("gpu_commands", commands)
