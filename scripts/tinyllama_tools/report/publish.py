"""scripts/report --publish: a grid study, its page and the README's picture, to be tracked by git.

The page is made from the files that are published, so that anybody can make it again from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.core.app import BadInputError, Json, write_whole
from tinyllama_tools.data.publish import published_text, replace_folder
from tinyllama_tools.frontier import AXES
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.frontier_file import FrontierFile
from tinyllama_tools.report.inputs import GridStudy, ReportInputs
from tinyllama_tools.report.kinds import Kind, Source
from tinyllama_tools.report.published_study import published_texts

# of everything that one call publishes, and of the picture in the README
MOST_BYTES, MOST_PICTURE_BYTES = 4_000_000, 300_000
# the figure that is shown in the README
PICTURE = "roofline_plot"


@dataclass(frozen=True)
class Place:
    """Where a machine's study is published. `folder`: results/reference; `machine`: a part of file
    names."""

    folder: Path
    machine: str

    @property
    def study(self) -> Path:
        """The folder of the study's files."""
        return self.folder / f"study_{self.machine}"

    @property
    def page(self) -> Path:
        """The report."""
        return self.folder / f"scaling_{self.machine}.html"

    @property
    def picture(self) -> Path:
        """The roofline, for the README."""
        return self.folder / f"roofline_{self.machine}.png"

    def frontier(self, axes: Iterable[str]) -> Path:
        """Of a frontier over these axes, which was made beside the study."""
        return self.folder / f"frontier_by_{'_'.join(axes)}_{self.machine}.json"


def _refuse(name: object, what: str) -> BadInputError:
    return BadInputError(f"--publish: {name}: {what}")


def _the_study(inputs: ReportInputs) -> GridStudy:
    if len(inputs.studies) != 1:
        count = len(inputs.studies)
        raise _refuse(f"{count} grid studies", "must be one; name the folder of scripts/study")
    study = inputs.studies[0]
    name, context = study.folder.name, study.results.context if study.results is not None else {}
    if not study.description.get("finished"):
        raise _refuse(name, "the study did not end; scripts/study --resume goes on with it")
    if context.get("git_dirty") is not False:
        raise _refuse(name, "measured with changed files; commit, build and measure again")
    return study


def _refuse_other_device(frontier: FrontierFile, study: GridStudy) -> None:
    context = study.results.context if study.results is not None else {}
    name = (context.get("device") or {}).get("name")
    if frontier.device not in {"", name}:
        what = f"is of {frontier.device}, the study of {name}; leave it out"
        raise _refuse(frontier.path.name, what)


def check_publishable(inputs: ReportInputs, place: Place, changed: str) -> None:
    """BadInputError unless there is one study that ended, of a commit, and nothing else but
    frontiers of its device and what is in the reference folder already. `changed`: files of the
    checkout that differ from its commit."""
    if changed:
        raise BadInputError(f"--publish: commit first, these files are changed:\n{changed}")
    study = _the_study(inputs)
    errors = [omission for omission in inputs.omissions if omission.is_error]
    if errors:
        raise _refuse(errors[0].name, errors[0].reason)
    for source in inputs.sources:
        is_there = source.path.resolve().is_relative_to(place.folder.resolve())
        if source.kind not in {Kind.STUDY, Kind.FRONTIER} and not is_there:
            raise _refuse(
                source.path, f"{source.kind.words} is not published with it; leave it out"
            )
    for frontier in inputs.frontiers:
        _refuse_other_device(frontier, study)


def publish_data(inputs: ReportInputs, place: Place) -> list[Source]:
    """Writes the files; where the report's results then are. BadInputError, OSError where they
    cannot be read or written."""
    axes = {f.path: [part.axis.given for part in f.parts] for f in inputs.frontiers}
    found: list[Source] = []
    for source in dict.fromkeys(inputs.sources):
        if source.kind == Kind.STUDY:
            path = place.study
            # a study that is published already is published anew, under the name that is asked for
            replace_folder(path, published_texts(source.path))
        elif source.kind == Kind.FRONTIER:
            path = place.frontier(given for given in AXES if given in axes[source.path])
            if any(one.path == path for one in found):
                raise _refuse(source.path, f"would be {path.name} as another one; leave one out")
            write_whole(path, published_text(source.path))
        else:
            path = source.path
        found.append(Source(source.kind, path))
    return found


def _data_files(sources: Sequence[Source], place: Place) -> list[Path]:
    """Those that this call has written."""
    folders = sorted(place.study.glob("*.json"))
    return [*folders, *(one.path for one in sources if one.kind == Kind.FRONTIER)]


def _refuse_large(paths: Sequence[Path], most: int) -> None:
    sizes = {path.name: path.stat().st_size for path in paths}
    if sum(sizes.values()) > most:
        named = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise _refuse(f"{sum(sizes.values()):,} bytes", f"must be {most:,} at most: {named}")


def publish_page(document: Document, sources: Sequence[Source], place: Place) -> list[Path]:
    """The page and the picture; everything that was published. BadInputError where the picture
    cannot be drawn or the files are too large."""
    # drawing takes packages that the texts of a report do without
    from tinyllama_tools.report.page import page_of
    from tinyllama_tools.report.png import picture_of

    content: Json = document.as_json()
    write_whole(place.page, page_of(content))
    place.picture.write_bytes(picture_of(content, PICTURE))
    paths = [*_data_files(sources, place), place.page, place.picture]
    _refuse_large([place.picture], MOST_PICTURE_BYTES)
    _refuse_large(paths, MOST_BYTES)
    return paths
