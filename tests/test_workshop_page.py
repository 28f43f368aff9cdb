"""docs/workshop.md: its exact figures, and the form of its rows."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from built_programs import built_program
from tinyllama_tools.core.app import Json
from workshop_page import (
    COMMAND_TABLE,
    FIGURE_TABLE,
    SIZE_TABLE,
    code,
    commands,
    rows,
    snippets,
    value_at,
)

PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")


def test_what_the_page_names_is_what_the_tests_type() -> None:
    typed = "\n".join(commands())
    named = [text for _, here in rows(COMMAND_TABLE) for text in code(here)]
    scripts = {text.split()[0] for text in named if text.startswith(("scripts/", "build/"))}
    assert len(scripts) > 6
    assert [text for text in scripts - {"scripts/peers"} if text not in typed] == []
    options = {word for text in named for word in text.split() if word.startswith("--")}
    assert [word for word in options - {"--grid", "--num-heads"} if word not in typed] == []
    assert len(commands()) > 80
    assert len(snippets()) == 3


def shown(value: Json) -> str:
    """Bytes, counts and texts as the page writes them, by the size of the figure."""
    return value if isinstance(value, str) else f"{value:,}"


@pytest.fixture(scope="module")
def tiny_summary(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The default size as it is: the page's figures are of this run."""
    program = built_program("benchmarks/tiny_llama_train")
    folder = tmp_path_factory.mktemp("tiny")
    options = ["--num-steps=10", "--threads=1", "--device=cpu", *PROFILERS]
    command = [str(program), *options, f"--profile-dir={folder}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return json.loads((folder / "performance_summary.json").read_text(encoding="utf-8"))


def measured_figures() -> list[tuple[str, ...]]:
    """Rows whose exact figure is a key of performance_summary.json on any device."""
    keys = ("model.", "memory.", "operators.steps", "flops.")
    return [row for row in rows(FIGURE_TABLE) if code(row[3]) and code(row[3])[0].startswith(keys)]


@pytest.mark.parametrize("row", measured_figures(), ids=lambda row: row[0])
def test_the_exact_figures(row: tuple[str, ...], tiny_summary: Json) -> None:
    _, _, exact, where = row
    value = value_at(tiny_summary, code(where)[0])
    if exact.endswith(" MB"):
        assert f"{value / 2**20:.1f} MB" == exact
    elif exact.endswith("M"):
        assert f"{value / 1e6:,.1f}M" == exact
    elif exact.endswith("B"):
        assert f"{value / 1e9:.1f}B" == exact
    else:
        assert shown(value) == exact


def test_the_parameters_of_the_sizes(bench_program: Path) -> None:
    sizes = {size: count.replace(",", "") for size, _, count in rows(SIZE_TABLE)}
    options = ["--dry-run", "--components=full_step", "--variants=baseline", "--dtypes=f32"]
    command = [str(bench_program), *options, f"--sizes={','.join(sizes)}"]
    table = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for size, count in sizes.items():
        assert re.search(rf"/{size}/\S+ +{count} ", table), size
