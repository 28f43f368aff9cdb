"""Names of cases (component/pass/variant/size/dtype/batch:B/seq:S) and of collectives, and what
files store of them. The name of a data-parallel step goes on with /ranks:N/mode.

Below that, the parts that a step, a block and attention are the sum of. full_step = embedding +
L x attention + L x ffn + (2L + 1) x rms_norm + loss + optimizer; where attention or ffn was not
measured, the layers are L x block + rms_norm."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

CASE_PATTERN = re.compile(
    r"(?P<component>[^/]+)/(?P<pass_name>[^/]+)/(?P<variant>[^/]+)/(?P<size>[^/]+)/"
    r"(?P<dtype>[^/]+)/batch:(?P<batch>[1-9]\d*)/seq:(?P<seq>[1-9]\d*)"
    r"(?:/ranks:(?P<ranks>[1-9]\d*)/(?P<mode>[a-z][a-z0-9_]*))?"
)
# what Google Benchmark appends to a name, as in files of ours until 2026
TIMED_BY = "/manual_time"
# run_type of a row that was measured; others are aggregates
ITERATION = "iteration"
# of a whole training step
STEP, TRAIN = "full_step", "train"


# of every case, as a row in a result file has them
AXES = ("component", "pass", "variant", "size", "dtype", "batch", "seq")


@dataclass(frozen=True)
class CaseName:
    """A case by its axes. `ranks`, `mode`: those of a step over several ranks
    (docs/distributed.md), whose `batch` is that of each rank, of `tensor` that of all together;
    None and empty for every other case."""

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
        """The axes as keys of a row in a result file."""
        return dict(zip(AXES, astuple(self), strict=False))

    @property
    def is_data_parallel(self) -> bool:
        """Whether it is a step of tiny_llama_scaling."""
        return self.ranks is not None

    @property
    def is_training_step(self) -> bool:
        """Whether it is a whole training step of one process."""
        return (self.component, self.pass_name) == (STEP, TRAIN) and not self.is_data_parallel


def full_step(size: str, dtype: str, batch: int, seq: int, variant: str = "baseline") -> CaseName:
    """The training step of one process."""
    return CaseName(STEP, TRAIN, variant, size, dtype, batch, seq)


def parse_case_name(text: str) -> CaseName | None:
    """The case of a name; None for a name of another form, such as peak/bandwidth."""
    found = CASE_PATTERN.fullmatch(text.removesuffix(TIMED_BY))
    if found is None:
        return None
    axes: dict[str, Any] = found.groupdict() | {"mode": found["mode"] or ""}
    numbers = {key: int(axes[key]) for key in ("batch", "seq", "ranks") if axes[key] is not None}
    return CaseName(**axes | numbers)


ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all_reduce", "reduce_scatter", "all_gather"
OPERATIONS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)
# kinds of scaling, and modes of a step over several ranks
WEAK, STRONG = "weak", "strong"
ALONE, LOCAL, NO_OVERLAP, OVERLAP = "alone", "local", "no_overlap", "overlap"
# strong scaling's step of the whole batch on one rank
ALONE_GLOBAL = "alone_global"
SHARDED, COMMUNICATION = "sharded", "communication"
ZERO3, ZERO3_NO_OVERLAP, TENSOR = "zero3", "zero3_no_overlap", "tensor"
# modes of a step of all ranks; efficiency is that of the first which was measured
STEPS = (OVERLAP, NO_OVERLAP, SHARDED, ZERO3, ZERO3_NO_OVERLAP, TENSOR)
# c10d's back-end for CPUs
GLOO = "gloo"
COLLECTIVE_PATTERN = re.compile(
    rf"(?P<operation>{'|'.join(OPERATIONS)})/(?P<dtype>[^/]+)/bytes:(?P<bytes>\d+)/ranks:(?P<ranks>\d+)"
)


class CollectiveName(NamedTuple):
    """A collective. `bytes`, as nccl-tests counts them: the whole vector, which is every rank's for
    all_reduce, a rank's input for reduce_scatter, and its output for all_gather."""

    operation: str
    dtype: str
    bytes: int
    ranks: int

    def __str__(self) -> str:
        return f"{self.operation}/{self.dtype}/bytes:{self.bytes}/ranks:{self.ranks}"


def parse_collective_name(text: str) -> CollectiveName | None:
    """The collective of a name; None for a name of another form."""
    found = COLLECTIVE_PATTERN.fullmatch(text.removesuffix(TIMED_BY))
    if found is None:
        return None
    numbers = (int(found[key]) for key in ("bytes", "ranks"))
    return CollectiveName(found["operation"], found["dtype"], *numbers)


