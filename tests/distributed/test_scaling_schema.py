"""results/schema.json knows results of tiny_llama_scaling, and refuses what they cannot be."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from made_up_scaling import World, document, step_name
from tinyllama_tools.data.results import checked_result

Json = dict[str, Any]
SMALL = World(rounds=2, size="tiny")
UNKNOWN_MODE = "full_step/train/x/tiny/f32/batch:1/seq:2/ranks:2/fast"


@pytest.fixture(scope="module")
def validator(project_root: Path) -> Draft202012Validator:
    text = (project_root / "results" / "schema.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


@pytest.fixture(scope="module")
def whole() -> Json:
    """The steps, and the smallest message of each collective."""
    made = document(SMALL)
    made["benchmarks"] = [
        e
        for e in made["benchmarks"]
        if "/bytes:" not in e["run_name"] or "/bytes:1024/" in e["name"]
    ]
    return made


@pytest.fixture
def result(whole: Json) -> Json:
    return copy.deepcopy(whole)


@pytest.mark.parametrize(
    "world", [World(ranks=1, rounds=2), SMALL, World(ranks=4, rounds=2, global_batch=16)]
)
def test_made_up_results_are_of_the_schema(validator: Draft202012Validator, world: World) -> None:
    assert [error.message for error in validator.iter_errors(document(world))] == []


def change(result: Json, name: str, **changed: object) -> None:
    entry = next(e for e in result["benchmarks"] if e["run_name"].startswith(name))
    entry.update(changed)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.pop("rank_samples"),
        lambda r: r["context"].pop("distributed"),
        lambda r: r["context"]["distributed"].pop("bucket_bytes"),
        lambda r: r["context"]["distributed"].update(scaling="both"),
        lambda r: r["context"]["distributed"].update(host="node1"),
        lambda r: r["context"]["distributed"]["ranks"][0].pop("cores"),
        lambda r: r["rank_samples"].update({step_name(SMALL, "overlap"): [[0.1]]}),
        lambda r: r["rank_samples"].update({step_name(SMALL, "overlap"): [[[-0.1]]]}),
        lambda r: change(r, "full_step", run_name=UNKNOWN_MODE),
        lambda r: change(r, "all_reduce", run_name="broadcast/f32/bytes:1024/ranks:2"),
        lambda r: change(r, "all_gather", MFU_percent=10.0),
        lambda r: change(r, "full_step", no_such_counter=1.0),
    ],
)
def test_what_cannot_be_is_refused(
    validator: Draft202012Validator,
    result: Json,
    spoil: Any,  # noqa: ANN401
) -> None:
    assert validator.is_valid(result)
    spoil(result)
    assert not validator.is_valid(result)


def test_a_result_of_one_process_still_needs_its_peaks(
    validator: Draft202012Validator, project_root: Path
) -> None:
    path = project_root / "results/reference/tiny_f32_2core_xeon_avx512.json"
    measured = checked_result(json.loads(path.read_text(encoding="utf-8")), path)
    measured["benchmarks"] = measured["benchmarks"][:6]
    assert validator.is_valid(measured)
    for key in ("peaks", "cold_cache"):
        changed = copy.deepcopy(measured)
        del changed["context"][key]
        assert not validator.is_valid(changed), key
    measured["rank_samples"] = {}
    assert not validator.is_valid(measured)
