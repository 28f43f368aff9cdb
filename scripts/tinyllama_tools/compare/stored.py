"""Compares stored results: files of tiny_llama_bench, or performance summaries of training runs.

One file a side shows differences without a verdict; several a side (a file is a block) give one. It
holds if base and new were measured alternately, and not one after the other.
Exit status: 0 no regression; 1 regression; 2 bad input or nothing to compare; 3 with --strict where
a case has no answer.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tinyllama_tools.compare.comparison import (
    ComparedCase,
    Comparison,
    allow_missing,
    compare_counters,
    gate_of,
    interval_of,
    is_allowed,
    layers_by_size,
    outcome_without_times,
    unsettled_text,
)
from tinyllama_tools.compare.context_differences import (
    axis_differences,
    context_differences,
    one_after_the_other,
    work_differences,
)
from tinyllama_tools.compare.noise import DEFAULT_PATH, NoiseProfile, read_noise_profile
from tinyllama_tools.compare.options import add_common_options, regular_expression
from tinyllama_tools.compare.output import print_comparison, write_comparison
from tinyllama_tools.core.app import BadInputError, bad_file
from tinyllama_tools.data.names import TIMED_BY, SideState, StoredCase, StoredRun, parse_case_name
from tinyllama_tools.data.results import read_stored
from tinyllama_tools.stats.looks import attributions
from tinyllama_tools.stats.rank_tests import BlockSummary
from tinyllama_tools.stats.verdicts import (
    Judgement,
    Outcome,
    fewest_files,
    judge_unpaired,
    judge_with_profile,
)

Runs = Sequence[StoredRun]
# fewer files of a side have no scatter between them
FEWEST_FILES = 2
# nobody has more, so the exact number would only look like a plan
MOST_FILES = 1000
MOST_NAMES = 5
SEVERAL, PROFILE, NONE = "exact rank sum over files", "recorded noise profile", "none"
CORRECTIONS = {SEVERAL: "Holm over cases", PROFILE: "Bonferroni over cases", NONE: "none"}
CHANGED = frozenset({Outcome.SLOWER, Outcome.FASTER})
SAID_FIRST = {
    Outcome.MISSING: "measured in the base, not in the new",
    Outcome.FAILED: "failed in the new",
    Outcome.SKIPPED: "not measured on either side",
    Outcome.ADDED: "measured in the new only",
}
# counters that say what was asked for, and not how it was done
WORK_COUNTERS = {"model_flops", "parameters"}


def read_sides(options: argparse.Namespace) -> tuple[list[StoredRun], list[StoredRun]]:
    """BadInputError unless both sides are named in one way, for a file that cannot be read, one
    that is twice on a side, a variant that it lacks, and files of different programs."""
    files, base, new = options.files, options.base or [], options.new or []
    if options.variants:
        if base or new or not files:
            raise BadInputError("--variants: takes files that hold both, as --variants A,B FILE...")
        base = files
    elif len(files) == 2 and not (base or new):
        base, new = files[:1], files[1:]
    elif files or not (base and new):
        raise BadInputError(
            f"{len(files)} files, {len(base)} of --base, {len(new)} of --new: either "
            "BASE.json NEW.json, or --base FILE... --new FILE..., at least one each"
        )
    sides = [read_stored(path) for path in base], [read_stored(path) for path in new]
    for runs, side in zip(sides, ("base", "new"), strict=True):
        digests = [run.digest for run in runs]
        for run in runs:
            # one and the same would pass for agreement between runs
            if digests.count(run.digest) > 1:
                what = f"is there {digests.count(run.digest)} times among the files of the {side}"
                remedy = "each file must be a run of its own"
                raise bad_file(run.path, f"{what}, or copies are", remedy)
    programs = {bool(run.configuration): run.path for side in sides for run in side}
    if len(programs) > 1:
        raise BadInputError(
            f"{programs[True]} is of tiny_llama_train and {programs[False]} of tiny_llama_bench, "
            "which have no case in common; name files of one program"
        )
    return variants_of(sides[0], options.variants) if options.variants else sides


def variants_of(runs: Runs, variants: tuple[str, str]) -> tuple[list[StoredRun], list[StoredRun]]:
    """Two variants of the same files as sides: cases that both have, `baseline:optimized` in place
    of the variant. BadInputError for a variant that no case of a file has."""

    def cases_of(run: StoredRun, variant: str) -> dict[str, StoredCase]:
        named = [(parse_case_name(text), case) for text, case in run.cases.items()]
        found = {name: case for name, case in named if name and name.variant == variant}
        if not found:
            known = ", ".join(sorted({name.variant for name, _ in named if name})) or "none"
            raise BadInputError(
                f"--variants: {run.path} has no case of '{variant}', but of: {known}"
            )
        return {str(replace(name, variant=":".join(variants))): c for name, c in found.items()}

    sides: tuple[list[StoredRun], list[StoredRun]] = ([], [])
    for run in runs:
        base, new = (cases_of(run, variant) for variant in variants)
        for side, cases, other in ((sides[0], base, new), (sides[1], new, base)):
            side.append(replace(run, cases={n: case for n, case in cases.items() if n in other}))
    return sides


@dataclass(frozen=True)
class SideCase:
    """A case in the files of a side. `seconds`: a median for each file that measured it; `median`:
    over them. `counters`: medians; `varying`: those that are not the same in all runs. `note`: in
    how many files it was measured, if not in all; why one has no shares of peaks."""

    state: SideState
    seconds: tuple[float, ...] = ()
    median: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    note: str = ""


def _side_case(runs: Sequence[StoredCase], files: int) -> SideCase:
    """`runs`: of the files that know the case; `files`: how many there are."""
    skipped = next((run.skipped for run in runs if run.skipped), "")
    failures = [run.failed for run in runs if run.failed]
    many = f"in {len(failures)} of {files} files: " if files > 1 else ""
    measured = [run for run in runs if run.seconds is not None]
    state = SideState(bool(measured), skipped, many + failures[0] if failures else "")
    if not measured:
        return SideCase(state)
    seconds = tuple(run.seconds or 0.0 for run in measured)
    shared = set.intersection(*(set(run.counters) for run in measured))
    values = {name: [run.counters[name] for run in measured] for name in shared}
    varying = {name for name, found in values.items() if len(set(found)) > 1}
    notes = [] if len(measured) == files else [f"measured in {len(measured)} of {files} files"]
    notes += [run.above_peak for run in runs if run.above_peak][:1]
    return SideCase(
        state,
        seconds,
        statistics.median(seconds),
        {name: statistics.median(found) for name, found in values.items()},
        frozenset(varying).union(*(run.varying for run in measured)),
        ", ".join(notes),
    )


Pairs = Mapping[str, tuple[SideCase, SideCase]]


def side_cases(runs: Runs, wanted: re.Pattern[str] | None) -> dict[str, SideCase]:
    """By name, in the order of the first file that has each."""
    found: dict[str, list[StoredCase]] = {}
    for run in runs:
        for name, case in run.cases.items():
            # names as they are, and as Google Benchmark writes them
            if wanted is None or wanted.search(name) or wanted.search(name + TIMED_BY):
                found.setdefault(name, []).append(case)
    return {name: _side_case(cases, len(runs)) for name, cases in found.items()}


def judge_stored(
    shared: Pairs, files: int, options: argparse.Namespace, profile: NoiseProfile | None
) -> tuple[str, dict[str, Judgement], dict[str, str], str]:
    """The test, judgements and notes by case, and what to know of them all.

    Judges the cases that both sides measured: over `files` where there are several a side, else by
    the noise profile if there is one.
    """

    def needed(cases: int) -> str:
        family = "1 case" if cases == 1 else f"{cases} cases"
        fewest = fewest_files(cases, options.alpha)
        return f"{fewest} files a side are needed for {family} at alpha {options.alpha:g}"

    levels = {"alpha": options.alpha, "margin": options.margin}
    warning = ""
    if files >= FEWEST_FILES:
        seconds = {name: (base.seconds, new.seconds) for name, (base, new) in shared.items()}
        enough = {n: s for n, s in seconds.items() if min(map(len, s)) >= FEWEST_FILES}
        judgements = judge_unpaired(enough, **levels) if enough else {}
        notes = {name: "one file of a side only" for name in shared if name not in enough}
        smallest = [found.evidence.smallest_difference for found in judgements.values()]
        if smallest and min(smallest) == math.inf:
            warning = f"so few files cannot show any difference: {needed(len(enough))}"
        return SEVERAL, judgements, notes, warning
    if profile is not None and shared:
        family = {"cases": len(shared), **levels}
        judgements = {
            name: judge_with_profile(*(s.median or 0.0 for s in pair), *profile.of(name), **family)
            for name, pair in shared.items()
        }
        unknown = "not in the noise profile, whose default stands in"
        warning = (
            f"one file a side: the recorded noise profile {profile.path} stands in for more; alpha "
            "holds only as far as log seconds are normal with the recorded scatter, which has no "
            "drift over days in it"
        )
        return PROFILE, judgements, dict.fromkeys(shared.keys() - profile.cases, unknown), warning
    warning = (
        "one file of a side shows no scatter between runs: differences, but no verdict; "
        f"{needed(max(1, len(shared)))} (--base A.json B.json ... --new C.json D.json ...), or "
        "record the machine's noise: scripts/compare calibrate"
    )
    return NONE, {}, {}, warning


def names_text(names: Sequence[str]) -> str:
    """`a, b, c and 3 more`."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def stored_warnings(
    base: Runs, new: Runs, cases: Sequence[ComparedCase], allowed: Sequence[str] = ()
) -> Iterator[str]:
    """What to know before any number, the most important first: of the contexts, of cases that are
    not on both sides, and of the files."""
    sides = (base, new)
    contexts = [[run.context for run in runs] for runs in sides]
    in_order = one_after_the_other(*contexts)
    # one file of a side has no alpha that could fail to hold
    if in_order and min(len(base), len(new)) >= FEWEST_FILES:
        yield in_order
    yield from context_differences(*contexts)
    yield from work_differences(*([run.configuration for run in runs] for runs in sides))
    yield from axis_differences(*([name for run in runs for name in run.cases] for runs in sides))
    other_work = [
        case.name
        for case in cases
        for c in case.counters
        if c.name in WORK_COUNTERS and c.exact and c.base != c.new and not c.is_one_sided
    ]
    if other_work:
        names = list(dict.fromkeys(other_work))
        yield (
            f"{len(names)} did not do the same work, model_flops or parameters differ: "
            f"{names_text(names)}"
        )
    for outcome, words in SAID_FIRST.items():
        found = [case for case in cases if case.outcome is outcome]
        names = [f"{case.name} (allowed)" if case.allowed else case.name for case in found]
        if names:
            yield f"{len(names)} {words}: {names_text(names)}"
    digests = {run.digest: run.path for run in base}
    for run in new:
        if run.digest in digests:
            yield f"{run.path} is the same file as {digests[run.digest]} of the base"
    for pattern in allowed:
        if not any(is_allowed(case.name, [pattern]) for case in cases):
            yield f"--allow-missing '{pattern}': no case is called so"
    yield from (text for run in (*base, *new) for text in run.warnings)
    for run in (*base, *new):
        names = [name for name, case in run.cases.items() if case.repetitions == 1]
        if names:
            yield (
                f"{run.path}: one repetition, so no scatter within the run is known, of "
                f"{names_text(names)}"
            )


