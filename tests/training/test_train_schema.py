"""results/training_schema.json: what the program writes is like it, and it can refuse."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from train_program import PROJECT_ROOT, FinishedRun, Json, Program, read_json, small

from tinyllama_tools.data.profiles import SCHEMA, read_profile

FLOPS_FILES = ["flops_profile", "computational_intensity", "roofline_data"]


def part(schema: Json, name: str) -> Draft202012Validator:
    """Of one of the files beside performance_summary.json."""
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})


def problems(validator: Draft202012Validator, document: Json) -> list[str]:
    return [f"{e.json_path}: {e.message[:200]}" for e in validator.iter_errors(document)]


def objects(schema: Json) -> Iterator[Json]:
    """Every object with listed keys inside the schema."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for inner in schema.values():
            yield from objects(inner)


def test_schema_is_a_schema(schema: Json) -> None:
    Draft202012Validator.check_schema(schema)


def test_scripts_read_the_same_schema() -> None:
    assert SCHEMA.samefile(PROJECT_ROOT / "results" / "training_schema.json")


def test_every_object_lists_all_its_keys(schema: Json) -> None:
    found = list(objects(schema))
    assert len(found) > 25
    assert [entry for entry in found if entry["additionalProperties"] is not False] == []


def test_every_key_is_in_the_documentation(schema: Json) -> None:
    text = (PROJECT_ROOT / "docs" / "training_files.md").read_text(encoding="utf-8")
    # the device is described as in the suite's results
    inner = [o for o in objects(schema) if o is not schema["$defs"]["device"]]
    keys = {key for entry in inner for key in entry["properties"]}
    phases = set(schema["$defs"]["phase"]["enum"])
    assert {key for key in keys - phases if f"`{key}`" not in text} == set()


def test_profiled_run_is_like_the_schema(
    validator: Draft202012Validator, profiled_run: FinishedRun
) -> None:
    assert problems(validator, profiled_run.summary) == []


def test_flops_run_is_like_the_schema(
    validator: Draft202012Validator, flops_run: FinishedRun
) -> None:
    assert problems(validator, flops_run.summary) == []


@pytest.mark.parametrize("name", FLOPS_FILES)
def test_flops_files_are_like_the_schema(schema: Json, flops_run: FinishedRun, name: str) -> None:
    document = read_json(flops_run.folder / "flops_analysis" / f"{name}.json")
    assert problems(part(schema, name), document) == []


def test_memory_timeline_is_like_the_schema(schema: Json, profiled_run: FinishedRun) -> None:
    document = read_json(profiled_run.folder / "memory_timeline.json")
    assert problems(part(schema, "memory_timeline"), document) == []


def test_scripts_can_read_what_is_written(
    profiled_run: FinishedRun, flops_run: FinishedRun
) -> None:
    assert read_profile(profiled_run.folder).memory == profiled_run.summary["memory"]
    assert read_profile(flops_run.folder).flops == flops_run.summary["flops"]


def test_shortest_run_is_like_the_schema(
    program: Program, validator: Draft202012Validator, tmp_path: Path
) -> None:
    summary = program.trained(tmp_path, *small(num_steps=1))
    assert problems(validator, summary) == []
    assert summary["summary"]["plain_average_step_seconds"] is not None


@pytest.fixture(scope="module")
def document(profiled_run: FinishedRun) -> Json:
    """With few entries in the long lists, so that many checks stay quick."""
    shorter = copy.deepcopy(profiled_run.summary)
    for name in ("table", "components"):
        del shorter["operators"][name][2:]
    del shorter["steps"][2:]
    return shorter


@pytest.mark.parametrize("name", ["", "steps.0", "summary", "memory", "operators", "model"])
def test_schema_refuses_a_missing_and_an_unknown_key(
    validator: Draft202012Validator, document: Json, name: str
) -> None:
    def changed() -> tuple[Json, Json]:
        """A copy, and the object in it that `name` stands for."""
        whole = place = copy.deepcopy(document)
        for key in name.split(".") if name else []:
            place = place[int(key) if key.isdigit() else key]
        return whole, place

    assert validator.is_valid(document)
    assert "library_scratch_bytes" in document["summary"]
    for key in changed()[1].keys() - {"library_scratch_bytes"}:  # which older runs lack
        whole, place = changed()
        del place[key]
        assert not validator.is_valid(whole), key
    whole, place = changed()
    place["unheard_of"] = 1
    assert not validator.is_valid(whole)
