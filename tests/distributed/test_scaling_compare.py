"""Stored results of tiny_llama_scaling beside each other: their rows and contexts are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_up_scaling import World, document, step_name
from tinyllama_tools.compare.comparison import KINDS, LARGER, SMALLER, counter_change
from tinyllama_tools.compare.context_differences import axis_differences, context_differences
from tinyllama_tools.compare.output import part_text
from tinyllama_tools.compare.run import rates
from tinyllama_tools.core.app import PROJECT
from tools import compare as main

LARGER_IS_BETTER = {
    "weak_efficiency_percent",
    "strong_efficiency_percent",
    "overlap_percent",
    "bus_GB_per_second",
    "algorithm_GB_per_second",
}


def written(path: Path, world: World) -> Path:
    path.write_text(json.dumps(document(world)), encoding="utf-8")
    return path


def test_every_counter_of_the_schema_has_a_direction() -> None:
    schema = json.loads((PROJECT / "results/schema.json").read_text(encoding="utf-8"))
    found = set()
    for kind in ("parallel_step", "collective"):
        rules = schema["$defs"][kind]["properties"]
        found |= {n for n, rule in rules.items() if isinstance(rule, dict) and "type" in rule}
    assert found <= KINDS.keys()
    for name in found:
        if name in LARGER_IS_BETTER:
            assert KINDS[name].is_better_when == LARGER, name
        elif name.startswith("loss_") or name == "communication_percent":
            assert KINDS[name].is_better_when == SMALLER, name


def test_a_loss_that_grew_is_worse() -> None:
    change = counter_change("loss_communication_percent", 5.0, 9.0)
    assert change.worse and not change.better and not change.exact
    assert counter_change("overlap_percent", 40.0, 60.0).better


def test_two_runs_are_compared_row_by_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = written(tmp_path / "base.json", World(rounds=4, seed=1))
    new = written(tmp_path / "new.json", World(rounds=4, seed=2))
    status = main([str(base), str(new), "--format=json", f"--output={tmp_path / 'out'}"])
    assert status == 0
    capsys.readouterr()
    found = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    names = {case["name"] for case in found["cases"]}
    assert step_name(World(), "overlap") in names
    assert "all_reduce/f32/bytes:1024/ranks:2" in names
    assert not [case for case in found["cases"] if case.get("attribution")]
    assert not [text for text in found["warnings"] if "not" in text and "measured in" in text]


@pytest.mark.parametrize(
    ("key", "value"),
    [("world_size", 4), ("backend", "nccl"), ("bucket_MiB", 1.0), ("started_by", "slurm")],
)
def test_other_ranks_are_said_before_any_number(key: str, value: object) -> None:
    base, new = document(World(rounds=1))["context"], document(World(rounds=1))["context"]
    new["distributed"][key] = value
    new["device"]["name"] = "Another CPU"
    first, second = context_differences([base], [new])[:2]
    assert first.startswith(f"distributed {key}: {base['distributed'][key]} in the base, {value}")
    assert second.startswith("device name")


def test_other_numbers_of_ranks_are_other_cases() -> None:
    two, four = (step_name(World(ranks=n), "overlap") for n in (2, 4))
    assert axis_differences([two], [four]) == ["ranks: 2 in the base, 4 in the new"]
    assert axis_differences([two], [two]) == []


def test_a_step_of_several_ranks_is_named_whole() -> None:
    name = step_name(World(), "overlap")
    assert part_text(name) == name
    assert rates(name, 1.0, {"model_flops": 1e9, "hardware_flops": 1e9}) == {}