def _files_needed(judgement: Judgement) -> str:
    files = judgement.evidence.blocks_needed
    if files is None:
        return unsettled_text(judgement, "files")
    if files > MOST_FILES:
        return f"no number of files that anybody has gives an answer (over {MOST_FILES} a side)"
    return f"an answer needs about {files} files a side"


def _compared_case(
    name: str, sides: Sequence[SideCase], judgement: Judgement | None, test: str, note: str
) -> ComparedCase:
    """`sides`: base and new, either perhaps without runs. `note`: of the judgement."""
    base, new = sides
    case = ComparedCase(name, Outcome.NO_VERDICT, base_seconds=base.median, new_seconds=new.median)
    without_times = outcome_without_times(base.state, new.state)
    if without_times:
        return replace(case, outcome=without_times[0], note=without_times[1])
    notes = [f"{side} {c.note}" for side, c in (("base", base), ("new", new)) if c.note]
    notes += [note] if note else []
    case = replace(
        case,
        ratio=(new.median or 0.0) / (base.median or 1.0),
        blocks=min(len(base.seconds), len(new.seconds)),
        # a counter that is not the same in all runs of a side is not compared exactly
        counters=compare_counters(base.counters, new.counters, base.varying | new.varying),
    )
    if judgement:
        evidence = judgement.evidence
        if judgement.outcome is Outcome.UNCLEAR and test == SEVERAL:
            notes.append(_files_needed(judgement))
        smallest = evidence.smallest_difference
        case = replace(
            case,
            outcome=judgement.outcome,
            ratio=math.exp(evidence.estimate),
            interval=interval_of(judgement),
            p_value=judgement.adjusted_p_value,
            blocks=evidence.blocks,
            smallest_difference=smallest if math.isfinite(smallest) else None,
        )
    return replace(case, note="; ".join(notes))


