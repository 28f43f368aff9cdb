"""`compare calibrate`: recording, drawing, error rates, whole runs, its document and its page."""

import io
import json
import math
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_bench import make_build, starts_of
from samples import CONTEXT, FFN, LOSS, NORM, STEP, TIMES, Played, failed, skipped

from built_programs import write_json
from tinyllama_tools.calibrate import command, rates
from tinyllama_tools.calibrate.command import document_standing, finished_runs, run_rows
from tinyllama_tools.calibrate.rates import BROKEN, HELD, LOG_RATIO, NOT_SHOWN, false_alarm_row
from tinyllama_tools.compare.blocks import SIDES, Costs, Sides, read_recording
from tinyllama_tools.compare.run import SequentialRun
from tinyllama_tools.core.app import RESULTS, BadInputError, Json
from tinyllama_tools.core.process import Progress
from tinyllama_tools.stats.rank_tests import summarise
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
    small = ("--families", "20", "--cases", "7", "--tries", "3", "--jobs", "1", "--looks", "2")
    return compare(["calibrate", "--folder", str(folder), *small, "--alpha", "0.05", *more])


def record(folder: Path, played: Played, blocks: float = 12) -> int:
    """On the machine's own clock, as long as so many blocks of all cases take."""
    names = list(played.seconds)
    sides = Sides(played, dict.fromkeys(SIDES, names), names, HEADER)
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    assert record(folder, machine(seed=2), 3) == record(folder, machine(), 40) == 0
    slow = {"slow": ["^ffn|x/=0.05"], "culprit": "rotary"}
    keep(folder, [a_run({"ffn": "same"}), a_run({"ffn": "slower"}, **slow)])
    assert calibrate(folder) == 0
    return folder


@pytest.fixture(scope="module")
def document(folder: Path) -> Json:
    return json.loads((folder / "calibration.json").read_text(encoding="utf-8"))


def test_what_was_recorded_its_false_alarms_and_what_slower_cases_are_found(document: Json) -> None:
    assert document["meta"]["commit"] == CONTEXT["git_commit"]
    found = document["recorded"]
    assert (found["blocks"], found["left_out"]) == (40, 0)
    assert found["hours"] == pytest.approx((OPENING + 40 * (OWN + 7 * EACH)) / 3600)
    (row,) = [row for row in document["false_alarms"] if row["data"] == rates.RECORDED]
    needed = plan_design(7, alpha=0.05, looks=2).looks[-1]
    assert (row["blocks"], row["blocks_needed"]) == (40, needed)
    assert (row["false"]["trials"], sum(row["verdicts"].values())) == (20, 20 * 7)
    found = {(row["slowdown"], row["margin"]): row for row in document["detection"]}
    assert list(found) == [(0.02, 0.03), (0.02, 0.01), (0.05, 0.03), (0.1, 0.03)]
    two, *_, ten = found.values()
    # within the margin, and hardly ever estimated beyond it
    assert (two["all"]["slower"]["share"] < 0.2, ten["all"]["slower"]["share"]) == (True, 1)
    # the first look, of six parts without the step
    look = plan_design(6, alpha=0.05, looks=2).looks[0]
    assert ten["all"]["median_seconds"] == pytest.approx(OPENING + look * (OWN + 6 * EACH))
    assert all(row["is_shown"] == (row["blocks"] >= row["looks"][-1]) for row in found.values())


def test_noise_is_that_of_the_blocks(folder: Path, document: Json) -> None:
    items = read_recording(folder / "blocks_0002.jsonl")[1]
    blocks = [(i["base"], i["new"]) for i in items if "base" in i and i["case"] == FFN]
    medians = np.array([[np.median(base), np.median(new)] for base, new in blocks])
    ratios = np.array([summarise(*block)[LOG_RATIO] for block in blocks])
    apart = ratios - ratios.mean()
    row = next(row for row in document["noise"] if row["case"] == FFN)
    scatter = math.sqrt(np.log(medians).var(axis=0, ddof=1).mean())
    lag = (apart[1:] * apart[:-1]).sum() / (apart**2).sum()
    keys = ("median_seconds", "processes", "blocks", "autocorrelation", "count")
    expected = [np.median(medians[:, 0]), scatter, ratios.std(ddof=1), lag, 40]
    assert [row[key] for key in keys] == pytest.approx(expected)


