"""The JSON of tiny_llama_bench --dry-run, read by its one reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.programs import (
    NUMBERS,
    SuiteError,
    ask_costs,
    ask_dry_run,
    read_case_costs,
    read_dry_run,
)

Json = dict[str, Any]
NAME = "attention/forward_backward/optimized/small/amp_bf16/batch:4/seq:64"


def document(**changes: object) -> Json:
    """One case whose figures count from 1, with some keys changed; None: left out."""
    figures: Json = dict(zip(NUMBERS, range(1, len(NUMBERS) + 1), strict=True))
    entry = {"name": NAME, **figures, "fits": True, "reason": ""} | changes
    kept = {key: value for key, value in entry.items() if value is not None}
    return {"memory_budget_bytes": 64, "memory_budget_source": "free", "cases": [kept]}


def test_every_figure_lands_in_its_field() -> None:
    (cost,) = read_case_costs(document())
    assert str(cost.name) == NAME
    assert (cost.name.component, cost.name.variant, cost.name.batch) == (
        "attention",
        "optimized",
        4,
    )
    assert [getattr(cost, key) for key in NUMBERS] == [1, 2, 3, 4, 5, 6, 7]
    assert cost.fits


def test_the_head_says_device_and_commit() -> None:
    of_program = {"device": {"name": "card", "backend": "hip"}, "git_commit": "0123abcd"}
    answer = read_dry_run(document() | of_program)
    assert (answer.device_name, answer.git_commit) == ("card", "0123abcd")
    assert answer.device == of_program["device"]
    for unknown in ({}, {"device": {}, "git_commit": "unknown"}):
        answer = read_dry_run(document() | unknown)
        assert (answer.device_name, answer.git_commit) == ("", "")


@pytest.mark.parametrize("bad", [{"device": "card"}, {"git_commit": 7}])
def test_a_bad_head_is_named(bad: Json) -> None:
    ((key, value),) = bad.items()
    with pytest.raises(BadInputError, match=f"{key} is {value!r}, must be"):
        read_dry_run(document() | bad)


def test_what_does_not_fit_says_why() -> None:
    (cost,) = read_case_costs(document(fits=False, reason="too large"))
    assert (cost.fits, cost.reason) == (False, "too large")


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [None, "1", True, -1, 0.5, math.nan, math.inf, 10**400])
def test_a_bad_figure_is_named(key: str, value: object) -> None:
    with pytest.raises(BadInputError, match=f"{NAME}: {key} is .*must be a whole number"):
        read_case_costs(document(**{key: value}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "peak/bandwidth"}, "name is 'peak/bandwidth'"),
        ({"name": None}, "name is None"),
        ({"fits": "yes"}, "fits is 'yes'"),
        ({"reason": 1}, "reason 1"),
    ],
)
def test_a_bad_text_is_named(changes: Json, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        read_case_costs(document() | {"cases": [document()["cases"][0] | changes]})


@pytest.mark.parametrize("bad", [[], {}, {"cases": 1}, {"cases": [1], "memory_budget_bytes": 1}])
def test_another_document_is_refused(bad: object) -> None:
    with pytest.raises(BadInputError, match=r"cases.*ask again"):
        read_case_costs(bad)


def program(folder: Path, text: str, status: int = 0) -> Path:
    path = folder / "bench"
    path.write_text(
        f"#!/bin/sh\ncat <<'END'\n{text}\nEND\necho first >&2\necho last >&2\nexit {status}\n"
    )
    path.chmod(0o755)
    return path


def test_a_table_instead_of_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="bench --dry-run: Expecting value"):
        ask_costs(program(tmp_path, "case  parameters"), [])


def test_a_bad_figure_in_an_answer_is_an_error_of_the_program(tmp_path: Path) -> None:
    text = '{"memory_budget_bytes": 1, "cases": [{"name": "x"}]}'
    with pytest.raises(SuiteError, match=r"bench --dry-run: cases\[0\]: name is 'x'"):
        ask_costs(program(tmp_path, text), [])


def test_an_empty_answer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no case"):
        ask_costs(program(tmp_path, '{"memory_budget_bytes": 1, "cases": []}'), [])


def test_the_last_line_of_a_refusal_is_told(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"^last$"):
        ask_costs(program(tmp_path, "", 2), [])


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="absent cannot be started"):
        ask_costs(tmp_path / "absent", [])


def test_the_program_itself_answers_so(bench_program: Path) -> None:
    options = ["--components=full_step", "--sizes=tiny", "--variants=baseline", "--device=cpu"]
    answer = ask_dry_run(bench_program, [*options, "--memory-limit=64MiB"])
    (cost,) = answer.cases
    assert str(cost.name) == "full_step/train/baseline/tiny/f32/batch:8/seq:128"
    assert (cost.parameters, cost.model_flops) == (2_873_600, 17_678_991_360)
    assert not cost.fits
    assert (answer.memory_budget_bytes, answer.memory_budget_source) == (2**26, "--memory-limit")
    assert "exceeds 64.00 MiB" in cost.reason
