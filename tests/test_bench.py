"""`bench`: the folder of its results, what it leaves of a run that did not end, what it prints and
how it ends; from a prefix, with a stub for tiny_llama_bench and a Python that has no package."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from built_programs import Completed, finish, start, wait_until, write_program
from prefix import Prefix
from tinyllama_tools.commands.bench import OPTIONS, only_explains, parse_options

# writes `out`, of the working folder, as its results
PROGRAM = """
if [[ " $* " == *" --describe-device "* ]]; then
  [[ " $* " == *" --device mars "* ]] && { echo "no mars" >&2; exit 2; }
  echo '{"device": {"name": "'"${DEVICE:-}"'"}}'
  exit
fi
[[ " $* " == *" --sizes bogus "* ]] && exit 2
echo "arguments: $*"
for argument in "$@"; do
  case "$argument" in
    --benchmark_out=*) cp out "${argument#*=}" ;;
    --journal=*) echo line >>"${argument#*=}" ;;
  esac
done
"""


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    found = Prefix(tmp_path / "a préfix", tmp_path / "own folder")
    bare = write_program(tmp_path / "python", f'#!/bin/bash\nexec "{sys.executable}" -S "$@"\n')
    found.python = str(bare)
    (found.work / "out").touch()
    return found


def bench(prefix: Prefix, *arguments: str | Path, ending: str = "", **variables: str) -> Completed:
    prefix.program("tiny_llama_bench", PROGRAM + ending)
    return prefix.run("bench", *arguments, TINY_LLAMA_PYTHON=prefix.python, **variables)


def folders(prefix: Prefix) -> list[Path]:
    return sorted((prefix.work / "results").glob("*"))


def test_results_are_kept_and_a_run_that_did_not_end_is_continued(prefix: Prefix) -> None:
    (prefix.work / "out").write_text("{}")
    name = "../../Some CPU (R) 9"
    run = bench(prefix, "--sizes", "tiny", ending="echo 'told' >&2; exit 1", DEVICE=name)
    assert run.returncode == 1, run.stderr  # it ended, with failed cases
    (ended,) = folders(prefix)
    assert ended.name.partition("Z_")[2] == "some_cpu_9"
    files = {path.name for path in ended.iterdir()}
    assert files == {"results.json", "journal.jsonl", "summary.txt"}
    assert (ended / "summary.txt").read_text() == run.stdout
    assert "--sizes tiny" in run.stdout and "told\n" in run.stderr
    assert str(ended.relative_to(prefix.work) / "results.json") in run.stderr

    stopped = bench(prefix, ending="kill -9 $$")
    assert stopped.returncode == 137
    assert "--resume" in stopped.stderr
    (folder,) = set(folders(prefix)) - {ended}
    # one that is refused can be tried again
    refused = bench(prefix, "--resume", "--sizes", "bogus")
    assert (refused.returncode, "--resume" in refused.stderr.splitlines()[-1]) == (2, True)
    resumed = bench(prefix, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert set(folders(prefix)) == {ended, folder}
    assert (folder / "journal.jsonl").read_text() == "line\nline\n"
    assert (folder / "summary.txt").read_text().endswith(resumed.stdout)
    again = bench(prefix, "--resume")
    assert again.returncode == 2
    assert "did not end" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "explains"),
    [
        *((it, True) for it in ("--list", "--sizes tiny --dry-run", "--verify only")),
        *((it, True) for it in ("--verify=only", "--find-limit seq", "--find-limit=batch")),
        *((it, True) for it in ("--benchmark_list_tests", "--benchmark_list_tests=true")),
        *((it, False) for it in ("--benchmark_list_tests=false", "--verify before", "")),
    ],
)
def test_what_only_explains(arguments: str, explains: bool) -> None:
    assert only_explains(arguments.split()) is explains


def test_what_explains_fails_or_names_its_own_files_leaves_none(prefix: Prefix) -> None:
    assert "arguments: --list" in bench(prefix, "--list").stdout
    assert bench(prefix, "--sizes", "bogus").returncode == 2
    no_device = bench(prefix, "--device", "mars")
    assert (no_device.returncode, no_device.stderr) == (2, "no mars\n")
    assert folders(prefix) == []
    result = bench(prefix, "--benchmark_out=mine.json", "--journal", "mine.jsonl")
    assert result.stdout.count("--benchmark_out") == result.stdout.count("--journal") == 1
    (folder,) = folders(prefix)
    assert [path.name for path in folder.iterdir()] == ["summary.txt"]


def test_out_names_the_folder_of_the_run(prefix: Prefix) -> None:
    (prefix.work / "out").write_text("{}")
    out = prefix.work / "öwn place/run 1"
    assert bench(prefix, f"--out={out}", ending="kill -9 $$").returncode == 137
    # nothing of an earlier run is overwritten
    refused = bench(prefix, "-o", out)
    assert refused.returncode == 2 and "has results.json of another run" in refused.stderr
    resumed = bench(prefix, "--out", out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert {path.name for path in out.iterdir()} == {"results.json", "journal.jsonl", "summary.txt"}
    assert (out / "journal.jsonl").read_text() == "line\nline\n"
    assert folders(prefix) == []
    # a folder of the user's stays, whatever the program says
    kept = prefix.work / "kept"
    kept.mkdir()
    (kept / "empty").touch()
    assert bench(prefix, "--out", kept, "--sizes", "bogus").returncode == 2
    assert [path.name for path in kept.iterdir()] == ["empty"]
    for place in ("out", "out/below"):
        assert bench(prefix, "--out", place).returncode == 2
    missing = bench(prefix, "--out")
    assert (missing.returncode, "a folder is missing" in missing.stderr) == (2, True)


def test_ctrl_c_and_a_request_to_end_are_the_programs_affair(prefix: Prefix) -> None:
    """Which finishes the case in hand; whoever asked waits for it."""
    trap = "trap 'echo finished; exit 130' INT; echo ready >ready; while :; do sleep 0.05; done"
    prefix.program("tiny_llama_bench", PROGRAM + trap)
    env = prefix.environment(TINY_LLAMA_PYTHON=prefix.python)
    for ask_all, number in ((True, signal.SIGINT), (False, signal.SIGTERM)):
        (prefix.work / "ready").unlink(missing_ok=True)
        command = [prefix.root / "bin/tiny-llama", "bench"]
        process = start(command, cwd=prefix.work, env=env, start_new_session=True)
        wait_until((prefix.work / "ready").exists)
        if ask_all:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(number)
        done = finish(process)
        assert done.returncode == 130, done.stderr
        assert done.stdout.endswith("finished\n") and "--resume" in done.stderr
    assert all(
        (folder / "summary.txt").read_text().endswith("finished\n") for folder in folders(prefix)
    )


def test_output_that_nobody_reads_ends_the_run(prefix: Prefix) -> None:
    endless = "while echo more; do sleep 0.01; done; echo ended >ended; exit 130"
    prefix.program("tiny_llama_bench", PROGRAM + "trap '' PIPE\n" + endless)
    command = f'"{prefix.root}/bin/tiny-llama" bench | head -n 2'
    env = prefix.environment(TINY_LLAMA_PYTHON=prefix.python)
    done = finish(start(["bash", "-c", command], cwd=prefix.work, env=env))
    assert done.stdout.startswith("arguments:"), done.stderr
    wait_until((prefix.work / "ended").exists)


def test_an_unknown_option_is_told_and_quick_is_a_list_of_axes() -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--quikc"])
    quick = parse_options(["--quick", "--out=a", "--sizes", "tiny"])
    assert quick.program[0] == "--components" and quick.program[-2:] == ("--sizes", "tiny")
    assert quick.out == Path("a")


def test_what_is_known_of_the_options_is_what_the_program_has(bench_program: Path) -> None:
    said = subprocess.run([bench_program, "--help"], capture_output=True, text=True, check=True)
    options = set(re.findall(r"^ {2}(?:-h,)?(--[a-z-]+)", said.stdout, re.MULTILINE))
    assert set(OPTIONS) == options