def test_the_page_shows_it_and_no_file_names_a_folder(folder: Path, document: Json) -> None:
    page, data = ((folder / n).read_text("utf-8") for n in ("CALIBRATION.md", "calibration.json"))
    assert str(folder) not in page + data and "nan" not in page
    assert "Slowed: ^ffn|x/=0.05; options `none`; budget 60 s a run, 60 s in all" in page
    for row in document["detection"]:
        found = row["all"]["found_in_5_minutes"]
        low, high = found["interval_95"]
        share = f" | {100 * found['share']:.1f} % ({100 * low:.1f} to {100 * high:.1f}) "
        assert share in page
    for row in document["false_alarms"]:
        assert f"{row['false']['count']} of {row['false']['trials']}, bound " in page


def test_simulated_data_keep_the_level_and_who_errs_too_often_is_found_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # no margin that would protect
    options = ("--simulate", "--families", "1201", "--margin", "1e-9", "--strict")
    assert calibrate(tmp_path, *options) == 0
    page = (tmp_path / "CALIBRATION.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == page + "\n"
    document = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))
    *rows, together = document["false_alarms"]
    assert [row["data"] for row in rows] == [f"simulated: {name}" for name in rates.SCENARIOS]
    # of 1201 families each scenario has a sixth, rounded up
    assert {row["false"]["trials"] for row in rows} == {201}
    assert (together["false"]["trials"], sum(together["verdicts"].values())) == (1206, 1206 * 7)
    assert 0 < together["false"]["upper_bound_95"] <= 0.05 and together["false"]["count"] > 0
    # too few families show nothing
    assert calibrate(tmp_path, "--simulate", "--strict") == 3

    def erring(cases: Mapping, design: Any) -> Mapping:  # noqa: ANN401
        """A quarter of alpha is spent: 19 x 0.05 / 4 = 0.24."""
        return judge_family(cases, replace(design, alpha=19 * design.alpha))

    monkeypatch.setattr(rates, "judge_family", erring)
    assert calibrate(tmp_path, "--simulate", "--families", "300", "--margin", "0.01") == 1


# ---- drawing, judging, counting; alpha is loose, so that a few hundred families are enough

LOOSE = {"alpha": 0.05, "margin": 0.03, "looks": 2, "families": 100, "cases": 6, "tries": 1}
DATA = rates.simulate("two modes", cases=6, blocks=120, seed=2)


def asked(**more: float) -> Namespace:
    return Namespace(**{**LOOSE, "jobs": 1, "seed": 3, **more})


RECORDED = RESULTS / "reference/paired_blocks_2core_xeon_avx512.jsonl"


def test_blocks_recorded_on_a_real_machine_keep_the_level() -> None:
    blocks, *_ = command.read_blocks(RECORDED)
    loose, usual = (
        false_alarm_row(blocks, asked(alpha=alpha, looks=3, cases=20)) for alpha in (0.05, 1e-3)
    )
    assert (loose["standing"] != BROKEN, usual["false"]["count"]) == (True, 0)


def test_too_few_blocks_are_never_held_and_a_favoured_side_is_no_false_alarm() -> None:
    # never an alarm: the margin is far beyond the noise
    settings = asked(cases=12, margin=0.9)
    last = rates.design_of(settings, 12).looks[-1]
    some = [replace(DATA, values=DATA.values[:, :n]) for n in (2 * last, 2 * last - 1, last - 1)]
    rows = [false_alarm_row(data, settings) for data in some]
    assert {(row["false"]["count"], row["blocks_needed"]) for row in rows} == {(0, 2 * last)}
    assert [row["standing"] for row in rows] == [HELD, NOT_SHOWN, NOT_SHOWN]
    favoured = replace(DATA, values=DATA.values - [1, 0, 0, 0])
    assert false_alarm_row(favoured, asked(families=20))["false"]["share"] < 0.2


def test_the_result_depends_on_the_seed_and_not_on_the_number_of_processes() -> None:
    families = rates.CHUNK + 20
    one, two, other = (
        false_alarm_row(DATA, asked(families=families, margin=1e-9, alpha=0.5, **more))
        for more in ({}, {"jobs": 2}, {"seed": 4})
    )
    assert one == two != other
    assert one["false"]["trials"] == families


