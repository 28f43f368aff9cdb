"""How often the comparison errs on this machine, and what it finds: recorded, resampled, written.

Example: scripts/compare calibrate --record 60m
         scripts/compare calibrate --record-family 60m
         scripts/compare calibrate --record-slowed 60m
         scripts/compare calibrate --runs 50 -- --budget 10m
         scripts/compare calibrate --publish 2core_xeon_avx512

--record, --record-... and --runs measure, and add to what --folder has; each block and each run
is on disk when it is done, so whatever was interrupted goes on with the next start. Without them,
all that the folder has is analysed: false alarms a family, detection, the other tools on the same
data, and this machine's noise profile, which `scripts/compare BASE.json NEW.json` reads.

Exit status: 0 no more false alarms than --alpha allows; 1 more, in any row, in the check of the
recordings' earlier half or in the whole runs; 2 bad input, or nothing recorded;
3 with --strict, where there are too few families, blocks or whole runs to show it; 130 interrupted.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from tinyllama_tools.calibrate.analysis import (
    Recordings,
    calibration_document,
    document_standing,
    simulated_document,
)
from tinyllama_tools.calibrate.false_alarm_rows import BROKEN, NOT_SHOWN, Effort, Rule
from tinyllama_tools.calibrate.measuring import measure, recordings_of
from tinyllama_tools.calibrate.noise_profile import noise_profile
from tinyllama_tools.calibrate.options import add_options, check_options, measures
from tinyllama_tools.calibrate.page import calibration_page
from tinyllama_tools.calibrate.publish import publish, write_calibration, write_noise_profile
from tinyllama_tools.calibrate.published_words import published_arguments
from tinyllama_tools.calibrate.real_runs import kept_runs
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    BadInputError,
    changed_files,
    head_commit,
)
from tinyllama_tools.data.publish import published_context
from tinyllama_tools.stats.verdicts import BAD_INPUT, NO_REGRESSION, REGRESSION, STILL_UNCLEAR

__all__ = ["add_options", "main", "read_options"]

Json = dict[str, Any]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _meta(arguments: Sequence[str], recordings: Recordings | None) -> Json:
    """What the figures belong to: the commit that was recorded, else the one that computes."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    context = recordings.quiet.headers[0].base_context if recordings else {}
    return {
        "date": recordings.quiet.headers[0].started if recordings else now,
        "computed": now,
        "commit": str(context.get("git_commit", head_commit(PROJECT) or "unknown")),
        "dirty": bool(context.get("git_dirty", changed_files(PROJECT))),
        "command": shlex.join(
            ["scripts/compare", "calibrate", *published_arguments(arguments, _parser())]
        ),
    }


def _analyse(options: argparse.Namespace, arguments: Sequence[str]) -> Json:
    rule = Rule(options.alpha, options.margin, options.looks)
    effort = Effort(options.families, options.cases, options.tries, options.jobs, options.seed)
    if options.simulate:
        document = {"meta": _meta(arguments, None), **simulated_document(rule, effort, _say)}
        paths = write_calibration(document, options.folder)
    else:
        recordings = recordings_of(options.folder, options.recordings)
        header = recordings.quiet.headers[0]
        runs = kept_runs(options.folder)
        document = {
            "meta": _meta(arguments, recordings),
            "context": published_context(header.base_context),
            **calibration_document(recordings, runs, rule, effort, _say),
        }
        profile = noise_profile(recordings.quiet.blocks, header.base_context, header.started)
        paths = write_noise_profile(profile, options.noise_profile)
        paths += write_calibration(document, options.folder)
        if options.publish:
            paths += publish(document, recordings.quiet, RESULTS, options.publish)
    for path in paths:
        _say(str(path))
    return document


def _status(document: Json, *, strict: bool) -> int:
    standing = document_standing(document)
    if standing == BROKEN:
        return REGRESSION
    return STILL_UNCLEAR if standing == NOT_SHOWN and strict else NO_REGRESSION


def _check_publishable(options: argparse.Namespace) -> None:
    changed = changed_files(PROJECT) if options.publish else ""
    if changed:
        raise BadInputError(f"--publish: commit first, these files are changed:\n{changed}")


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    _check_publishable(options)
    try:
        if measures(options):
            measure(options, _say)
            return NO_REGRESSION
        document = _analyse(options, arguments)
    except ValueError as error:
        # too few blocks, a rule that cannot be, a part that there is none of
        raise BadInputError(str(error)) from error
    print(calibration_page(document))
    return _status(document, strict=options.strict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/compare calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    return parser


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = _parser()
    options = parser.parse_args(arguments)
    check_options(parser, options)
    return options


def main(arguments: Sequence[str]) -> int:
    """Measures, or analyses and writes; the exit status."""
    options = read_options(arguments)
    try:
        return _run(options, arguments)
    except BadInputError as error:
        print(f"scripts/compare calibrate: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; what was recorded stays in the folder", file=sys.stderr)
        return INTERRUPTED
