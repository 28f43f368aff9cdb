"""scripts/scaling --publish: a run's results, to be tracked by git.

The tables are made from the files that are published, so that anybody can make them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.json_files import read_json
from tinyllama_tools.data.publish import REFERENCE, published, replace_folder
from tinyllama_tools.scaling.document import failures_before
from tinyllama_tools.scaling.files import result_files
from tinyllama_tools.scaling.scaling_result import ScalingResult

# of a result: a row a line
EXPANDED = ("benchmarks", "rank_samples")
MOST_BYTES = 1_000_000


def place_of(results: Path, name: str) -> Path:
    """The folder of a published run."""
    return results / REFERENCE / f"ranks_{name}"


def _refuse(what: str, remedy: str) -> BadInputError:
    return BadInputError(f"--publish: {what}; {remedy}")


def check_publishable(source: Path, results: Sequence[ScalingResult], changed: str) -> None:
    """BadInputError where files of the checkout are `changed`, where a result was measured so or
    has a failed row, where some number of ranks of the run failed, and for a file alone."""
    if changed:
        raise _refuse(f"these files are changed:\n{changed}", "commit first")
    if not source.is_dir():
        raise _refuse(f"{source.name} is a file", "name the folder of a run")
    failures = failures_before(source)
    if failures:
        raise _refuse(f"{failures[0].ranks} ranks failed in this run", "measure again")
    for one in results:
        if one.context.get("git_dirty") is not False:
            raise _refuse(
                f"{one.path.name} was measured with changed files", "commit, build, measure again"
            )
        if one.failed:
            raise _refuse(f"{one.path.name}: {next(iter(one.failed))} failed", "measure again")


def publish_results(source: Path, place: Path) -> None:
    """Copies what was measured to `place`, instead of what is there. BadInputError where it would
    be more than MOST_BYTES."""
    texts = {}
    for path in result_files(source):
        document = published(read_json(path)[0])
        texts[path.name] = compact_json(document, EXPANDED)
    size = sum(map(len, texts.values()))
    if size > MOST_BYTES:
        raise _refuse(f"{size:,} bytes: must be {MOST_BYTES:,} at most", "measure fewer rounds")
    replace_folder(place, texts)
