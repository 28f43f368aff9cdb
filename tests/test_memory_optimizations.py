"""Ranks of the four memory optimizations: by an ablation, else by the shares of the peak."""

from pathlib import Path

import pytest

from tinyllama_tools.ablation.study import BASELINE, Cell, Kind, Point, RowName, Study, result_text
from tinyllama_tools.workshop.memory_optimizations import (
    CHECKPOINTING,
    FLASH,
    FUSION,
    MIXED,
    OPTIMIZATIONS,
    Effect,
    effects_by_ablation,
    effects_by_shares,
    find_reference,
    ranked,
    target_shares,
)

POINT = Point("tiny", "f32", 8, 128)
AMP = Point("tiny", "amp_bf16", 8, 128)
CONTEXT = {
    "device": {"name": "Card", "architecture": "gfx942", "backend": "hip"},
    "threads": 2,
}
MIB = 2**20


def study(**peaks: float) -> Study:
    """Peaks in MiB by row; `mixed` is the baseline under autocast. Baseline: 100 MiB in 0.1 s."""
    made = Study([RowName(BASELINE, Kind.baseline)], context=dict(CONTEXT))
    cells = {(BASELINE, POINT): 100.0}
    for name, peak in peaks.items():
        cells[(BASELINE, AMP) if name == "mixed" else (name, POINT)] = peak
    for (row, point), peak in cells.items():
        seconds = {0: peak / 1000}
        cell = Cell(row, point, counters={"peak_memory_MiB": peak}, turns=seconds)
        (made.types if point == AMP else made.main).add(cell)
    return made


def memory(**parts: int) -> dict[str, object]:
    """A memory profile whose peak consists of these."""
    empty = dict.fromkeys(
        ("parameters", "gradients", "optimizer_states", "activations", "attention_scores"), 0
    )
    fused = parts.pop("fused", 0)
    held = parts.pop("held", 0)
    return {
        "breakdown_at_peak": empty | parts,
        "component_activation_bytes": {"rms_norm": fused, "attention/core": 10**6},
        "fragmentation": {"allocated_bytes": 0, "held_bytes": held},
    }


@pytest.mark.parametrize(
    ("parts", "first"),
    [
        ({"activations": 100, "attention_scores": 5}, CHECKPOINTING),
        ({"activations": 5, "attention_scores": 100}, FLASH),
        ({"activations": 5, "attention_scores": 5, "fused": 90}, FUSION),
    ],
)
def test_shares_decide_the_rank(parts: dict[str, int], first: str) -> None:
    found = ranked(effects_by_shares(memory(**parts), layers=4))
    assert found[0].name == first
    assert {effect.name for effect in found} == set(OPTIMIZATIONS)


def test_one_layer_has_nothing_to_recompute() -> None:
    found = {e.name: e for e in effects_by_shares(memory(activations=100), layers=1)}
    assert found[CHECKPOINTING].saved_bytes == 0
    assert found[MIXED].saved_bytes == 50


def test_measured_effects_are_against_the_baseline() -> None:
    made = study(sdpa=90, fused_attention=88, checkpoint=50, mixed=94, fused_norm=93, qkv=100)
    found = {effect.name: effect for effect in effects_by_ablation(made, POINT)}
    assert found[FLASH].saved_bytes == 12 * MIB
    assert "`fused_attention`" in found[FLASH].basis
    assert found[CHECKPOINTING].saved_bytes == 50 * MIB
    assert found[CHECKPOINTING].time_ratio == pytest.approx(0.5)
    assert found[MIXED].saved_bytes == 6 * MIB
    assert "amp_bf16" in found[MIXED].basis
    assert found[FUSION].saved_bytes == 7 * MIB
    names = [effect.name for effect in ranked(found.values())]
    assert names == [CHECKPOINTING, FLASH, FUSION, MIXED]


def test_of_equals_the_faster_is_first() -> None:
    slow, fast = Effect("slow", 5, 1.2, ""), Effect("fast", 5, 0.9, "")
    assert ranked([slow, fast]) == [fast, slow]


def test_nothing_was_measured_at_another_point() -> None:
    assert effects_by_ablation(study(sdpa=90), Point("small", "f32", 8, 128)) == []


COMPLETE = {"sdpa": 90, "checkpoint": 50, "mixed": 94, "fused_norm": 93}


def write(folder: Path, made: Study) -> None:
    (folder / "ablation_card.json").write_text(result_text(made), encoding="utf-8")


def test_the_reference_of_this_device_is_found(tmp_path: Path) -> None:
    (tmp_path / "ablation_broken.json").write_text("{")
    write(tmp_path, study(**COMPLETE))
    path, effects = find_reference(tmp_path, CONTEXT, POINT)
    assert path == tmp_path / "ablation_card.json"
    assert len(effects) == len(OPTIMIZATIONS)


@pytest.mark.parametrize(
    "change", [{"name": "Other"}, {"architecture": "gfx90a"}, {"backend": "cuda"}]
)
def test_the_reference_of_another_device_is_not(tmp_path: Path, change: dict[str, str]) -> None:
    write(tmp_path, study(**COMPLETE))
    other = {**CONTEXT, "device": {**CONTEXT["device"], **change}}
    assert find_reference(tmp_path, other, POINT) == (None, [])


def test_a_cpu_with_other_threads_is_another_device(tmp_path: Path) -> None:
    made = study(**COMPLETE)
    made.context = {"device": {"name": "CPU", "backend": "cpu"}, "threads": 2}
    write(tmp_path, made)
    assert find_reference(tmp_path, made.context, POINT)[0] is not None
    assert find_reference(tmp_path, {**made.context, "threads": 8}, POINT)[0] is None


def test_a_reference_that_lacks_one_of_the_four_does_not_rank(tmp_path: Path) -> None:
    write(tmp_path, study(sdpa=90, checkpoint=50, mixed=94))
    assert find_reference(tmp_path, CONTEXT, POINT) == (None, [])


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"attention_scores": 9}, "attention"),
        ({"activations": 9}, "activations"),
        ({"optimizer_states": 9}, "parameters"),
        ({"held": 9}, "fragmentation"),
    ],
)
def test_targets_are_parts_of_the_peak(parts: dict[str, int], name: str) -> None:
    targets = target_shares(memory(**parts))
    assert targets[name] == 9
    assert sum(targets.values()) == 9
