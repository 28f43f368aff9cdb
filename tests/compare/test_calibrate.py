"""`compare calibrate`: recording, drawing, error rates, whole runs, its document and its page."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_bench import FFN, LOSS, STEP, make_build, starts_of
from samples import Played, failed, skipped

from tinyllama_tools.calibrate import rates, record
from tinyllama_tools.calibrate.command import document_standing, run_rows
from tinyllama_tools.calibrate.rates import (
    BROKEN,
    HELD,
    LOG_RATIO,
    NOT_SHOWN,
    RECORDED,
    SCENARIOS,
    PairedBlocks,
    Settings,
    Verdict,
    false_alarm_row,
    share,
    simulate,
    standing,
)
from tinyllama_tools.calibrate.record import finished_runs, read_blocks
from tinyllama_tools.compare.blocks import RecordingWriter, read_recording
from tinyllama_tools.compare.run import SequentialRun
from tinyllama_tools.core.app import PROJECT, RESULTS, BadInputError, Json
from tinyllama_tools.core.process import Progress
from tinyllama_tools.stats.looks import Costs, judge_rows
from tinyllama_tools.stats.rank_tests import BlockSummary, summarise
from tinyllama_tools.stats.verdicts import Outcome, plan_design
from tools import compare

# ---- a machine whose times are known: seconds, and how often a step of tiny (four layers) has it

PARTS = {
    "embedding": (0.0002, 1),
    "attention": (0.004, 4),
    "ffn": (0.003, 4),
    "rms_norm": (0.0003, 9),
    "loss": (0.004, 1),
    "optimizer": (0.003, 1),
}
PASSES = {"optimizer": "update", "full_step": "train"}
NAMES = {
    part: f"{part}/{PASSES.get(part, 'forward_backward')}/baseline/tiny/f32/batch:8/seq:128"
    for part in (*PARTS, "full_step")
}
CONTEXT = {
    "host_name": "host_0123abcd",
    "git_commit": "0123456789abcdef0123456789abcdef01234567",
    "git_dirty": False,
    "device": {"name": "Example CPU", "architecture": "x86-64 AVX2"},
    "num_cpus": 2,
    "threads": 2,
}
OWN, EACH, OPENING = 1.0, 0.5, 7.0
HEADER = {
    "recording": "tiny_llama paired blocks", "schema_version": 1, "base": "a", "new": "b",
    "pairs": 8, "slice_seconds": 0.015, "seed": 1, "started": "2026-01-01",
    "base_context": CONTEXT, "new_context": CONTEXT,
}  # fmt: skip


def seconds_of(slowed: Mapping[str, float]) -> dict[str, float]:
    """Of every part and the step; `slowed`: fraction by part."""
    parts = {name: s * (1 + slowed.get(name, 0)) for name, (s, _) in PARTS.items()}
    return {**parts, "full_step": sum(n * parts[name] for name, (_, n) in PARTS.items())}


def machine(slowed: Mapping[str, float] | None = None, **more: Any) -> Played:  # noqa: ANN401
    base, new = seconds_of({}), seconds_of(slowed or {})
    seconds = {NAMES[part]: base[part] for part in base}
    factors = {NAMES[part]: new[part] / base[part] for part in base}
    told = {"between": 0.012, "pairs": 8, "cost": EACH, "opening": OPENING, **more}
    return Played(seconds, factors, **told)


def summaries(played: Played, name: str, blocks: int) -> list[BlockSummary]:
    items = [played.block(name, index) for index in range(1, blocks + 1)]
    return [summarise(item["base"], item["new"]) for item in items]


def recorded(path: Path, played: Played, blocks: float = 12) -> int:
    """As long as so many blocks of all cases take."""
    with RecordingWriter(path, {**HEADER, "started": f"2026 {path.stem}"}) as writer:
        seconds = blocks * (OWN + 7 * EACH) - 0.1
        return record.record_blocks(played, list(played.seconds), writer, seconds, clock=played)


def calibrate(folder: Path, *more: str) -> int:
    small = ("--families", "20", "--cases", "7", "--tries", "3", "--jobs", "1", "--looks", "2")
    return compare(["calibrate", "--folder", str(folder), *small, "--alpha", "0.05", *more])


def a_run(
    outcomes: Mapping[str, str],
    slow: Sequence[str] = (),
    culprit: str | None = None,
    ended: str = "every case decided",
    arguments: Sequence[str] = (),
    **context: object,
) -> Json:
    """What comparison.json says of a run."""
    p_value = None if "budget" in ended else 0.5
    attribution = {"culprit": culprit} if slow else None
    cases = [
        {"name": name, "outcome": outcome, "p_value": p_value, "attribution": attribution}
        for name, outcome in outcomes.items()
    ]
    settings = {"arguments": arguments, "new_slow": slow, "budget_seconds": 60.0}
    design = {"ended": ended, "looks": [9], "pairs": 8, "settings": settings}
    whole = {"cases": cases, "alpha": 0.001, "margin": 0.03, "seconds": 60.0}
    made_with = {"git_commit": "a", "device": {"name": "Some CPU"}, "threads": 2, **context}
    return {**whole, "design": design, "base_context": made_with}


def keep(folder: Path, runs: Sequence[Json]) -> None:
    for number, run in enumerate(runs, start=1):
        (folder / f"run_{number:04d}").mkdir(parents=True)
        (folder / f"run_{number:04d}/comparison.json").write_text(json.dumps(run))


# ---- the document of a folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    recorded(folder / "blocks_0001.jsonl", machine(seed=2), 3)
    recorded(folder / "blocks_0002.jsonl", machine(), 40)
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
    assert (found["blocks"], found["left_out"], found["started"]) == (40, 0, "2026 blocks_0002")
    assert found["block_seconds"] == pytest.approx(OWN + 7 * EACH)
    assert found["hours"] == pytest.approx((OPENING + 40 * found["block_seconds"]) / 3600)
    (row,) = [row for row in document["false_alarms"] if row["data"] == RECORDED]
    needed = plan_design(7, alpha=0.05, looks=2).looks[-1]
    assert (row["blocks"], row["blocks_needed"]) == (40, needed)
    assert (row["false"]["trials"], sum(row["verdicts"].values())) == (20, 20 * 7)
    found = {(row["slowdown"], row["margin"]): row for row in document["detection"]}
    assert list(found) == [(0.02, 0.03), (0.02, 0.01), (0.05, 0.03), (0.1, 0.03)]
    two, *_, ten = found.values()
    assert (ten["all"]["found"]["share"], ten["budget_seconds"]) == (1, 300)
    # within the margin, and hardly ever estimated beyond it
    assert (two["all"]["found"]["share"] < 0.2, two["budget_seconds"]) == (True, 600)
    # the first look, of six parts without the step
    look = plan_design(6, alpha=0.05, looks=2).looks[0]
    assert ten["all"]["median_seconds"] == pytest.approx(OPENING + look * (OWN + 6 * EACH))
    assert all(row["is_shown"] == (row["blocks"] >= row["looks"][-1]) for row in found.values())


def test_noise_is_that_of_the_blocks(folder: Path, document: Json) -> None:
    items = read_recording(folder / "blocks_0002.jsonl").blocks
    blocks = [(i["base"], i["new"]) for i in items if i["case"] == NAMES["ffn"]]
    medians = np.array([[np.median(base), np.median(new)] for base, new in blocks])
    ratios = np.array([summarise(*block).log_ratio for block in blocks])
    apart = ratios - ratios.mean()
    row = next(row for row in document["noise"] if row["case"] == NAMES["ffn"])
    scatter = math.sqrt(np.log(medians).var(axis=0, ddof=1).mean())
    lag = (apart[1:] * apart[:-1]).sum() / (apart**2).sum()
    keys = ("median_seconds", "processes", "blocks", "autocorrelation", "count")
    expected = [np.median(medians[:, 0]), scatter, ratios.std(ddof=1), lag, 40]
    assert [row[key] for key in keys] == pytest.approx(expected)


def table(page: str, section: str) -> list[dict[str, str]]:
    """The first table of a section."""
    text = page.partition(f"## {section}\n\n")[2].partition("\n\n")[0].replace("\\|", "/")
    head, _, *rows = ([c.strip() for c in line.split("|")] for line in text.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_the_page_shows_it_and_no_file_names_a_folder(folder: Path, document: Json) -> None:
    page, data = ((folder / n).read_text("utf-8") for n in ("CALIBRATION.md", "calibration.json"))
    assert str(folder) not in page + data
    assert "Example CPU (x86-64 AVX2), 2 processors" in page
    assert "nan" not in page
    assert "Slowed: ^ffn|x/=0.05; options `none`; budget 60 s a run, 60 s in all" in page
    heads = {"found in 5 min": "found_in_5_minutes", "`unclear`": "unclear", "`same`": "same"}
    for cells, row in zip(table(page, "Detection"), document["detection"], strict=True):
        for head, key in heads.items():
            found = row["all"][key]
            low, high = (100 * end for end in found["interval_95"])
            assert cells[head] == f"{100 * found['share']:.1f} % ({low:.1f} to {high:.1f})"
    alarms = document["false_alarms"]
    for cells, row in zip(table(page, "False alarms"), alarms, strict=True):
        count, _, trials, _, bound, _ = cells["with a false alarm"].split()
        assert (int(count), int(trials[:-1])) == (row["false"]["count"], row["false"]["trials"])
        assert float(bound) == pytest.approx(100 * row["false"]["upper_bound_95"], rel=0.05)


def test_simulated_data_need_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calibrate(tmp_path, "--simulate", "--families", "301") == 0
    page = (tmp_path / "CALIBRATION.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == page + "\n"
    document = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))
    *rows, together = document["false_alarms"]
    assert [row["data"] for row in rows] == [f"simulated: {name}" for name in SCENARIOS]
    # of 301 families each scenario has a sixth, rounded up; 50 share a simulation at most
    last = plan_design(7, alpha=0.05, looks=2).looks[-1]
    assert {row["false"]["trials"] for row in rows} == {51}
    assert {row["blocks"] for row in rows} == {2 * 3 * last}
    assert (together["false"]["trials"], together["blocks"]) == (306, 6 * 2 * 3 * last)
    assert sum(together["verdicts"].values()) == 306 * 7
    # too few families show nothing; a judge that errs too often is found out
    assert calibrate(tmp_path, "--simulate", "--strict") == 3
    monkeypatch.setattr(rates, "judge_rows", five_times_the_rate)
    assert calibrate(tmp_path, "--simulate", "--families", "300", "--margin", "0.01") == 1


# ---- drawing, judging, counting; alpha is loose, so that a few hundred families are enough

LOOSE = Settings(alpha=0.05, margin=0.03, looks=2, families=300, cases=6, tries=1, jobs=1, seed=3)
DATA = simulate("two modes", cases=6, blocks=120, seed=2)


def five_times_the_rate(logs: Sequence, errors: Sequence, design: Any) -> list:  # noqa: ANN401
    """A quarter of alpha is spent: 19 x 0.05 / 4 = 0.24."""
    return judge_rows(logs, errors, replace(design, alpha=19 * design.alpha))


def test_who_errs_too_often_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert false_alarm_row(DATA, LOOSE)["standing"] != BROKEN
    # a recording that favours one side is no reason for a false alarm
    favoured = DATA.values.copy()
    favoured[..., LOG_RATIO] -= 1.0
    few = replace(LOOSE, families=20)
    assert false_alarm_row(replace(DATA, values=favoured), few)["false"]["share"] < 0.2
    monkeypatch.setattr(rates, "judge_rows", five_times_the_rate)
    row = false_alarm_row(DATA, LOOSE)
    assert (row["standing"], row["false"]["share"] > 2 * LOOSE.alpha) == (BROKEN, True)
    # a false faster is a false alarm too, and no false slower
    assert 0 < row["slower"]["count"] < row["false"]["count"]


PUBLISHED = sorted((RESULTS / "reference").glob("paired_blocks_*.jsonl"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
@pytest.mark.parametrize("alpha", [0.05, 1e-3])
def test_blocks_recorded_on_real_machines_keep_the_level(path: Path, alpha: float) -> None:
    settings = replace(LOOSE, alpha=alpha, looks=3, families=100, cases=20)
    row = false_alarm_row(read_blocks(path).blocks, settings)
    assert row["standing"] != BROKEN
    assert alpha > 1e-3 or row["false"]["count"] == 0


def test_a_row_from_too_few_blocks_is_never_held() -> None:
    # never an alarm: the margin is far beyond the noise
    settings = replace(LOOSE, families=100, cases=12, margin=0.9)
    last = settings.design(12).looks[-1]
    some = [replace(DATA, values=DATA.values[:, :n]) for n in (2 * last, 2 * last - 1, last - 1)]
    rows = [false_alarm_row(data, settings) for data in some]
    assert {(row["false"]["count"], row["blocks_needed"]) for row in rows} == {(0, 2 * last)}
    assert [row["standing"] for row in rows] == [HELD, NOT_SHOWN, NOT_SHOWN]


def test_the_result_depends_on_the_seed_and_not_on_the_number_of_processes() -> None:
    settings = replace(LOOSE, families=rates.CHUNK + 20, margin=1e-9, alpha=0.5)
    one, two, other = (
        false_alarm_row(DATA, replace(settings, **more)) for more in ({}, {"jobs": 2}, {"seed": 4})
    )
    assert one == two != other
    assert one["false"]["trials"] == rates.CHUNK + 20


def test_no_block_is_drawn_twice() -> None:
    rng = np.random.default_rng(1)
    assert sorted(rates.draw_blocks(rng, 40, 10, 4).ravel().tolist()) == list(range(40))
    few = rates.draw_blocks(rng, 39, 10, 4)
    assert (few.shape, len(set(few.ravel().tolist()))) == ((4, 9), 36)
    # of too few, what is judged are the looks that they reach
    design = LOOSE.design(LOOSE.cases)
    for blocks, reached in ((design.looks[-1] - 1, design.looks[0]), (3, 0)):
        some = replace(DATA, values=DATA.values[:, :blocks])
        drawn = rates.draw_family(some, 6, design.looks[-1], rng, is_tossed=True)
        assert {verdict.blocks for verdict in rates.judge_looks(drawn, design)} == {reached}


def test_a_family_keeps_the_cases_of_a_block_together_and_sides_are_tossed() -> None:
    drawn, tossed = (
        rates.draw_family(DATA, 8, 20, np.random.default_rng(4), is_tossed=is_tossed)
        for is_tossed in (False, True)
    )
    known = [{seconds: i for i, seconds in enumerate(case)} for case in DATA.values[..., 2]]
    # which block each is of: of eight cases two are of the second time over
    numbers = [[known[case % 6][b[2]] for b in blocks] for case, blocks in enumerate(drawn)]
    assert numbers == [numbers[0]] * 6 + [numbers[6]] * 2
    assert not set(numbers[0]) & set(numbers[6])
    turned = tossed[:6, :, LOG_RATIO] != drawn[:6, :, LOG_RATIO]
    assert (np.abs(tossed) == np.abs(drawn)).all()
    assert (turned == turned[0]).all()
    assert 0 < turned[0].sum() < 20


def test_standing_of_rows_and_runs() -> None:
    # four of 10,000 families show one in a thousand and five do not; 90 of 100 break 5 %
    assert [standing(share(n, 10_000), 1e-3) for n in (4, 5, 30)] == [HELD, NOT_SHOWN, BROKEN]
    assert standing(share(0, 10_000), 1e-3, has_enough=False) == NOT_SHOWN
    assert standing(share(90, 100), 0.05, has_enough=False) == BROKEN
    good, bad, faster = (a_run({"ffn": word}) for word in ("same", "slower", "faster"))
    silent, slowed = a_run({}, ended="budget used"), a_run({"ffn": "same"}, ["ffn=0.1"])

    def of(*rows: str, runs: Sequence[Json] = (good,) * 50) -> str:
        alarms = [{"standing": row} for row in rows]
        return document_standing({"false_alarms": alarms, "runs": run_rows(runs)})

    assert document_standing({"false_alarms": [{"standing": HELD}]}) == HELD
    assert [of(HELD), of(HELD, NOT_SHOWN), of(HELD, BROKEN)] == [HELD, NOT_SHOWN, BROKEN]
    assert of(HELD, runs=[good] * 49 + [silent]) == of(HELD, runs=[slowed] * 50) == NOT_SHOWN
    assert of(HELD, runs=[good] * 50 + [slowed] * 9) == HELD
    # one of 51 may be chance at 1 of 1,000; three are not
    assert of(HELD, runs=[good] * 50 + [bad]) == NOT_SHOWN
    assert of(HELD, runs=[good] * 50 + [faster] * 3) == BROKEN


def test_detection_by_hand() -> None:
    told = [Verdict(Outcome.SLOWER, 9, seconds) for seconds in [100.0] * 18 + [400.0, 700.0]]
    row = rates.detection_numbers("c", [*told, Verdict(Outcome.SAME, 9, 50.0)])
    keys = ("found", "found_in_5_minutes", "found_in_10_minutes", "same", "unclear")
    assert [row[key]["count"] for key in keys] == [20, 18, 19, 1, 0]
    # 95 % of 21 tries are the twentieth
    assert (row["median_seconds"], row["seconds_for_95_percent"]) == (100.0, 700.0)
    row = rates.detection_numbers("c", told[:1] + [Verdict(Outcome.UNCLEAR, 9, 1.0)] * 2)
    assert (row["median_seconds"], row["unclear"]["count"]) == (None, 2)


@pytest.mark.parametrize("budget", [1e6, 70.0, 110.0, 150.0, 50.0, 10.0])
def test_verdicts_are_those_of_the_sequential_run(budget: float) -> None:
    scatter = {name: 0.012 * 2**number for number, name in enumerate(NAMES.values())}
    played = machine({"attention": 0.3, "loss": 0.3}, scatter=scatter)
    names, progress = list(played.seconds), Progress(io.StringIO())
    design = plan_design(7, alpha=0.05, margin=0.1, looks=4)
    more = {"keep": lambda _: None, "progress": progress, "clock": played}
    run = SequentialRun(played, names, design, budget, **more)
    run.run(verify=True)
    values = [summaries(played, name, 60) for name in names]
    costs = Costs(OWN, dict.fromkeys(names, EACH), OPENING)
    blocks = PairedBlocks(tuple(names), np.array(values), costs)
    found = rates.judge_looks(blocks.values, design, blocks, budget)
    judged = [run.judgements.get(name) for name in names]
    assert [v.outcome for v in found] == [j.outcome if j else Outcome.UNCLEAR for j in judged]
    if not run.refusal:
        assert [v.blocks for v in found] == [len(c.blocks) for c in run.cases.values()]
        assert max(v.seconds for v in found) == pytest.approx(played.now)
        assert found[1].outcome is Outcome.SLOWER
    else:
        assert set(found) == {Verdict(Outcome.UNCLEAR, 0, 0.0)}


# ---- recording


def test_what_was_recorded_is_read_back_with_what_it_cost(tmp_path: Path) -> None:
    # a block that was begun is finished, and proofs do not count
    assert recorded(tmp_path / "r.jsonl", machine(), 11.5) == 12
    blocks, row, context = read_blocks(tmp_path / "r.jsonl")
    assert (blocks.cases, row["left_out"], context) == (tuple(sorted(NAMES.values())), 0, CONTEXT)
    expected = [summaries(machine(), name, 12) for name in blocks.cases]
    assert blocks.values == pytest.approx(np.array(expected))
    assert blocks.costs.cases == pytest.approx(dict.fromkeys(blocks.cases, EACH))
    assert (blocks.costs.block, blocks.costs.opening) == pytest.approx((OWN, OPENING))


def test_an_interrupted_recording_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "blocks_0001.jsonl"
    with pytest.raises(KeyboardInterrupt):
        recorded(path, machine(events={(3, NAMES["ffn"]): KeyboardInterrupt}))
    # killed in the middle of a line
    with path.open("a", encoding="utf-8") as file:
        file.write('{"block": 3, "case": "case 2", "ba')
    blocks, row, _ = read_blocks(path)
    assert (blocks.blocks, row["left_out"]) == (2, 1)


def test_what_fails_costs_its_block_or_is_left_out(tmp_path: Path) -> None:
    ffn, loss = NAMES["ffn"], NAMES["loss"]

    def failures(*blocks: int) -> dict[tuple[int, str], Json]:
        return {(block, ffn): failed(block, ffn) for block in blocks}

    for number, (events, missing, lost) in enumerate(
        (
            (failures(2), set(), 1),
            (failures(2, 3) | {(1, loss): skipped(loss)}, {ffn, loss}, 0),
            # a side cannot open it
            (failures(0), {ffn}, 0),
        )
    ):
        path = tmp_path / f"{number}.jsonl"
        measured = recorded(path, machine(events=events), 6)
        found, row, _ = read_blocks(path)
        assert set(NAMES.values()) - set(found.cases) == missing
        assert (found.blocks, row["left_out"]) == (measured - lost, lost)
    nothing = {(1, case): skipped(case) for case in NAMES.values()}
    with pytest.raises(BadInputError, match="nothing to record"):
        recorded(tmp_path / "none.jsonl", machine(events=nothing))
    for blocks, path in ((1, tmp_path / "one.jsonl"), (0, tmp_path / "none.jsonl")):
        assert blocks == 0 or recorded(path, machine(), blocks) == blocks
        with pytest.raises(BadInputError, match=f"measured: {blocks}, and at least 2 are needed"):
            read_blocks(path)


# ---- what measures, with fakes of tiny_llama_bench and of compare run

QUICK = ("--", "--pairs", "2", "--slice", "1ms")
CASES = {STEP: 0.04, FFN: 0.005, LOSS: 0.002}


def measured(folder: Path, build: Path, *more: str) -> int:
    return calibrate(folder / "kept", "--build", str(build), *more)


def test_a_recording_of_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    assert measured(tmp_path, build) == 2
    assert "--record 30m" in capsys.readouterr().err
    assert measured(tmp_path, build, "--record", "1s", *QUICK, "--threads", "1") == 0
    blocks, row, _ = read_blocks(tmp_path / "kept/blocks_0001.jsonl")
    assert (set(blocks.cases), row["pairs"]) == (set(CASES), 2)
    # two processes to greet, two to prove, two a block
    given = [start["arguments"] for start in starts_of(build)]
    assert len(given) == 4 + 2 * blocks.blocks
    assert all("--threads=1" in words for words in given)
    old = make_build(tmp_path / "old", cases=CASES, is_served=False)
    assert measured(tmp_path, old, "--record", "1s", *QUICK) == 2
    assert "not expected: --serve" in capsys.readouterr().err


def test_whole_runs_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = make_build(tmp_path / "build", cases={FFN: 0.005})
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "scripts"))
    rule = ("--alpha", "0.3", "--looks", "1")
    assert measured(tmp_path, build, "--runs", "2", *rule, *QUICK, "--budget", "30s") == 0
    slow = ("--runs", "1", "--slow", "^ffn/=0.05", "--slow", "x=1")
    assert measured(tmp_path, build, *slow, *rule, *QUICK, "--budget", "1ms") == 0
    assert "no verdict: budget too short for any verdict" in capsys.readouterr().err
    given = {word for start in starts_of(build) for word in start["arguments"]}
    assert {"--slow=^ffn/=0.05", "--slow=x=1"} < given
    plain, slowed = run_rows(finished_runs(tmp_path / "kept"))
    assert (plain["runs"], plain["slowdown"], plain["budget_seconds"]) == (2, "", 30)
    assert (plain["alpha"], set(plain["by_case"])) == (0.3, {FFN})
    assert slowed["slowdown"] == "^ffn/=0.05, x=1"
    assert slowed["without_verdict"] == {"budget too short for any verdict": 1}
    # nothing measured at all: an error with its words
    assert measured(tmp_path, tmp_path, "--runs", "1") == 2
    assert "compare run ended with 2: " in capsys.readouterr().err


def test_runs_are_grouped(tmp_path: Path) -> None:
    slow, same = ["ffn=0.1"], {"ffn": "same"}
    runs = [
        a_run(same),
        a_run({"ffn": "same", "loss": "faster"}),
        a_run({"ffn": "slower"}, slow),
        # whose culprit does not count where nothing was called slower
        a_run(same, slow, "loss"),
        a_run({"ffn": "slower"}, slow, "rotary"),
        # counts, as it has no verdict; one that was interrupted does not
        a_run({"ffn": "no verdict"}, ended="budget used"),
        a_run(same, ended="interrupted"),
        a_run(same, arguments=["--sizes=small"]),
        a_run(same, git_commit="b"),
        a_run(same, device={"name": "another"}),
        a_run(same, threads=7),
    ]
    keep(tmp_path, runs)
    aa, slowed, *others = run_rows(finished_runs(tmp_path))
    assert (aa["slower_or_faster"]["count"], aa["slower_or_faster"]["trials"]) == (1, 3)
    assert (aa["slower"]["count"], aa["seconds"], aa["standing"]) == (0, 180, BROKEN)
    assert (aa["by_case"]["ffn"], aa["without_verdict"]) == (
        {"same": 2, "no verdict": 1},
        {"budget used": 1},
    )
    assert (slowed["slower"]["count"], slowed["slower"]["trials"]) == (2, 3)
    assert slowed["culprits"] == {"ffn": {"nobody": 1, "rotary": 1}}
    # other options, another commit and another machine are groups of their own
    keys = ("options", "git_commit", "device", "threads", "runs")
    assert [tuple(row[key] for key in keys) for row in others] == [
        ("--sizes=small", "a", "Some CPU", 2, 1),
        ("", "b", "Some CPU", 2, 1),
        ("", "a", "another", 2, 1),
        ("", "a", "Some CPU", 7, 1),
    ]
