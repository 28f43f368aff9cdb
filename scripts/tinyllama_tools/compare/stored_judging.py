"""Verdicts on stored cases: over files where there are several a side, else by a noise profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyllama_tools.compare.profile_of_noise import NoiseProfile
from tinyllama_tools.compare.side_cases import SideCase
from tinyllama_tools.stats.unpaired import judge_unpaired, judge_with_profile
from tinyllama_tools.stats.verdicts import Judgement, fewest_files

Sides = tuple[SideCase, SideCase]
# fewer files of a side have no scatter between them
FEWEST_FILES = 2
SEVERAL, PROFILE, NONE = "exact rank sum over files", "recorded noise profile", "none"
CORRECTIONS = {SEVERAL: "Holm over cases", PROFILE: "Bonferroni over cases", NONE: "none"}


@dataclass(frozen=True)
class Verdicts:
    """`judgements` by case; `notes` too. `test`: one of SEVERAL, PROFILE, NONE."""

    judgements: Mapping[str, Judgement]
    test: str
    notes: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def _several_needed(cases: int, alpha: float) -> str:
    files = fewest_files(cases, alpha)
    family = "1 case" if cases == 1 else f"{cases} cases"
    return f"{files} files a side are needed for {family} at alpha {alpha:g}"


def _over_files(shared: Mapping[str, Sides], alpha: float, margin: float) -> Verdicts:
    enough = {
        name: (base.seconds, new.seconds)
        for name, (base, new) in shared.items()
        if min(len(base.seconds), len(new.seconds)) >= FEWEST_FILES
    }
    judgements = judge_unpaired(enough, alpha=alpha, margin=margin) if enough else {}
    notes = {name: "one file of a side only" for name in shared if name not in enough}
    evidence = [judgement.evidence for judgement in judgements.values()]
    warnings = []
    if evidence and all(math.isinf(found.smallest_difference) for found in evidence):
        needed = _several_needed(len(enough), alpha)
        warnings.append(f"so few files cannot show any difference: {needed}")
    return Verdicts(judgements, SEVERAL, notes, tuple(warnings))


def _by_profile(
    shared: Mapping[str, Sides], profile: NoiseProfile, alpha: float, margin: float
) -> Verdicts:
    judgements, notes = {}, {}
    for name, (base, new) in shared.items():
        noise = profile.of(name)
        judgements[name] = judge_with_profile(
            base.median or 0.0,
            new.median or 0.0,
            noise.scatter,
            noise.degrees,
            cases=len(shared),
            alpha=alpha,
            margin=margin,
        )
        if name not in profile.cases:
            notes[name] = "not in the noise profile, whose default stands in"
    warning = (
        f"one file a side: the recorded noise profile {profile.path} stands in for more; alpha "
        "holds only as far as log seconds are normal with the recorded scatter, which has no drift "
        "over days in it"
    )
    return Verdicts(judgements, PROFILE, notes, (warning,))


def _no_verdict(shared: Mapping[str, Sides], alpha: float) -> Verdicts:
    warning = (
        "one file of a side shows no scatter between runs: differences, but no verdict; "
        f"{_several_needed(len(shared), alpha)} (--base A.json B.json ... --new C.json D.json ...)"
        ", or record the machine's noise: scripts/compare calibrate"
    )
    return Verdicts({}, NONE, warnings=(warning,))


def judge_stored(
    shared: Mapping[str, Sides], profile: NoiseProfile | None, *, alpha: float, margin: float
) -> Verdicts:
    """Judges the cases that both sides measured; `profile`: only used for one file of a side."""
    files = min((min(base.files, new.files) for base, new in shared.values()), default=0)
    if files >= FEWEST_FILES:
        return _over_files(shared, alpha, margin)
    if profile is not None and shared:
        return _by_profile(shared, profile, alpha, margin)
    return _no_verdict(shared, alpha)
