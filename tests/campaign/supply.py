"""What is downloaded has a digest, and nothing is at run time: programs and tools run without a
network, and each requirement and pinned source names its hash."""

from __future__ import annotations

import re
import subprocess

from campaign.kills import TIME_LIMIT_S
from campaign.tally import Scope, Tally, scratch
from campaign.workloads import PROJECT, WORKLOADS

# which build of torch an index offers decides the device it is for, so no hash can be given
WITHOUT_HASHES = {"requirements.txt", "requirements-cuda.txt"}


def unhashed(text: str) -> list[str]:
    """Requirements of a file without a hash."""
    entries = re.sub(r"\\\n", " ", text).splitlines()
    wanted = [e for e in entries if re.match(r"[A-Za-z0-9]", e)]
    return [entry.split()[0] for entry in wanted if "--hash=sha256:" not in entry]


def run_part(scope: Scope) -> Tally:
    """Once each, whatever the share."""
    del scope
    tally = Tally()
    for path in sorted(PROJECT.glob("requirements*.txt")):
        if path.name not in WITHOUT_HASHES:
            tally.add("requirements", [f"{path.name}: {e}" for e in unhashed(path.read_text())])
    for path in sorted((PROJECT / "cmake").glob("*.cmake")):
        text = path.read_text(encoding="utf-8")
        urls = re.findall(r"https?://\S+\.(?:tar\.\w+|zip)", text)
        digests = re.findall(r"SHA256[= ]+[0-9a-f]{64}", text)
        few = [f"{path.name}: {len(urls)} sources, {len(digests)} digests"]
        tally.add("pinned sources", few if len(urls) > len(digests) else [])
    for workload in WORKLOADS:
        with scratch() as folder:
            # a network namespace of its own, in which only the loopback address answers
            inside = 'ip link set lo up 2>/dev/null || true; exec "$@"'
            command = ["unshare", "-rn", "sh", "-c", inside, "sh", *workload.command(folder)]
            done = subprocess.run(
                command,
                cwd=folder,
                env=workload.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIME_LIMIT_S,
                check=False,
            )
            said = done.stderr.decode(errors="replace").strip()[-300:]
            ended = [f"{workload.name}: {done.returncode}: {said}"] if done.returncode else []
            tally.add("run without a network", ended + workload.problems(folder, not ended, {}))
    return tally