# in the label of a row whose time is doubtful; its reason follows, up to the next remark
DISTURBED = re.compile(r"(?:^|; )disturbed: ([^;]*)")


@dataclass(frozen=True)
class StoredCase:
    """A case of one file.

    `seconds`: of an iteration, the median over `repetitions`; None where the case was skipped or
    failed, for the reason in `skipped` or `failed`. `counters`: medians too. `varying`: counters
    that differ between repetitions. `label`: the program's remarks. `above_peak`: why the case has
    no shares of peaks, else empty. `each`: seconds of every repetition; empty where the file has
    only their median. `cpu_seconds`: of the timing thread, a median too. `ends`: in seconds, of the
    time's interval that the file has.
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
    cpu_seconds: float | None = None
    ends: tuple[float, float] | None = None

    @property
    def reason(self) -> str:
        """Why it was not measured."""
        return self.failed or self.skipped

    @property
    def disturbance(self) -> str:
        """Why its time is doubtful; empty where the program found nothing."""
        found = DISTURBED.search(self.label)
        return found[1] if found else ""


# Google Benchmark's own keys of a row; every other number is a counter.
OWN_KEYS = {
    *("family_index", "per_family_instance_index", "repetitions", "repetition_index", "threads"),
    *("iterations", "real_time", "cpu_time", "mean_ns", "batch", "seq"),
    # of our schema 3
    *("median_ns", "median_interval_ns"),
}
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class StoredRun:
    """The content of a result file: `cases`, and `peaks` of the machine, by name. `digest`:
    identifies the file's bytes. `configuration`: what a training run was asked to do, which in
    other files the names of cases say. `order`: names of cases and peaks, as the file has them."""

    path: Path
    context: Mapping[str, Any]
    cases: Mapping[str, StoredCase]
    peaks: Mapping[str, StoredCase] = field(default_factory=dict)
    digest: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    @property
    def in_order(self) -> list[tuple[str, StoredCase]]:
        """Cases and peaks by name, as the file has them."""
        every = {**self.peaks, **self.cases}
        return [(name, every[name]) for name in self.order]


BASELINE, OPTIMIZED, CHECKPOINT = "baseline", "optimized", "checkpoint"
# in the name of an operator of a plug-in, between its namespace and its slot
OPERATOR = "::"
FUSED = frozenset({"qkv", "gate_up", "fused_swiglu", "sdpa", "fused_adamw"})
PRODUCTS = frozenset({"tiled_gemm", "wide_gemm", "layout"})
# component: the switches that change it; with any others, and no operator, it is the baseline's
_OF_PARTS: Mapping[str, frozenset[str]] = {
    "embedding": frozenset(),
    "rms_norm": frozenset({"fused_norm"}),
    "rotary": frozenset({"fused_rotary"}),
    "attention": frozenset({"qkv", "sdpa", "fused_attention", "fused_rotary"}) | PRODUCTS,
    "ffn": frozenset({"gate_up", "fused_swiglu"}) | PRODUCTS,
    "loss": frozenset({"fused_loss"}) | PRODUCTS,
    "optimizer": frozenset({"foreach_adamw", "fused_adamw", "library_adamw", "layout"}),
}
_OF_BLOCK = _OF_PARTS["rms_norm"] | _OF_PARTS["attention"] | _OF_PARTS["ffn"] | {CHECKPOINT}
SWITCHES: Mapping[str, frozenset[str]] = {
    **_OF_PARTS,
    "block": _OF_BLOCK,
    # the model's cases say nothing of a step that was captured
    "model": _OF_BLOCK | _OF_PARTS["loss"] | {"graph"},
}
_BLOCK_AND_MODEL = frozenset({"block", "model"})
# slot: the components that an operator in it changes, other than the whole step
SLOTS: Mapping[str, frozenset[str]] = {
    "rms_norm": frozenset({"rms_norm"}) | _BLOCK_AND_MODEL,
    "rms_norm_residual": _BLOCK_AND_MODEL,
    "rotary": frozenset({"rotary", "attention"}) | _BLOCK_AND_MODEL,
    "causal_attention": frozenset({"attention"}) | _BLOCK_AND_MODEL,
    "swiglu": frozenset({"ffn"}) | _BLOCK_AND_MODEL,
    "linear": frozenset({"attention", "ffn", "loss"}) | _BLOCK_AND_MODEL,
    "linear_cross_entropy": frozenset({"loss", "model"}),
    "adamw_step_": frozenset({"optimizer"}),
}
# the case of a step of the training program, which is the sum of its phases
TRAINING_STEP = "training/step"
_PHASES = ("data_loading", "forward", "backward", "optimizer", "evaluation", "other")
# phase: its case
TRAINING_PHASES = {phase: f"training/{phase}" for phase in _PHASES}
# pass of a whole: that of its parts, where it is another one
PART_PASSES = {"train": "forward_backward", "forward_loss": "forward"}


class Part(NamedTuple):
    """A case that a whole consists of, and how often."""

    case: str
    count: int


class Parts(NamedTuple):
    """The parts of a whole; `missing`: names of those that were not measured."""

    measured: tuple[Part, ...]
    missing: tuple[str, ...]


def _split(variant: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of a variant that are no operators, and its operators in order."""
    names = variant.split("+")
    operators = tuple(name for name in names if OPERATOR in name)
    return frozenset(names) - {BASELINE, *operators}, operators


