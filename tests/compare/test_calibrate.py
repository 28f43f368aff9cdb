"""`compare calibrate`: recordings, runs cut from them, error rates, its document and its page."""

import io
import json
import math
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from samples import CONTEXT, FFN, LOSS, NORM, STEP, TIMES, Played, failed, skipped
from scipy import signal

from built_programs import read_json, write_json
from fake_bench import make_build, noted
from published import RECORDED
from tinyllama_tools.calibrate import command, rates
from tinyllama_tools.calibrate.command import document_standing, finished_runs, run_rows
from tinyllama_tools.calibrate.rates import BROKEN, HELD, IN_ALL, NOT_SHOWN
from tinyllama_tools.compare.blocks import SIDES, Costs, Sides, read_recording
from tinyllama_tools.compare.run import SequentialRun
from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.core.process import Progress
from tinyllama_tools.stats import verdicts as rules
from tinyllama_tools.stats.rank_tests import LOG_RATIO, summarise, summarise_pairs
from tinyllama_tools.stats.verdicts import Outcome, judge_family, plan_design
from tools import compare

# ---- a machine whose times are known: six parts and the step

CASES = tuple(TIMES)
OWN, EACH, OPENING = 1.0, 0.5, 7.0
HEADER = {"recording": "tiny_llama paired blocks", "schema_version": 1, "started": "2026-01-01"}
HEADER |= {"pairs": 8, "slice_seconds": 0.015, "base_context": CONTEXT, "new_context": CONTEXT}


def machine(**more: Any) -> Played:  # noqa: ANN401
    told = {"between": 0.012, "pairs": 8, "cost": lambda *_: EACH, "opening": OPENING, **more}
    return Played(TIMES, **told)


def summaries(played: Played, names: Sequence[str], blocks: int) -> np.ndarray:
    items = [[played.block(name, index) for index in range(1, blocks + 1)] for name in names]
    return np.array([[summarise(i["base"], i["new"]) for i in case] for case in items])


def calibrate(folder: Path, *more: str) -> int:
    small = ("--tries", "3", "--jobs", "1", "--looks", "2", "--alpha", "0.05")
    return compare(["calibrate", "--out", str(folder), *small, *more])


def record(folder: Path, played: Played, blocks: float = 12, slow: Sequence[str] = ()) -> int:
    """On the machine's own clock, as long as so many blocks of all cases take."""
    names = list(played.seconds)
    header = {**HEADER, "settings": {"new_slow": slow}}
    sides = Sides(played, dict.fromkeys(SIDES, names), names, header)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "prepare", lambda *_: sides)
        patch.setattr(command, "time", SimpleNamespace(monotonic=played))
        return calibrate(folder, "--record", str(blocks * (OWN + 7 * EACH) - 0.1))


def a_run(
    outcomes: Mapping[str, str],
    slow: Sequence[str] = (),
    culprit: str | None = None,
    ended: str = "every case decided",
    **context: object,
) -> Json:
    """What comparison.json says of a run."""
    told = {"p_value": None if "budget" in ended else 0.5, "attribution": {"culprit": culprit}}
    cases = [{"name": name, "outcome": outcome, **told} for name, outcome in outcomes.items()]
    settings = {"arguments": [], "new_slow": slow, "budget_seconds": 60.0}
    design = {"ended": ended, "looks": [9], "pairs": 8, "settings": settings}
    whole = {"cases": cases, "alpha": 0.001, "margin": 0.03, "seconds": 60.0, "design": design}
    return {**whole, "base_context": {**CONTEXT, **context}}


def keep(folder: Path, runs: Sequence[Json]) -> None:
    for number, run in enumerate(runs, start=1):
        write_json(folder / f"run_{number:04d}/comparison.json", run)


# ---- the document of a folder


