"""A folder of profiles: what scripts/profile filled, or what one run of tiny_llama_train did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.profiles import BadProfileError, Profile, read_profile

RUNS_FILE = "profile_runs.json"
RUNS_VERSION = 1
BASELINE_FOLDER = "baseline_training"
BASELINE, OPERATORS, MEMORY, FLOPS = "baseline", "operators", "memory", "flops"
SECTIONS = (OPERATORS, MEMORY, FLOPS)
TITLES = {
    BASELINE: "plain run",
    OPERATORS: "operator profiler",
    MEMORY: "memory profiler",
    FLOPS: "FLOPS profiler",
}


@dataclass(frozen=True)
class ProfileSet:
    """Profiles of one configuration by what was on; a single run can serve several.

    `runs`: profile_runs.json, None for the folder of a single run.
    """

    folder: Path
    profiles: Mapping[str, Profile]
    runs: Json | None = field(default=None)

    @property
    def plain(self) -> Profile:
        """The run without profilers where there is one."""
        return next(iter(self.profiles.values()))

    def of(self, name: str) -> Profile | None:
        """The run that a profiler was on in."""
        return self.profiles.get(name)

    def merged(self) -> Json:
        """One performance_summary.json: the plain run's, with each profiler's section in it."""
        sections = {
            name: self.profiles[name].summary.get(name) if name in self.profiles else None
            for name in SECTIONS
        }
        return self.plain.summary | sections


def read_runs(path: Path) -> Json:
    """profile_runs.json, checked; BadProfileError names it and what is wrong."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema_version"] != RUNS_VERSION:
            raise ValueError(f"schema_version is {found['schema_version']!r}, not {RUNS_VERSION}")
        for run in found["runs"]:
            if run["name"] not in (BASELINE, *SECTIONS):
                raise ValueError(f"run '{run['name']}' is none of {(BASELINE, *SECTIONS)}")
            if Path(run["folder"]).is_absolute() or ".." in Path(run["folder"]).parts:
                raise ValueError(f"folder '{run['folder']}' is outside")
            float(run["seconds"]), str(run["command"]), int(run["exit_status"]), list(run["notes"])
        float(found["total_seconds"]), str(found["command"]), str(found["started"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadProfileError(
            f"{path}: no list of runs of scripts/profile: {error!r}; profile again"
        ) from error
    return found


def read_profile_set(folder: Path) -> ProfileSet:
    """All profiles below a folder; BadProfileError where one is missing or damaged.

    A run that failed before its profiler's steps is in `runs` only.
    """
    runs_file = folder / RUNS_FILE
    if not runs_file.exists() and not (folder / BASELINE_FOLDER).exists():
        profile = read_profile(folder)
        on = [name for name in SECTIONS if profile.summary.get(name)]
        return ProfileSet(folder, dict.fromkeys(on or [BASELINE], profile))
    runs = read_runs(runs_file)
    found = {run["name"]: _profile_of(run, folder) for run in runs["runs"]}
    profiles = {name: profile for name, profile in found.items() if profile is not None}
    if not profiles:
        raise BadProfileError(f"{runs_file}: no run came to its end; profile again")
    return ProfileSet(folder, profiles, runs)


def _profile_of(run: Json, folder: Path) -> Profile | None:
    """None where the run failed before its profiler's steps."""
    name, profile = run["name"], read_profile(folder / run["folder"])
    if name == BASELINE or profile.summary.get(name):
        return profile
    if int(run["exit_status"]):
        return None
    raise BadProfileError(f"{profile.folder}: its summary has no '{name}' section; profile again")
