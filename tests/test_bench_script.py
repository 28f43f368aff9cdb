"""How scripts/bench runs the suite and keeps its results; a stub stands for tiny_llama_bench."""

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from device_slug import device_slug
from earlier_bandwidth import warnings

if TYPE_CHECKING:
    from conftest import ScriptCheckout

PROGRAM = """
if [[ " $* " == *" --describe-device "* ]]; then
  echo '{"device": {"name": "Some CPU (R) 9"}}'
  exit
fi
echo "arguments: $*"
for argument in "$@"; do
  case "$argument" in --benchmark_out=*) out="${argument#*=}"; echo '{}' > "$out";; esac
  if [[ "${previous:-}" == --journal ]]; then echo line >> "$argument"; fi
  previous="$argument"
done
"""


def run_bench(
    checkout: "ScriptCheckout", arguments: str, ending: str = ""
) -> "subprocess.CompletedProcess[str]":
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


@pytest.mark.parametrize("text", ["", "{}", '{"device": []}', "not JSON"])
def test_device_slug_of_something_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no device name"):
        device_slug(text)


def test_results_go_to_a_folder_of_their_own(checkout: "ScriptCheckout") -> None:
    result = run_bench(checkout, "--sizes tiny")
    assert result.returncode == 0, result.stderr
    (folder,) = folders(checkout)
    assert folder.name.endswith("Z_some_cpu_9")
    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "journal.jsonl",
        "summary.txt",
    }
    assert (folder / "summary.txt").read_text() == result.stdout
    assert "--sizes tiny" in result.stdout
    assert str(folder / "results.json") in result.stderr


def test_files_that_the_user_names_are_left_to_the_user(checkout: "ScriptCheckout") -> None:
    result = run_bench(checkout, "--benchmark_out=mine.json --journal mine.jsonl")
    assert result.stdout.count("--benchmark_out") == 1
    assert result.stdout.count("--journal") == 1
    (folder,) = folders(checkout)
    assert [path.name for path in folder.iterdir()] == ["summary.txt"]


@pytest.mark.parametrize("status", [0, 1, 2, 130, 137])
def test_exit_status_is_the_programs(checkout: "ScriptCheckout", status: int) -> None:
    assert run_bench(checkout, "", f"exit {status}").returncode == status


def test_bad_option_leaves_no_folder(checkout: "ScriptCheckout") -> None:
    checkout.stub(
        "bench_stub",
        'if [[ $1 == --describe-device ]]; then echo \'{"device":{"name":"x"}}\'; '
        "exit; fi; echo 'error: unknown option' >&2; exit 2",
    )
    result = checkout.run("source scripts/lib/results.sh; run_and_keep_results bench_stub --bogus")
    assert result.returncode == 2
    assert folders(checkout) == []


def test_resume_continues_the_run_that_did_not_end(checkout: "ScriptCheckout") -> None:
    killed = run_bench(checkout, "", "kill -9 $$")
    assert killed.returncode == 137
    assert "--resume" in killed.stderr
    (first,) = folders(checkout)
    resumed = run_bench(checkout, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert folders(checkout) == [first]
    assert (first / "journal.jsonl").read_text() == "line\nline\n"
    again = run_bench(checkout, "--resume")
    assert again.returncode == 2
    assert "did not end" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "explains"),
    [
        ("--list", True),
        ("--sizes tiny --dry-run", True),
        ("--describe-device", True),
        ("--benchmark_list_tests", True),
        ("--sizes tiny", False),
        ("--benchmark_list_tests=false", False),
        ("--verify only", True),
        ("--sizes tiny --verify=only", True),
        ("--verify before", False),
        ("", False),
    ],
)
def test_arguments_that_only_explain(
    checkout: "ScriptCheckout", arguments: str, explains: bool
) -> None:
    result = checkout.run(f"source scripts/lib/results.sh; only_explains {arguments}")
    assert (result.returncode == 0) == explains


def test_quick_is_the_step_and_its_parts(bench_script: Path) -> None:
    command = ["bash", str(bench_script), "--quick", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    names = [name.split("/") for name in done.stdout.split() if not name.startswith("peak/")]
    parts = {"embedding", "rms_norm", "attention", "ffn", "block", "loss", "optimizer"}
    assert {name[0] for name in names} == {*parts, "full_step"}
    assert {name[4] for name in names} == {"f32", "bf16"}
    assert len(names) == 2 * (2 * 8 - 1)


def write_bandwidth(path: Path, memory: float, cache: float) -> Path:
    measured = {
        "memory_bandwidth": {"bytes_per_second": memory},
        "cache_bandwidth": {"bytes_per_second": cache},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"context": {"peaks": {"measured": measured}}}))
    return path


def test_a_bandwidth_unlike_earlier_ones_is_a_warning(tmp_path: Path) -> None:
    earlier = [
        write_bandwidth(tmp_path / str(i) / "results.json", memory, 200e9)
        for i, memory in enumerate((57e9, 65e9, 61e9))
    ]
    (tmp_path / "broken.json").write_text("{}")
    earlier += [tmp_path / "broken.json", tmp_path / "absent.json"]
    alike = write_bandwidth(tmp_path / "alike.json", 70e9, 205e9)
    assert list(warnings(alike, earlier)) == []
    other = write_bandwidth(tmp_path / "other.json", 128e9, 160e9)
    memory, cache = warnings(other, earlier)
    assert "memory bandwidth 128.0 GB/s differs by +110 % from the median of 3 earlier" in memory
    assert "cache bandwidth 160.0 GB/s differs by -20 %" in cache
    assert list(warnings(other, [])) == []


def test_the_script_warns_of_it(checkout: "ScriptCheckout") -> None:
    old = checkout.root / "results/20260101T000000Z_some_cpu_9/results.json"
    write_bandwidth(old, 50e9, 200e9)
    now = checkout.root / "now.json"
    write_bandwidth(now, 100e9, 200e9)
    result = run_bench(checkout, "", f'cp "{now}" "$out"')
    assert result.returncode == 0, result.stderr
    assert "warning: memory bandwidth 100.0 GB/s differs by +100 %" in result.stderr