SLOW = ["^ffn|x/=0.05"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    assert record(folder, machine(seed=2), 3) == record(folder, machine(), 40) == 0
    # what was asked for is not what it is
    assert record(folder, machine(seed=3, factors={FFN: 1.07}), 20, SLOW) == 0
    no_look = a_run({FFN: "no verdict"}, ended="budget used", threads=7)
    keep(folder, [a_run({FFN: "same"}), a_run({FFN: "slower"}, SLOW, "rotary"), no_look])
    assert calibrate(folder) == 0
    return folder


@pytest.fixture(scope="module")
def document(folder: Path) -> Json:
    return read_json(folder / "calibration.json")


def test_recordings_are_cut_into_runs_and_slowed_ones_say_how_large_a_change_is(
    folder: Path, document: Json
) -> None:
    short, long = document["recordings"]
    assert [(row["blocks"], row["left_out"]) for row in (short, long)] == [(3, 0), (40, 0)]
    assert (short["runs"], short["standing"]) == (0, NOT_SHOWN)
    assert long["git_commit"] == CONTEXT["git_commit"]
    blocks, _ = command.read_blocks(folder / "blocks_0002.jsonl")
    design = plan_design(7, alpha=0.05, looks=2)
    runs = rates.consecutive_runs(blocks.values, design)
    assert long["runs"] == len(runs) == long["slower_or_faster"]["trials"] > 0
    assert sum(long["verdicts"].values()) == 7 * len(runs)
    # with the run of the command
    assert document["all_runs"]["slower_or_faster"]["trials"] == len(runs) + 1
    assert (document["all_runs"]["kinds"], document["standing"]) == (1, NOT_SHOWN)
    (size,) = document["sizes"]
    low, high = size["interval_95"]
    assert (size["case"], size["slowdown"]) == (FFN, SLOW[0])
    assert low < 0.07 < high < low + 0.08


def test_scatter_is_that_of_the_blocks(folder: Path, document: Json) -> None:
    items = read_recording(folder / "blocks_0002.jsonl")[1]
    blocks = [(i["base"], i["new"]) for i in items if "base" in i and i["case"] == FFN]
    medians = np.array([[np.median(base), np.median(new)] for base, new in blocks])
    ratios = np.array([summarise(*block)[LOG_RATIO] for block in blocks])
    # that of the recording with most blocks
    row = next(row for row in document["noise"]["scatter"] if row["case"] == FFN)
    assert row["processes"] == pytest.approx(math.sqrt(np.log(medians).var(axis=0, ddof=1).mean()))
    assert row["blocks"] == pytest.approx(ratios.std(ddof=1))


def test_what_is_found_by_the_size_of_the_true_change(document: Json) -> None:
    rows = {(row["cases"], row["change"]): row for row in document["operating"]}
    assert set(rows) == {(n, c) for n in rates.FAMILIES for c in rates.CHANGES}
    assert (min(rates.CHANGES), max(rates.CHANGES), len(rates.CHANGES)) == (-0.03, 0.06, 19)
    for row in rows.values():
        assert sum(row[word]["count"] for word in command.OUTCOMES) == 3
        assert ("standing" in row) == (abs(math.log1p(row["change"])) <= math.log1p(0.015))
    for cases in rates.FAMILIES:
        assert rows[cases, 0.0]["slower"]["count"] == rows[cases, 0.0]["faster"]["count"] == 0
    # of so few blocks not even this much is found each time
    assert sum(rows[cases, 0.06]["slower"]["count"] for cases in rates.FAMILIES) > 6


def test_the_page_shows_it_and_no_file_names_a_folder(folder: Path, document: Json) -> None:
    texts = [(folder / n).read_text("utf-8") for n in ("CALIBRATION.md", "calibration.json")]
    page, plot = texts[0], (folder / command.PLOT).read_text("utf-8")
    assert str(folder) not in "".join(texts) and "nan" not in page
    low, high = document["sizes"][0]["interval_95"]
    change = document["sizes"][0]["change"]
    assert f"| {100 * change:+.1f} % ({100 * low:+.1f} % to {100 * high:+.1f} %) " in page
    alarms = document["all_runs"]["slower_or_faster"]
    assert f"`slower` or `faster` in 0 of {alarms['trials']}, bound " in page
    # each verdict of each family is a line through all changes
    lines = [line.get("points", "").split() for line in ElementTree.fromstring(plot).iter()]
    assert [len(points) for points in lines if points] == [19] * 3 * 4


# ---- a calibration that fails where something is wrong


def changed(folder: Path, change: Callable[[Json], float]) -> Path:
    """The recording of a real machine, the new side of every block so many times as slow."""
    header, *items = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    for item in items:
        if "base" in item:
            item["new"] = [seconds * change(item) for seconds in item["new"]]
    path = folder / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *items)))
    return path


def judged(folder: Path, path: Path) -> tuple[int, Json]:
    usual = ("--alpha", "0.001", "--looks", str(rules.LOOKS))
    with pytest.MonkeyPatch.context() as patch:
        # what is simulated is not in question
        patch.setattr(rates, "CHANGES", (0.0,))
        status = calibrate(folder, "--recording", str(path), "--tries", "1", *usual)
    return status, read_json(folder / "calibration.json")


