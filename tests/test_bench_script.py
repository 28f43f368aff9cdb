"""How scripts/bench runs the suite and keeps its results; a stub stands for tiny_llama_bench."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from run_folder import device_slug

if TYPE_CHECKING:
    from conftest import ScriptCheckout

EXPLAINS = "source scripts/lib/results.sh; only_explains {}"
# writes `out` as its results
PROGRAM = """
if [[ " $* " == *" --describe-device "* ]]; then
  echo '{"device": {"name": "Some CPU (R) 9"}}'
  exit
fi
[[ " $* " == *" --bogus "* ]] && exit 2
echo "arguments: $*"
for argument in "$@"; do
  case "$argument" in --benchmark_out=*) cp out "${argument#*=}";; esac
  if [[ "${previous:-}" == --journal ]]; then echo line >> "$argument"; fi
  previous="$argument"
done
"""


def run_bench(
    checkout: "ScriptCheckout", arguments: str, ending: str = ""
) -> "subprocess.CompletedProcess[str]":
    (checkout.root / "out").touch()
    checkout.stub("bench_stub", PROGRAM + ending)
    return checkout.run(
        f"source scripts/lib/results.sh; run_and_keep_results bench_stub {arguments}"
    )


def folders(checkout: "ScriptCheckout") -> list[Path]:
    return sorted((checkout.root / "results").iterdir())


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("AMD Instinct MI300X", "amd_instinct_mi300x"),
        ("Intel(R) Xeon(R) CPU @ 2.10GHz", "intel_xeon_cpu_2_10ghz"),
        ("../../etc/passwd", "etc_passwd"),
        ("", "unknown_device"),
    ],
)
def test_device_slug(name: str, slug: str) -> None:
    assert device_slug(json.dumps({"device": {"name": name}})) == slug
    with pytest.raises(ValueError, match="no device name"):
        device_slug(json.dumps({"device": [name]}))


def test_results_go_to_a_folder_of_their_own(checkout: "ScriptCheckout") -> None:
    (checkout.root / "out").write_text("{}")
    result = run_bench(checkout, "--sizes tiny")
    assert result.returncode == 0, result.stderr
    (folder,) = folders(checkout)
    assert folder.name.endswith("Z_some_cpu_9")
    files = {path.name for path in folder.iterdir()}
    assert files == {"results.json", "journal.jsonl", "summary.txt"}
    assert (folder / "summary.txt").read_text() == result.stdout
    assert "--sizes tiny" in result.stdout
    assert str(folder / "results.json") in result.stderr


@pytest.mark.parametrize(("ending", "status"), [("exit 130", 130), ("kill -9 $$", 137)])
def test_resume_continues_the_run_that_did_not_end(
    checkout: "ScriptCheckout", ending: str, status: int
) -> None:
    assert run_bench(checkout, "", "exit 1").returncode == 1  # it ended, with failed cases
    (ended,) = folders(checkout)
    stopped = run_bench(checkout, "", ending)
    assert stopped.returncode == status
    assert "--resume" in stopped.stderr
    (folder,) = set(folders(checkout)) - {ended}
    resumed = run_bench(checkout, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert set(folders(checkout)) == {ended, folder}
    assert (folder / "journal.jsonl").read_text() == "line\nline\n"
    again = run_bench(checkout, "--resume")
    assert again.returncode == 2
    assert "did not end" in again.stderr


def test_a_resume_that_was_refused_can_be_tried_again(checkout: "ScriptCheckout") -> None:
    assert run_bench(checkout, "", "exit 130").returncode == 130
    (folder,) = folders(checkout)
    refused = run_bench(checkout, "--resume --bogus")
    assert refused.returncode == 2
    assert "--resume" in refused.stderr.splitlines()[-1]
    assert (folder / "summary.txt").read_text().count("arguments:") == 1
    resumed = run_bench(checkout, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert (folder / "journal.jsonl").read_text() == "line\nline\n"
    assert (folder / "summary.txt").read_text().endswith(resumed.stdout)
    assert not (folder / ".unfinished").exists()


def test_what_only_explains_fails_or_names_its_own_files_leaves_none(
    checkout: "ScriptCheckout",
) -> None:
    for arguments in ("--list", "--sizes tiny --dry-run", "--verify only", "--verify=only"):
        assert checkout.run(EXPLAINS.format(arguments)).returncode == 0, arguments
    for arguments in ("--benchmark_list_tests=false", "--verify before", ""):
        assert checkout.run(EXPLAINS.format(arguments)).returncode == 1, arguments
    assert run_bench(checkout, "--bogus").returncode == 2
    assert folders(checkout) == []
    result = run_bench(checkout, "--benchmark_out=mine.json --journal mine.jsonl")
    assert result.stdout.count("--benchmark_out") == result.stdout.count("--journal") == 1
    (folder,) = folders(checkout)
    assert [path.name for path in folder.iterdir()] == ["summary.txt"]


def test_quick_is_the_step_and_its_parts(bench_script: Path) -> None:
    command = ["bash", str(bench_script), "--quick", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    names = [name.split("/") for name in done.stdout.split() if not name.startswith("peak/")]
    parts = {"embedding", "rms_norm", "attention", "ffn", "block", "loss", "optimizer"}
    assert {name[0] for name in names} == {*parts, "full_step"}
    assert {name[4] for name in names} == {"f32", "bf16"}
    assert len(names) == 2 * (2 * 8 - 1)


def test_a_bandwidth_unlike_earlier_ones_is_a_warning(checkout: "ScriptCheckout") -> None:
    def bandwidths(memory: float, cache: float) -> str:
        named = {"memory_bandwidth": memory, "cache_bandwidth": cache}
        measured = {name: {"bytes_per_second": value} for name, value in named.items()}
        return json.dumps({"context": {"peaks": {"measured": measured}}})

    for day, earlier in enumerate((57e9, 65e9, 61e9)):
        old = checkout.root / f"results/2026010{day}T000000Z_some_cpu_9/results.json"
        old.parent.mkdir(parents=True)
        old.write_text(bandwidths(earlier, 200e9))
    for now, warnings in (
        (bandwidths(70e9, 205e9), []),
        (
            bandwidths(128e9, 160e9),
            [
                "memory bandwidth 128.0 GB/s differs by +110 % from the median of 3 earlier runs",
                "cache bandwidth 160.0 GB/s differs by -20 % from the median of 3 earlier runs",
            ],
        ),
    ):
        (checkout.root / "out").write_text(now)
        result = run_bench(checkout, "")
        assert result.returncode == 0, result.stderr
        found = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
        assert len(found) == len(warnings)
        assert all(part in line for part, line in zip(warnings, found, strict=True))
        shutil.rmtree(folders(checkout)[-1])
