"""`compare run` of two other programs of Google Benchmark, which are run once for each answer."""

from pathlib import Path

import pytest

from built_programs import read_json
from fake_bench import PROGRAM, make_build
from tinyllama_tools.compare.blocks import SIDES, Interleaved
from tinyllama_tools.compare.other_programs import OtherProcess, is_other_program
from tinyllama_tools.compare.run import main
from tinyllama_tools.compare.sides import ServedProgram
from tinyllama_tools.core.app import BadInputError

FAILED = {"error_occurred": True, "error_message": "no such device"}


def program(path: Path, factor: float) -> str:
    """One that runs BM_sort/1024 `factor` times as long."""
    cases = {"BM_sort/1024": 2e-3, "BM_sort/1": 9e-9, "BM_map<int>": 5e-4, "BM_broken": 1e-9}
    told = {"cases": cases, "factor": {"BM_sort/1024": factor}, "rows": {"BM_broken": FAILED}}
    build = make_build(path, other=True, context={"num_cpus": 2}, counters={}, **told)
    return str((build / PROGRAM).rename(build / "benchmarks/other"))


def test_what_became_slower_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["--base", program(tmp_path / "a", 1), "--new", program(tmp_path / "b", 4)]
    effort = ["--budget", "10m", "--looks", "1", "--pairs", "1", "--slice", "1ms", "--seed", "1"]
    out = tmp_path / "out"
    assert main([*sides, *effort, "--benchmark_filter", "sort", "--out", str(out)]) == 1
    found = read_json(out / "comparison.json")
    outcomes = {case["name"]: case["outcome"] for case in found["cases"]}
    assert outcomes.keys() == {"BM_sort/1024", "BM_sort/1"}
    assert outcomes["BM_sort/1024"] == "slower"
    assert outcomes["BM_sort/1"] in {"same", "unclear"}, "the filter of 1024 is not that of 1"
    assert "BM_sort/1024" in capsys.readouterr().out


def test_a_case_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    files = {side: program(tmp_path / side, 1) for side in SIDES}
    programs = {s: ServedProgram(s, Path(f), kind=OtherProcess) for s, f in files.items()}
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
            main(["--base", one, *words, "--out", str(tmp_path / "out")])