def test_a_recording_that_favours_a_side_is_broken(tmp_path: Path) -> None:
    """Tossing sides and shuffling blocks called it held."""
    status, found = judged(tmp_path / "as it is", RECORDED)
    (row,) = found["recordings"]
    assert (status, row["slower_or_faster"]["count"], row["standing"]) == (0, 0, IN_ALL)
    for factor in (1.22, 1 / 1.22):
        path = changed(tmp_path, lambda _, factor=factor: factor)
        status, found = judged(tmp_path / f"{factor}", path)
        (row,) = found["recordings"]
        assert (status, found["standing"], row["standing"]) == (1, BROKEN, BROKEN)
        assert row["slower_or_faster"]["share"] == 1 and row["runs"] > 3
    assert "| standing | broken" in (tmp_path / f"{factor}/CALIBRATION.md").read_text("utf-8")


def test_blocks_that_depend_on_each_other_are_unclear_or_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine tenths of each block's log-ratio are those of the one before."""
    fresh = np.random.default_rng(1).normal(0, 0.02, (10, 191))
    series = signal.lfilter([1], [1, -0.9], fresh)[:, 50:]
    cases = {name: series[i] for i, name in enumerate(command.read_blocks(RECORDED)[0].cases)}
    path = changed(tmp_path, lambda item: math.exp(cases[item["case"]][item["block"]]))
    status, found = judged(tmp_path / "widened", path)
    (row,) = found["recordings"]
    assert (status, row["slower_or_faster"]["count"]) == (0, 0)
    assert row["dependent"] > 0
    monkeypatch.setattr(rules, "dependence", lambda rows: np.zeros(len(rows)))
    status, found = judged(tmp_path / "not", path)
    assert (status, found["recordings"][0]["standing"]) == (1, BROKEN)


# ---- noise of every kind

KINDS = ("drift", "spikes", "two modes", "ties", "heavy tails", "shared")


