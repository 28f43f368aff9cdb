"""What more devices would give: step time and efficiency from a local step and a model of links.

A projection, not a measurement. With L the local step and C the all-reduces of all buckets,
    nothing hidden        T = L + C
    as much as can be     T = L + max(C_last, C - b L)
where b is the share of the local step that is backward, in which buckets may travel, and C_last the
last bucket, which is ready only when the backward ends. Where overlap was measured, T between the
two has that share of C hidden which was hidden of the sums timed by themselves, though never more
than can be.
    weak:   every device has a batch of its own,  efficiency = L / T
    strong: the devices share G samples,          efficiency = L(G) / (N T)
Ranks are taken as equally fast, links as free of other traffic: imbalance, slower local work, start
of operations and input are in no figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tinyllama_tools.scaling.collective_models import NONE, Hierarchy, all_reduce
from tinyllama_tools.scaling.interconnects import Interconnect
from tinyllama_tools.scaling.local_step import LocalStep
from tinyllama_tools.scaling.weak_strong import STRONG, WEAK

PROJECTION = "projection"
RANKS = tuple(2**power for power in range(3, 13))
GLOBAL_BATCH = 4096
# By FLOPs the backward is twice the forward; what the optimizer takes is not counted off.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True)
class Communication:
    """Seconds of all buckets one after the other, of the `last`, and the algorithms that are best
    for them."""

    seconds: float
    last: float
    algorithm: str


@dataclass(frozen=True)
class ProjectedStep:
    """`seconds_low` to `seconds_high`: as much hidden as can be, and nothing; `seconds_between`:
    with the measured overlap share, None where there is none. Efficiencies in percent, low with
    high seconds. `batch`: of each device. `local_kind`: whether the local step was measured or is a
    prediction itself. `kind`: always PROJECTION."""

    size: str
    interconnect: str
    scaling: str
    ranks: int
    batch: float
    local_seconds: float
    communication_seconds: float
    algorithm: str
    seconds_low: float
    seconds_high: float
    seconds_between: float | None
    efficiency_low: float
    efficiency_high: float
    efficiency_between: float | None
    local_kind: str
    kind: str = PROJECTION

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def communication_of(ranks: int, buckets: Sequence[float], links: Hierarchy) -> Communication:
    """Of the gradients of one step."""
    timed = [all_reduce(ranks, size, links) for size in buckets]
    names = dict.fromkeys(one.algorithm for one in timed)
    algorithm = " and ".join(names) if names else NONE
    last = timed[-1].seconds if timed else 0.0
    return Communication(sum(one.seconds for one in timed), last, algorithm)


def step_bounds(
    local: float, hiding: float, of: Communication, overlap: float | None
) -> tuple[float, float, float | None]:
    """Low, high and between. `hiding`: seconds of the step in which buckets may travel.
    `overlap`: share of the communication that is hidden, 0 to 1."""
    exposed_least = max(of.last, of.seconds - hiding)
    between = None
    if overlap is not None:
        between = local + max(exposed_least, (1 - overlap) * of.seconds)
    return local + exposed_least, local + of.seconds, between


@dataclass(frozen=True)
class Setting:
    """What one projection is of: a size's step and buckets, over an interconnect. `overlap`: share
    that is measured, None where it is not."""

    step: LocalStep
    buckets: Sequence[float]
    interconnect: Interconnect
    overlap: float | None = None
    backward_share: float = BACKWARD_SHARE

    def at(self, ranks: int, batch: float, scaling: str) -> ProjectedStep:
        """`batch` of each device. ValueError for fewer than one device or sample."""
        if ranks < 1 or batch < 1:
            raise ValueError(f"{ranks} ranks with {batch:g} samples each: at least 1 of both")
        local = self.step.seconds_at(batch)
        # of several batches one after the other, only the last one's backward has all gradients
        hiding = self.backward_share * self.step.seconds_at(min(batch, self.step.name.batch))
        of = communication_of(ranks, self.buckets, self.interconnect.hierarchy)
        low, high, between = step_bounds(local, hiding, of, self.overlap)
        ideal = local if scaling == WEAK else self.step.seconds_at(batch * ranks) / ranks
        share = {name: 100 * ideal / value for name, value in (("low", low), ("high", high))}
        return ProjectedStep(
            self.step.name.size,
            self.interconnect.name,
            scaling,
            ranks,
            batch,
            local,
            of.seconds,
            of.algorithm,
            low,
            high,
            between,
            efficiency_low=share["high"],
            efficiency_high=share["low"],
            efficiency_between=100 * ideal / between if between is not None else None,
            local_kind=self.step.kind,
        )


def project(
    setting: Setting,
    ranks: Iterable[int] = RANKS,
    global_batch: int = GLOBAL_BATCH,
) -> list[ProjectedStep]:
    """Weak at the step's own batch; strong as far as every device has at least one sample."""
    numbers = list(ranks)
    weak = [setting.at(number, setting.step.name.batch, WEAK) for number in numbers]
    strong = [
        setting.at(number, global_batch / number, STRONG)
        for number in numbers
        if number <= global_batch
    ]
    return [*weak, *strong]
