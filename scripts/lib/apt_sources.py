"""Derives a `deb-src` list for another Debian release from the apt sources of this machine.

Mirror, proxy and signing key stay what the machine's owner chose; only the release and the type
change. Only the standard library: this runs before any environment exists.
"""

import argparse
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

OPTIONS_KEPT = {"signed-by": "Signed-By", "trusted": "Trusted"}


@dataclass(frozen=True)
class Source:
    """One archive: its address, the suites taken from it, and whom apt trusts for it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)


def parse_one_line(text: str) -> list[Source]:
    """Reads the `deb [options] uri suite component...` format of *.list files."""
    sources = []
    for line in text.splitlines():
        line = line.split("#", 1)[0].strip()
        match = re.fullmatch(r"deb(?:-src)?\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)", line)
        if not match:
            continue
        pairs = (word.partition("=") for word in (match[1] or "").split())
        options = {
            OPTIONS_KEPT[name.lower()]: value
            for name, _, value in pairs
            if name.lower() in OPTIONS_KEPT
        }
        sources.append(Source(match[2], (match[3],), tuple(match[4].split()), options))
    return sources


def parse_deb822(text: str) -> list[Source]:
    """Reads the stanzas of *.sources files; an embedded key continues on indented lines."""
    sources = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace() and name:
                fields[name] += "\n" + line
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() in {"no", "false", "off", "0"}:
            continue
        options = {OPTIONS_KEPT[key]: value for key, value in fields.items() if key in OPTIONS_KEPT}
        suites = tuple(fields.get("suites", "").split())
        components = tuple(fields.get("components", "").split())
        if suites:
            sources += [
                Source(uri, suites, components, options) for uri in fields.get("uris", "").split()
            ]
    return sources


def read_sources(apt_folder: Path) -> list[Source]:
    """All sources that apt itself would read from `apt_folder` (normally /etc/apt)."""
    sources = []
    main_list = apt_folder / "sources.list"
    parts = apt_folder / "sources.list.d"
    for path in [main_list, *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            parse = parse_deb822 if path.suffix == ".sources" else parse_one_line
            sources += parse(text)
    return sources


def source_list(sources: list[Source], own_release: str, wanted_release: str) -> str:
    """A deb822 `deb-src` list of `wanted_release`, from the archives of the machine's own release.

    `<release>-security` and the like mark an archive that lacks the release itself: not counted.
    Raises LookupError where no archive is left.
    """
    release_names = {own_release, wanted_release, "stable", "oldstable", "testing"}
    stanzas = []
    for source in sources:
        if "main" not in source.components or not release_names.intersection(source.suites):
            continue
        lines = [
            "Types: deb-src",
            f"URIs: {source.uri}",
            f"Suites: {wanted_release}",
            "Components: main",
        ]
        # one space keeps "Signed-By:\n -----BEGIN..." and "Signed-By: /path" alike
        lines += [f"{name}: {value}" for name, value in source.options.items()]
        stanza = "\n".join(lines) + "\n"
        if stanza not in stanzas:
            stanzas.append(stanza)
    if not stanzas:
        raise LookupError(f"no apt source on this machine carries the Debian release {own_release}")
    return "\n".join(stanzas)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="apt_sources", description=__doc__)
    parser.add_argument("--apt-folder", type=Path, default=Path("/etc/apt"))
    parser.add_argument("--own-release", required=True, help="codename of this machine's release")
    parser.add_argument("--wanted-release", required=True, help="codename of the release to read")
    options = parser.parse_args(arguments)
    try:
        text = source_list(
            read_sources(options.apt_folder), options.own_release, options.wanted_release
        )
    except (LookupError, OSError) as error:
        print(f"apt_sources: {error}", file=sys.stderr)
        return 1
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
