"""A prefix as `cmake --install` makes it, with the tools copied and the programs linked, and how a
user runs what is in it."""

import os
import shutil
from pathlib import Path

from built_programs import PROJECT_ROOT, Completed, finish, start, write_program

# answers what the tools ask of every program first
VERSION = (PROJECT_ROOT / "VERSION").read_text(encoding="utf-8").strip()
SAYS_VERSION = f'if [[ "$*" == --version ]]; then echo "${{0##*/}} {VERSION}"; exit; fi\n'


class Prefix:
    """`root` has bin/ and share/. Commands run in `work`, a folder of the user's."""

    def __init__(self, root: Path, work: Path) -> None:
        self.root, self.work = root, work
        self.data = root / "share/tiny_llama"
        for folder in (root / "bin", self.data / "results", work):
            folder.mkdir(parents=True)
        shutil.copy(PROJECT_ROOT / "scripts/tiny-llama", root / "bin")
        shutil.copy(PROJECT_ROOT / "VERSION", self.data)
        for schema in (PROJECT_ROOT / "results").glob("*schema.json"):
            shutil.copy(schema, self.data / "results")
        ignore = shutil.ignore_patterns("__pycache__", "golden")
        shutil.copytree(PROJECT_ROOT / "fixtures", self.data / "fixtures", ignore=ignore)
        tools = "scripts/tinyllama_tools"
        shutil.copytree(PROJECT_ROOT / tools, self.data / tools, ignore=ignore)

    def program(self, name: str, body: str) -> Path:
        """A stub in bin/."""
        return write_program(self.root / "bin" / name, f"#!/bin/bash\n{SAYS_VERSION}{body}\n")

    def run(self, *arguments: str | Path, **variables: str | None) -> Completed:
        """tiny-llama with these arguments; a variable that is None is not set."""
        command = [self.root / "bin/tiny-llama", *arguments]
        return finish(start(command, cwd=self.work, env=self.environment(**variables)))

    def environment(self, **variables: str | None) -> dict[str, str]:
        """Of a user who has not set any of ours."""
        ours = ("TINY_LLAMA_", "PYTHON", "VIRTUAL_ENV")
        env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        env |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"} | variables
        return {name: value for name, value in env.items() if value is not None}
