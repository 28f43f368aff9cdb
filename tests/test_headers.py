"""Every header compiles alone: it includes what it uses, whatever was included before it. With
libtorch's headers that takes two seconds a header, hence with --long only."""

import json
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT

BUILD = PROJECT_ROOT / "build"
# parts of one source, which says first whether it is HIP, CUDA or emulated
PARTS = tuple(
    f"model/kernels/gpu/{name}.hpp" for name in ("conversions", "elements", "emulation_testing")
)
# with the word that follows: what names files, and the precompiled header, which would hide what is
# missing
DROPPED = ("-c", "-o", "-include")


def compilers() -> dict[str, list[str]]:
    """The command, without its files, that compiles the sources of each folder."""
    commands: dict[str, list[str]] = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        kept = [
            word
            for before, word in pairwise(["", *words])
            if before not in DROPPED and word not in DROPPED
        ]
        commands.setdefault(str(Path(entry["file"]).parent), kept)
    return commands


def faults_of(header: Path, command: list[str]) -> str:
    """What the compiler says of a file that includes this header alone; empty where nothing."""
    alone = [*command, "-fsyntax-only", "-include", str(header), "-x", "c++", os.devnull]
    result = subprocess.run(alone, cwd=BUILD, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else f"{header.relative_to(PROJECT_ROOT)}:\n{result.stderr}"


@pytest.mark.long
def test_every_header_compiles_alone() -> None:
    commands = compilers()
    headers = sorted(
        header
        for folder in ("core", "model", "benchmarks")
        for header in (PROJECT_ROOT / folder).rglob("*.hpp")
        if str(header.parent) in commands and not str(header).endswith(PARTS)
    )
    assert len(headers) > 80
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        faults = pool.map(lambda header: faults_of(header, commands[str(header.parent)]), headers)
        assert [fault for fault in faults if fault] == []
