"""scripts/compare and scripts/ci_compare.sh, the workflow that runs it, and docs/compare.md."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tinyllama_tools.compare import run as run_command
from tinyllama_tools.compare.history import FEWEST_FILES
from tinyllama_tools.core.app import PROJECT, ended_as_by_ctrl_c
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    LOOKS,
    MARGIN,
    SPENT,
    Outcome,
    fewest_files,
    plan_design,
)
from tools import compare

if TYPE_CHECKING:
    from conftest import ScriptCheckout

Json = dict[str, Any]
START = "import sys; import tinyllama_tools.compare as m; m.COMMANDS['run'] = 'played'; "
START += "from tools import compare; sys.exit(compare(['run']))"


def played(folder: Path, body: str, output: int) -> subprocess.CompletedProcess[str]:
    """The command, whose `run` is a module with this body."""
    (folder / "played.py").write_text(f"import sys\ndef main(arguments):\n    {body}\n")
    path = f"{PROJECT / 'scripts'}:{PROJECT / 'tests'}:{folder}"
    return subprocess.run(
        [sys.executable, "-c", START],
        # an empty PYTHONUNBUFFERED counts as none
        env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": ""},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "is_full", "status", "said"),
    [
        # what fits into the buffer fails when all is said, and the verdict is known by then
        ("print('x' * 10); return 3", False, 3, ""),
        ("print('x' * 10_000_000); return 3", False, 2, "broken pipe"),
        ("print('a verdict'); return 1", True, 2, "output: "),
        ("print('figures'); open('/no/such/file')", False, 2, "/no/such/file: No such file or"),
        # what nobody foresaw is no regression
        ("raise KeyError('a case')", False, 2, "compare run: not foreseen: KeyError: 'a case'"),
        ("import no_such_module", False, 2, "not foreseen: ModuleNotFoundError"),
    ],
)
def test_output_files_and_code_that_fail(
    tmp_path: Path, body: str, is_full: bool, status: int, said: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = played(tmp_path, body, full.fileno() if is_full else writer)
    os.close(writer)
    assert ended.returncode == status
    assert said in ended.stderr
    # a fault of the tools' own says where it happened
    assert ("Traceback" in ended.stderr) == ("not foreseen" in ended.stderr)
    assert "Exception ignored" not in ended.stderr


def test_an_ignored_signal_stays_so() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_as_by_ctrl_c():
            signal.raise_signal(signal.SIGHUP)
    finally:
        assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


FILES = ("a.json", "b.json")
SIDES = ("run", "--base=build", "--new=build")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((*FILES, "--alpha", "0"), "'0': must be a number between 0 and 1"),
        ((*FILES, "--filter", "("), "is no regular expression"),
        ((*SIDES, "--budget=10x"), "'10x': must be a time such as"),
        ((*SIDES, "--pairs=0"), "'0': must be a whole number of 1 or more"),
        ((*SIDES, "--environment-new=A"), "'A': must be NAME=VALUE"),
        (("run", "--base=build"), "required: --new"),
        (("history",), "add|show|changes|page"),
        (("calibrate", "--simulate", "--record=1m"), "--simulate"),
        (("calibrate", "--slow=ffn=0.05"), "--runs"),
        (("calibrate", "--", "--pairs", "12"), "--pairs 12"),
    ],
)
def test_bad_options_are_named(
    arguments: Sequence[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


# Each part of the set-up and each Python program says its name; the check of options refuses
# --bogus.
STAND_INS = """
set_up() { echo "set up $1"; }
virtual_python=say_python
"""
PYTHON = 'echo "check $5"; if [[ "$*" == *--bogus* ]]; then exit 2; fi'


def test_help_and_bad_options_come_before_the_build(checkout: ScriptCheckout) -> None:
    checkout.stub("say_python", PYTHON)
    with (checkout.root / "scripts/lib/set_up.sh").open("a") as stream:
        stream.write(STAND_INS)
    for options, status in (("--help", 0), ("--bogus", 2)):
        result = checkout.run(f"bash scripts/compare run {options}")
        assert (result.returncode, result.stdout) == (status, "set up tools\ncheck run\n")
    for options, status in (("--help", 0), ("", 2)):
        result = checkout.run(f"bash scripts/compare {options}")
        assert result.returncode == status
        assert "Exit status: 0 no regression" in result.stdout + result.stderr


PAGE = PROJECT / "docs/compare.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_figures_of_the_page_are_those_of_the_code() -> None:
    words = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    explained = {word for row in words for word in re.findall(r"`([a-z ]+)`", row)}
    assert explained == {outcome.value for outcome in Outcome}
    for cases in (1, 10, 40):
        looks = ", ".join(map(str, plan_design(cases).looks))
        assert f"| {cases} | {looks} |" in TEXT
        assert f"| {cases} | {fewest_files(cases, ALPHA)} |" in TEXT
    assert f"each has {100 * plan_design(1).look_confidence:.1f} %" in TEXT
    # the reserve makes what is held against alpha so many times as large
    assert 1 / SPENT == 4
    assert "four times as large" in TEXT
    assert f"(alpha {ALPHA:g}, {LOOKS} looks)" in TEXT
    assert f"**`--alpha`** ({ALPHA:g})" in TEXT
    assert f"**`--margin`** ({MARGIN:g})" in TEXT
    assert f"from {FEWEST_FILES} files on" in TEXT
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link


WORKFLOW = yaml.safe_load((PROJECT / ".github/workflows/compare.yml").read_text(encoding="utf-8"))
SCRIPT = PROJECT / "scripts/ci_compare.sh"


def steps_of(job: str) -> list[Json]:
    return WORKFLOW["jobs"][job]["steps"]


def test_the_workflow_is_cautious() -> None:
    # what an event says must not become a part of a command
    steps = [step for job in WORKFLOW["jobs"] for step in steps_of(job)]
    assert not any("${{" in step.get("run", "") for step in steps)
    # only the comment may write, and it runs nothing of the checkout
    assert WORKFLOW["permissions"] == {}
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
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    # the cut falls into the middle of a character, whichever way
    (tmp_path / "comparison.md").write_text("| table |\n" + "€" * 40_000, encoding="utf-8")
    (text,) = [step["run"] for step in steps_of("comment") if "run" in step]
    addresses = {"COMMENTS": "issues/7/comments", "ONE_COMMENT": "issues/comments"}
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUN_PAGE": "https://example.org/run"}
    shell = ["bash", "-eo", "pipefail", "-c", text]
    for known in ("", "41"):
        environment = own | addresses | {"KNOWN": known}
        subprocess.run(shell, cwd=tmp_path, env=environment, check=True)
    calls = ("POST issues/7/comments", "PATCH issues/comments/41")
    said = "".join(f"api --silent --method {c} --field body=@comment.md\n" for c in calls)
    assert (tmp_path / "calls").read_text() == said
    # whoever else begins a comment so does not have it written over
    query = (tmp_path / "query").read_text()
    assert '.user.login == "github-actions[bot]"' in query
    assert 'startswith("<!-- tiny_llama comparison -->")' in query
    comment = (tmp_path / "comment.md").read_bytes().decode("utf-8")
    assert comment.startswith("<!-- tiny_llama comparison -->\n| table |")
    assert comment.endswith("(https://example.org/run)\n")
    assert 15_000 < len(comment) < 65536


def test_the_ci_script_gives_options_table_and_status_on(tmp_path: Path) -> None:
    """In a folder where `scripts/compare` notes its arguments."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    (root / "scripts/ci_compare.sh").write_bytes(SCRIPT.read_bytes())
    program, summary = root / "scripts/compare", tmp_path / "summary"
    own = {k: v for k, v in os.environ.items() if not k.startswith(("COMPARE_", "GITHUB_"))}

    def ci(body: str, *arguments: str, **environment: str) -> int:
        program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > arguments\n{body}\n')
        program.chmod(0o755)
        shell = ["bash", "scripts/ci_compare.sh", *arguments]
        return subprocess.run(shell, cwd=root, env=own | environment, check=False).returncode

    def options() -> argparse.Namespace:
        name, *given = (root / "arguments").read_text().splitlines()
        assert name == "run"
        return run_command.parse_options(given)

    assert ci("exit 1", "--help") == 0
    assert not (root / "arguments").exists()
    assert ci("exit 0") == 0
    assert (options().base, options().new, options().budget) == ("HEAD^1", "build", 600.0)
    named = {"COMPARE_BASE": "v1", "COMPARE_BUDGET": "5m", "COMPARE_OUTPUT": "some where"}
    ci("exit 0", "--strict", **named)
    given = options()
    seen = (given.base, given.budget, given.strict, given.output)
    assert seen == ("v1", 300.0, True, Path("some where"))
    # a recording of an earlier run would be in the way
    output = "results/ci_compare"
    body = f"test ! -e {output}/blocks.jsonl || exit 9; touch {output}/blocks.jsonl"
    for status in (0, 1, 2, 3, 130):
        table = f'{body}; echo "| table {status} |" > {output}/comparison.md'
        assert ci(f"{table}; exit {status}", GITHUB_STEP_SUMMARY=str(summary)) == status
    assert summary.read_text() == "".join(f"| table {status} |\n" for status in (0, 1, 2, 3, 130))
    # an old table is not this run's
    assert ci("exit 2", COMPARE_BASE="gone") == 2
    text = (root / output / "comparison.md").read_text()
    assert ("table" in text, "No comparison with gone" in text) == (False, True)
    assert "exit status 2" in text
