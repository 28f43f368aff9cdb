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
    AS_IT_IS,
    COMMAND_TABLE,
    FIGURE_TABLE,
    OPTION_TABLE,
    SIZE_TABLE,
    WITHOUT_COMMAND,
    code,
    rows,
    snippets,
    value_at,
)

DOCUMENTS = {"W", "E1", "E3", "S", "C"}
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")


def test_every_document_has_its_commands() -> None:
    where = [row[0] for header in (OPTION_TABLE, COMMAND_TABLE) for row in rows(header)]
    named = {part.split()[0] for cell in where for part in cell.split("; ")}
    assert named == DOCUMENTS
    assert {row[2] for row in rows(OPTION_TABLE)} >= {"the first step is in no average"}
    assert len(snippets()) == 3


@pytest.mark.parametrize("row", rows(COMMAND_TABLE), ids=lambda row: f"{row[0]} {row[1]}"[:60])
def test_each_row_says_what_to_type_or_why_nothing(row: tuple[str, ...]) -> None:
    _, text, here, _ = row
    if here == AS_IT_IS[0]:
        assert code(text)
    else:
        assert code(here) or here.startswith((AS_IT_IS[1], *WITHOUT_COMMAND))


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
