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
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinyllama_tools.compare.comparison import (
    CHANGED,
    WORK,
    ComparedCase,
    Comparison,
    SideCase,
    allow_missing,
    compared_case,
    context_differences,
    exit_status,
    is_allowed,
    layers_by_size,
    one_after_the_other,
    outcome_without_times,
    unsettled_text,
    value_differences,
)
from tinyllama_tools.compare.options import add_common_options, regular_expression
from tinyllama_tools.compare.output import print_comparison, write_comparison
from tinyllama_tools.core.app import (
    RESULTS,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
)
from tinyllama_tools.data.names import TIMED_BY, SideState, StoredCase, StoredRun, parse_case_name
from tinyllama_tools.data.results import read_stored
from tinyllama_tools.stats.looks import Attribution, attributions
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
SEVERAL, PROFILE, NONE = "exact rank sum over files", "recorded noise profile", "none"
CORRECTIONS = {SEVERAL: "Holm over cases", PROFILE: "Bonferroni over cases", NONE: "none"}
# counters that say what was asked for, and not how it was done
WORK_COUNTERS = {"model_flops", "parameters"}

NOISE_KIND = "tiny_llama noise profile"
NOISE_VERSION = 1
DEFAULT_PATH = RESULTS / "noise_profile.json"
MACHINE = ("host_name", "device", "architecture", "threads")
_NOISE = {
    "type": "object",
    "required": ["scatter", "degrees"],
    "additionalProperties": False,
    "properties": {
        name: {"type": "number", "exclusiveMinimum": 0} for name in ("scatter", "degrees")
    },
}
NOISE_SCHEMA = {
    "type": "object",
    "required": ["kind", "schema_version", "cases", "default", *MACHINE],
    "properties": {
        "kind": {"const": NOISE_KIND},
        "schema_version": {"const": NOISE_VERSION},
        "cases": {"type": "object", "additionalProperties": _NOISE},
        "default": _NOISE,
    },
}


def _machine(context: Mapping[str, Any]) -> Json:
    device = context.get("device") or {}
    return {
        "host_name": context.get("host_name"),
        "device": device.get("name"),
        "architecture": device.get("architecture"),
        "threads": context.get("threads"),
    }


def read_noise_profile(path: Path) -> Json:
    """What `scripts/compare calibrate` recorded of a machine, which stands in for a scatter that
    one file a side cannot show. BadInputError naming the file and the key that is wrong."""
    document, _ = read_json(path)
    problem = schema_problem(document, NOISE_SCHEMA)
    if problem:
        remedy = "record it again: scripts/compare calibrate"
        raise bad_file(path, f"is no noise profile: {problem}", remedy)
    return document


def mismatch(profile: Json, contexts: Sequence[Mapping[str, Any]]) -> str:
    """Empty, or why it is not of the machine that these results were measured on."""
    for measured in map(_machine, contexts):
        for key in MACHINE:
            if measured[key] != profile[key]:
                return (
                    f"the noise profile is of {key} '{profile[key]}', the results are of "
                    f"'{measured[key]}'"
                )
    return ""


def scatter(summaries: Sequence[BlockSummary]) -> Json:
    """`scatter`: standard deviation of log seconds between the processes of these blocks, two at
    least; `degrees`: of freedom."""
    logs = np.log([[s.base_seconds, s.new_seconds] for s in summaries])
    deviation = float(np.sqrt(logs.var(axis=0, ddof=1).mean()))
    return {"scatter": deviation, "degrees": len(summaries) - 1}


def noise_profile(
    blocks: Mapping[str, Sequence[BlockSummary]], context: Mapping[str, Any], date: str
) -> Json:
    """The document, from blocks by case and a result file's context; `default`, for cases that were
    not recorded, is the worst of those that were."""
    found = {name: scatter(summaries) for name, summaries in blocks.items()}
    machine = _machine(context)
    scatters, degrees = zip(*(noise.values() for noise in found.values()), strict=True)
    return {
        "kind": NOISE_KIND,
        "schema_version": NOISE_VERSION,
        **machine,
        "device": machine["device"] or "unknown",
        "architecture": machine["architecture"] or "unknown",
        "date": date,
        "method": "standard deviation over blocks of the log of a process's median seconds",
        "cases": found,
        "default": {"scatter": max(scatters), "degrees": min(degrees)},
    }


def read_sides(options: argparse.Namespace) -> tuple[list[StoredRun], list[StoredRun]]:
    """BadInputError unless both sides are named in one way, for a file that cannot be read, one
    that is twice on a side, and a variant that it lacks."""
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
            if (times := digests.count(run.digest)) > 1:
                what = f"is there {times} times among the files of the {side}, or copies are"
                raise bad_file(run.path, what, "each file must be a run of its own")
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


