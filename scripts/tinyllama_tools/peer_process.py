"""The other end of peer_server.py: starts one peer's process and talks to it. Needs no torch."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.core.process import last_words
from tinyllama_tools.peer_forms import PeerForm
from tinyllama_tools.peer_malloc import CachingMalloc

Json = dict[str, Any]
SCRIPTS = PROJECT / "scripts"
# What says how OpenMP places threads; tiny_llama_bench pins them itself where none of these is set.
PLACING = ("OMP_PROC_BIND", "OMP_PLACES", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
SECONDS_TO_END = 10


class PeerError(Exception):
    """A peer did not do what was asked; the message names it and has its last words."""


def placed_threads(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment, with OpenMP's threads pinned unless it places them."""
    if any(name in inherited for name in PLACING):
        return dict(inherited)
    return {**inherited, "OMP_PROC_BIND": "true"}


def peer_environment(
    form: PeerForm, malloc: CachingMalloc, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Threads placed as our program places its own, the form's malloc, and where code is kept."""
    added = {
        "PYTHONPATH": str(SCRIPTS),
        "TORCHINDUCTOR_CACHE_DIR": inherited.get(
            "TORCHINDUCTOR_CACHE_DIR", str(PROJECT / ".deps" / "torchinductor")
        ),
    }
    if form.malloc:
        added |= malloc.environment
    return placed_threads(inherited) | added


class PeerProcess:
    """A running peer. In a session of its own: Ctrl-C is for us, who then close its input."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, str],
        command: Sequence[str] = (
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tinyllama_tools.peer_server",
        ),
    ) -> None:
        self.name = name
        # closed in close(), with the process
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )

    def send(self, do: str, **what: object) -> None:
        """Asks for something; `receive` has to follow. That the process has ended is said there."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps({"do": do, **what}) + "\n")
                self._process.stdin.flush()

    def receive(self) -> Json:
        """The answer. PeerError where it says that it could not, or has ended."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise PeerError(self._ended())
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, do: str, **what: object) -> Json:
        """Both of them."""
        self.send(do, **what)
        return self.receive()

    def _ended(self) -> str:
        status = self._process.wait()
        self._said.seek(0)
        words = last_words(self._said.read()) or "it said nothing"
        return f"{self.name}: its process ended with {status}: {words}"

    @property
    def is_running(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def close(self) -> None:
        """Lets it end, and makes it where it does not."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._said.close()


def start_peer(form: PeerForm, malloc: CachingMalloc) -> PeerProcess:
    """The process of one form, with this process's environment beneath its own."""
    return PeerProcess(form.variant, peer_environment(form, malloc, os.environ))
