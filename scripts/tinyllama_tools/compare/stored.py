"""Compares stored results: files of tiny_llama_bench or of another Google Benchmark program, or
performance summaries of training runs. A FILE may be the folder that a run wrote.

One file a side shows differences without a verdict; several files a side give one, each file being
one observation. It holds if base and new were measured alternately, not one side after the other.
--variants A,B compares two variants of the same files, A being the base. Of one file it judges by
the interval of the `speedup` over `baseline`, where the file has one.
"""

import argparse
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.compare.comparison import (
    MEANING,
    WORK,
    ComparedCase,
    Comparison,
    SideCase,
    compared_case,
    concluded,
    context_differences,
    is_allowed,
    one_after_the_other,
    outcome_without_times,
    value_differences,
)
from tinyllama_tools.compare.options import add_common_options, regular_expression
from tinyllama_tools.compare.output import deliver
from tinyllama_tools.core.app import BadInputError, bad_file
from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.options import did_you_mean, script_parser
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import count_of
from tinyllama_tools.data.names import BASELINE, TIMED_BY, StoredCase, StoredRun, parse_case_name
from tinyllama_tools.data.profiles import SAME_WORK
from tinyllama_tools.data.results import SPEEDUP, read_stored
from tinyllama_tools.stats.verdicts import (
    Judgement,
    fewest_files,
    judge_by_interval,
    judge_unpaired,
)

Runs = Sequence[StoredRun]
# in place of the variant, in names of cases whose variants are compared
ANY = "*"
# fewer files of a side have no scatter between them
FEWEST_FILES = 2


def of_variant(run: StoredRun, variant: str) -> StoredRun:
    """Of a run, its cases of that variant, named without it. BadInputError where it has none."""
    parsed = ((parse_case_name(name), case) for name, case in run.cases.items())
    named = [(name, case) for name, case in parsed if name]
    variants = dict.fromkeys(name.variant for name, _ in named)
    if variant not in variants:
        what = f"has no case of the variant '{variant}'"
        raise bad_file(run.path, what, f"it has {', '.join(variants) or 'none'}")
    own = {str(replace(name, variant=ANY)): c for name, c in named if name.variant == variant}
    return replace(run, cases=own, digest=f"{run.digest} {variant}")


def read_sides(options: argparse.Namespace) -> tuple[list[StoredRun], list[StoredRun]]:
    """BadInputError for a file that cannot be read, and for one that a side has twice."""
    base, new = options.base, options.new
    sides = [read_stored(path) for path in base], [read_stored(path) for path in new]
    for runs, side in zip(sides, ("base", "new"), strict=True):
        digests = [run.digest for run in runs]
        for run in runs:
            # it would look as if two runs agreed
            if (times := digests.count(run.digest)) > 1:
                what = f"is there {times} times among the files of the {side} (copies count)"
                raise bad_file(run.path, what, "each file must be a run of its own")
    if options.variants:
        first, second = options.variants
        before = [of_variant(run, first) for run in sides[0]]
        return before, [of_variant(run, second) for run in sides[1]]
    return sides


def _file_case(runs: Sequence[StoredCase], files: int) -> SideCase:
    """`runs`: of the files that list the case; `files`: how many the side has. Counters are medians
    over files."""
    skipped = next((run.skipped for run in runs if run.skipped), "")
    failures = [run.failed for run in runs if run.failed]
    many = f"in {len(failures)} of {files} files: " if files > 1 else ""
    measured = [run for run in runs if run.seconds is not None]
    failed = many + failures[0] if failures else ""
    if not measured:
        return SideCase(skipped=skipped, failed=failed)
    seconds = tuple(run.seconds or 0.0 for run in measured)
    shared = set.intersection(*(set(run.counters) for run in measured))
    values = {name: [run.counters[name] for run in measured] for name in shared}
    varying = frozenset(name for name, found in values.items() if len(set(found)) > 1)
    remarks = [] if len(measured) == files else [f"measured in {len(measured)} of {files} files"]
    if disturbed := [run.disturbance for run in measured if run.disturbance]:
        where = f" in {len(disturbed)} of {files} files" if files > 1 else ""
        remarks.append(f"disturbed{where}: {disturbed[0]}")
    remarks += [run.above_peak for run in runs if run.above_peak][:1]
    return SideCase(
        is_measured=True,
        skipped=skipped,
        failed=failed,
        seconds=statistics.median(seconds),
        counters={name: statistics.median(found) for name, found in values.items()},
        varying=varying.union(*(run.varying for run in measured)),
        files=seconds,
        remark=", ".join(remarks),
    )


