"""`compare run` from its options to its files and exit status, with stand-ins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compare_run import document_of, run
from turns_stand_in import FFN, LOSS, NORM, STEP, make_build, starts_of

from tinyllama_tools.compare.recording import read_recording
from tinyllama_tools.compare.served_process import WAITING


def test_the_same_program_on_both_sides_is_no_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    status, cases = run(base, new, tmp_path / "out")
    assert status == 0
    assert {name: case["outcome"] for name, case in cases.items()} == dict.fromkeys(
        (FFN, LOSS, NORM), "same"
    )
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("3 same; exit status 0")
    assert "a block of 3 cases takes" in said.err
    document = document_of(tmp_path / "out")
    assert document["method"] == "in turn"
    assert (document["base"], document["new"]) == (str(base), str(new))
    assert document["base_context"]["device"] == {"name": "stand-in"}
    recording = read_recording(tmp_path / "out/blocks.jsonl")
    assert recording.header.seed == 5
    blocks = [item for item in recording.case_blocks if item.case == FFN]
    assert [item.index for item in blocks] == list(range(1, cases[FFN]["blocks"] + 1))


def test_a_slower_case_is_a_regression_and_allowing_it_by_name_does_not_hide_it(
    tmp_path: Path,
) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", factor={FFN: 1.10, LOSS: 0.8})
    status, cases = run(base, new, tmp_path / "out", f"--allow-missing={FFN}")
    assert status == 1
    assert [cases[name]["outcome"] for name in (FFN, LOSS, NORM)] == ["slower", "faster", "same"]
    assert cases[FFN]["ratio"] == pytest.approx(1.10, abs=0.02)


def test_a_slower_step_is_attributed_to_the_part_that_moved(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps({"tiny": {"n_layers": 4}}))
    times = {STEP: 0.2, FFN: 0.02, LOSS: 0.03}
    base = make_build(tmp_path / "base", cases=times)
    slower = {**times, STEP: 0.2 + 4 * 0.01, FFN: 0.03}
    new = make_build(tmp_path / "new", cases=slower)
    status, cases = run(base, new, tmp_path / "out", f"--problem-sizes={sizes}")
    assert status == 1
    attribution = cases[STEP]["attribution"]
    assert attribution["culprit"] == FFN
    assert attribution["parts"][0]["share"] == pytest.approx(1.0, abs=0.2)
    assert cases[FFN]["attribution"] is None


def test_grown_counters_are_reported(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base", counters={"operators": 20.0, "allocations": 5.0})
    new = make_build(tmp_path / "new", counters={"operators": 21.0, "allocations": 4.0})
    status, cases = run(base, new, tmp_path / "out")
    worse = [c["name"] for c in cases[FFN]["counters"] if c["exact"] and c["worse"]]
    assert (status, worse) == (0, ["operators"])
    assert run(base, new, tmp_path / "again", "--fail-on-growth")[0] == 1


def test_cases_of_one_side_are_missing_or_added(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base", cases={FFN: 0.01, LOSS: 0.01})
    new = make_build(tmp_path / "new", cases={FFN: 0.01, NORM: 0.01})
    status, cases = run(base, new, tmp_path / "out")
    assert status == 1
    assert {n: c["outcome"] for n, c in cases.items()} == {
        FFN: "same",
        LOSS: "missing",
        NORM: "added",
    }


def test_unclear_cases_say_what_could_have_been_shown(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base", cases={FFN: 0.01}, between=0.2)
    new = make_build(tmp_path / "new", cases={FFN: 0.01}, between=0.2)
    status, cases = run(base, new, tmp_path / "out", "--strict")
    assert (status, cases[FFN]["outcome"]) == (3, "unclear")
    assert cases[FFN]["smallest_difference"] > 0.03
    # with so much scatter, no planned look comes late enough
    assert cases[FFN]["seconds_needed"] is None
    assert "more blocks may not settle it" in cases[FFN]["note"]


def test_environments_are_of_one_side_only(tmp_path: Path) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    run(base, new, tmp_path / "out", "--environment-new=SIDE_N=1", "--environment-base=SIDE_B=2")
    assert all(
        s["environment"].get("SIDE_N") is None and s["environment"]["SIDE_B"] == "2"
        for s in starts_of(base)
    )
    assert all(s["environment"]["SIDE_N"] == "1" for s in starts_of(new))
    warnings = document_of(tmp_path / "out")["warnings"]
    assert "environment SIDE_N: not set in the base, 1 in the new" in warnings
    assert "environment SIDE_B: 2 in the base, not set in the new" in warnings
    settings = document_of(tmp_path / "out")["design"]["settings"]
    assert settings["base_environment"] == {"SIDE_B": "2"}
    assert settings["new_environment"] == {"SIDE_N": "1"}
    run(base, new, tmp_path / "alike", "--environment-new=SIDE=1", "--environment-base=SIDE=1")
    alike = document_of(tmp_path / "alike")["warnings"]
    assert not any("SIDE" in text for text in alike)


@pytest.mark.parametrize("is_set", [False, True])
def test_how_workers_wait_is_said_where_the_user_decided_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_set: bool
) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    if is_set:
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    run(base, new, tmp_path / "out")
    warnings = document_of(tmp_path / "out")["warnings"]
    found = [text for text in warnings if text.startswith("OMP_WAIT_POLICY=active decides")]
    assert len(found) == is_set


def test_options_reach_both_programs(tmp_path: Path) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    run(base, new, tmp_path / "out", "--sizes=small", "--filter=ffn", "--threads=3")
    for build in (base, new):
        given = starts_of(build)[0]["arguments"]
        assert {"--sizes=small", "--benchmark_filter=ffn", "--threads=3"} < set(given)
        assert "--variants=baseline" in given
    recorded = read_recording(tmp_path / "out/blocks.jsonl").header.settings
    assert {"--sizes=small", "--benchmark_filter=ffn", "--threads=3"} < set(recorded["arguments"])
    assert (recorded["budget_seconds"], recorded["verify"]) == (600.0, "before")
    assert document_of(tmp_path / "out")["design"]["settings"] == recorded


def test_rates_of_both_sides_are_among_the_counters(tmp_path: Path) -> None:
    counters = {"operators": 20.0, "model_flops": 4e9, "hardware_flops": 4e9}
    base = make_build(tmp_path / "base", counters=counters)
    new = make_build(tmp_path / "new", counters=counters, factor={FFN: 1.25})
    _, cases = run(base, new, tmp_path / "out")
    case = cases[FFN]
    found = {c["name"]: c for c in case["counters"]}
    assert found["samples_per_second"]["base"] == pytest.approx(8 / case["base_seconds"])
    assert found["tokens_per_second"]["new"] == pytest.approx(8 * 128 / case["new_seconds"])
    assert found["TFLOPS"]["new"] == pytest.approx(4e-3 / case["new_seconds"])
    for name in ("samples_per_second", "tokens_per_second", "TFLOPS"):
        assert (found[name]["worse"], found[name]["exact"]) == (True, False)


def test_what_differs_beside_the_code_is_said_at_the_top(tmp_path: Path) -> None:
    context = {"schema_version": 1, "device": {"name": "stand-in"}, "threads": 2}
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", context=context)
    run(base, new, tmp_path / "out")
    assert "threads: 1 in the base, 2 in the new" in document_of(tmp_path / "out")["warnings"]
