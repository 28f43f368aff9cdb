"""Runs ReFrame on the project's tests and settings, and reads its report."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from built_programs import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "integrations" / "reframe"
TIMEOUT_S = 300.0


def need_reframe() -> None:
    """In CI its absence is a failure, elsewhere a reason to skip."""
    if importlib.util.find_spec("reframe") is not None:
        return
    reason = "reframe-hpc is not installed: pip install -r requirements-test.txt"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Outcome(NamedTuple):
    """What ReFrame says of one test; reason only where it failed."""

    verdict: str
    reason: str
    figures: Mapping[str, tuple[float, str]]
    output: Path
    script: str
    tags: tuple[str, ...]


def outcome(case: Mapping[str, Any], prefix: Path) -> Outcome:
    folder = Path(case["outputdir"] or case["stagedir"])
    script = Path(case["stagedir"], "rfm_job.sh")
    if not script.is_file():  # ReFrame keeps the files of a test that passed elsewhere
        script = folder / "rfm_job.sh"
    figures = {
        name.split(":")[-1]: (entry[0], entry[4])
        for name, entry in (case.get("perfvalues") or {}).items()
    }
    assert prefix in folder.parents
    text = script.read_text(encoding="utf-8") if script.is_file() else ""
    reason = case["fail_reason"] or ""
    return Outcome(case["result"], reason, figures, folder, text, tuple(case["tags"]))


class Report(NamedTuple):
    """A run of ReFrame: what it printed, and its tests."""

    console: str
    outcomes: Mapping[str, Outcome]


def run_reframe(
    folder: Path, settings: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> Report:
    """Runs what the arguments select of tiny_llama.py; everything it writes goes below folder.

    Outcomes are named <display name> @<partition>, the display name being for instance
    'TinyLlamaStep %size=tiny %variant=baseline %dtype=f32'.
    """
    report = folder / "report.json"
    code = "import sys; from reframe.frontend.cli import main; sys.argv[0] = 'reframe'; main()"
    command = [sys.executable, "-c", code, f"--config-file={FOLDER / settings}"]
    command += [f"--checkpath={FOLDER / 'tiny_llama.py'}", f"--prefix={folder}"]
    command += [f"--report-file={report}", "--nocolor", "--run", *arguments]
    completed = subprocess.run(
        command,
        cwd=folder,
        # its topology files go to the home folder, its log to the temporary one
        env=os.environ | {"HOME": str(folder), "TMPDIR": str(folder)} | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert report.is_file(), completed.stdout + completed.stderr
    document = json.loads(report.read_text(encoding="utf-8"))
    cases = [case for run in document["runs"] for case in run["testcases"]]
    outcomes = {
        f"{case['display_name']} @{case['partition']}": outcome(case, folder) for case in cases
    }
    return Report(completed.stdout, outcomes)
