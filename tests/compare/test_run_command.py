"""scripts/compare run as a whole: verdicts, endings, failures and what is missing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare_run import document_of, run
from fake_bench import FFN, LOSS, NORM, PROGRAM, STEP, make_build, requests_of, starts_of
from test_ci_workflow import Checkout
from unanswered import LONG, cut_wait_short

from tinyllama_tools.compare.blocks import CaseBlock, Interleaved, Measured, Opened
from tinyllama_tools.compare.recording import RecordingWriter, read_recording
from tinyllama_tools.compare.sequential_run import SequentialRun
from tinyllama_tools.compare.served_process import WAITING
from tinyllama_tools.core.app import BadInputError
from tools import compare as main


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
    assert document["method"] == "interleaved"
    assert (document["base"], document["new"]) == (str(base), str(new))
    assert document["base_context"]["device"] == {"name": "fake"}
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
    context = {"schema_version": 1, "device": {"name": "fake"}, "threads": 2}
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", context=context)
    run(base, new, tmp_path / "out")
    assert "threads: 1 in the base, 2 in the new" in document_of(tmp_path / "out")["warnings"]


PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("openings", [0, 1, 3])
def test_what_was_not_reached_while_opening_is_no_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openings: int
) -> None:
    open_once = Interleaved.open_once

    def interrupted(self: Interleaved, cases: list[str], *, verify: bool) -> Iterator[Opened]:
        yield from itertools.islice(open_once(self, cases, verify=verify), openings)
        raise KeyboardInterrupt

    monkeypatch.setattr(Interleaved, "open_once", interrupted)
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    status, cases = run(base, new, tmp_path / "out")
    assert status == 130
    assert {case["outcome"] for case in cases.values()} == {"no verdict"}
    reached = openings // 2
    notes = [case["note"] for case in cases.values()]
    assert notes[reached:] == ["interrupted before it was opened"] * (3 - reached)
    assert not any("interrupted" in note for note in notes[:reached])
    assert document_of(tmp_path / "out")["exit_status"] == 0


def test_the_verdict_is_printed_where_the_folder_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", factor={FFN: 1.2})
    (tmp_path / "file").write_text("")
    status, _ = run(base, new, tmp_path / "file", f"--record={tmp_path / 'blocks.jsonl'}")
    said = capsys.readouterr()
    assert status == 2
    assert said.out.splitlines()[-1].startswith("1 slower, 2 same; exit status 1")
    assert "file: cannot be written" in said.err.splitlines()[-1]


def test_a_recording_that_fails_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = RecordingWriter.add

    def full(self: RecordingWriter, item: Measured | Opened) -> None:
        if isinstance(item, CaseBlock) and item.index == 4:
            raise BadInputError("blocks.jsonl: no space left")
        add(self, item)

    monkeypatch.setattr(RecordingWriter, "add", full)
    base = make_build(tmp_path / "base", cases={FFN: 0.01})
    new = make_build(tmp_path / "new", cases={FFN: 0.01})
    status, cases = run(base, new, tmp_path / "out")
    said = capsys.readouterr()
    assert status == 2
    assert (cases[FFN]["outcome"], cases[FFN]["blocks"]) == ("no verdict", 4)
    assert FFN in said.out
    assert "blocks.jsonl: no space left" in said.err.splitlines()[-1]


def test_an_earlier_recording_is_kept_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_build(tmp_path / "base", cases={FFN: 0.01})
    new = make_build(tmp_path / "new", cases={FFN: 0.01})
    assert run(base, new, tmp_path / "out")[0] == 0
    before, starts = read_recording(tmp_path / "out/blocks.jsonl"), len(starts_of(base))
    assert run(base, new, tmp_path / "out")[0] == 2
    assert "is there already" in capsys.readouterr().err
    assert read_recording(tmp_path / "out/blocks.jsonl") == before
    assert len(starts_of(base)) == starts


ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed_signals() -> None:
    """The tests themselves may run where some of these are ignored, and so a program of theirs."""
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", ASKING)
def test_being_asked_to_end_judges_and_writes_what_was_measured(
    tmp_path: Path, number: signal.Signals
) -> None:
    base = make_build(tmp_path / "base", cases={FFN: 0.01}, between=0.3)
    new = make_build(tmp_path / "new", cases={FFN: 0.01}, between=0.3)
    output = tmp_path / "out"
    options = [f"--base={base}", f"--new={new}", f"--output={output}", "--alpha=0.2", "--looks=9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tinyllama_tools", "compare", "run", *options],
        env=os.environ | {"PYTHONPATH": str(PROJECT / "scripts")},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_signals,
    )
    recording = output / "blocks.jsonl"
    deadline = time.monotonic() + 30
    while not recording.exists() or '"block": 4' not in recording.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    document = document_of(output)
    assert document["warnings"][0].startswith("interrupted after ")
    assert document["cases"][0]["outcome"] in {"unclear", "no verdict"}
    assert document["cases"][0]["blocks"] >= 3
    # what was killed may take a moment to be gone
    while _running(base) or _running(new):
        assert time.monotonic() < deadline + 60
        time.sleep(0.01)


def _running(build: Path) -> bool:
    found = subprocess.run(["pgrep", "-f", str(build / PROGRAM)], capture_output=True, check=False)
    return found.returncode == 0


@pytest.mark.parametrize("how", ["crash", "hang", "nonsense"])
def test_a_side_that_fails_twice_fails_the_case_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", trouble={LOSS: {"at": "time", "how": how}})
    if how == "hang":
        cut_wait_short(monkeypatch, new, f"time {LOSS}")
    status, cases = run(base, new, tmp_path / "out", f"--limit={LONG}")
    assert status == 1
    assert cases[LOSS]["outcome"] == "failed"
    assert "time" in cases[LOSS]["note"]
    assert cases[FFN]["outcome"] == "same"
    failures = read_recording(tmp_path / "out/blocks.jsonl").failures
    assert [(item.index, item.case) for item in failures] == [(1, LOSS), (2, LOSS)]


def test_failures_that_are_allowed_by_name_do_not_fail_the_gate(tmp_path: Path) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", wrong=[LOSS])
    status, cases = run(base, new, tmp_path / "out", "--allow-missing=loss/*")
    assert (status, cases[LOSS]["outcome"], cases[LOSS]["allowed"]) == (0, "failed", True)


@pytest.mark.parametrize(("at", "how"), [("open", "failed"), ("time", "crash")])
def test_a_base_that_fails_is_no_fault_of_the_new_but_no_answer_either(
    tmp_path: Path, at: str, how: str
) -> None:
    base = make_build(tmp_path / "base", trouble={LOSS: {"at": at, "how": how}})
    new = make_build(tmp_path / "new")
    strict = ["--strict"] if at == "time" else []
    status, cases = run(base, new, tmp_path / "out", *strict)
    assert status == (3 if strict else 0)
    assert cases[LOSS]["outcome"] == "no verdict"
    assert cases[LOSS]["note"].startswith("failed in the base: ")
    first = document_of(tmp_path / "out")["warnings"][0]
    assert first.startswith("1 case failed in the base, so nothing shows")
    assert first.endswith(LOSS)


def test_a_base_that_fails_everywhere_is_nothing_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_build(tmp_path / "base", cases={FFN: 0.01}, wrong=[FFN])
    new = make_build(tmp_path / "new", cases={FFN: 0.01})
    status, cases = run(base, new, tmp_path / "out")
    assert (status, cases[FFN]["outcome"]) == (2, "no verdict")
    said = capsys.readouterr().err
    assert "nothing comparable: no case was measured on both sides" in said
    assert "became slower" not in said


def test_a_wrong_result_is_never_timed(tmp_path: Path) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", wrong=[NORM])
    status, cases = run(base, new, tmp_path / "out")
    assert (status, cases[NORM]["outcome"]) == (1, "failed")
    assert cases[NORM]["note"] == "gradient differs by 0.5"
    assert all(r["case"] != NORM for r in requests_of(base) if r["do"] == "time")
    unproven, cases = run(base, new, tmp_path / "off", "--verify=off")
    assert (unproven, cases[NORM]["outcome"]) == (0, "same")
    assert any("--verify off" in text for text in document_of(tmp_path / "off")["warnings"])


def _announce_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the first block had taken minutes: a budget so short that it is too short in truth
    would not be enough to open the cases on a busy machine."""
    announce = SequentialRun._announce

    def slow(run: SequentialRun) -> None:
        run.record.cost.learn(1000.0, {})
        announce(run)

    monkeypatch.setattr(SequentialRun, "_announce", slow)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--budget=0.001s"], "is too short: opening the cases once took"),
        (["--alpha=0.00001"], "is too short: the first verdicts"),
        (["--components=ffn", "--filter=^attention"], "no case to compare"),
        (["--problem-sizes=none.json"], "none.json"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    expected: str,
) -> None:
    _announce_as_slow(monkeypatch)
    cases = {} if "--components=ffn" in options else {FFN: 0.01}
    base = make_build(tmp_path / "base", cases=cases)
    status, _ = run(base, make_build(tmp_path / "new", cases=cases), tmp_path / "out", *options)
    assert status == 2
    assert expected in capsys.readouterr().err


