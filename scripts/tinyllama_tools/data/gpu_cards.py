"""The cards of this machine as the system knows them, apart from what libtorch and our programs
say: driver nodes, PCI addresses and power."""

import contextlib
import re
import shutil
import statistics
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

DEV, SYS, PROC = Path("/dev"), Path("/sys"), Path("/proc")
CUDA, HIP = "cuda", "hip"
# What a driver's library opens before it answers for a card; dxg is that of Windows' subsystem for
# Linux (sources: the kernel's drivers/gpu/drm/amd/amdkfd, nvidia-modprobe, drivers/hv/dxgkrnl).
NODES = {HIP: ("kfd", "dxg"), CUDA: ("nvidiactl", "dxg")}
VENDORS = {HIP: "0x1002", CUDA: "0x10de"}


def driver_node(backend: str) -> str:
    """The node of this vendor's driver; empty where there is none."""
    return next((f"/dev/{name}" for name in NODES[backend] if (DEV / name).exists()), "")


class Card(NamedTuple):
    """`pci`: its address, as 0000:c1:00.0; `partition`: how it is divided, in the driver's words;
    empty where it says nothing."""

    pci: str
    partition: str = ""


def _bare(uuid: str) -> str:
    """Without what its kind begins with, and dashes."""
    return re.sub(r"^(GPU|MIG)-|-", "", uuid.strip()).lower()


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().partition("\n")[0]
    except OSError:
        return ""


def _nvidia_smi(*options: str) -> str:
    """What it prints; empty where it is not installed, fails or hangs."""
    if shutil.which("nvidia-smi") is None:
        return ""
    how = {"capture_output": True, "text": True, "check": False, "timeout": 20}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(["nvidia-smi", *options], **how)
        return done.stdout if done.returncode == 0 else ""
    return ""


# the tables that it prints
CSV = ("--format=csv,noheader,nounits",)


def _as_the_kernel_has_it(address: str) -> str:
    """0000:c1:00.0 of 00000000:C1:00.0."""
    return address.strip().lower()[-12:]


def _nvidia_address(uuid: str) -> str:
    """The PCI address of the card with this UUID, by the driver's files or its tool."""
    for folder in sorted(PROC.glob("driver/nvidia/gpus/*")):
        with contextlib.suppress(OSError):
            text = (folder / "information").read_text(encoding="utf-8", errors="replace")
            found = re.search(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)
            if found and _bare(found[1]) == _bare(uuid):
                return folder.name.lower()
    for line in _nvidia_smi("--query-gpu=uuid,pci.bus_id", *CSV).splitlines():
        own, _, address = line.partition(",")
        if _bare(own) == _bare(uuid):
            return _as_the_kernel_has_it(address)
    return ""


def find_card(backend: str, uuid: str) -> Card | None:
    """The card that the runtime names by this UUID; None where the system does not know it."""
    if not _bare(uuid):
        return None
    if backend == HIP:
        for device in sorted(SYS.glob("bus/pci/devices/*")):
            is_amd = _first_line(device / "vendor") == VENDORS[HIP]
            if is_amd and _bare(_first_line(device / "unique_id")) == _bare(uuid):
                modes = ("current_compute_partition", "current_memory_partition")
                words = filter(None, (_first_line(device / mode) for mode in modes))
                return Card(device.name, " ".join(words))
        return None
    parent, partition = uuid, "whole card"
    # a part of a card has a UUID of its own; the list has it below its card
    for line in _nvidia_smi("-L").splitlines():
        named = re.match(r"\s*(GPU|MIG) ?(.*?)\s*\(?UUID: (\S+?)\)", line)
        if named and named[1] == "GPU":
            parent_here = named[3]
        elif named and _bare(named[3]) == _bare(uuid):
            parent, partition = parent_here, f"MIG {named[2].partition(' ')[0]}"
    address = _nvidia_address(parent)
    return Card(address, partition) if address else None


def vendor_of(card: Card) -> str:
    """As 0x1002; empty where the system does not say."""
    return _first_line(SYS / "bus/pci/devices" / card.pci / "vendor")


def powers(backend: str) -> dict[str, float]:
    """Watts of every card now, by PCI address; without those that do not say."""
    found: dict[str, float] = {}
    if backend == HIP:
        for file in sorted(SYS.glob("bus/pci/devices/*/hwmon/hwmon*/power1_*")):
            device = file.parents[2]
            is_reading = file.name in ("power1_average", "power1_input")
            if is_reading and _first_line(device / "vendor") == VENDORS[HIP]:
                with contextlib.suppress(ValueError):
                    found[device.name] = 1e-6 * float(_first_line(file))
        return found
    for line in _nvidia_smi("--query-gpu=pci.bus_id,power.draw", *CSV).splitlines():
        address, _, watts = line.partition(",")
        with contextlib.suppress(ValueError):
            found[_as_the_kernel_has_it(address)] = float(watts)
    return found


class PowerWatch:
    """Reads the power of all cards until its end."""

    def __init__(self, backend: str, interval_seconds: float = 0.2) -> None:
        self._backend, self._interval = backend, interval_seconds
        self._samples: list[Mapping[str, float]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PowerWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.is_set():
            if found := powers(self._backend):
                self._samples.append(found)
            self._end.wait(self._interval)

    @property
    def by_card(self) -> dict[str, Sequence[float]]:
        """The readings of each card, in their order."""
        cards = {card for sample in self._samples for card in sample}
        return {card: [s[card] for s in self._samples if card in s] for card in sorted(cards)}


def risen(
    before: Mapping[str, float], under_load: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """By card, by how many watts the upper half of its readings lies above the one before."""
    return {
        card: statistics.median(sorted(watts)[len(watts) // 2 :]) - before[card]
        for card, watts in under_load.items()
        if card in before and watts
    }