Pairs = Mapping[str, tuple[SideCase, SideCase]]


def file_cases(runs: Runs, wanted: re.Pattern[str] | None) -> dict[str, SideCase]:
    """By name, in the order of the first file that has each."""
    found: dict[str, list[StoredCase]] = {}
    for run in runs:
        for name, case in run.cases.items():
            # a pattern may be of names as Google Benchmark writes them
            if wanted is None or wanted.search(name) or wanted.search(name + TIMED_BY):
                found.setdefault(name, []).append(case)
    return {name: _file_case(cases, len(runs)) for name, cases in found.items()}


SPEEDUP_WARNING = (
    "each verdict is by the 95 % interval of `speedup`, for which variant and baseline were timed "
    "once more, interleaved, at the end of the run (so `change` is not that of the two times "
    "shown). Each is wrong in up to 5 %: --alpha has no part in it, and differences between one "
    "process and the next are not in the interval; cases without one have no verdict. For --alpha: "
    f"several files, or {typed('compare run')}"
)


def judge_speedups(shared: Pairs, options: argparse.Namespace) -> dict[str, Judgement]:
    """Of a variant and its baseline, in one file: by the interval of the speedup, for which both
    were timed interleaved. Cases without such an interval have no judgement."""
    if BASELINE not in options.variants:
        return {}
    is_base = options.variants[0] == BASELINE
    found = {}
    for name, (base, new) in shared.items():
        counters = new.counters if is_base else base.counters
        speedups = [counters.get(f"{SPEEDUP}{end}", 0.0) for end in ("", "_low", "_high")]
        if min(speedups) > 0:
            estimate, low, high = map(math.log, speedups)
            ends = (-estimate, -high, -low) if is_base else (estimate, low, high)
            found[name] = judge_by_interval(*ends, margin=options.margin)
    return found


def judge_stored(
    shared: Pairs, files: int, options: argparse.Namespace
) -> tuple[Mapping[str, Judgement], str]:
    """Judges the cases that both sides measured; and a warning of what these judgements rest on.
    `files`: of the side that has fewer."""
    seconds = {name: (base.files, new.files) for name, (base, new) in shared.items()}
    enough = {n: s for n, s in seconds.items() if min(map(len, s)) >= FEWEST_FILES}
    family = max(1, len(enough) or len(shared))
    fewest = fewest_files(family, options.alpha)
    needed = (
        f"{fewest} files a side are needed for {family} case{'s' * (family > 1)} at alpha "
        f"{options.alpha:g}"
    )
    if files < FEWEST_FILES:
        if judgements := judge_speedups(shared, options):
            return judgements, SPEEDUP_WARNING
        way = (
            f"--variants {','.join(options.variants)} A.json B.json ..."
            if options.variants
            else "--base A.json B.json ... --new C.json D.json ..."
        )
        return {}, (
            "one file of a side shows no scatter between runs: differences, but no verdict; "
            f"{needed} ({way}), or compare two builds: {typed('compare run')}"
        )
    judgements = judge_unpaired(enough, alpha=options.alpha, margin=options.margin)
    most = max((found.blocks for found in judgements.values()), default=fewest)
    return judgements, f"so few files show no difference: {needed}" * (most < fewest)