def test_a_regression_that_is_known_is_not_hidden_by_a_short_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _announce_as_slow(monkeypatch)
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", wrong=[LOSS])
    short = "--alpha=0.00001"
    status, cases = run(base, new, tmp_path / "out", short)
    assert status == 1
    assert (cases[LOSS]["outcome"], cases[FFN]["outcome"]) == ("failed", "no verdict")
    assert cases[FFN]["blocks"] == 1
    said = capsys.readouterr()
    assert "became slower" not in said.err
    assert "exit status 1" in said.out
    assert "is too short: the first verdicts" in document_of(tmp_path / "out")["warnings"][0]
    allowed = run(base, new, tmp_path / "allowed", short, f"--allow-missing={LOSS}")
    assert allowed[0] == 2
    assert allowed[1][FFN]["outcome"] == "no verdict"
    assert "is too short" in capsys.readouterr().err


def test_a_run_without_any_verdict_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if blocks took longer than the whole budget after the first one
    monkeypatch.setattr(SequentialRun, "_announce", _make_slow)
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    status, cases = run(base, new, tmp_path / "out")
    assert status == 2
    assert cases[FFN]["outcome"] == "no verdict"
    first = document_of(tmp_path / "out")["design"]["looks"][0]
    assert f"held 1 of the {first} that the first verdicts need" in capsys.readouterr().err


