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
    entry = {"name": NAME, **figures, "fits": False, "reason": "too large"} | changes
    kept = {key: value for key, value in entry.items() if value is not None}
    return {"memory_budget_bytes": 64, "memory_budget_source": "free", "cases": [kept]}


def test_every_figure_lands_in_its_field() -> None:
    of_program = {"device": {"name": "card", "backend": "hip"}, "git_commit": "0123abcd"}
    answer = read_dry_run(document() | of_program)
    (cost,) = answer.cases
    assert (str(cost.name), cost.fits, cost.reason) == (NAME, False, "too large")
    assert [getattr(cost, key) for key in NUMBERS] == [1, 2, 3, 4, 5, 6, 7]
    assert (answer.device, answer.git_commit) == (of_program["device"], "0123abcd")
    for unknown in ({}, {"device": {}, "git_commit": "unknown"}):
        answer = read_dry_run(document() | unknown)
        assert (answer.device, answer.git_commit) == ({}, "")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        *(
            (document(**{NUMBERS[0]: value}), rf"cases\[0\].*{NUMBERS[0]}|'{NUMBERS[0]}' is a req")
            for value in (None, "1", True, -1, 0.5, math.nan, math.inf, 10**400)
        ),
        *((document(**{key: -1}), key) for key in NUMBERS),
        (document(name="peak/bandwidth"), "name is 'peak/bandwidth'"),
        (document(fits="yes"), r"cases\[0\].fits: 'yes' is not"),
        (document() | {"device": "card"}, "device: 'card' is not"),
        (document() | {"cases": [1]}, r"cases\[0\]: 1 is not of type 'object'"),
        ({}, "required property; ask again"),
        ([], "not of type 'object'"),
    ],
)
def test_another_document_is_refused(bad: object, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        read_case_costs(bad)


EMPTY = '{"memory_budget_bytes": 1, "cases": []}'


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("case  parameters", 0, "bench --dry-run: Expecting value"),
        (EMPTY.replace("[]", '[{"name": "x"}]'), 0, r"bench --dry-run: .*cases\[0\]"),
        (EMPTY, 0, "no case"),
        ("", 2, "^last$"),
        (None, 0, "cannot be started"),
    ],
)
def test_a_bad_answer_is_an_error_of_the_program(
    tmp_path: Path, text: str | None, status: int, message: str
) -> None:
    path = tmp_path / "bench"
    if text is not None:
        words = "echo first >&2\necho last >&2"
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n{words}\nexit {status}\n")
        path.chmod(0o755)
    with pytest.raises(SuiteError, match=message):
        ask_costs(path, [])


def test_the_program_itself_answers_so(bench_program: Path) -> None:
    options = ["--components=full_step", "--sizes=tiny", "--variants=baseline", "--device=cpu"]
    answer = ask_dry_run(bench_program, [*options, "--memory-limit=64MiB"])
    (cost,) = answer.cases
    assert str(cost.name) == "full_step/train/baseline/tiny/f32/batch:8/seq:128"
    assert (cost.parameters, cost.model_flops) == (2_873_600, 17_678_991_360)
    assert not cost.fits and "exceeds 64.00 MiB" in cost.reason
    assert (answer.memory_budget_bytes, answer.memory_budget_source) == (2**26, "--memory-limit")