def _file_case(runs: Sequence[StoredCase], files: int) -> SideCase:
    """`runs`: of the files that know the case; `files`: how many there are. Counters are medians
    over files."""
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
    varying = frozenset(name for name, found in values.items() if len(set(found)) > 1)
    remarks = [] if len(measured) == files else [f"measured in {len(measured)} of {files} files"]
    remarks += [run.above_peak for run in runs if run.above_peak][:1]
    return SideCase(
        state,
        statistics.median(seconds),
        {name: statistics.median(found) for name, found in values.items()},
        varying.union(*(run.varying for run in measured)),
        seconds,
        ", ".join(remarks),
    )


Pairs = Mapping[str, tuple[SideCase, SideCase]]


def file_cases(runs: Runs, wanted: re.Pattern[str] | None) -> dict[str, SideCase]:
    """By name, in the order of the first file that has each."""
    found: dict[str, list[StoredCase]] = {}
    for run in runs:
        for name, case in run.cases.items():
            # names as they are, and as Google Benchmark writes them
            if wanted is None or wanted.search(name) or wanted.search(name + TIMED_BY):
                found.setdefault(name, []).append(case)
    return {name: _file_case(cases, len(runs)) for name, cases in found.items()}


class Judged(NamedTuple):
    """`judgements`, and `remarks` of each, by case. `warning`: what to know of them all."""

    test: str
    judgements: Mapping[str, Judgement]
    remarks: Mapping[str, str]
    warning: str


def judge_stored(
    shared: Pairs, files: int, options: argparse.Namespace, profile: Json | None
) -> Judged:
    """Of the cases that both sides measured: over `files` where there are several a side, else by
    the noise profile if there is one."""

    def needed(cases: int) -> str:
        fewest = fewest_files(cases, options.alpha)
        family = "1 case" if cases == 1 else f"{cases} cases"
        return f"{fewest} files a side are needed for {family} at alpha {options.alpha:g}"

    levels = {"alpha": options.alpha, "margin": options.margin}
    if files >= FEWEST_FILES:
        seconds = {name: (base.files, new.files) for name, (base, new) in shared.items()}
        enough = {n: s for n, s in seconds.items() if min(map(len, s)) >= FEWEST_FILES}
        judgements = judge_unpaired(enough, **levels) if enough else {}
        remarks = {name: "one file of a side only" for name in shared if name not in enough}
        remarks |= {name: _files_needed(found) for name, found in judgements.items()}
        smallest = [found.smallest_difference for found in judgements.values()]
        nothing = smallest and min(smallest) == math.inf
        few = f"so few files cannot show any difference: {needed(len(enough))}" if nothing else ""
        return Judged(SEVERAL, judgements, remarks, few)
    if profile is not None and shared:
        judgements = {
            name: judge_with_profile(
                *(side.seconds for side in pair),
                **profile["cases"].get(name, profile["default"]),
                cases=len(shared),
                **levels,
            )
            for name, pair in shared.items()
        }
        unknown = "not in the noise profile, whose default stands in"
        warning = (
            "one file of a side: the recorded noise profile stands in for more; alpha "
            "holds only as far as log seconds are normal with the recorded scatter, which has no "
            "drift over days in it"
        )
        remarks = dict.fromkeys(shared.keys() - profile["cases"], unknown)
        return Judged(PROFILE, judgements, remarks, warning)
    warning = (
        "one file of a side shows no scatter between runs: differences, but no verdict; "
        f"{needed(max(1, len(shared)))} (--base A.json B.json ... --new C.json D.json ...), or "
        "record the machine's noise: scripts/compare calibrate"
    )
    return Judged(NONE, {}, {}, warning)


def _files_needed(judgement: Judgement) -> str:
    files = judgement.blocks_needed
    if judgement.outcome is not Outcome.UNCLEAR or files is None:
        return unsettled_text(judgement, "files")
    return f"an answer needs about {files} files a side"