def stored_warnings(
    base: Runs, new: Runs, cases: Sequence[ComparedCase], options: argparse.Namespace
) -> Iterator[str]:
    """What to know before any number, the most important first."""
    contexts = [[run.context for run in runs] for runs in (base, new)]
    # alpha is of several files a side
    if min(len(base), len(new)) >= FEWEST_FILES:
        yield one_after_the_other(*contexts)
    yield from context_differences(*contexts)
    configurations = [[run.configuration for run in runs] for runs in (base, new)]
    yield from value_differences(WORK, *configurations, "not the same work: ")
    other_work = [case.name for case in cases if case.is_other_work]
    if other_work:
        yield (
            f"not the same work in {count_of(len(other_work), 'case')}, model_flops or parameters "
            f"differ: {other_work[0]}, ..."
        )
    digests = {run.digest: run.path for run in base}
    for run in new:
        if run.digest in digests:
            yield f"{run.path} is the same file as {digests[run.digest]} of the base"
    for pattern in options.allow_missing:
        if not any(is_allowed(case.name, [pattern]) for case in cases):
            yield f"--allow-missing '{pattern}': no case has such a name"
    for run in (*base, *new):
        yield from run.warnings


def _unlike(base: Runs, new: Runs) -> tuple[str, ...]:
    """In which of MEANING, and of what training runs were asked to do, the sides differ."""
    contexts = [[run.context for run in runs] for runs in (base, new)]
    asked = [[run.configuration for run in runs] for runs in (base, new)]
    work = [name for name in SAME_WORK if value_differences([name], *asked)]
    return (*work, *(name for name in MEANING if value_differences([name], *contexts)))


def _note(base: SideCase, new: SideCase) -> str:
    return "; ".join(f"{side} {c.remark}" for side, c in (("base", base), ("new", new)) if c.remark)


def _side_name(runs: Runs, variant: str = "") -> str:
    commits = dict.fromkeys(str(run.context.get("git_commit") or "unknown")[:12] for run in runs)
    files = f"{', '.join(str(run.path) for run in runs)} (commit {', '.join(commits)})"
    return f"{variant} of {files}" if variant else files


def compare_stored(base: Runs, new: Runs, options: argparse.Namespace) -> Comparison:
    """BadInputError where no case is in both sides. Of two variants only the cases that have both
    are compared, since not every switch is for every component."""
    before, after = (file_cases(runs, options.filter) for runs in (base, new))
    alone = before.keys() ^ after.keys()
    if not before.keys() & after.keys():
        first = [next(iter(cases), "none") for cases in (before, after)]
        which = f" that matches '{options.filter.pattern}'" if options.filter else ""
        raise BadInputError(
            f"nothing to compare: no case{which} is in both sides (base: {first[0]}, ...; new: "
            f"{first[1]}, ...); name results of the same cases"
        )
    left_out = ""
    if options.variants and alone:
        left_out = (
            f"left out, since they have only one of the variants: {count_of(len(alone), 'case')}"
        )
        before, after = ({n: s[n] for n in s if n not in alone} for s in (before, after))
    absent = SideCase()
    sides = {n: (before.get(n, absent), after.get(n, absent)) for n in {**before, **after}}
    shared = {name: pair for name, pair in sides.items() if outcome_without_times(*pair) is None}
    judgements, warning = judge_stored(shared, min(len(base), len(new)), options)
    cases = [
        compared_case(
            name,
            old,
            new_case,
            judgements.get(name),
            ratio=(new_case.seconds or 0.0) / (old.seconds or 1.0),
            blocks=min(len(old.files), len(new_case.files)),
            note=_note(old, new_case),
        )
        for name, (old, new_case) in sides.items()
    ]
    is_ranked = any(found.adjusted_p_value is not None for found in judgements.values())
    test = "exact rank sum over files" if is_ranked else "interval of speedup"
    warnings = (*stored_warnings(base, new, cases, options), warning, left_out)
    return concluded(
        cases,
        options,
        method="stored",
        base=_side_name(base, *options.variants[:1]),
        new=_side_name(new, *options.variants[1:]),
        warnings=tuple(filter(None, warnings)),
        unlike=_unlike(base, new),
        design={
            "test": test if judgements else "none",
            "correction": "Holm over cases" if is_ranked else "none",
            "family": len(judgements),
            "files": {"base": len(base), "new": len(new)},
        },
        base_context=base[0].context,
        new_context=new[0].context,
    )


