"""What a sanitizer reports is found and told from what libraries do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from campaign import sanitizers
from campaign.tally import OfLibrary
from tinyllama_tools.proofs.run_tests import Program

OVERFLOW = """
#include <cstdlib>
int main(int count, char**) { int* a = new int[2]; return a[count + 1]; }
"""
SIGNED = "int main(int count, char**) { int most = 2147483647; return most + count == 0; }"
RACE = """
#include <thread>
int shared = 0;
void add() { for (int i = 0; i < 1000; ++i) ++shared; }
int main() { std::thread one(add), other(add); one.join(); other.join(); }
"""


@pytest.mark.parametrize(
    ("preset", "source", "words"),
    [
        ("asan", OVERFLOW, "heap-buffer-overflow"),
        ("asan", SIGNED, "signed integer overflow"),
        ("tsan", RACE, "data race"),
    ],
)
def test_a_planted_fault_is_reported(
    preset: str, source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "planted.cpp").write_text(source)
    flags = {"asan": "address,undefined", "tsan": "thread"}[preset]
    program = tmp_path / "planted"
    options = ["-g", f"-fsanitize={flags}", "-fno-sanitize-recover=all", "-pthread"]
    command = ["g++", *options, str(folder / "planted.cpp"), "-o", str(program)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler cannot link with -fsanitize={flags}")
    planted = Program("planted", (str(program),), tmp_path, report_option="")
    (found, *_) = sanitizers.run_watched(planted, preset)
    assert words in found
    assert isinstance(found, OfLibrary)
    # the same in a source of ours
    own = sanitizers.re.compile(rf"{tmp_path}/tests/\S+")
    monkeypatch.setattr(sanitizers, "OWN_SOURCE", own)
    (found, *_) = sanitizers.run_watched(planted, preset)
    assert not isinstance(found, OfLibrary)
