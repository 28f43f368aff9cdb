""".github/workflows/test.yml: well formed, cautious, and its commands do what .ci/run does."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def jobs(project_root: Path) -> dict[str, dict]:
    path = project_root / ".github/workflows/test.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    # YAML 1.1 reads the key `on` as true
    assert set(workflow[True]) == {"push", "pull_request", "schedule"}
    return workflow["jobs"]


def test_jobs_are_cautious_and_their_steps_shell_and_actions_of_stated_versions(
    jobs: dict[str, dict], project_root: Path
) -> None:
    for step in [step for job in jobs.values() for step in job["steps"]]:
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
        else:
            subprocess.run(["bash", "-n", "-c", step["run"]], check=True)
            # what an event says must not become a part of a command
            assert "${{" not in step["run"]
    # systems that nobody tried fail nothing
    matrix = jobs["test"]["strategy"]["matrix"]
    assert (matrix["system"], matrix["must_pass"]) == (["debian:12"], [True])
    assert {one["must_pass"] for one in matrix["include"]} == {False}
    assert jobs["test"]["continue-on-error"] == "${{ !matrix.must_pass }}"
    # the build for CUDA is the option of scripts/test
    command = jobs["cuda-build"]["steps"][-1]["run"]
    assert f"\n{command}\n" in (project_root / "scripts/test").read_text()


def test_the_tests_are_those_of_ci_run(
    jobs: dict[str, dict], project_root: Path, tmp_path: Path
) -> None:
    (step,) = [one for one in jobs["test"]["steps"] if one.get("name") == "Test"]
    assert "'--long'" in step["env"]["TEST_OPTIONS"]
    for name in (".ci", "scripts"):
        (tmp_path / name).mkdir()
    shutil.copy(project_root / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "scripts/test").write_text('echo "$CI:$*"\n')
    command = ["bash", "-eo", "pipefail", "-c", step["run"]]
    environment = os.environ | {"TEST_OPTIONS": "--long"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "true:--long"), done.stderr
