"""The recording of a run: what is written is read back, and bad files are named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from turns_stand_in import FFN, LOSS

from tinyllama_tools.compare.blocks import (
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Opened,
    Side,
)
from tinyllama_tools.compare.recording import (
    RecordingHeader,
    RecordingWriter,
    read_recording,
)
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats.looks import Block

HEADER = RecordingHeader(
    base="main",
    new="build",
    method="in turn",
    pairs=2,
    slice_seconds=0.015,
    seed=7,
    started="2026-01-01T00:00:00+00:00",
    base_context={"threads": 2},
)
ITEMS: list[Measured | Opened] = [
    CaseOpening(FFN, Side.BASE, 0.01, {"operators": 20.0}),
    CaseFailure(0, LOSS, Side.NEW, "gradient differs"),
    CaseBlock(1, FFN, Block((0.01, 0.012), (0.011, 0.0125)), (0, 1), 1.5),
    CaseSkip(LOSS, Side.BASE, "too large"),
    CaseBlock(2, FFN, Block((0.02,), (0.021,)), (1,), 3.0),
]


def written(path: Path) -> Path:
    with RecordingWriter(path, HEADER) as writer:
        for item in ITEMS:
            writer.add(item)
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "new" / "blocks.jsonl"))
    assert recording.header == HEADER
    assert list(recording.case_blocks) == [ITEMS[2], ITEMS[4]]
    assert list(recording.failures) == [ITEMS[1]]
    assert list(recording.skips) == [ITEMS[3]]
    assert recording.blocks == {FFN: [ITEMS[2].block, ITEMS[4].block]}
    assert recording.counters == {"base": {FFN: {"operators": 20.0}}, "new": {}}


def test_each_line_is_there_as_soon_as_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "blocks.jsonl"
    with RecordingWriter(path, HEADER) as writer:
        for count, item in enumerate(ITEMS, start=2):
            writer.add(item)
            assert len(path.read_text().splitlines()) == count


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "blocks.jsonl")
    path.write_text(path.read_text()[:-10])
    assert list(read_recording(path).case_blocks) == [ITEMS[2]]


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    path = written(tmp_path / "blocks.jsonl")
    before = path.read_text()
    with pytest.raises(BadInputError, match=r"blocks\.jsonl: is there already"):
        RecordingWriter(path, HEADER)
    assert path.read_text() == before


def test_a_full_disk_is_named_whatever_closing_says(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "blocks.jsonl", HEADER)
    writer._file.close()
    # closing tries once more to write what is left in the buffer
    writer._file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115
    with (
        pytest.raises(BadInputError, match=r"blocks\.jsonl: .* cannot be written: .* space"),
        writer,
    ):
        writer.add(ITEMS[0])
    assert writer._file.closed


def test_settings_are_read_back_and_older_recordings_have_none(tmp_path: Path) -> None:
    settings = {"arguments": ["--threads=1"], "new_environment": {"A": "1"}}
    with RecordingWriter(tmp_path / "new.jsonl", replace(HEADER, settings=settings)):
        pass
    assert read_recording(tmp_path / "new.jsonl").header.settings == settings
    older = json.loads((tmp_path / "new.jsonl").read_text())
    del older["settings"]
    (tmp_path / "old.jsonl").write_text(json.dumps(older) + "\n")
    assert read_recording(tmp_path / "old.jsonl").header == HEADER


def replaced(path: Path, line: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


BLOCK = {"block": 1, "case": FFN, "first": [0], "at": 1.0}


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        (1, "{}", "not a recording"),
        (1, "[1]", "not a recording"),
        (1, "half", "not a recording"),
        (1, '{"recording": "other", "schema_version": 1}', "recording 'other'"),
        (
            1,
            '{"recording": "tiny_llama paired blocks", "schema_version": 2}',
            "schema_version 2: must be",
        ),
        (3, "{", "line 3"),
        (4, json.dumps({**BLOCK, "base": [0.1], "new": [0.1, 0.2]}), "line 4.*as many"),
        (4, json.dumps({**BLOCK, "base": [0.0], "new": [0.1]}), "line 4.*positive"),
        (4, json.dumps({**BLOCK, "base": [float("nan")], "new": [0.1]}), "line 4.*positive"),
        (4, json.dumps({**BLOCK, "base": [0.1]}), "line 4.*new"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: int, text: str, expected: str) -> None:
    path = written(tmp_path / "blocks.jsonl")
    replaced(path, line, text)
    with pytest.raises(BadInputError, match=expected) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.jsonl: cannot be read"):
        read_recording(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(BadInputError, match=r"empty\.jsonl: empty"):
        read_recording(tmp_path / "empty.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot be written"):
        RecordingWriter(tmp_path / "file" / "blocks.jsonl", HEADER)
