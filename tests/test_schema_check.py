"""Our reading of the schema must agree with the package that defines it."""

import copy
import json
from typing import Any

import jsonschema
import pytest

from tinyllama_tools.data.json_files import SchemaCheck
from tinyllama_tools.data.profiles import SCHEMA
from training_stand_in import made_up_summary

DOCUMENT = json.loads(SCHEMA.read_text(encoding="utf-8"))
CHECK = SchemaCheck(DOCUMENT)
PACKAGE = jsonschema.Draft202012Validator(DOCUMENT)
REPLACEMENTS = [None, -1, 0.5, 3.0, True, "text", [], {}]


def paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Of every value in a document, lists by their first entry only."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, entry in value.items():
            found += paths(entry, (*path, key))
    if isinstance(value, list) and value:
        found += paths(value[0], (*path, 0))
    return found


def shortened(value: Any) -> Any:  # noqa: ANN401
    """The same with one entry in each list: the package is slow."""
    if isinstance(value, dict):
        return {key: shortened(entry) for key, entry in value.items()}
    return [shortened(entry) for entry in value[:1]] if isinstance(value, list) else value


def changed(document: Any, path: tuple[str | int, ...], value: object, drop: bool) -> Any:  # noqa: ANN401
    """A copy with one value replaced, or its key left out."""
    result = copy.deepcopy(document)
    place = result
    for key in path[:-1]:
        place = place[key]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(DOCUMENT)


def test_agrees_with_the_package_on_every_single_change() -> None:
    summary = shortened(made_up_summary())
    verdicts = set()
    for number, path in enumerate(paths(summary)):
        # one of the replacements a path, all of them over neighbours
        value = REPLACEMENTS[number % len(REPLACEMENTS)]
        document = changed(summary, path, value, drop=False)
        assert (CHECK.problem(document) is None) == PACKAGE.is_valid(document), (path, value)
        verdicts.add(CHECK.problem(document) is None)
        document = changed(summary, path, None, drop=True)
        assert (CHECK.problem(document) is None) == PACKAGE.is_valid(document), path
        if isinstance(path[-1], str):
            document = changed(summary, (*path[:-1], "unheard_of"), 1, drop=False)
            assert (CHECK.problem(document) is None) == PACKAGE.is_valid(document), path
    assert verdicts == {True, False}


def test_names_the_place_and_what_must_be_there() -> None:
    problem = CHECK.problem(made_up_summary({"steps.1.time_seconds": "fast"}))
    assert problem is not None
    assert problem.key == "steps[1].time_seconds"
    assert problem.message == '"fast" must be number'


def test_refuses_a_keyword_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="'maxLength'"):
        SchemaCheck({"type": "string", "maxLength": 3}).problem("text")
