"""What is downloaded has a digest, and nothing is at run time: programs and tools run without a
network, and each requirement and pinned source names its hash."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from campaign.runs import finish
from campaign.tally import Scope, Tally, scratch
from campaign.workloads import PROJECT, WORKLOADS, Workload

# which build of torch an index offers decides the device it is for, so no hash can be given
WITHOUT_HASHES = {"requirements.txt", "requirements-cuda.txt"}
# whoever is not root may have a network of his own only as the root of his own users
ALONE = ("unshare", "-n") if os.geteuid() == 0 else ("unshare", "-rn")


def unhashed(text: str) -> list[str]:
    """Requirements of a file without a hash."""
    entries = re.sub(r"\\\n", " ", text).splitlines()
    wanted = [e for e in entries if re.match(r"[A-Za-z0-9]", e)]
    return [entry.split()[0] for entry in wanted if "--hash=sha256:" not in entry]


def undigested(text: str) -> list[str]:
    """Archives of a CMake or shell file that no SHA-256 follows."""
    urls = re.findall(
        r"https?://[^\s\"]+\.(?:tar\.\w+|tgz|zip|whl)\b(?!\"?\s+[0-9a-f]{64}\b)", text
    )
    return [f"{url} has no digest" for url in urls]


def without_network(workload: Workload) -> list[str]:
    """In a network of its own, in which only the loopback address answers."""
    inside = 'ip link set lo up 2>/dev/null || true; exec "$@"'
    with scratch() as folder:
        command = [*ALONE, "sh", "-c", inside, "sh", *workload.command(folder)]
        status, said = finish(command, folder, workload.environment)
        ended = [f"{workload.name}: {status}: {said.strip()[-300:]}"] if status else []
        return ended + workload.problems(folder, status == 0, {})


def sources() -> list[Path]:
    """Tracked files of the set-up that may name what is downloaded."""
    kinds = ("CMakeLists.txt", "cmake/*", "scripts/*", "scripts/lib/*", ".ci/*")
    return sorted(path for kind in kinds for path in PROJECT.glob(kind) if path.is_file())


def run_part(scope: Scope) -> Iterator[Tally]:
    """Once each, whatever the share."""
    tally = Tally()
    for path in sorted(PROJECT.glob("requirements*.txt")):
        if path.name not in WITHOUT_HASHES:
            tally.add("requirements", [f"{path.name}: {e}" for e in unhashed(path.read_text())])
    for path in sources():
        found = undigested(path.read_text(encoding="utf-8"))
        tally.add("file that may name sources", [f"{path.name}: {each}" for each in found])
    can_be_alone = subprocess.run([*ALONE, "true"], capture_output=True, check=False)
    if can_be_alone.returncode:
        said = can_be_alone.stderr.decode().strip()
        tally.notes.append(f"no run without a network, which the system refuses: {said}")
        yield tally
        return
    for workload in scope.some(WORKLOADS):
        tally.add("run without a network", without_network(workload))
        print(f"without a network: {workload.name}", flush=True)
    yield tally
