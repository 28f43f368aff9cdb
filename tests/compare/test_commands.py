"""scripts/compare and scripts/ci_compare.sh, the workflow that runs it, and docs/compare.md."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from built_programs import write_program
from tinyllama_tools.compare import run as compare_run
from tinyllama_tools.core.app import ended_as_by_ctrl_c, run_command
from tinyllama_tools.core.installation import ROOT
from tinyllama_tools.stats.verdicts import ALPHA, LOOKS, MARGIN, fewest_files, plan_design

Json = dict[str, Any]


def test_commands_that_fail(capsys: pytest.CaptureFixture[str]) -> None:
    for error, said in (
        (FileNotFoundError(2, "No such file", "/no/such"), "/no/such: No such file"),
        # what nobody foresaw is no regression, and says where it happened
        (KeyError("a case"), r"Traceback.*compare run: not foreseen: KeyError: 'a case'"),
    ):
        assert run_command("compare run", Mock(side_effect=error)) == 2
        assert re.search(said, capsys.readouterr().err, re.DOTALL)


def test_an_ignored_signal_stays_so() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_as_by_ctrl_c():
            signal.raise_signal(signal.SIGHUP)
    finally:
        assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


PAGE = (ROOT / "docs/compare.md").read_text(encoding="utf-8")


def test_figures_of_the_page_are_those_of_the_code() -> None:
    for cases in (1, 10, 40):
        looks = ", ".join(map(str, plan_design(cases).looks))
        assert f"| {cases} | {looks} |" in PAGE
        assert f"| {cases} | {fewest_files(cases, ALPHA)} |" in PAGE
    assert f"each has {100 * plan_design(1).look_confidence:.1f} %" in PAGE
    assert f"(alpha {ALPHA:g}, {LOOKS} looks)" in PAGE
    for name, value in (("alpha", ALPHA), ("margin", MARGIN)):
        assert f"**`--{name}`** ({value:g})" in PAGE


WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/compare.yml").read_text(encoding="utf-8"))


def steps_of(job: str) -> list[Json]:
    return WORKFLOW["jobs"][job]["steps"]


def test_the_workflow_is_cautious() -> None:
    # only the comment may write, and it runs nothing of the checkout
    permissions = {name: job["permissions"] for name, job in WORKFLOW["jobs"].items()}
    assert permissions == {"gate": {"contents": "read"}, "comment": {"pull-requests": "write"}}
    assert not re.search("checkout|scripts/", yaml.safe_dump(steps_of("comment")))
    # YAML 1.1 reads the key `on` as true
    assert "pull_request_target" not in WORKFLOW[True]


# answers a query as gh does, with jq's language
GH = """#!/bin/bash
if [[ "$*" == *--jq* ]]; then echo "$*" > query; echo "$KNOWN"; else echo "$*" >> calls; fi
"""


def test_a_pull_request_has_one_comment(tmp_path: Path) -> None:
    """A later run renews the comment that an earlier one wrote."""
    write_program(tmp_path / "gh", GH)
    # the cut falls into the middle of a character, whichever way
    (tmp_path / "comparison.md").write_text("| table |\n" + "€" * 40_000, encoding="utf-8")
    (text,) = [step["run"] for step in steps_of("comment") if "run" in step]
    own = {"COMMENTS": "issues/7/comments", "ONE_COMMENT": "issues/comments", "RUN_PAGE": "https:"}
    own["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    shell = ["bash", "-eo", "pipefail", "-c", text]
    for known in ("", "41"):
        subprocess.run(shell, cwd=tmp_path, env=own | {"KNOWN": known}, check=True)
    calls = ("POST issues/7/comments", "PATCH issues/comments/41")
    said = "".join(f"api --silent --method {c} --field body=@comment.md\n" for c in calls)
    assert (tmp_path / "calls").read_text() == said
    # whoever else begins a comment so does not have it written over
    query = (tmp_path / "query").read_text()
    assert '.user.login == "github-actions[bot]"' in query
    assert 'startswith("<!-- tiny_llama comparison -->")' in query
    comment = (tmp_path / "comment.md").read_bytes().decode("utf-8")
    assert comment.startswith("<!-- tiny_llama comparison -->\n| table |")
    assert comment.endswith("(https:)\n") and 15_000 < len(comment) < 65536


def test_the_ci_script_gives_options_table_and_status_on(tmp_path: Path) -> None:
    """In a folder where `scripts/compare` notes its arguments."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/ci_compare.sh", root / "scripts")
    program, table = root / "scripts/compare", root / "results/ci_compare/comparison.md"
    own = {k: v for k, v in os.environ.items() if not k.startswith(("COMPARE_", "GITHUB_"))}

    def ci(body: str, *arguments: str, **environment: str) -> int:
        write_program(program, f'#!/bin/bash\nprintf "%s\\n" "$@" > arguments\n{body}\n')
        shell = ["bash", "scripts/ci_compare.sh", *arguments]
        return subprocess.run(shell, cwd=root, env=own | environment, check=False).returncode

    def given(*names: str) -> list[Any]:
        name, *words = (root / "arguments").read_text().splitlines()
        assert name == "run"
        return [getattr(compare_run.parse_options(words), name) for name in names]

    assert ci("exit 0") == 0
    assert given("base", "new", "budget") == ["HEAD^1", None, 600.0]
    named = {"COMPARE_BASE": "v1", "COMPARE_BUDGET": "5m", "COMPARE_OUTPUT": "some where"}
    ci("exit 0", "--strict", **named)
    assert given("base", "budget", "strict", "out") == ["v1", 300.0, True, Path("some where")]
    # a recording of an earlier run would be in the way
    body = "cd results/ci_compare; test ! -e blocks.jsonl || exit 9; touch blocks.jsonl"
    for status in (0, 1, 2, 3, 130):
        told = f'{body}; echo "| table {status} |" > comparison.md; exit {status}'
        assert ci(told, GITHUB_STEP_SUMMARY=str(tmp_path / "summary")) == status
    said = (tmp_path / "summary").read_text()
    assert said == "".join(f"| table {status} |\n" for status in (0, 1, 2, 3, 130))
    # an old table is not this run's
    assert ci("exit 2", COMPARE_BASE="gone") == 2
    assert table.read_text().startswith("No comparison with gone")
