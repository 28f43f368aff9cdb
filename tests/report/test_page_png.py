"""Pictures of a report's figures."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sample_document import figures_of, sample_document

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.report import output as png
from tinyllama_tools.report.output import DRIVER, browser_program, file_name, write_pngs


def written_beside(document: dict[str, Any], folder: Path) -> list[Path]:
    """In a thread of its own: the driver of the other tests' browser holds this one."""
    pytest.importorskip("playwright")
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(write_pngs, document, folder).result()


def test_a_file_name_holds_nothing_but_a_name() -> None:
    assert file_name("scaling-ffn") == "scaling-ffn.png"
    assert file_name("../a b/c") == "-a-b-c.png"


def test_without_a_browser_the_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match="package chromium"):
        write_pngs(sample_document(), tmp_path)


def test_without_the_driver_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(png, "browser_program", lambda: "/bin/false")
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(BadInputError, match="package playwright is not installed"):
        write_pngs(sample_document(), tmp_path)


def test_a_browser_that_does_not_start_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(png, "browser_program", lambda: "/bin/false")
    with pytest.raises(BadInputError, match="/bin/false does not start"):
        written_beside(sample_document(), tmp_path)


def test_the_driver_is_the_one_that_the_tests_use(project_root: Path) -> None:
    lines = (project_root / "requirements-pictures.txt").read_text(encoding="utf-8").splitlines()
    assert DRIVER in lines


def test_without_figures_no_browser_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert write_pngs({"title": "t", "sections": []}, tmp_path / "pictures") == []


def test_every_figure_is_a_picture_of_1600_by_900(tmp_path: Path) -> None:
    try:
        browser_program()
    except BadInputError as error:
        pytest.skip(str(error))
    document = sample_document()
    written = written_beside(document, tmp_path / "pictures")
    assert [path.name for path in written] == [f"{one['id']}.png" for one in figures_of(document)]
    for path in written:
        content = path.read_bytes()
        assert [int.from_bytes(content[i : i + 4], "big") for i in (16, 20)] == [1600, 900]
        assert len(content) > 10_000