EPILOG = """\
scripts/compare BASE.json NEW.json                        stored results, one file a side
scripts/compare --base FILE... --new FILE...              stored results, several files a side
scripts/compare --variants A,B FILE...                    two variants of the same stored results
scripts/compare run --base BUILD|REF [--new BUILD|REF]    two builds interleaved, on this machine
scripts/compare calibrate ...                             error rates on this machine
scripts/compare history add|show|changes|page ...         results over commits; advisory

Each case gets a verdict: slower or faster (by more than --margin), same (shown to lie within the
margin) or unclear. A false alarm is a `slower` or `faster` of a case whose true change is within
the margin; the chance of any false alarm in the whole comparison is at most --alpha. The chance of
a false `same` is at most 5 % for each case. With --variants and one file, each verdict is by the
interval of the case's `speedup` and wrong in up to 5 %, whatever --alpha says. docs/compare.md
explains the verdicts.

Stored results and the history need the group tools of pyproject.toml, whose packages are installed
into .venv. `calibrate --record`, `calibrate --runs`, and `run` unless a side is a BUILD, need the
suite, and first set up and build whatever is missing. `run --help`, `calibrate --help` and
`history --help` have their options. Google Benchmark's own compare.py reads the files as well:
  python3 .deps/sources/benchmark/tools/compare.py benchmarks BASE.json NEW.json

Exit status: 0 no regression; 1 a regression, or a case of the base that is missing or failed in the
new; 2 bad input, nothing comparable, a budget too short for any verdict, files that cannot be
written, or the set-up failed; 3 with --strict, where a case has no answer; 130 interrupted, with
what was measured written."""
SUB_COMMANDS = ("run", "calibrate", "history")


def two_variants(text: str) -> tuple[str, ...]:
    """`A,B`, not the same."""
    names = tuple(text.split(","))
    if len(set(names)) != 2 or len(names) != 2 or not all(names):
        raise argparse.ArgumentTypeError(f"'{text}': must be two different variants, A,B")
    return names


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = script_parser("compare", __doc__, EPILOG)
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="BASE.json NEW.json")
    for side in ("base", "new"):
        add(f"--{side}", nargs="+", type=Path, metavar="FILE", help=f"files of the {side}")
    variants = "compare these two variants of each FILE; A is the base"
    add("--variants", type=two_variants, default=(), metavar="A,B", help=variants)
    wanted = "compare only cases whose name has a match"
    add("--filter", type=regular_expression, metavar="REGEX", help=wanted)
    add_common_options(parser)
    first = arguments[0] if arguments else ""
    if (
        first.isalpha()
        and not Path(first).exists()
        and (meant := did_you_mean(first, SUB_COMMANDS))
    ):
        parser.error(f"'{first}': is no file and no sub-command{meant}")
    options = parser.parse_args(arguments)
    files, base, new = options.files, options.base or [], options.new or []
    counts = f"{len(files)} files, {len(base)} of --base, {len(new)} of --new"
    if options.variants:
        if not files or base or new:
            way = "it compares two variants of the same files: --variants A,B FILE..."
            parser.error(f"--variants with {counts}: {way}")
        base = new = files
    elif len(files) == 2 and not (base or new):
        base, new = files[:1], files[1:]
    elif files or not (base and new):
        parser.error(
            f"{counts} ({', '.join(map(str, [*files, *base, *new]))}): either BASE.json NEW.json, "
            "or --base FILE... --new FILE..., at least one each; or first the sub-command "
            f"{', '.join(SUB_COMMANDS)}"
        )
    options.base, options.new = base, new
    return options


def main(arguments: Sequence[str]) -> int:
    """The exit status; BadInputError for bad input and where there is nothing to compare."""
    options = parse_options(arguments)
    comparison = compare_stored(*read_sides(options), options)
    # not to standard output, which a program may read
    return deliver(comparison, options.format, options.out, Progress().line)