def _make_slow(self: SequentialRun) -> None:
    self.record.cost.learn(1000.0, {})
    self.record.cost.learn(1000.0, {})


def test_a_case_that_neither_side_measures_is_nothing_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = {FFN: {"at": "open", "how": "skipped"}}
    builds = [
        make_build(tmp_path / name, cases={FFN: 0.01}, trouble=skipped) for name in ("base", "new")
    ]
    status, cases = run(builds[0], builds[1], tmp_path / "out")
    assert (status, cases[FFN]["outcome"]) == (2, "skipped")
    assert "nothing comparable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--budget=10x", "'10x': must be a time such as"),
        ("--budget=0s", "'0s': must be a time"),
        ("--pairs=0", "'0': must be a whole number of 1 or more"),
        ("--environment-new=A", "'A': must be NAME=VALUE"),
        ("--alpha=1", "'1': must be a number between 0 and 1"),
        ("--base", "expected one argument"),
    ],
)
def test_bad_options_are_named(
    option: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--base=build", "--new=build", option])
    assert caught.value.code == 2
    assert expected in capsys.readouterr().err


def test_the_built_program_is_as_fast_as_itself(bench_program: Path, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    small = {"vocab_size": 50, "hidden_dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
    small |= {"intermediate_dim": 48, "batch": 2, "seq": 8}
    sizes.write_text(json.dumps({"tiny": small}))
    more = [f"--problem-sizes={sizes}", "--slice=1ms", "--components=ffn", "--threads=1"]
    more += ["--passes=forward_backward", "--device=cpu", "--alpha=0.4", "--looks=1"]
    more += ["--margin=0.5"]
    status, cases = run(bench_program, bench_program, tmp_path / "out", *more, quick=False)
    assert status == 0
    ((name, case),) = cases.items()
    assert name == "ffn/forward_backward/baseline/tiny/f32/batch:2/seq:8"
    assert case["outcome"] == "same"
    assert {c["name"] for c in case["counters"]} > {"operators", "allocations", "model_flops"}
    assert not any(c["worse"] for c in case["counters"] if c["exact"])


def test_a_recording_of_an_earlier_run_is_not_in_the_way(tmp_path: Path) -> None:
    """`compare run` would refuse to write over it."""
    checkout = Checkout(tmp_path / "a checkout")
    body = """test ! -e results/ci_compare/blocks.jsonl || exit 2
echo "{}" > results/ci_compare/blocks.jsonl"""
    assert checkout.run(body).returncode == 0
    assert (checkout.root / "results/ci_compare/blocks.jsonl").exists()
    assert checkout.run(body).returncode == 0
