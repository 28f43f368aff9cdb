"""What is read of tiny_llama_bench --dry-run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyllama_tools.size_predictions import Question, predict, read_bytes, read_count, read_row
from tinyllama_tools.suite_run import SuiteError

TABLE = """\
case                                                    parameters  model FLOPs  elementwise       bytes  peak memory  fits
------------------------------------------------------  ----------  -----------  -----------  ----------  -----------  ----
full_step/train/baseline/tiny/f32/batch:8/seq:128          2873600      17.68 G     166.11 M  271.00 MiB   131.81 MiB  yes
full_step/train/sdpa/large/f32/batch:8/seq:1024         1300203520      67.10 T      72.33 G  100.82 GiB    54.13 GiB  no: predicted peak memory 54.13 GiB exceeds 21.39 GiB (free on the device)
2 cases; memory budget 21.39 GiB (free on the device)
"""  # noqa: E501


def program(folder: Path, text: str, status: int = 0) -> Path:
    path = folder / "bench"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\necho bad option >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_reads_each_row(tmp_path: Path) -> None:
    tiny, large = predict(Question(("tiny", "large")), program(tmp_path, TABLE))
    assert (tiny.size, tiny.variant, tiny.dtype) == ("tiny", "baseline", "f32")
    assert (tiny.batch, tiny.seq, tiny.parameters) == (8, 128, 2873600)
    assert tiny.step_flops == pytest.approx(17.68e9)
    assert tiny.step_bytes == 271 * 2**20
    assert tiny.peak_memory_bytes == pytest.approx(131.81 * 2**20)
    assert tiny.fits
    assert not large.fits
    assert large.refusal.startswith("predicted peak memory 54.13 GiB exceeds 21.39")


def test_a_refused_option_is_told_in_the_programs_words(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"^bad option$"):
        predict(Question(("tiny",)), program(tmp_path, "", 2))


def test_a_table_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no row"):
        predict(Question(("tiny",)), program(tmp_path, "nothing\n"))


def test_a_damaged_figure_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"'17\.68 X'"):
        predict(Question(("tiny",)), program(tmp_path, TABLE.replace("17.68 G", "17.68 X")))


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="absent cannot be started"):
        predict(Question(("tiny",)), tmp_path / "absent")


@pytest.mark.parametrize(("text", "value"), [("999", 999), ("1.50 k", 1500), ("2.00 P", 2e15)])
def test_counts(text: str, value: float) -> None:
    assert read_count(text) == value


@pytest.mark.parametrize(("text", "value"), [("12 B", 12), ("1.50 KiB", 1536), ("2.00 TiB", 2**41)])
def test_sizes_of_memory(text: str, value: float) -> None:
    assert read_bytes(text) == value


def test_other_lines_are_no_rows() -> None:
    assert [read_row(line) for line in (*TABLE.splitlines()[:2], "", TABLE.splitlines()[4])] == [
        None
    ] * 4


def test_options_name_only_what_is_given() -> None:
    plain = Question(("tiny", "small"), device="cpu").options
    assert "--sizes=tiny,small" in plain
    assert not [option for option in plain if option.startswith(("--batch", "--seq"))]
    assert "--seq=64,128" in Question(("tiny",), seq=(64, 128)).options
