"""The `deb-src` list of another release, derived from both formats of apt's sources."""

from pathlib import Path

import pytest

from apt_sources import (
    Source,
    parse_deb822,
    parse_one_line,
    read_sources,
    source_list,
)

ONE_LINE = """
# deb http://mirror.example.org/debian old main
deb http://mirror.example.org/debian bookworm main contrib  # the mirror
deb-src http://mirror.example.org/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] https://example.org/debian bookworm main
deb http://security.example.org/debian-security bookworm-security main
deb https://vendor.example.org/apt stable vendor
"""
DEB822 = """\
Types: deb
# a comment inside a stanza
URIs: http://mirror.example.org/debian http://second.example.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.example.org/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example.org/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://embedded.example.org/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY865UxYJ
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_one_line_sources() -> None:
    sources = parse_one_line(ONE_LINE)
    assert sources[0] == Source(
        "http://mirror.example.org/debian", ("bookworm",), ("main", "contrib")
    )
    assert sources[2].options == {"Signed-By": "/usr/share/keyrings/k.gpg"}
    assert len(sources) == 5


def test_deb822_sources() -> None:
    sources = parse_deb822(DEB822)
    assert [source.uri.split("/")[2].split(".")[0] for source in sources] == [
        "mirror",
        "second",
        "security",
        "embedded",
    ]
    assert sources[0].suites == ("bookworm", "bookworm-updates")
    assert "-----BEGIN PGP" in sources[3].options["Signed-By"]


def test_list_of_the_next_release_from_one_line_sources() -> None:
    text = source_list(parse_one_line(ONE_LINE), "bookworm", "trixie")
    assert text.split("\n\n") == [
        "Types: deb-src\nURIs: http://mirror.example.org/debian\nSuites: trixie\nComponents: main",
        "Types: deb-src\nURIs: https://example.org/debian\nSuites: trixie\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n",
    ]


def test_list_of_the_next_release_from_deb822_sources() -> None:
    text = source_list(parse_deb822(DEB822), "bookworm", "trixie")
    assert "security" not in text
    assert "off.example.org" not in text
    assert "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n" in text
    # apt itself could read the embedded key again
    assert parse_deb822(text)[-1].options == parse_deb822(DEB822)[-1].options


def test_sources_are_read_from_all_files_of_apt(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example.org/debian bookworm main\n")
    (parts / "b.list").write_text("deb http://b.example.org/debian bookworm main\n")
    (parts / "c.sources").write_text(DEB822)
    (parts / "d.sources.disabled").write_text(DEB822)
    assert len(read_sources(tmp_path)) == 6


def test_no_archive_of_the_release_is_an_error() -> None:
    with pytest.raises(LookupError, match="bookworm"):
        source_list(
            [Source("http://example.org/apt", ("stable",), ("vendor",))], "bookworm", "trixie"
        )
