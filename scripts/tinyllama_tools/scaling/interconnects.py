"""Reads fixtures/interconnects.json: links between devices, each with the source of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import PROJECT, BadInputError
from tinyllama_tools.data.json_files import bad_file, is_number, read_json
from tinyllama_tools.data.json_files import shown_value as shown
from tinyllama_tools.scaling.collective_models import Hierarchy, Link

FIXTURE = PROJECT / "fixtures/interconnects.json"
REMEDY = "correct it; fixtures/interconnects.json is an example"
MICRO, GIGA = 1e-6, 1e9


@dataclass(frozen=True)
class SourcedLink:
    """`bandwidth_source`, `latency_source`: who says so; `is_assumed`: the latency is nobody's
    figure, and its source says what it rests on."""

    name: str
    link: Link
    bandwidth_source: str
    latency_source: str
    is_assumed: bool


@dataclass(frozen=True)
class Interconnect:
    """`device`: None where a node has one device."""

    name: str
    title: str
    devices_per_node: int
    network: SourcedLink
    device: SourcedLink | None = None

    @property
    def hierarchy(self) -> Hierarchy:
        """What the formulas need."""
        device = self.device.link if self.device is not None else None
        return Hierarchy(self.devices_per_node, self.network.link, device)

    @property
    def links(self) -> tuple[SourcedLink, ...]:
        """Those that there are."""
        return tuple(link for link in (self.device, self.network) if link is not None)


class _Entry:
    """An object of the file, with its place for messages."""

    def __init__(self, found: object, where: str, path: Path) -> None:
        self._where, self._path = where, path
        if not isinstance(found, dict):
            raise self._bad(f"is {shown(found)}, must be an object")
        self._found: Mapping[str, Any] = found

    def _bad(self, what: str) -> BadInputError:
        return bad_file(self._path, f"{self._where} {what}", REMEDY)

    def text(self, key: str) -> str:
        value = self._found.get(key)
        if not isinstance(value, str) or not value:
            raise self._bad(f"has {key} {shown(value)}, must be a text")
        return value

    def positive(self, key: str) -> float:
        value = self._found.get(key)
        if not is_number(value) or value <= 0:
            raise self._bad(f"has {key} {shown(value)}, must be a number above 0")
        return float(value)

    def power_of_two(self, key: str) -> int:
        value = self.positive(key)
        if value != int(value) or int(value) & (int(value) - 1):
            raise self._bad(f"has {key} {value:g}, must be 1, 2, 4, 8 and so on")
        return int(value)

    def flag(self, key: str) -> bool:
        value = self._found.get(key)
        if not isinstance(value, bool):
            raise self._bad(f"has {key} {shown(value)}, must be true or false")
        return value

    def below(self, key: str) -> _Entry:
        return _Entry(self._found.get(key), f"{self._where}.{key}", self._path)

    def has(self, key: str) -> bool:
        return self._found.get(key) is not None


def _link(entry: _Entry) -> SourcedLink:
    source = entry.below("source")
    return SourcedLink(
        entry.text("name"),
        Link(MICRO * entry.positive("latency_us"), GIGA * entry.positive("GB_per_second")),
        source.text("bandwidth"),
        source.text("latency"),
        entry.flag("latency_is_assumption"),
    )


def _interconnect(found: object, index: int, path: Path) -> Interconnect:
    entry = _Entry(found, f"interconnects[{index}]", path)
    per_node = entry.power_of_two("devices_per_node")
    if per_node > 1 and not entry.has("device_link"):
        rule = "has several devices in a node and no device_link"
        raise bad_file(path, f"interconnects[{index}] {rule}", REMEDY)
    device = _link(entry.below("device_link")) if entry.has("device_link") else None
    network = _link(entry.below("network_link"))
    return Interconnect(entry.text("name"), entry.text("title"), per_node, network, device)


def read_interconnects(
    path: Path = FIXTURE, names: Sequence[str] | None = None
) -> list[Interconnect]:
    """All of the file, or those of these names.

    BadInputError naming the entry, the key and the value that is wrong, and an unknown name with
    those that there are.
    """
    document, _ = read_json(path)
    entries = document.get("interconnects")
    if not isinstance(entries, list) or not entries:
        raise bad_file(path, "has no list 'interconnects'", REMEDY)
    found = {one.name: one for one in (_interconnect(e, i, path) for i, e in enumerate(entries))}
    wanted = list(found) if names is None else names
    for name in wanted:
        if name not in found:
            raise BadInputError(
                f"interconnect '{name}': must be one of {', '.join(found)} ({path})"
            )
    return [found[name] for name in wanted]
