"""Which cases a case is made of: the sum of parts of a step, of a block and of attention.

full_step = embedding + L x attention + L x ffn + (2L + 1) x rms_norm + loss + optimizer; where
attention or ffn was not measured, L x block + rms_norm is taken for the layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from tinyllama_tools.data.names import CaseName, parse_case_name

BASELINE, OPTIMIZED = "baseline", "optimized"
FUSED = frozenset({"qkv", "gate_up", "fused_swiglu", "sdpa", "fused_adamw"})
PRODUCTS = frozenset({"onednn", "wide_gemm", "layout"})
CHECKPOINT = "checkpoint"
# Switches that change a component; the others leave it as the baseline has it.
SWITCHES: Mapping[str, frozenset[str]] = {
    "embedding": frozenset(),
    "rms_norm": frozenset({"fused_norm"}),
    "rotary": frozenset({"fused_rotary"}),
    "attention": frozenset({"qkv", "sdpa", "fused_attention", "fused_rotary"}) | PRODUCTS,
    "ffn": frozenset({"gate_up", "fused_swiglu"}) | PRODUCTS,
    "loss": frozenset({"fused_loss"}) | PRODUCTS,
    "optimizer": frozenset({"foreach_adamw", "fused_adamw", "layout"}),
}
# What a step of the training program adds up to.
TRAINING_STEP = "training/step"
TRAINING_PHASES = ("data_loading", "forward", "backward", "optimizer", "evaluation", "other")
# Passes of a whole's parts by the pass of the whole.
PART_PASSES = {"train": "forward_backward", "forward_loss": "forward"}
WITHOUT_LOSS = "forward"


@dataclass(frozen=True)
class Part:
    """A case and how often the whole contains it."""

    case: str
    count: int


@dataclass(frozen=True)
class Parts:
    """`measured`: those that were; `missing`: names of those that were not."""

    measured: tuple[Part, ...]
    missing: tuple[str, ...]


def switches_named(variant: str) -> frozenset[str]:
    """Those that a variant's name stands for; none for `optimized`, which depends on the case."""
    names = frozenset(variant.split("+")) - {BASELINE, OPTIMIZED}
    return (names - {"fused"}) | FUSED if "fused" in names else names


def _name_of_part(whole: CaseName, component: str, measured: Collection[str]) -> str:
    """As the suite names it: of the whole's variant, or the baseline where that changes nothing."""
    pass_name = PART_PASSES.get(whole.pass_name, whole.pass_name)
    if component == "optimizer":
        pass_name = "update"
    part = replace(whole, component=component, pass_name=pass_name)
    if str(part) in measured or component not in SWITCHES:
        return str(part)
    # which switches `optimized` has depends on the case, so it is `changed` wherever it can be
    wanted = SWITCHES[component] if whole.variant == OPTIMIZED else switches_named(whole.variant)
    changed = wanted & SWITCHES[component]
    return str(part) if changed else str(replace(part, variant=BASELINE))


def _layer_counts(whole: CaseName, layers: int, measured: Collection[str]) -> dict[str, int]:
    """The parts of all layers and the final norm."""
    fine = ("attention", "ffn")
    is_fine = all(_name_of_part(whole, part, measured) in measured for part in fine)
    has_block = _name_of_part(whole, "block", measured) in measured
    # a checkpointed layer computes its forward twice, which only the block's time has
    computes_again = CHECKPOINT in switches_named(whole.variant)
    if (has_block and not is_fine) or computes_again:
        return {"block": layers, "rms_norm": 1}
    return {"attention": layers, "ffn": layers, "rms_norm": 2 * layers + 1}


def _counts(whole: CaseName, layers: int | None, measured: Collection[str]) -> dict[str, int]:
    """How often the whole contains each component; empty for what is no whole."""
    if whole.component == "attention":
        return {"rotary": 1}
    if whole.component == "block" and CHECKPOINT not in switches_named(whole.variant):
        return {"attention": 1, "ffn": 1, "rms_norm": 2}
    if whole.component not in {"full_step", "model"} or layers is None:
        return {}
    counts = {"embedding": 1, **_layer_counts(whole, layers, measured)}
    if whole.pass_name != WITHOUT_LOSS:
        counts["loss"] = 1
    if whole.component == "full_step":
        counts["optimizer"] = 1
    return counts


def parts_of(whole: CaseName, layers: int | None, measured: Collection[str]) -> Parts:
    """Of a whole; without any part for a case that is none. `measured`: names of all cases.

    `layers`: of the whole's size, None where that is not known.
    """
    counts = _counts(whole, layers, measured)
    parts = [Part(_name_of_part(whole, name, measured), n) for name, n in counts.items()]
    return Parts(
        tuple(part for part in parts if part.case in measured),
        tuple(part.case for part in parts if part.case not in measured),
    )


def training_case(phase: str) -> str:
    """The name that a phase of a training step is compared under."""
    return f"training/{phase}"


def _training_parts(measured: Collection[str]) -> Parts:
    # a phase that took no time, such as evaluation, is no part that somebody forgot to measure
    names = [training_case(phase) for phase in TRAINING_PHASES]
    return Parts(tuple(Part(name, 1) for name in names if name in measured), ())


def wholes_among(
    measured: Collection[str], layers: Mapping[str, int]
) -> Iterator[tuple[str, Parts]]:
    """Every case of which at least one part was measured too, with its parts.

    `layers`: number of layers by the name of a size.
    """
    for text in measured:
        name = parse_case_name(text)
        if name is not None:
            parts = parts_of(name, layers.get(name.size), measured)
        elif text == TRAINING_STEP:
            parts = _training_parts(measured)
        else:
            continue
        if parts.measured:
            yield text, parts
