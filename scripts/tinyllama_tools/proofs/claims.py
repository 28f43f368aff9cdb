"""Reads claims.ini: what is claimed, what would make it false, and the tests that fail then.
scripts/dev/prove puts it on its page."""

import configparser
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.core.installation import ROOT

FILE = Path(__file__).with_name("claims.ini")


@dataclass(frozen=True)
class Claim:
    """`row`: the row of README's table "Measured" that it stands behind, by its first column; empty
    where there is none. `tests`: `tests/...py::test_name`, or `..._test.cpp::Suite.Name`."""

    name: str
    row: str
    claim: str
    false_if: str
    tests: Sequence[str]


def read_claims(path: Path = FILE) -> list[Claim]:
    """In the order of the file; KeyError for a claim without one of its parts."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.read(path, encoding="utf-8")
    return [
        Claim(
            name,
            section.get("row", ""),
            *(" ".join(section[key].split()) for key in ("claim", "false if")),
            section["tests"].split(),
        )
        for name, section in parser.items()
        if name != parser.default_section
    ]


def measured_rows(readme: str) -> list[str]:
    """The first column of README's table "Measured"."""
    section = readme.partition("\n## Measured\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return [cell for cell in cells[1:] if cell.strip("-")]


def has_test(test: str) -> bool:
    """Whether the sources have a test of that name."""
    path, _, name = test.partition("::")
    source = ROOT / path
    if not source.is_file():
        return False
    suite, _, case = name.partition(".")
    made = rf"^TEST(_F|_P)?\({suite},\s*{case}\)" if case else rf"^def {name}\("
    return re.search(made, source.read_text(encoding="utf-8"), re.MULTILINE) is not None


def problems_of(claims: Sequence[Claim], readme: str) -> Iterator[str]:
    """Rows of README without a claim, claims of rows that are gone, and tests that do not exist."""
    rows, named = measured_rows(readme), [claim.row for claim in claims if claim.row]
    yield from (f"no claim for README's row '{row}'" for row in rows if row not in named)
    yield from (f"README has no row '{row}'" for row in dict.fromkeys(named) if row not in rows)
    for claim in claims:
        if not claim.tests:
            yield f"claim '{claim.name}' has no test"
        absent = (test for test in claim.tests if not has_test(test))
        yield from (f"claim '{claim.name}': no test {test}" for test in absent)
