"""Packages of a peer of scripts/peers beside torch and transformers: pip puts them into a folder
of the user's cache, once, and only that peer's process sees it."""

import os
import subprocess
import tempfile
from pathlib import Path

# What pip installs. {torch}: major and minor version of the torch that the peer's Python has: the
# plug-in is built for one, and refuses others when it is imported. It needs torch and numpy, which
# are there, and `deprecated`.
REQUIREMENTS = {
    "jax": ("jax==0.10.2",),
    "zentorch": ("--no-deps", "deprecated", "wrapt", "zentorch=={torch}.*"),
}
ABOUT = """\
import importlib.metadata, sys
print(sys.implementation.cache_tag, *importlib.metadata.version("torch").split(".")[:2])"""


class PackagesError(Exception):
    """They cannot be installed; the message says why."""


def user_cache() -> Path | None:
    """Where we keep what takes long to make; None for a user without a home."""
    home = os.environ.get("HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or (home and f"{home}/.cache")
    return Path(cache) / "tiny_llama" if cache else None


def _said_by(command: tuple[str, ...]) -> str:
    """Its output. PackagesError with pip's own reason, or its last line."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PackagesError(f"{command[0]} cannot be started: {error.strerror}") from error
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
        reasons = [line for line in lines if line.startswith("ERROR: ")] or lines
        raise PackagesError(reasons[-1])
    return ended.stdout


def folder_with(library: str, python: str) -> Path:
    """The folder with this library for that Python, which is filled first where it is not there."""
    tag, *version = _said_by((python, "-c", ABOUT)).split()
    wanted = [word.format(torch=".".join(version)) for word in REQUIREMENTS[library]]
    if not (cache := user_cache()):
        raise PackagesError("neither HOME nor XDG_CACHE_HOME says where to keep them")
    folder = cache / "peers" / f"{wanted[-1].rstrip('.*').replace('==', '-')}-{tag}"
    if folder.is_dir():
        return folder
    pip = (python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _said_by((*pip, "--target", f"{scratch}/new", *wanted))
            # whole, or not there
            Path(scratch, "new").rename(folder)
    except OSError as error:
        # another run may have been first
        if not folder.is_dir():
            raise PackagesError(f"{folder}: {error.strerror}") from error
    return folder