# stands for the operators of --plugin in a variant
PLUGIN = "plugin"


def with_plugin(variant: str) -> str:
    """The variant with the operators of --plugin, as the program takes it."""
    return PLUGIN if variant == BASELINE else f"{variant}+{PLUGIN}"


def switches_named(variant: str) -> frozenset[str]:
    """The switches of a variant; none for `optimized`, whose switches depend on the case. Operators
    are no switches."""
    names = _split(variant)[0] - {OPTIMIZED}
    return (names - {"fused"}) | FUSED if "fused" in names else names


def operators_named(variant: str) -> tuple[str, ...]:
    """The operators of a variant that fill slots, such as `my::rms_norm`."""
    return _split(variant)[1]


def without_operators(variant: str) -> str:
    """A variant's switches, or the set that it names: `optimized` of `optimized+my::rms_norm`."""
    return "+".join(name for name in variant.split("+") if OPERATOR not in name) or BASELINE


def case_without_operators(case: str) -> str:
    """The name of the case that has the model's own operations in place of a variant's
    operators."""
    name = parse_case_name(case)
    return str(replace(name, variant=without_operators(name.variant))) if name else case


def slot_of(operator: str) -> str:
    """`rms_norm` of `my::rms_norm` and of `my::rms_norm.fast`."""
    return operator.rpartition(OPERATOR)[2].partition(".")[0]


def measured_as(case: CaseName, measured: Collection[str]) -> str:
    """The case that measures this one: itself; where its operators do not change its component, the
    one without them; and where its switches do not either, the baseline."""
    slots = map(slot_of, operators_named(case.variant))
    if str(case) in measured or any(case.component in SLOTS.get(slot, ()) for slot in slots):
        return str(case)
    case = replace(case, variant=without_operators(case.variant))
    if str(case) in measured or case.component not in SWITCHES:
        return str(case)
    # the switches of `optimized` depend on the case: any that can change the component may be there
    own = SWITCHES[case.component]
    wanted = own if case.variant == OPTIMIZED else switches_named(case.variant)
    return str(case if wanted & own else replace(case, variant=BASELINE))


def _name_of_part(whole: CaseName, component: str, measured: Collection[str]) -> str:
    """The case that is a component's part of a whole."""
    pass_name = PART_PASSES.get(whole.pass_name, whole.pass_name)
    if component == "optimizer":
        pass_name = "update"
    return measured_as(replace(whole, component=component, pass_name=pass_name), measured)


def _counts(whole: CaseName, layers: int | None, measured: Collection[str]) -> dict[str, int]:
    """How often a whole contains each component; empty for a case that has no parts."""
    # a checkpointed layer computes its forward twice, which is in the time of the block alone
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
    """The parts of a case, which may have none. `measured`: names of all cases. `layers`: of its
    size, None where that is not known."""
    counts = _counts(whole, layers, measured)
    parts = [Part(_name_of_part(whole, name, measured), n) for name, n in counts.items()]
    return Parts(
        tuple(part for part in parts if part.case in measured),
        tuple(part.case for part in parts if part.case not in measured),
    )


def wholes_among(
    measured: Collection[str], layers: Mapping[str, int]
) -> Iterator[tuple[str, Parts]]:
    """Each case that has measured parts, with its parts. `layers`: the number of layers of each
    size."""
    for text in measured:
        name = parse_case_name(text)
        if name is not None:
            parts = parts_of(name, layers.get(name.size), measured)
        elif text == TRAINING_STEP:
            # a phase that took no time, such as evaluation, is not a missing part
            phases = (case for case in TRAINING_PHASES.values() if case in measured)
            parts = Parts(tuple(Part(case, 1) for case in phases), ())
        else:
            continue
        if parts.measured:
            yield text, parts
