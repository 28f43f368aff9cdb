"""Counters of a case on both sides: which way each is better, and which are deterministic."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tinyllama_tools.compare.comparison import CounterChange


@dataclass(frozen=True)
class Kind:
    """`is_better_when`: +1 larger, -1 smaller, 0 neither. `exact`: the same of every run."""

    is_better_when: int
    exact: bool


SMALLER, LARGER, NEITHER = -1, 1, 0
RATE = Kind(LARGER, exact=False)
COST = Kind(SMALLER, exact=True)
FACT = Kind(NEITHER, exact=True)
LOSS = Kind(SMALLER, exact=False)
KINDS: Mapping[str, Kind] = {
    "samples_per_second": RATE,
    "tokens_per_second": RATE,
    "speedup": RATE,
    "TFLOPS": RATE,
    "MFU_percent": RATE,
    "MFU_causal_percent": RATE,
    "peak_percent": RATE,
    "roof_percent": RATE,
    "GB_per_second": RATE,
    "peak_memory_MiB": COST,
    "allocations": COST,
    "operators": COST,
    "kernels": COST,
    "hardware_flops": COST,
    "counted_flops": COST,
    "parameters": FACT,
    "model_flops": COST,
    "causal_flops": COST,
    "elementwise_flops": COST,
    "lookup_flops": COST,
    "opaque_flops": COST,
    "bytes": COST,
    "predicted_memory_MiB": COST,
    # a library's own decision, which may differ from run to run
    "library_scratch_MiB": Kind(SMALLER, exact=False),
    "flop_per_byte": FACT,
    # threads may add up in another order, so that the last digits differ from run to run
    "max_rel_error": Kind(SMALLER, exact=False),
    # of data-parallel steps and of collectives; what is lost or waited for is the less the better
    "ranks": FACT,
    "message_bytes": FACT,
    "weak_efficiency_percent": RATE,
    "strong_efficiency_percent": RATE,
    "overlap_percent": RATE,
    "algorithm_GB_per_second": RATE,
    "bus_GB_per_second": RATE,
    "communication_percent": LOSS,
    "loss_small_batch_percent": LOSS,
    "loss_slower_local_percent": LOSS,
    "loss_imbalance_percent": LOSS,
    "loss_communication_percent": LOSS,
    # of the training program
    "final_loss": Kind(NEITHER, exact=False),
}
# an unknown counter is shown, but nobody can say that it got worse
UNKNOWN = Kind(NEITHER, exact=False)
# What is shown of a case whose time changed, beside time itself.
HEADLINE = ("samples_per_second", "TFLOPS", "MFU_percent", "peak_memory_MiB")


ORDER = {name: i for i, name in enumerate(dict.fromkeys((*HEADLINE, *KINDS)))}


def counter_change(
    name: str, base: float | None, new: float | None, *, varies: bool = False
) -> CounterChange:
    """Exact counters to the last digit; `worse` of the others is only which way they moved.

    None: a side does not have it, which is neither worse nor better. `varies`: runs of one side
    disagree about it, so it is not exact after all.
    """
    kind = KINDS.get(name, UNKNOWN)
    moved = 0.0 if base is None or new is None else (new - base) * kind.is_better_when
    is_exact = kind.exact and not varies
    return CounterChange(name, base, new, is_exact, worse=moved < 0, better=moved > 0)


def compare_counters(
    base: Mapping[str, float], new: Mapping[str, float], varying: Collection[str] = ()
) -> tuple[CounterChange, ...]:
    """Every counter of either side, in the order in which people read them.

    None at all where a side has no counter: it was not measured there, which its case says itself.
    """
    if not base or not new:
        return ()
    names = sorted(base.keys() | new.keys(), key=lambda name: (ORDER.get(name, len(ORDER)), name))
    return tuple(
        counter_change(name, base.get(name), new.get(name), varies=name in varying)
        for name in names
    )
