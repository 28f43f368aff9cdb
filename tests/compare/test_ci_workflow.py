"""The gate in CI: the workflow is well formed and cautious, and its commands exist."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tinyllama_tools.compare.options import add_options
from tinyllama_tools.core.app import PROJECT

WORKFLOW = PROJECT / ".github/workflows/compare.yml"
SCRIPT = PROJECT / "scripts/ci_compare.sh"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def workflow() -> Json:
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))


def steps_of(workflow: Json, job: str) -> list[Json]:
    return workflow["jobs"][job]["steps"]


def test_commands_are_shell_and_exist_and_actions_have_versions(workflow: Json) -> None:
    every = [step for job in workflow["jobs"] for step in steps_of(workflow, job)]
    commands = [step["run"] for step in every if "run" in step]
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)
        # what an event says must not become a part of a command
        assert "${{" not in command
    named = [name for command in commands for name in re.findall(r"\bscripts/[\w.]+", command)]
    assert named == ["scripts/ci_compare.sh"]
    assert os.access(PROJECT / named[0], os.X_OK)
    used = [step["uses"] for step in every if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[\w-]+@v\d+", name)] == []


def test_only_the_comment_may_write_and_runs_nothing_of_the_checkout(workflow: Json) -> None:
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == {
        "gate": {"contents": "read"},
        "comment": {"pull-requests": "write"},
    }
    text = yaml.safe_dump(steps_of(workflow, "comment"))
    assert "checkout" not in text
    assert "scripts/" not in text
    # forks are not commented on
    comment = workflow["jobs"]["comment"]
    same = "github.event.pull_request.head.repo.full_name == github.repository"
    assert same in comment["if"].split(" && ")
    assert comment["needs"] == "gate"
    # YAML 1.1 reads the key `on` as true
    assert "pull_request" in workflow[True]
    assert "pull_request_target" not in workflow[True]


def test_the_base_is_in_the_clone_and_the_result_is_kept(workflow: Json) -> None:
    gate = steps_of(workflow, "gate")
    steps = {step.get("uses", step.get("name", "")).split("@")[0]: step for step in gate}
    assert steps["actions/checkout"]["with"]["fetch-depth"] == 0
    upload = steps["actions/upload-artifact"]
    assert upload["if"] == "always()"
    assert upload["with"]["path"].rstrip("/") == steps["Compare"]["env"]["COMPARE_OUTPUT"]
    # the job that comments reads it by that name
    (download,) = [s for s in steps_of(workflow, "comment") if "download" in s.get("uses", "")]
    assert download["with"]["name"] == upload["with"]["name"]


# answers a query as gh does, with jq's language
GH = """#!/bin/bash
if [[ "$*" == *--jq* ]]; then
  while [[ "$1" != --jq ]]; do shift; done
  echo "$2" > query
  echo "$KNOWN"
else echo "$*" >> calls; fi
"""


@pytest.mark.parametrize(
    ("known", "call"),
    [
        ("", "--method POST repos/o/r/issues/7/comments"),
        ("41", "--method PATCH repos/o/r/issues/comments/41"),
    ],
)
def test_a_pull_request_has_one_comment(
    workflow: Json, tmp_path: Path, known: str, call: str
) -> None:
    """A later run renews the comment that an earlier one wrote."""
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    # the cut falls into the middle of a character, whichever way
    (tmp_path / "comparison.md").write_text("| table |\n" + "€" * 40_000, encoding="utf-8")
    (command,) = [step["run"] for step in steps_of(workflow, "comment") if "run" in step]
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KNOWN": known,
        "COMMENTS": "repos/o/r/issues/7/comments",
        "ONE_COMMENT": "repos/o/r/issues/comments",
        "RUN_PAGE": "https://example.org/run",
    }
    subprocess.run(
        ["bash", "-eo", "pipefail", "-c", command], cwd=tmp_path, env=environment, check=True
    )
    assert (tmp_path / "calls").read_text() == f"api --silent {call} --field body=@comment.md\n"
    # whoever else begins a comment so does not have it written over
    query = (tmp_path / "query").read_text()
    assert '.user.login == "github-actions[bot]"' in query
    assert 'startswith("<!-- tiny_llama comparison -->")' in query
    comment = (tmp_path / "comment.md").read_bytes().decode("utf-8")
    assert comment.startswith("<!-- tiny_llama comparison -->\n| table |")
    assert comment.endswith("(https://example.org/run)\n")
    assert "€\n\n[Page" in comment
    assert 15_000 < len(comment) < 65536


class Checkout:
    """A folder with the script and a `scripts/compare` that notes its arguments."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "scripts").mkdir(parents=True)
        (root / "scripts/ci_compare.sh").write_bytes(SCRIPT.read_bytes())

    def run(
        self, body: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        program = self.root / "scripts/compare"
        program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > arguments\n{body}\n')
        program.chmod(0o755)
        own = {k: v for k, v in os.environ.items() if not k.startswith(("COMPARE_", "GITHUB_"))}
        return subprocess.run(
            ["bash", "scripts/ci_compare.sh", *arguments],
            cwd=self.root,
            env=own | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def options(self) -> argparse.Namespace:
        """What scripts/compare was given, read by the parser of `compare run`."""
        command, *given = (self.root / "arguments").read_text().splitlines()
        assert command == "run"
        parser = argparse.ArgumentParser()
        add_options(parser)
        return parser.parse_args(given)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")


def test_its_options_are_those_of_compare_run(checkout: Checkout, workflow: Json) -> None:
    assert checkout.run("exit 0").returncode == 0
    defaults = checkout.options
    assert (defaults.base, defaults.new, defaults.budget) == ("HEAD^1", "build", 600.0)
    (step,) = [s for s in steps_of(workflow, "gate") if s.get("name") == "Compare"]
    names = set(step["env"])
    assert names == set(re.findall(r"\bCOMPARE_\w+", SCRIPT.read_text()))
    checkout.run(
        "exit 0", "--strict", "--filter", "ffn", COMPARE_BASE="v1", COMPARE_BUDGET="5m",
        COMPARE_OUTPUT="some where",
    )  # fmt: skip
    given = checkout.options
    assert (given.base, given.budget, given.strict, given.filter) == ("v1", 300.0, True, "ffn")
    assert given.output == Path("some where")


@pytest.mark.parametrize("status", [0, 1, 2, 3, 130])
def test_the_table_goes_to_the_summary_and_the_status_on(checkout: Checkout, status: int) -> None:
    summary = checkout.root / "summary"
    summary.write_text("before\n")
    body = f'echo "| a table |" > results/ci_compare/comparison.md; exit {status}'
    result = checkout.run(body, GITHUB_STEP_SUMMARY=str(summary))
    assert result.returncode == status, result.stderr
    assert summary.read_text() == "before\n| a table |\n"


def test_an_old_table_is_not_this_run_s(checkout: Checkout) -> None:
    checkout.run('echo "| old |" > results/ci_compare/comparison.md')
    assert checkout.run("exit 2", COMPARE_BASE="gone").returncode == 2
    table = (checkout.root / "results/ci_compare/comparison.md").read_text()
    assert "old" not in table
    assert "No comparison with gone" in table
    assert "exit status 2" in table


def test_help_runs_nothing(checkout: Checkout) -> None:
    result = checkout.run("exit 1", "--help")
    assert result.returncode == 0
    assert "COMPARE_BUDGET" in result.stdout
    assert not (checkout.root / "arguments").exists()
