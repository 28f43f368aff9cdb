"""Fixtures that the Python tests share, and the --long option."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from built_programs import (
    PROJECT_ROOT,
    Completed,
    built_program,
    finish,
    start,
    undo_nohup,
    write_program,
)
from chromium import browser, open_page

__all__ = ["browser", "open_page"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")


def pytest_configure() -> None:
    undo_nohup()
    # two parts of the tests run at once, and threads that wait for each other spin
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: runs with --long"))


@pytest.fixture(scope="session")
def bench_program() -> Path:
    """The built tiny_llama_bench."""
    return built_program("benchmarks/tiny_llama_bench")


@pytest.fixture(scope="session")
def train_program() -> Path:
    """The built tiny_llama_train."""
    return built_program("benchmarks/tiny_llama_train")


@pytest.fixture(scope="session")
def copy_program() -> Path:
    """The built copy_weights."""
    return built_program("tests/fuzzing/copy_weights")


class ScriptCheckout:
    """A folder with scripts/ and what they install from, to run their shell functions in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stubs = root.parent / "stubs"
        self.stubs.mkdir(parents=True)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT_ROOT / "scripts", root / "scripts", ignore=ignore)
        for name in ("CMakeLists.txt", "VERSION", "pyproject.toml", "requirements.lock"):
            shutil.copy(PROJECT_ROOT / name, root)
        (root / "fixtures").symlink_to(PROJECT_ROOT / "fixtures")
        (root / "results").mkdir()
        for schema in (PROJECT_ROOT / "results").glob("*schema.json"):
            shutil.copy(schema, root / "results")

    def stub(self, name: str, body: str) -> None:
        """Puts a command of this name before all others."""
        write_program(self.stubs / name, f"#!/bin/bash\n{body}\n")

    def calls(self) -> list[str]:
        """What stubs noted."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, code: str, **variables: str) -> Completed:
        """As start(), to its end."""
        return finish(self.start(code, **variables))

    def start(
        self, code: str, stderr: int = subprocess.PIPE, **variables: str
    ) -> subprocess.Popen[str]:
        """Shell code after sourcing the set-up's functions, as the scripts do."""
        script = f"set -euo pipefail\nsource scripts/lib/set_up.sh\n{code}\n"
        path = f"{self.stubs}:{os.environ['PATH']}"
        # what the tests' own surroundings set must not decide about the checkout's
        inherited = {k: v for k, v in os.environ.items() if k not in {"Torch_DIR", "CI"}}
        env = inherited | {"PATH": path} | variables
        return start(["bash", "-c", script], cwd=self.root, env=env, stderr=stderr)


@pytest.fixture(scope="session")
def bench_script(bench_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scripts/bench with the built program and no set-up: that would build again what another
    checkout configured."""
    checkout = ScriptCheckout(tmp_path_factory.mktemp("bench") / "a path")
    with (checkout.root / "scripts/lib/set_up.sh").open("a") as file:
        file.write("set_up() { :; }\n")
    (checkout.root / "build/benchmarks").mkdir(parents=True)
    (checkout.root / "build/benchmarks/tiny_llama_bench").symlink_to(bench_program)
    return checkout.root / "scripts/bench"


@pytest.fixture
def checkout(tmp_path: Path) -> ScriptCheckout:
    """In a path with spaces, which every script has to bear."""
    return ScriptCheckout(tmp_path / "a path" / "with spaces")
