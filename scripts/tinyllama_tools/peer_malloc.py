"""A malloc that keeps its memory, for a peer's environment.

glibc's maps and unmaps every large tensor, which costs a small step a tenth to a third.
"""

from __future__ import annotations

import ctypes.util
from collections.abc import Callable
from dataclasses import dataclass

# in the order of preference, as -l would name them
LIBRARIES = ("tcmalloc_minimal", "tcmalloc", "jemalloc")
# jemalloc gives memory back after ten seconds unless told otherwise
JEMALLOC_KEEPS = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
# above any tensor here; the names with a last underscore are glibc's
GLIBC_KEEPS = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
}


@dataclass(frozen=True)
class CachingMalloc:
    """What a process needs in its environment, and how that is called in a result."""

    environment: dict[str, str]
    description: str


def caching_malloc(
    find: Callable[[str], str | None] = ctypes.util.find_library,
) -> CachingMalloc:
    """The first library that is installed, or glibc's with its thresholds raised.

    `find`: answers a library's name with its file's.
    """
    for library in LIBRARIES:
        file = find(library)
        if file:
            more = JEMALLOC_KEEPS if library == "jemalloc" else {}
            return CachingMalloc({"LD_PRELOAD": file, **more}, f"{file} preloaded")
    kept = glibc_that_keeps()
    absent = f"{kept.description}: none of {', '.join(LIBRARIES)} is installed"
    return CachingMalloc(kept.environment, absent)


def glibc_that_keeps() -> CachingMalloc:
    """The system's own, with its thresholds raised."""
    settings = ", ".join(f"{name}={value}" for name, value in GLIBC_KEEPS.items())
    return CachingMalloc(GLIBC_KEEPS, f"glibc with {settings}")
