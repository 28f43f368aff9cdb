"""Finds the newest result of each kind where nobody named one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.ablation_files import RESULT as ABLATION_FILE
from tinyllama_tools.core.app import SUITE_FILE
from tinyllama_tools.data.profiles import SUMMARY as TRAINING_FILE
from tinyllama_tools.data.studies import rounds_of, why_no_round
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.kinds import FRONTIER_FILE, STUDY_FILE, Kind, Source, is_grid_study
from tinyllama_tools.scaling.files import DOCUMENT as SCALING_FILE

# 20260131T080000Z_amd_instinct_mi300x, performance_results_tiny_20260131_080000
TIME = re.compile(r"(\d{8})[T_](\d{6})")
TRAINING_SIZE = re.compile(r"performance_results_(.+)_\d{8}_\d{6}")


def _time_of(folder: Path) -> tuple[str, str]:
    """By its name, which survives copying; a folder without a time in it is older than all."""
    found = TIME.search(folder.name)
    return (found[1], found[2]) if found else ("", "")


def _folders(results: Path) -> list[Path]:
    """Newest first. OSError where results/ cannot be listed."""
    found = [path for path in results.iterdir() if path.is_dir() and _time_of(path) != ("", "")]
    return sorted(found, key=lambda path: (_time_of(path), path.name), reverse=True)


def _holds_grid(folder: Path) -> bool:
    try:
        document = json.loads((folder / STUDY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # damaged, and named as such when it is read
        return (folder / STUDY_FILE).exists()
    return isinstance(document, dict) and is_grid_study(document)


def _newest_trainings(folders: list[Path]) -> Iterator[Path]:
    """One of each size: scripts/study makes a folder a size."""
    sizes = set()
    for folder in folders:
        named = TRAINING_SIZE.fullmatch(folder.name)
        size = named[1] if named else folder.name
        if named and size not in sizes and (folder / TRAINING_FILE).is_file():
            sizes.add(size)
            yield folder / TRAINING_FILE


def _newest_study(folders: list[Path]) -> tuple[Path | None, list[Omission]]:
    """The newest that has measured something, and those that were passed over."""
    passed: list[Omission] = []
    for folder in folders:
        if not _holds_grid(folder):
            continue
        if rounds_of(folder):
            return folder, passed
        passed.append(Omission("grid study", str(folder), why_no_round(folder)))
    return None, passed


def _newest_frontiers(folders: list[Path], study: Path | None) -> list[Path]:
    """The newest over sequences and the newest over batches, apart from those of grid studies;
    not what is older than the frontier of the study that is taken."""
    has_own = study is not None and (study / FRONTIER_FILE).is_file()
    oldest = _time_of(study) if study is not None and has_own else ("", "")
    found: dict[object, Path] = {}
    for folder in folders:
        path = folder / FRONTIER_FILE
        if path.is_file() and not (folder / STUDY_FILE).exists() and _time_of(folder) >= oldest:
            found.setdefault(_by(path), path)
    return list(found.values())


def _by(path: Path) -> object:
    """`seq` or `batch`; a damaged file is named as such when it is read."""
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("by")
    except (OSError, ValueError, AttributeError):
        return None


@dataclass(frozen=True)
class Newest:
    """`sources`: the newest of each kind, grid study first; `absent`: the kinds of which there is
    none; `passed_over`: newer studies that have measured nothing to report on."""

    sources: list[Source]
    absent: list[Kind]
    passed_over: list[Omission]


def newest_sources(results: Path) -> Newest:
    """What a report takes where nothing was named. OSError where `results` cannot be listed."""
    folders = _folders(results) if results.is_dir() else []
    study, passed_over = _newest_study(folders)
    found: dict[Kind, list[Path]] = {
        Kind.STUDY: [study] if study is not None else [],
        Kind.SUITE: [f / SUITE_FILE for f in folders if (f / SUITE_FILE).is_file()][:1],
        Kind.TRAINING: list(_newest_trainings(folders)),
        Kind.FRONTIER: _newest_frontiers(folders, study),
        Kind.ABLATION: [f / ABLATION_FILE for f in folders if (f / ABLATION_FILE).is_file()][:1],
        Kind.SCALING: [f for f in folders if (f / SCALING_FILE).is_file()][:1],
    }
    # a study's own serves where there is no other
    served = {Kind.FRONTIER for f in found[Kind.STUDY] if (f / FRONTIER_FILE).is_file()}
    sources = [Source(kind, path) for kind, paths in found.items() for path in paths]
    absent = [kind for kind, paths in found.items() if not paths and kind not in served]
    return Newest(sources, absent, passed_over)