def _attributed(cases: Sequence[ComparedCase], shared: Pairs) -> list[ComparedCase]:
    """Files of the two sides are not pairs; put side by side they give the scatter of a change."""
    if not any(case.outcome in CHANGED for case in cases):
        return list(cases)
    blocks = {
        name: [
            BlockSummary(math.log(n / b), 0.0, b, n)
            for b, n in zip(base.seconds, new.seconds, strict=False)
        ]
        for name, (base, new) in shared.items()
    }
    parts = attributions(blocks, layers_by_size())
    return [
        replace(case, attribution=parts.get(case.name)) if case.outcome in CHANGED else case
        for case in cases
    ]


def _side_name(runs: Runs) -> str:
    commits = dict.fromkeys(str(run.context.get("git_commit") or "unknown")[:12] for run in runs)
    return f"{', '.join(str(run.path) for run in runs)} (commit {', '.join(commits)})"


def usable_profile(
    named: Path | None, base: Runs, new: Runs
) -> tuple[NoiseProfile | None, list[str]]:
    """The profile to judge one file of a side by, or why there is none.

    BadInputError for a file that is no profile, and for one of another machine that was named.
    """
    reason = ""
    if min(len(base), len(new)) >= FEWEST_FILES:
        reason = "several files a side show it"
    elif base[0].configuration:
        reason = "it is not of training runs"
    if reason:
        return None, [f"--noise-profile is not used: {reason}"] if named else []
    if not named and not DEFAULT_PATH.is_file():
        return None, []
    profile = read_noise_profile(named or DEFAULT_PATH)
    mismatch = profile.mismatch([run.context for run in (*base, *new)])
    if mismatch and named:
        raise BadInputError(f"{mismatch}; record one there: scripts/compare calibrate")
    return (None, [mismatch]) if mismatch else (profile, [])


