"""Names of cases (component/pass/variant/size/dtype/batch:B/seq:S) and of collectives, and what
is stored of them.

A data-parallel step has /ranks:N/mode after that. Collectives are no cases.

Below, which cases a case is made of: the sum of parts of a step, of a block and of attention.
full_step = embedding + L x attention + L x ffn + (2L + 1) x rms_norm + loss + optimizer; where
attention or ffn was not measured, L x block + rms_norm is taken for the layers."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

CASE_PATTERN = re.compile(
    r"(?P<component>[^/]+)/(?P<pass_name>[^/]+)/(?P<variant>[^/]+)/(?P<size>[^/]+)/"
    r"(?P<dtype>[^/]+)/batch:(?P<batch>[1-9]\d*)/seq:(?P<seq>[1-9]\d*)"
    r"(?:/ranks:(?P<ranks>[1-9]\d*)/(?P<mode>[a-z_]+))?"
)
# what Google Benchmark appends, and files of ours had until 2026
TIMED_BY = "/manual_time"
# kind of a row that was measured, beside those of aggregates
ITERATION = "iteration"
# of a whole training step
STEP, TRAIN = "full_step", "train"


@dataclass(frozen=True)
class CaseName:
    """A case by its axes. `ranks`, `mode`: of a data-parallel step (docs/distributed.md), whose
    `batch` is that of each rank; None and empty of every other case."""

    component: str
    pass_name: str
    variant: str
    size: str
    dtype: str
    batch: int
    seq: int
    ranks: int | None = None
    mode: str = ""

    def __str__(self) -> str:
        axes = (self.component, self.pass_name, self.variant, self.size, self.dtype)
        alone = f"{'/'.join(axes)}/batch:{self.batch}/seq:{self.seq}"
        return f"{alone}/ranks:{self.ranks}/{self.mode}" if self.is_data_parallel else alone

    @property
    def axes(self) -> dict[str, str | int]:
        """As the rows of a result file have them."""
        return {
            "component": self.component,
            "pass": self.pass_name,
            "variant": self.variant,
            "size": self.size,
            "dtype": self.dtype,
            "batch": self.batch,
            "seq": self.seq,
        }

    @property
    def is_data_parallel(self) -> bool:
        """Whether tiny_llama_scaling timed it, as one of several ways to do a step."""
        return self.ranks is not None

    @property
    def is_training_step(self) -> bool:
        """Whether it is a whole training step of one process."""
        return (self.component, self.pass_name) == (STEP, TRAIN) and not self.is_data_parallel


def full_step(size: str, dtype: str, batch: int, seq: int, variant: str = "baseline") -> CaseName:
    """The training step of one process."""
    return CaseName(STEP, TRAIN, variant, size, dtype, batch, seq)


def parse_case_name(text: str) -> CaseName | None:
    """None for names that are not of this form (peak/bandwidth)."""
    found = CASE_PATTERN.fullmatch(text.removesuffix(TIMED_BY))
    if found is None:
        return None
    axes: dict[str, Any] = found.groupdict() | {"mode": found["mode"] or ""}
    numbers = {key: int(axes[key]) for key in ("batch", "seq", "ranks") if axes[key] is not None}
    return CaseName(**axes | numbers)


ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all_reduce", "reduce_scatter", "all_gather"
OPERATIONS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)
# of steps over several ranks
WEAK, STRONG = "weak", "strong"
ALONE, LOCAL, NO_OVERLAP, OVERLAP = "alone", "local", "no_overlap", "overlap"
# of the whole batch on one rank (strong scaling)
ALONE_GLOBAL = "alone_global"
SHARDED, COMMUNICATION = "sharded", "communication"
# ways of a data-parallel step, the one that counts first
STEPS = (OVERLAP, NO_OVERLAP, SHARDED)
GLOO = "gloo"  # a back-end on processors
COLLECTIVE_PATTERN = re.compile(
    rf"(?P<operation>{'|'.join(OPERATIONS)})/(?P<dtype>[^/]+)/bytes:(?P<bytes>\d+)/ranks:(?P<ranks>\d+)"
)


class CollectiveName(NamedTuple):
    """`bytes` as nccl-tests counts them: the whole vector (all_reduce: of every rank;
    reduce_scatter: the input of a rank; all_gather: the output of a rank)."""

    operation: str
    dtype: str
    bytes: int
    ranks: int

    def __str__(self) -> str:
        return f"{self.operation}/{self.dtype}/bytes:{self.bytes}/ranks:{self.ranks}"


def parse_collective_name(text: str) -> CollectiveName | None:
    """None for names that are not of this form."""
    found = COLLECTIVE_PATTERN.fullmatch(text.removesuffix(TIMED_BY))
    if found is None:
        return None
    numbers = (int(found[key]) for key in ("bytes", "ranks"))
    return CollectiveName(found["operation"], found["dtype"], *numbers)


@dataclass(frozen=True)
class StoredCase:
    """A case of one file.

    `seconds`: of an iteration, the median over `repetitions`; None where it was skipped or failed,
    which `skipped` and `failed` give the reason for. `counters`: medians too. `varying`: counters
    that were not the same in every repetition. `label`: what the program says of the row.
    `above_peak`: why it has no shares of peaks; empty where it has. `each`: seconds of every
    repetition, empty where only their median is there.
    """

    seconds: float | None = None
    repetitions: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    skipped: str = ""
    failed: str = ""
    label: str = ""
    above_peak: str = ""
    each: tuple[float, ...] = ()

    @property
    def reason(self) -> str:
        """Why it has no figure."""
        return self.failed or self.skipped


# Google Benchmark's own keys of a repetition; every other number is a counter.
OWN_KEYS = {
    *("family_index", "per_family_instance_index", "repetitions", "repetition_index", "threads"),
    *("iterations", "real_time", "cpu_time", "mean_ns", "batch", "seq"),
    # of schema 3
    *("median_ns", "median_interval_ns"),
}
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class StoredRun:
    """`cases` by name; `peaks`: rows that measure the machine, likewise. `context`: what the
    figures belong to. `digest`: the same of the same file. `configuration`: of a training run, what
    it was asked to do; names of cases say so elsewhere."""

    path: Path
    context: Mapping[str, Any]
    cases: Mapping[str, StoredCase]
    peaks: Mapping[str, StoredCase] = field(default_factory=dict)
    digest: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


BASELINE, OPTIMIZED, CHECKPOINT = "baseline", "optimized", "checkpoint"
FUSED = frozenset({"qkv", "gate_up", "fused_swiglu", "sdpa", "fused_adamw"})
PRODUCTS = frozenset({"tiled_gemm", "wide_gemm", "layout"})
# Switches that change a component; the others leave it as the baseline has it.
SWITCHES: Mapping[str, frozenset[str]] = {
    "embedding": frozenset(),
    "rms_norm": frozenset({"fused_norm"}),
    "rotary": frozenset({"fused_rotary"}),
    "attention": frozenset({"qkv", "sdpa", "fused_attention", "fused_rotary"}) | PRODUCTS,
    "ffn": frozenset({"gate_up", "fused_swiglu"}) | PRODUCTS,
    "loss": frozenset({"fused_loss"}) | PRODUCTS,
    "optimizer": frozenset({"foreach_adamw", "fused_adamw", "library_adamw", "layout"}),
}
# What a step of the training program adds up to.
TRAINING_STEP = "training/step"
_PHASES = ("data_loading", "forward", "backward", "optimizer", "evaluation", "other")
# by phase, the name that it is compared under
TRAINING_PHASES = {phase: f"training/{phase}" for phase in _PHASES}
# Passes of a whole's parts by the pass of the whole.
PART_PASSES = {"train": "forward_backward", "forward_loss": "forward"}


class Part(NamedTuple):
    """A case and how often the whole contains it."""

    case: str
    count: int


class Parts(NamedTuple):
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


def _counts(whole: CaseName, layers: int | None, measured: Collection[str]) -> dict[str, int]:
    """How often the whole contains each component; empty for what is no whole."""
    # a checkpointed layer computes its forward twice, which only the block's time has
    computes_again = CHECKPOINT in switches_named(whole.variant)
    if whole.component == "attention":
        return {"rotary": 1}
    if whole.component == "block" and not computes_again:
        return {"attention": 1, "ffn": 1, "rms_norm": 2}
    if whole.component not in {"full_step", "model"} or layers is None:
        return {}
    has = {
        part: _name_of_part(whole, part, measured) in measured
        for part in ("attention", "ffn", "block")
    }
    if computes_again or (has["block"] and not (has["attention"] and has["ffn"])):
        counts = {"embedding": 1, "block": layers, "rms_norm": 1}
    else:
        counts = {"embedding": 1, "attention": layers, "ffn": layers, "rms_norm": 2 * layers + 1}
    if whole.pass_name != "forward":
        counts["loss"] = 1
    return counts | ({"optimizer": 1} if whole.component == "full_step" else {})


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
            # a phase that took no time, such as evaluation, is no part that somebody forgot
            phases = (case for case in TRAINING_PHASES.values() if case in measured)
            parts = Parts(tuple(Part(case, 1) for case in phases), ())
        else:
            continue
        if parts.measured:
            yield text, parts
