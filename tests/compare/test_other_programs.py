"""`compare run` of two other programs of Google Benchmark, which are run once for each answer."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tinyllama_tools.compare.blocks import SIDES, Interleaved
from tinyllama_tools.compare.other_programs import OtherProgram, is_other_program
from tinyllama_tools.compare.run import main
from tinyllama_tools.core.app import BadInputError

# With Google Benchmark's flags and rows; its times are drawn, and `factor` times as long.
PROGRAM = """
import json, random, re, sys
flags = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
if "help" in flags:
    print("benchmark [--benchmark_list_tests={true|false}]")
    sys.exit()
names = {"BM_sort/1024": 2e6, "BM_sort/1": 9.0, "BM_map<int>": 5e5, "BM_broken": 1.0}
if flags.get("benchmark_list_tests") == "true":
    print("\\n".join(names))
    sys.exit()
def row(name):
    common = {"name": name, "run_name": name, "run_type": "iteration", "repetition_index": 0}
    if name == "BM_broken":
        return {**common, "error_occurred": True, "error_message": "no such device"}
    factor = FACTOR if name == "BM_sort/1024" else 1
    time = names[name] * factor * random.lognormvariate(0, 0.01)
    return {**common, "iterations": 3, "real_time": time, "cpu_time": time, "time_unit": "ns"}
chosen = [name for name in names if re.search(flags["benchmark_filter"], name)]
print("noise on standard output")
with open(flags["benchmark_out"], "w") as out:
    json.dump({"context": {"num_cpus": 2}, "benchmarks": [row(name) for name in chosen]}, out)
"""


def program(path: Path, factor: float) -> str:
    """One that runs BM_sort/1024 `factor` times as long."""
    python = f"{shlex.quote(sys.executable)} -I -S - \"$@\" <<'END'"
    path.write_text(f"#!/bin/sh\nexec {python}\n{PROGRAM.replace('FACTOR', str(factor))}\nEND\n")
    path.chmod(0o755)
    return str(path)


def test_what_became_slower_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["--base", program(tmp_path / "a", 1), "--new", program(tmp_path / "b", 1.5)]
    effort = ["--budget", "10m", "--looks", "1", "--pairs", "1", "--slice", "1ms", "--seed", "1"]
    out = tmp_path / "out"
    assert main([*sides, *effort, "--benchmark_filter", "sort", "--output", str(out)]) == 1
    found = json.loads((out / "comparison.json").read_text())
    outcomes = {case["name"]: case["outcome"] for case in found["cases"]}
    assert outcomes.keys() == {"BM_sort/1024", "BM_sort/1"}
    assert outcomes["BM_sort/1024"] == "slower"
    assert outcomes["BM_sort/1"] != "slower", "the filter of 1024 is not that of 1"
    assert "BM_sort/1024" in capsys.readouterr().out


def test_a_case_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    files = {side: program(tmp_path / side, 1) for side in SIDES}
    programs = {side: OtherProgram(side, Path(file)) for side, file in files.items()}
    measurer = Interleaved(programs, 1, pairs=2, slice_seconds=0.001, limit=30)
    names = ["BM_broken", "BM_map<int>"]
    assert measurer.greet()["base"]["cases"] == [
        "BM_sort/1024",
        "BM_sort/1",
        "BM_map<int>",
        names[0],
    ]
    found = {item["case"]: item for item in measurer.measure(1, names)}
    assert found["BM_broken"]["failed"]["reason"] == "no such device"
    for side in SIDES:
        assert found["BM_map<int>"][side] == [pytest.approx(5e-4, rel=0.1)] * 2


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one, other = program(tmp_path / "a", 1), program(tmp_path / "b", 1.0)
    ours = tmp_path / "tiny_llama_bench"
    ours.write_text("#!/bin/sh\n")
    ours.chmod(0o755)
    assert is_other_program(Path(one))
    assert not is_other_program(ours)
    for words, message in (
        (["--new", str(ours)], "--new: must be another Google Benchmark program"),
        (["--new", other, "--sizes", "tiny"], "--sizes: is for tiny_llama_bench"),
        (["--new", other, "--filter", "("], "is no regular expression"),
        (["--new", other, "--filter", "nothing"], "no case to compare"),
        (["--new", one], "are the same program"),
    ):
        with pytest.raises(BadInputError, match=message):
            main(["--base", one, *words, "--output", str(tmp_path / "out")])
