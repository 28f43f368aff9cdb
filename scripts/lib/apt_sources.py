"""Derives a `deb-src` list for another Debian release from the apt sources of this machine.

Mirror, proxy and signing key stay what the machine's owner chose; only the release and the type
change. Only the standard library: this runs before any environment exists.
"""

import argparse
import re
import sys
from pathlib import Path

# a stanza's values by their names in lower case
Stanza = dict[str, str]
OPTIONS_KEPT = ("Signed-By", "Trusted")
ONE_LINE = re.compile(r"deb(?:-src)?\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)")


def parse_one_line(text: str) -> list[Stanza]:
    """Reads the `deb [options] uri suite component...` format of *.list files."""
    stanzas = []
    for line in text.splitlines():
        if match := ONE_LINE.fullmatch(line.split("#", 1)[0].strip()):
            options, uri, suite, components = match.groups()
            words = (word.partition("=") for word in (options or "").split())
            stanza = {name.lower(): value for name, _, value in words}
            stanzas.append(stanza | {"uris": uri, "suites": suite, "components": components})
    return stanzas


def parse_deb822(text: str) -> list[Stanza]:
    """Reads *.sources files; an embedded key continues on indented lines."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    stanzas = []
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        values = re.findall(r"^([^\s:]+):((?:.*)(?:\n[ \t].*)*)", block, re.MULTILINE)
        stanza = {name.lower(): value.strip(" ") for name, value in values}
        if stanza.get("enabled", "yes").lower() not in {"no", "false", "off", "0"}:
            stanzas.append(stanza)
    return stanzas


def read_sources(apt_folder: Path) -> list[Stanza]:
    """All that apt itself would read from `apt_folder` (normally /etc/apt)."""
    parts = apt_folder / "sources.list.d"
    lists = [apt_folder / "sources.list", *sorted(parts.glob("*.list"))]
    found = []
    for path in [*lists, *sorted(parts.glob("*.sources"))]:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found += (parse_deb822 if path.suffix == ".sources" else parse_one_line)(text)
    return found


def source_list(sources: list[Stanza], own_release: str, wanted_release: str) -> str:
    """A deb822 `deb-src` list of `wanted_release`, from the archives of the machine's own release.

    `<release>-security` and the like mark an archive that lacks the release itself: not counted.
    Raises LookupError where no archive is left.
    """
    release_names = {own_release, wanted_release, "stable", "oldstable", "testing"}
    stanzas = []
    for source in sources:
        if "main" not in source.get("components", "").split():
            continue
        if not release_names.intersection(source.get("suites", "").split()):
            continue
        kept = {name: source[name.lower()] for name in OPTIONS_KEPT if name.lower() in source}
        for uri in source.get("uris", "").split():
            fields = {"Types": "deb-src", "URIs": uri, "Suites": wanted_release}
            fields |= {"Components": "main"} | kept
            # an embedded key begins with its line break
            stanzas.append("".join(f"{name}: {value}\n" for name, value in fields.items()))
    if not stanzas:
        raise LookupError(f"no apt source on this machine carries the Debian release {own_release}")
    return "\n".join(dict.fromkeys(stanzas))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="apt_sources", description=__doc__)
    parser.add_argument("--apt-folder", type=Path, default=Path("/etc/apt"))
    parser.add_argument("--own-release", required=True, help="codename of this machine's release")
    parser.add_argument("--wanted-release", required=True, help="codename of the release to read")
    options = parser.parse_args(arguments)
    try:
        sources = read_sources(options.apt_folder)
        print(source_list(sources, options.own_release, options.wanted_release), end="")
    except (LookupError, OSError) as error:
        print(f"apt_sources: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