def stored_warnings(
    base: Runs, new: Runs, cases: Sequence[ComparedCase], options: argparse.Namespace
) -> Iterator[str]:
    """What to know before any number, the most important first: of the contexts, of cases that are
    not on both sides, and of the files."""
    contexts = [[run.context for run in runs] for runs in (base, new)]
    # one file of a side has no alpha that could fail to hold
    if min(len(base), len(new)) >= FEWEST_FILES:
        yield one_after_the_other(*contexts)
    yield from context_differences(*contexts)
    configurations = [[run.configuration for run in runs] for runs in (base, new)]
    yield from value_differences(WORK, *configurations, "not the same work: ")
    other_work = [
        case.name
        for case in cases
        if any(
            c.name in WORK_COUNTERS and c.exact and c.base != c.new and not c.is_one_sided
            for c in case.counters
        )
    ]
    if other_work:
        yield (
            f"{len(other_work)} did not do the same work, model_flops or parameters differ: "
            f"{other_work[0]}, ..."
        )
    digests = {run.digest: run.path for run in base}
    for run in new:
        # variants are of the same files
        if run.digest in digests and not options.variants:
            yield f"{run.path} is the same file as {digests[run.digest]} of the base"
    for pattern in options.allow_missing:
        if not any(is_allowed(case.name, [pattern]) for case in cases):
            yield f"--allow-missing '{pattern}': no case is called so"
    for run in (*base, *new):
        yield from run.warnings


def _note(base: SideCase, new: SideCase, remark: str) -> str:
    sides = [f"{side} {c.remark}" for side, c in (("base", base), ("new", new)) if c.remark]
    return "; ".join(filter(None, (*sides, remark)))


def _attributions(shared: Pairs, judged: Judged) -> Mapping[str, Attribution]:
    """Files of the two sides are not pairs; put side by side they give the scatter of a change."""
    if not any(found.outcome in CHANGED for found in judged.judgements.values()):
        return {}
    blocks = {
        name: [
            BlockSummary(math.log(n / b), 0.0, b, n)
            for b, n in zip(base.files, new.files, strict=False)
        ]
        for name, (base, new) in shared.items()
    }
    return attributions(blocks, layers_by_size())


def _side_name(runs: Runs) -> str:
    commits = dict.fromkeys(str(run.context.get("git_commit") or "unknown")[:12] for run in runs)
    return f"{', '.join(str(run.path) for run in runs)} (commit {', '.join(commits)})"


def usable_profile(named: Path | None, base: Runs, new: Runs) -> tuple[Json | None, str]:
    """The profile to judge one file of a side by, or why there is none.

    BadInputError for a file that is no profile, and for one of another machine that was named.
    """
    if min(len(base), len(new)) >= FEWEST_FILES or base[0].configuration:
        alone = "it is for one file a side of tiny_llama_bench"
        return None, f"--noise-profile is not used: {alone}" if named else ""
    path = named or DEFAULT_PATH
    if not named and not path.is_file():
        return None, ""
    profile = read_noise_profile(path)
    other = mismatch(profile, [run.context for run in (*base, *new)])
    if not other:
        return profile, ""
    other = f"{path}: {other}"
    if named:
        raise BadInputError(f"{other}; record one there: scripts/compare calibrate")
    return None, other


def compare_stored(base: Runs, new: Runs, options: argparse.Namespace) -> Comparison:
    """BadInputError where no case is in both sides."""
    before, after = (file_cases(runs, options.filter) for runs in (base, new))
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
    judged = judge_stored(shared, min(len(base), len(new)), options, profile)
    parts = _attributions(shared, judged)
    cases = allow_missing(
        (
            compared_case(
                name,
                old,
                new_case,
                judged.judgements.get(name),
                ratio=(new_case.seconds or 0.0) / (old.seconds or 1.0),
                blocks=min(len(old.files), len(new_case.files)),
                attribution=parts.get(name),
                note=_note(old, new_case, judged.remarks.get(name, "")),
            )
            for name, (old, new_case) in sides.items()
        ),
        options.allow_missing,
    )
    said = stored_warnings(base, new, cases, options)
    return Comparison(
        "stored",
        _side_name(base),
        _side_name(new),
        cases,
        options.alpha,
        options.margin,
        warnings=tuple(filter(None, (*said, judged.warning, why_not))),
        design={
            "test": judged.test,
            "correction": CORRECTIONS[judged.test],
            "family": len(judged.judgements),
            "files": {"base": len(base), "new": len(new)},
        },
        base_context=base[0].context,
        new_context=new[0].context,
        exit_status=exit_status(cases, options.strict, options.fail_on_growth),
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


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare",
        description=__doc__,
        epilog="Google Benchmark's own compare.py reads the files as well:\n  "
        "python3 .deps/sources/benchmark/tools/compare.py benchmarks BASE.json NEW.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """The exit status; BadInputError for bad input and where there is nothing to compare."""
    options = parse_options(arguments)
    comparison = compare_stored(*read_sides(options), options)
    print_comparison(comparison, options.format)
    if options.output:
        paths = write_comparison(comparison, options.output)
        # standard output may be read by a program
        print(f"wrote {', '.join(map(str, paths))}", file=sys.stderr)
    return comparison.exit_status