def test_no_block_is_drawn_twice_and_the_cases_of_one_stay_together() -> None:
    few = rates.draw_blocks(np.random.default_rng(1), 39, 10, 4)
    assert (few.shape, len(set(few.ravel().tolist()))) == ((4, 9), 36)
    drawn, tossed = (
        rates.draw_family(DATA, 8, 20, np.random.default_rng(4), is_tossed=is_tossed)
        for is_tossed in (False, True)
    )
    known = [{seconds: i for i, seconds in enumerate(case)} for case in DATA.values[..., 2]]
    # which block each is of: of eight cases two are of the second time over
    numbers = [[known[case % 6][b[2]] for b in blocks] for case, blocks in enumerate(drawn)]
    assert numbers == [numbers[0]] * 6 + [numbers[6]] * 2
    assert len({*numbers[0], *numbers[6]}) == 40
    turned = tossed[:6, :, LOG_RATIO] != drawn[:6, :, LOG_RATIO]
    assert (np.abs(tossed) == np.abs(drawn)).all() and (turned == turned[0]).all()
    assert 0 < turned[0].sum() < 20


def test_standing_of_rows_and_runs() -> None:
    # four of 10,000 families show one in a thousand and five do not; 90 of 100 break 5 %
    words = [rates.standing(rates.share(count, 10_000), 1e-3) for count in (4, 5, 30)]
    assert words == [HELD, NOT_SHOWN, BROKEN]
    assert rates.standing(rates.share(0, 10_000), 1e-3, has_enough=False) == NOT_SHOWN
    assert rates.standing(rates.share(90, 100), 0.05, has_enough=False) == BROKEN
    good, bad, faster = (a_run({"ffn": word}) for word in ("same", "slower", "faster"))
    silent, slowed = a_run({}, ended="budget used"), a_run({"ffn": "same"}, ["ffn=0.1"])
    for rows, runs, expected in (
        ([HELD, NOT_SHOWN], [good] * 50, NOT_SHOWN),
        ([HELD, BROKEN], [good] * 50, BROKEN),
        ([HELD], [good] * 49 + [silent], NOT_SHOWN),
        ([HELD], [slowed] * 50, NOT_SHOWN),
        ([HELD], [good] * 50 + [slowed] * 9, HELD),
        # one of 51 may be chance at 1 of 1,000; three are not
        ([HELD], [good] * 50 + [bad], NOT_SHOWN),
        ([HELD], [good] * 50 + [faster] * 3, BROKEN),
    ):
        alarms = [{"standing": row} for row in rows]
        assert document_standing({"false_alarms": alarms, "runs": run_rows(runs)}) == expected


def test_detection_by_hand() -> None:
    told = [(Outcome.SLOWER, seconds) for seconds in [100.0] * 18 + [400.0, 700.0]]
    row = rates.detection_numbers("c", [*told, (Outcome.SAME, 50.0)])
    keys = ("slower", "found_in_5_minutes", "found_in_10_minutes", "same", "unclear")
    assert [row[key]["count"] for key in keys] == [20, 18, 19, 1, 0]
    # 95 % of 21 tries are the twentieth
    assert (row["median_seconds"], row["seconds_for_95_percent"]) == (100.0, 700.0)
    row = rates.detection_numbers("c", told[:1] + [(Outcome.UNCLEAR, 1.0)] * 2)
    assert (row["median_seconds"], row["unclear"]["count"]) == (None, 2)


def test_verdicts_are_those_of_the_sequential_run() -> None:
    scatter = {name: 0.012 * 2**number for number, name in enumerate(CASES)}
    played = machine(factors={CASES[0]: 1.3, LOSS: 1.3}, scatter=scatter)
    design = plan_design(7, alpha=0.05, margin=0.1, looks=4)
    more = {"progress": Progress(io.StringIO()), "clock": played}
    run = SequentialRun(played, CASES, design, 1e6, keep=lambda _: None, **more)
    run.run(verify=True)
    costs = Costs(OWN, dict.fromkeys(CASES, EACH), OPENING)
    recorded = rates.PairedBlocks(CASES, summaries(played, CASES, 60), costs)
    found = rates.judge_looks(recorded.values, design)
    assert [v.outcome for v in found] == [run.judgements[name].outcome for name in CASES]
    assert [v.blocks for v in found] == [len(case.blocks) for case in run.cases.values()]
    seconds = [rates.seconds_until(number, found, recorded) for number in range(7)]
    assert max(seconds) == pytest.approx(played.now)
    # what was known first cost less
    assert found[0].outcome is Outcome.SLOWER
    assert seconds[0] == pytest.approx(OPENING + found[0].blocks * (OWN + 7 * EACH))
    # blocks that reach no look
    assert rates.judge_looks(recorded.values[:, :3], design) == [rates.NOT_JUDGED] * 7


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
        found, row, context = command.read_blocks(path)
        assert (set(CASES) - set(found.cases), context) == (missing, CONTEXT)
        assert (found.blocks, row["left_out"]) == (measured - lost, lost)
    found, *_ = command.read_blocks(tmp_path / "0/blocks_0001.jsonl")
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
        (a_run({"ffn": "same"}) | {"seconds": "long"}, good, r"run_0001/comparison\.json: is no"),
    ):
        keep(tmp_path, [run])
        path = tmp_path / "bad.jsonl"
        path.write_text(text)
        assert calibrate(tmp_path, "--recording", str(path)) == 2
        assert re.search(expected, capsys.readouterr().err)