def compare_stored(base: Runs, new: Runs, options: argparse.Namespace) -> Comparison:
    """BadInputError where no case is in both sides."""
    before, after = (side_cases(runs, options.filter) for runs in (base, new))
    if not before.keys() & after.keys():
        first = [next(iter(cases), "none") for cases in (before, after)]
        which = f" that matches '{options.filter.pattern}'" if options.filter else ""
        raise BadInputError(
            f"nothing to compare: no case{which} is in both sides (base: {first[0]}, ...; new: "
            f"{first[1]}, ...); name results of the same cases"
        )
    absent = SideCase(SideState())
    sides = {n: (before.get(n, absent), after.get(n, absent)) for n in {**before, **after}}
    shared = {
        name: pair
        for name, pair in sides.items()
        if outcome_without_times(*(side.state for side in pair)) is None
    }
    profile, why_not = usable_profile(options.noise_profile, base, new)
    files = min(len(base), len(new))
    test, judgements, notes, warning = judge_stored(shared, files, options, profile)
    compared = [
        _compared_case(name, pair, judgements.get(name), test, notes.get(name, ""))
        for name, pair in sides.items()
    ]
    cases = allow_missing(_attributed(compared, shared), options.allow_missing)
    warnings = [*stored_warnings(base, new, cases, options.allow_missing), warning, *why_not]
    return Comparison(
        "stored",
        _side_name(base),
        _side_name(new),
        cases,
        options.alpha,
        options.margin,
        warnings=tuple(filter(None, warnings)),
        design={
            "test": test,
            "correction": CORRECTIONS[test],
            "family": len(judgements),
            "files": {"base": len(base), "new": len(new)},
        },
        base_context=base[0].context,
        new_context=new[0].context,
    )


def two_variants(text: str) -> tuple[str, str]:
    """`baseline,optimized`."""
    base, comma, new = text.partition(",")
    if not (base and comma and new) or "," in new or base == new:
        raise argparse.ArgumentTypeError(f"'{text}': must be two variants, as baseline,optimized")
    return base, new


def add_options(parser: argparse.ArgumentParser) -> None:
    """The files, --filter, --noise-profile, and what every comparison takes."""
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="BASE.json NEW.json")
    for side in ("base", "new"):
        add(f"--{side}", nargs="+", type=Path, metavar="FILE", help=f"files of the {side}")
    variants = "compare these two variants within the files, as base and new"
    add("--variants", type=two_variants, metavar="BASE,NEW", help=variants)
    wanted = "compare only cases whose name has a match"
    add("--filter", type=regular_expression, metavar="REGEX", help=wanted)
    profile = (
        "what `scripts/compare calibrate` recorded of this machine, for one file a side "
        f"(default: results/{DEFAULT_PATH.name}, if it is there and of the same machine)"
    )
    add("--noise-profile", type=Path, metavar="FILE", help=profile)
    add_common_options(parser)


def main(arguments: Sequence[str]) -> int:
    """The exit status; BadInputError for bad input and where there is nothing to compare."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare",
        description=__doc__,
        epilog="Google Benchmark's own compare.py reads the files as well: "
        "python3 .deps/sources/benchmark/tools/compare.py benchmarks BASE.json NEW.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    comparison = compare_stored(*read_sides(options), options)
    gate = gate_of(options)
    print_comparison(comparison, options.format, gate)
    if options.output:
        paths = write_comparison(comparison, options.output, gate)
        # standard output may be read by a program
        print(f"wrote {', '.join(map(str, paths))}", file=sys.stderr)
    return gate.status(comparison)