def noise(kind: str, rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Log seconds of base and new, then cases, blocks and pairs: normal noise between processes of
    one program, and within one, but for its kind."""
    cases, blocks, pairs = shape
    between, within = rng.normal(0, 0.08, (2, cases, blocks, 1)), rng.normal(0, 0.05, (2, *shape))
    if kind == "drift":
        # the machine wanders for all cases alike, and moves on within a pair
        wander = np.cumsum(rng.normal(0, 0.02, (blocks * pairs, 2))).reshape(1, blocks, pairs, 2)
        order = np.where(rng.random((*shape, 1)) < 0.5, wander, wander[..., ::-1])
        within += np.moveaxis(order, -1, 0)
    elif kind == "spikes":
        longer = rng.uniform(math.log(1.3), math.log(4), within.shape)
        within += np.where(rng.random(within.shape) < 1 / 8, longer, 0)
    elif kind == "two modes":
        # a process in three is slower for its whole life: where its memory came to lie
        between = between / 4 + np.where(rng.random(between.shape) < 1 / 3, math.log(1.15), 0)
    elif kind == "ties":
        # a clock so coarse that many ratios are equal, and many are 1
        return np.round((between + within) / 0.05) * 0.05
    elif kind == "heavy tails":
        # no variance to speak of; but no machine stalls for more than e^6 times an iteration
        wild = (
            rng.standard_t(1.5, one.shape) * size for one, size in ((between, 4), (within, 2.5))
        )
        return np.clip(sum(wild) / 100, -6, 6)
    elif kind == "shared":
        # what makes a process slow does so for all of its cases: they err together or not
        between = between[:, :1]
    return between + within


def test_whatever_the_noise_few_families_at_the_margin_have_a_false_verdict() -> None:
    """Every other case at its upper edge and the rest at its lower one, where one is likeliest."""
    rng, design = np.random.default_rng(1), plan_design(7, alpha=0.2, looks=2)
    edges, wrong = np.where(np.arange(7) % 2, -design.edge, design.edge), Counter()
    for kind, _ in product(KINDS, range(100)):
        logs = noise(kind, rng, (7, design.looks[-1], 8))
        logs[1] += edges[:, np.newaxis, np.newaxis]
        base, new = 0.01 * np.exp(logs).reshape(2, -1, 8)
        fields = (*summarise_pairs(base, new), np.median(base, axis=1), np.median(new, axis=1))
        values = np.stack(fields, axis=-1).reshape(7, -1, 4)
        found = rates.judge_looks(list(values), design)
        wrong[kind] += any(verdict.outcome in rates.FALSE_WORDS for verdict in found)
    assert all(rates.standing(rates.share(wrong[kind], 100), 0.2) != BROKEN for kind in wrong)
    assert rates.share(wrong.total(), 600)["upper_bound_95"] <= 0.2
    # so few that the level is not met by silence alone
    assert wrong.total() > 0


def test_a_rule_that_errs_too_often_is_found_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def erring(cases: Mapping, design: Any) -> Mapping:  # noqa: ANN401
        """As if any difference from zero mattered: at the margin that is nearly everyone."""
        return judge_family(cases, replace(design, margin=1e-9))

    monkeypatch.setattr(rates, "judge_family", erring)
    recorded = ("--recording", str(folder / "blocks_0002.jsonl"))
    assert calibrate(tmp_path, *recorded, "--tries", "20") == 1
    found = read_json(tmp_path / "calibration.json")
    broken = {row["change"] for row in found["operating"] if row.get("standing") == BROKEN}
    assert 0.015 in broken and 0.0 not in broken
    assert found["standing"] == BROKEN


def test_the_result_depends_on_the_seed_and_not_on_the_number_of_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "FAMILIES", (1, 2))
    monkeypatch.setattr(rates, "CHANGES", (0.0, 0.04))
    blocks, _ = command.read_blocks(RECORDED)
    asked = {"alpha": 0.5, "margin": 0.03, "looks": 2, "tries": 30}
    one, two, other = (
        rates.operating_rows(blocks, Namespace(**asked, jobs=jobs, seed=seed))
        for jobs, seed in ((1, 3), (2, 3), (1, 4))
    )
    assert one == two != other


def test_standing_of_rows_and_runs() -> None:
    words = [rates.standing(rates.share(count, 10_000), 1e-3) for count in (10, 17, 18)]
    assert words == [IN_ALL, IN_ALL, BROKEN]
    assert rates.standing(rates.share(90, 100), 0.05) == BROKEN
    good, bad, faster = (a_run({"ffn": word}) for word in ("same", "slower", "faster"))
    silent, slowed = a_run({}, ended="budget used"), a_run({"ffn": "slower"}, ["ffn=0.1"])
    other = a_run({"ffn": "same"}, device={"name": "another processor"})
    for rows, runs, expected in (
        ([IN_ALL, BROKEN], [other, *[good] * 300], BROKEN),
        # a bound of 1 %, and two kinds of processor
        ([IN_ALL], [other, *[good] * 299], HELD),
        ([], [good] * 300, NOT_SHOWN),
        ([], [other] + [good] * 249 + [silent] * 50, NOT_SHOWN),
        ([], [other] + [good] * 289, NOT_SHOWN),
        ([], [slowed] * 300, NOT_SHOWN),
        ([], [other] + [good] * 299 + [slowed] * 9, HELD),
        # one of 301 may be chance at 1 of 1,000; three are not
        ([], [other] + [good] * 299 + [bad], NOT_SHOWN),
        ([], [good] * 300 + [faster] * 3, BROKEN),
    ):
        rows_of_runs = run_rows(runs)
        same = [row for row in rows_of_runs if not row["slowdown"]]
        whole = {"operating": [{"standing": row} for row in rows], "runs": rows_of_runs}
        whole |= {"recordings": [], "coverage": [], "all_runs": command.all_runs(same, 1e-3)}
        assert document_standing(whole) == expected


def test_verdicts_are_those_of_the_sequential_run() -> None:
    scatter = {name: 0.012 * 2**number for number, name in enumerate(CASES)}
    played = machine(factors={CASES[0]: 1.3, LOSS: 1.3}, scatter=scatter)
    design = plan_design(7, alpha=0.05, margin=0.1, looks=4)
    more = {"progress": Progress(io.StringIO()), "clock": played}
    run = SequentialRun(played, CASES, design, 1e6, keep=lambda _: None, **more)
    run.run(verify=True)
    costs = Costs(OWN, dict.fromkeys(CASES, EACH), OPENING)
    values = summaries(played, CASES, 120)
    found = rates.judge_looks(values, design)
    assert [v.outcome for v in found] == [run.judgements[name].outcome for name in CASES]
    assert [v.blocks for v in found] == [len(case.blocks) for case in run.cases.values()]
    seconds = [rates.seconds_until(number, found, CASES, costs) for number in range(7)]
    assert max(seconds) == pytest.approx(played.now)
    # what was known first cost less
    assert found[0].outcome is Outcome.SLOWER
    assert seconds[0] == pytest.approx(OPENING + found[0].blocks * (OWN + 7 * EACH))
    # blocks that reach no look
    assert rates.judge_looks(values[:, :3], design) == [rates.NOT_JUDGED] * 7
    # one run after the other, whose last one is cut short
    used = run.blocks
    twice = np.concatenate([values[:, :used], values[:, :used], values[:, : used - 1]], axis=1)
    assert rates.consecutive_runs(twice, design) == [found, found]


# ---- recording


def failures(*blocks: int) -> dict[tuple[int, str], Json]:
    return {(block, FFN): failed(block, FFN) for block in blocks}


def test_recordings_are_read_back_without_what_failed(tmp_path: Path) -> None:
    # skipped or failing twice, on a side that cannot open it, and once
    events = failures(2) | {(1, LOSS): skipped(LOSS), (0, NORM): failed(0, NORM)}
    events |= {(block, STEP): failed(block, STEP) for block in (2, 3)}
    for number, (told, status, missing, lost) in enumerate(
        (
            ({}, 0, set(), 0),
            (events, 0, {LOSS, NORM, STEP}, 1),
            ({(3, FFN): KeyboardInterrupt}, 130, set(), 1),
        )
    ):
        # a block that was begun is finished, and proofs do not count
        assert record(tmp_path / str(number), machine(events=told), 5.5) == status
        path = tmp_path / str(number) / "blocks_0001.jsonl"
        # killed in the middle of a line
        with path.open("a", encoding="utf-8") as file:
            file.write('{"block": 9, "case": "case 2", "ba')
        measured = max(item["block"] for item in read_recording(path)[1] if "base" in item)
        found, row = command.read_blocks(path)
        assert set(CASES) - set(found.cases) == missing
        assert (found.blocks, row["left_out"]) == (measured - lost, lost)
    found, _ = command.read_blocks(tmp_path / "0/blocks_0001.jsonl")
    assert found.values == pytest.approx(summaries(machine(), found.cases, 6))
    assert found.costs.cases == pytest.approx(dict.fromkeys(CASES, EACH))
    assert (found.costs.block, found.costs.opening) == pytest.approx((OWN, OPENING))


def test_too_little_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record(tmp_path, machine(events={(1, case): skipped(case) for case in CASES})) == 2
    assert "nothing to record" in capsys.readouterr().err
    assert record(tmp_path, machine(), 1) == 0
    for blocks in (0, 1):
        with pytest.raises(BadInputError, match=f"measured: {blocks}, and at least 2 are needed"):
            command.read_blocks(tmp_path / f"blocks_{blocks + 1:04d}.jsonl")


def test_files_that_are_none_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (folder / "blocks_0001.jsonl").read_text()
    header, *_, block = good.splitlines()
    uneven, zero, nameless = (
        json.dumps(json.loads(block) | wrong)
        for wrong in ({"new": [0.01]}, {"base": [0.0]}, {"case": ""})
    )
    no_slice = json.dumps(json.loads(header) | {"slice_seconds": {}})
    for run, text, expected in (
        ({}, "", "bad.jsonl: "),
        ({}, "{\n", "bad.jsonl: line 1 cannot be read"),
        ({}, good.replace("paired blocks", "songs"), r"bad.jsonl: \[0\]\.recording: .* was exp"),
        ({}, f"{header}\n{uneven}\n", "bad.jsonl: line 2: not as many slices on both sides"),
        ({}, f"{header}\n{zero}\n", r"bad.jsonl: \[1\]\.base\[0\]: 0.0 is less than"),
        ({}, f"{header}\n{nameless}\n", r"bad.jsonl: \[1\]\.case: '' "),
        ({}, f"{no_slice}\n{block}\n", r"bad.jsonl: \[0\]\.slice_seconds: \{\} is not"),
        ({}, good, r"run_0001/comparison\.json: is no result of"),
        (a_run({"ffn": "same"}) | {"alpha": "low"}, good, r"run_0001/comparison\.json: is no"),
    ):
        keep(tmp_path, [run])
        path = tmp_path / "bad.jsonl"
        path.write_text(text)
        assert calibrate(tmp_path, "--recording", str(path), str(tmp_path)) == 2
        assert re.search(expected, capsys.readouterr().err)


# ---- what measures, with fakes of tiny_llama_bench and of compare run

QUICK = ("--", "--pairs", "2", "--slice", "1ms")


def test_a_recording_of_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {STEP: 0.04, FFN: 0.005, LOSS: 0.002}
    build = make_build(tmp_path / "build", cases=cases)
    assert calibrate(tmp_path) == 2
    assert "--record 30m" in capsys.readouterr().err
    options = ("--build-folder", str(build), "--record", "20ms", *QUICK, "--threads", "1")
    assert calibrate(tmp_path, *options) == 0
    header, items = read_recording(tmp_path / "blocks_0001.jsonl")
    timed = {item["case"]: len(item["base"]) for item in items if "base" in item}
    assert (timed, header["pairs"]) == (dict.fromkeys(cases, 2), 2)
    # two processes to greet, two to prove, two of the one block
    given = [start["arguments"] for start in noted(build, "starts")]
    assert len(given) == 4 + 2
    assert all("--threads=1" in words for words in given)


def test_whole_runs_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = make_build(tmp_path / "build", cases={FFN: 0.005})
    rule = ("--build-folder", str(build), "--alpha", "0.3", "--looks", "1")
    assert calibrate(tmp_path, "--runs", "1", *rule, *QUICK, "--budget", "30s") == 0
    slow = ("--runs", "1", "--slow", "0.05")
    assert calibrate(tmp_path, *slow, *rule, *QUICK, "--budget", "1ms") == 2
    assert "build it: cmake --build" in capsys.readouterr().err
    plugin = build / command.SLOW_PLUGIN
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    assert calibrate(tmp_path, *slow, *rule, *QUICK, "--budget", "1ms") == 0
    assert "no verdict: budget too short for any verdict" in capsys.readouterr().err
    asked = {f"--plugin={plugin}", "--variants=slow::rms_norm"}
    # two processes of each run
    assert sum(asked < set(start["arguments"]) for start in noted(build, "starts")) >= 2
    plain, slowed = run_rows(finished_runs(tmp_path))
    assert (plain["runs"], plain["slowdown"], plain["budget_seconds"]) == (1, "", 30)
    assert (plain["alpha"], set(plain["by_case"])) == (0.3, {FFN})
    assert slowed["slowdown"] == "slow::=0.05"
    assert slowed["without_verdict"] == {"budget too short for any verdict": 1}
    # nothing measured at all: an error with its words
    assert calibrate(tmp_path, "--build-folder", str(tmp_path), "--runs", "1") == 2
    assert (
        "must be a build folder or a prefix (no benchmarks/tiny_llama_bench"
        in capsys.readouterr().err
    )


def test_runs_are_grouped_and_all_count_but_the_interrupted(tmp_path: Path) -> None:
    slow, same, slower = ["ffn=0.1"], {"ffn": "same"}, {"ffn": "slower"}
    aa = [a_run(same), a_run({"ffn": "faster"}), a_run({"ffn": "no verdict"}, ended="budget used")]
    # whose culprit does not count where nothing was called slower
    slowed = [a_run(slower, slow), a_run(same, slow, "loss"), a_run(slower, slow, "rotary")]
    others = ({"git_commit": "b"}, {"device": {}}, {"threads": 7})
    more = [a_run(same, ended="interrupted"), *(a_run(same, **other) for other in others)]
    keep(tmp_path, [*aa, *slowed, *more])
    own, found, *rows = run_rows(finished_runs(tmp_path))
    assert (own["slower_or_faster"]["count"], own["slower_or_faster"]["trials"]) == (1, 2)
    assert own["standing"] == BROKEN
    assert own["by_case"]["ffn"] == {"same": 1, "faster": 1, "no verdict": 1}
    assert own["without_verdict"] == {"budget used": 1}
    assert found["culprits"] == {"ffn": {"nobody": 1, "rotary": 1}}
    keys = ("git_commit", "device", "threads")
    assert [row[key] for row, key in zip(rows, keys, strict=True)] == ["b", "unknown", 7]
    together = tmp_path / "kept" / "runs.jsonl"
    together.parent.mkdir()
    files = sorted(tmp_path.glob("run_*/comparison.json"))
    together.write_text("".join(f"{json.dumps(read_json(file))}\n" for file in files))
    assert finished_runs(together.parent) == finished_runs(tmp_path)
    together.write_text("[]\n")
    with pytest.raises(BadInputError, match=r"runs\.jsonl: "):
        finished_runs(together.parent)