# ---- what measures, with fakes of tiny_llama_bench and of compare run

QUICK = ("--", "--pairs", "2", "--slice", "1ms")


def test_a_recording_of_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {STEP: 0.04, FFN: 0.005, LOSS: 0.002}
    build = make_build(tmp_path / "build", cases=cases)
    assert calibrate(tmp_path) == 2
    assert "--record 30m" in capsys.readouterr().err
    options = ("--build", str(build), "--record", "20ms", *QUICK, "--threads", "1")
    assert calibrate(tmp_path, *options) == 0
    header, items = read_recording(tmp_path / "blocks_0001.jsonl")
    timed = {item["case"]: len(item["base"]) for item in items if "base" in item}
    assert (timed, header["pairs"]) == (dict.fromkeys(cases, 2), 2)
    # two processes to greet, two to prove, two of the one block
    given = [start["arguments"] for start in starts_of(build)]
    assert len(given) == 4 + 2
    assert all("--threads=1" in words for words in given)


def test_whole_runs_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = make_build(tmp_path / "build", cases={FFN: 0.005})
    rule = ("--build", str(build), "--alpha", "0.3", "--looks", "1")
    assert calibrate(tmp_path, "--runs", "1", *rule, *QUICK, "--budget", "30s") == 0
    slow = ("--runs", "1", "--slow", "^ffn/=0.05", "--slow", "x=1")
    assert calibrate(tmp_path, *slow, *rule, *QUICK, "--budget", "1ms") == 0
    assert "no verdict: budget too short for any verdict" in capsys.readouterr().err
    given = {word for start in starts_of(build) for word in start["arguments"]}
    assert {"--slow=^ffn/=0.05", "--slow=x=1"} < given
    plain, slowed = run_rows(finished_runs(tmp_path))
    assert (plain["runs"], plain["slowdown"], plain["budget_seconds"]) == (1, "", 30)
    assert (plain["alpha"], set(plain["by_case"])) == (0.3, {FFN})
    assert slowed["slowdown"] == "^ffn/=0.05, x=1"
    assert slowed["without_verdict"] == {"budget too short for any verdict": 1}
    # nothing measured at all: an error with its words
    assert calibrate(tmp_path, "--build", str(tmp_path), "--runs", "1") == 2
    assert "must be a build folder (no benchmarks/tiny_llama_bench" in capsys.readouterr().err


def test_runs_are_grouped_and_all_count_but_the_interrupted(tmp_path: Path) -> None:
    slow, same, slower = ["ffn=0.1"], {"ffn": "same"}, {"ffn": "slower"}
    aa = [a_run(same), a_run({"ffn": "faster"}), a_run({"ffn": "no verdict"}, ended="budget used")]
    # whose culprit does not count where nothing was called slower
    slowed = [a_run(slower, slow), a_run(same, slow, "loss"), a_run(slower, slow, "rotary")]
    others = ({"git_commit": "b"}, {"device": {}}, {"threads": 7})
    more = [a_run(same, ended="interrupted"), *(a_run(same, **other) for other in others)]
    keep(tmp_path, [*aa, *slowed, *more])
    own, found, *rows = run_rows(finished_runs(tmp_path))
    assert (own["slower_or_faster"]["count"], own["slower_or_faster"]["trials"]) == (1, 3)
    assert (own["slower"]["count"], own["seconds"], own["standing"]) == (0, 180, BROKEN)
    assert own["by_case"]["ffn"] == {"same": 1, "faster": 1, "no verdict": 1}
    assert own["without_verdict"] == {"budget used": 1}
    assert (found["slower"]["count"], found["slower"]["trials"]) == (2, 3)
    assert found["culprits"] == {"ffn": {"nobody": 1, "rotary": 1}}
    keys = ("git_commit", "device", "threads")
    assert [row[key] for row, key in zip(rows, keys, strict=True)] == ["b", "unknown", 7]
