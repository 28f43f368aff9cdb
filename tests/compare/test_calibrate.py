"""`compare calibrate`: recording, drawing, error rates, whole runs, its document and its page."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_bench import FFN, LOSS, STEP, make_build, starts_of
from scipy.stats import binom

from tinyllama_tools.calibrate import rates, record
from tinyllama_tools.calibrate.command import document_standing, fraction_inside, main, run_rows
from tinyllama_tools.calibrate.rates import (
    AS_MEASURED,
    BROKEN,
    HELD,
    IN_ORDER,
    LOG_RATIO,
    NOT_SHOWN,
    SCENARIOS,
    TOSSED,
    Costs,
    PairedBlocks,
    Settings,
    false_alarm_row,
    judge_looks,
    share,
    simulate,
    standing,
)
from tinyllama_tools.calibrate.record import read_recordings, recording_paths
from tinyllama_tools.compare.blocks import (
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Side,
)
from tinyllama_tools.compare.noise import read_noise_profile
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter, read_recording
from tinyllama_tools.compare.sequential_run import RunProgress, SequentialRun
from tinyllama_tools.core.app import PROJECT, RESULTS, BadInputError, Json
from tinyllama_tools.stats.looks import judge_rows
from tinyllama_tools.stats.rank_tests import Block, summarise
from tinyllama_tools.stats.verdicts import Outcome, plan_design

CONTEXT = {
    "host_name": "somebodys-desk",
    "git_commit": "0123456789abcdef0123456789abcdef01234567",
    "git_dirty": False,
    "device": {"name": "Example CPU", "architecture": "x86-64 AVX2"},
    "num_cpus": 2,
    "threads": 2,
}
# a machine whose times are known: seconds, and how often a step of tiny (four layers) has it
PARTS = {
    "embedding": (0.0002, 1),
    "attention": (0.004, 4),
    "ffn": (0.003, 4),
    "rms_norm": (0.0003, 9),
    "loss": (0.004, 1),
    "optimizer": (0.003, 1),
}
PASSES = {"optimizer": "update", "full_step": "train"}


def case_name(part: str) -> str:
    return f"{part}/{PASSES.get(part, 'forward_backward')}/baseline/tiny/f32/batch:8/seq:128"


def seconds_of(slowed: Mapping[str, float]) -> dict[str, float]:
    """Of every part and the step; `slowed`: fraction by part."""
    parts = {name: s * (1 + slowed.get(name, 0)) for name, (s, _) in PARTS.items()}
    return {**parts, "full_step": sum(n * parts[name] for name, (_, n) in PARTS.items())}


STEP_SECONDS = seconds_of({})["full_step"]


def write_recording(
    path: Path, blocks: int, slowed: Mapping[str, float] | None = None, seed: int = 1
) -> None:
    """The new side has those parts slowed; a block takes 4.5 s, and times have noise of 1 %."""
    rng = np.random.default_rng(seed)
    header = RecordingHeader(
        "build", "build", "interleaved", 8, 0.015, seed, "2026-01-01T00:00:00", CONTEXT, CONTEXT
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    new = seconds_of(slowed or {})
    with RecordingWriter(path, header) as writer:
        for index in range(1, blocks + 1):
            # a machine that wanders, alike for both; and two processes, each its own
            state = np.exp(0.2 * np.sin(index / 7))
            for number, (name, base) in enumerate(seconds_of({}).items()):
                own = rng.normal(0, 0.01, (2, 1)) + rng.normal(0, 0.01, (2, 8))
                sides = np.array([[base], [new[name]]]) * state * np.exp(own)
                at = 4.5 * index - 0.5 * (6 - number)
                block = Block(*(tuple(side.tolist()) for side in sides))
                writer.add(CaseBlock(index, case_name(name), block, (0, 1) * 4, at))


def calibrate(folder: Path, *more: str) -> int:
    profile = ("--noise-profile", str(folder / "noise_profile.json"))
    small = ("--families", "20", "--cases", "7", "--tries", "3", "--jobs", "1", "--looks", "2")
    try:
        return main(["--folder", str(folder), *profile, *small, "--alpha", "0.05", *more])
    except BadInputError as error:
        print(error, file=sys.stderr)
        return error.exit_status


def document_of(folder: Path) -> Json:
    return json.loads((folder / "calibration.json").read_text(encoding="utf-8"))


def a_run(**more: Any) -> Json:  # noqa: ANN401
    """An A/A run without a false verdict."""
    return {
        "slowdown": {}, "exit_status": 0, "outcomes": {"ffn": "same"}, "seconds": 60.0,
        "started": "2026", "options": [], "culprits": {}, "reason": "", "git_commit": "a",
        "device": "unknown", "threads": None, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which everything was recorded and analysed once."""
    folder = tmp_path_factory.mktemp("calibration")
    write_recording(folder / "quiet_0001.jsonl", 40)
    write_recording(folder / "family_0001.jsonl", 10, seed=2)
    five = dict.fromkeys(PARTS, 0.05)
    write_recording(folder / "slowed_5_percent_0001.jsonl", 20, five, seed=3)
    write_recording(folder / "inside_ffn_0001.jsonl", 20, {"ffn": 0.3}, seed=4)
    record.keep_run(a_run(), folder)
    slow = {"slowdown": {"^ffn|x/": 0.05}, "exit_status": 1}
    record.keep_run(a_run(**slow, outcomes={"ffn": "slower"}, culprits={"ffn": "rotary"}), folder)
    assert calibrate(folder) == 0
    return folder


def test_everything_recorded_is_in_the_document(analysed: Path) -> None:
    document = document_of(analysed)
    assert document["meta"]["commit"] == CONTEXT["git_commit"]
    rows = {row["name"]: row for row in document["recordings"]}
    assert {name: row["blocks"] for name, row in rows.items()} == {
        "A/A": 40,
        "A/A, a family of its own": 10,
        "every case slowed by 5%": 20,
        "slowed inside ffn": 20,
    }
    assert rows["A/A"]["block_seconds"] == pytest.approx(4.5)
    assert rows["A/A"]["hours"] == pytest.approx(40 * 4.5 / 3600)
    # false alarms are of the family where one was recorded, which shows nothing of so few blocks
    later = [row for row in document["false_alarms"] if row["data"] == "recorded, later half"]
    assert [row["sides"] for row in later] == [AS_MEASURED, TOSSED, IN_ORDER]
    needed = plan_design(7, alpha=0.05, looks=2).looks[-1]
    for row in [*later, document["check"]]:
        assert (row["blocks"], row["blocks_needed"], row["standing"]) == (5, needed, NOT_SHOWN)
        assert row["false"]["trials"] == 20
        assert sum(row["verdicts"].values()) == 20 * 7
    assert [row["slower"]["count"] for row in document["runs"]] == [0, 1]
    assert document["runs"][1]["culprits"] == {"ffn": {"rotary": 1}}


def test_slower_cases_are_found_and_attributed(analysed: Path) -> None:
    document = document_of(analysed)
    found = {(row["slowdown"], row["margin"], row["how"]): row for row in document["detection"]}
    assert list(found) == [
        (0.02, 0.03, "arithmetical"),
        (0.02, 0.01, "arithmetical"),
        (0.05, 0.03, "arithmetical"),
        (0.05, 0.03, "injected"),
        (0.1, 0.03, "arithmetical"),
    ]
    ten, two = found[(0.1, 0.03, "arithmetical")], found[(0.02, 0.03, "arithmetical")]
    assert (ten["all"]["found"]["share"], ten["budget_seconds"]) == (1, 300)
    # within the margin, and hardly ever estimated beyond it
    assert (two["all"]["found"]["share"] < 0.2, two["budget_seconds"]) == (True, 600)
    # six parts without the step in each block, a second of its own and half of one a case
    first = plan_design(6, alpha=0.05, looks=2).looks[0]
    assert ten["all"]["median_seconds"] == pytest.approx(first * 4.0, abs=1.5)
    for row in found.values():
        assert row["blocks"][0] == 20
        assert row["is_shown"] == (min(row["blocks"]) >= row["looks"][-1])
    injected = found[(0.05, 0.03, "injected")]["cases"]
    assert [case["true_change"] for case in injected] == pytest.approx([0.05] * 6, abs=0.02)
    (row,) = document["attribution"]
    assert (row["attributed"]["share"], row["culprits"]) == (1, {"ffn": 3})
    assert row["change"] == pytest.approx(seconds_of({"ffn": 0.3})["full_step"] / STEP_SECONDS - 1, abs=0.01)  # noqa: E501  # fmt: skip


def test_noise_is_that_of_the_blocks_and_comparisons_read_it(analysed: Path) -> None:
    recorded = read_recording(analysed / "quiet_0001.jsonl").blocks[case_name("ffn")]
    base, new = (np.array([[b.base, b.new] for b in recorded])).swapaxes(0, 1)
    ratios = np.array([summarise(block).log_ratio for block in recorded])
    apart = ratios - ratios.mean()
    row = next(r for r in document_of(analysed)["noise"] if r["case"] == case_name("ffn"))
    processes = [np.log(np.median(side, axis=1)).var(ddof=1) for side in (base, new)]
    assert row["median_seconds"] == pytest.approx(np.median(np.median(base, axis=1)))
    assert row["processes"] == pytest.approx(math.sqrt(np.mean(processes)))
    assert row["blocks"] == pytest.approx(ratios.std(ddof=1))
    assert row["autocorrelation"] == pytest.approx((apart[1:] * apart[:-1]).sum() / (apart**2).sum())  # noqa: E501  # fmt: skip
    assert row["degrees"] == 39
    text = (analysed / "noise_profile.json").read_text(encoding="utf-8")
    profile = read_noise_profile(analysed / "noise_profile.json")
    assert "somebodys" not in text
    assert profile.mismatch([CONTEXT]) == ""
    assert "host_name" in profile.mismatch([{**CONTEXT, "host_name": "another"}])
    assert profile.of(case_name("ffn")).scatter == pytest.approx(row["processes"])
    scatters = [profile.of(case_name(part)).scatter for part in (*PARTS, "full_step")]
    assert profile.of("unknown").scatter == max(scatters)


def test_the_page_shows_it_and_names_no_folder(analysed: Path) -> None:
    page = (analysed / "CALIBRATION.md").read_text(encoding="utf-8")
    for heading in ("Targets", "False alarms", "Whole runs", "Detection", "Attribution", "Noise"):
        assert f"## {heading}" in page
    assert "Example CPU (x86-64 AVX2), 2 processors" in page
    assert "nan" not in page
    assert str(analysed) not in page + (analysed / "calibration.json").read_text(encoding="utf-8")
    # every table has as many cells below as above, whatever the texts hold
    for table in page.split("\n\n"):
        cells = {
            line.replace("\\|", "").count("|") for line in table.splitlines() if line[0] == "|"
        }
        assert len(cells) <= 1, table
    reached = {row["target"]: row["reached"] for row in document_of(analysed)["targets"]}
    assert reached["no `slower` in at least 50 real A/A runs"] == NOT_SHOWN
    slowed = [words for target, words in reached.items() if "real slowed runs" in target]
    assert slowed == [NOT_SHOWN]
    assert all(target.replace("|", "\\|") in page for target in reached)


def test_simulated_data_need_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path, "--simulate") == 0
    page = capsys.readouterr().out
    assert page == (tmp_path / "CALIBRATION.md").read_text(encoding="utf-8") + "\n"
    *rows, together = document_of(tmp_path)["false_alarms"]
    assert [row["data"] for row in rows] == [f"simulated: {name}" for name in SCENARIOS]
    # of 20 families each scenario has a sixth, rounded up
    assert {row["false"]["trials"] for row in rows} == {4}
    assert (together["false"]["trials"], together["standing"]) == (24, NOT_SHOWN)
    assert {row["standing"] for row in rows} == {"in all"}
    assert sum(together["verdicts"].values()) == 24 * 7
    assert not (tmp_path / "noise_profile.json").exists()
    # too few families show nothing
    assert calibrate(tmp_path, "--simulate", "--strict") == 3


def test_a_judge_that_errs_too_often_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rates, "judge_rows", five_times_the_rate)
    more = ("--families", "300", "--cases", "6", "--margin", "0.01")
    assert calibrate(tmp_path, "--simulate", *more) == 1


def test_nothing_or_too_little_recorded_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path) == 2
    assert "--record 30m" in capsys.readouterr().err
    write_recording(tmp_path / "quiet_0001.jsonl", 1)
    assert calibrate(tmp_path) == 2
    assert "1 block: halves need at least 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--simulate", "--record", "1m"), "--simulate"),
        (("--slow", "ffn=0.05"), "--runs"),
        (("--runs", "1", "--slow", "ffn:0.05"), "must be REGEX=FRACTION"),
        (("--runs", "1", "--slow", "ffn=11"), "above 0, at most 10"),
        (("--record", "soon"), "'soon'"),
        (("--", "--pairs", "12"), "--pairs 12"),
    ],
)
def test_bad_options_are_named(
    options: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        calibrate(tmp_path, *options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


# ---- drawing and judging

# loose, so that a few hundred families are enough
SETTINGS = Settings(
    alpha=0.05, margin=0.03, looks=2, families=300, cases=6, tries=1, jobs=1, seed=3
)
DATA = {name: simulate(name, cases=6, blocks=120, seed=2) for name in SCENARIOS}


def five_times_the_rate(logs: Sequence, errors: Sequence, design: Any) -> list:  # noqa: ANN401
    """A quarter of alpha is spent: 19 x 0.05 / 4 = 0.24."""
    return judge_rows(logs, errors, replace(design, alpha=19 * design.alpha))


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_the_judge_keeps_its_rate(scenario: str) -> None:
    row = false_alarm_row(scenario, DATA[scenario], SETTINGS, TOSSED)
    assert row["standing"] != BROKEN
    assert row["false"]["trials"] == 300
    assert sum(row["verdicts"].values()) == 300 * 6


def test_a_judge_with_five_times_the_rate_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "judge_rows", five_times_the_rate)
    row = false_alarm_row("two modes", DATA["two modes"], SETTINGS, TOSSED)
    assert row["standing"] == BROKEN
    assert row["false"]["share"] > 2 * SETTINGS.alpha


PUBLISHED = sorted((RESULTS / "reference").glob("paired_blocks_*.jsonl"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
@pytest.mark.parametrize(("alpha", "sides"), [(0.05, AS_MEASURED), (1e-3, TOSSED)])
def test_blocks_recorded_on_real_machines_keep_the_level(
    path: Path, alpha: float, sides: str
) -> None:
    settings = replace(SETTINGS, alpha=alpha, looks=3, families=100, cases=20)
    row = false_alarm_row("all", read_recordings([path]).blocks, settings, sides)
    assert row["standing"] != BROKEN
    assert alpha > 1e-3 or row["false"]["count"] == 0


def shifted(blocks: PairedBlocks, shift: Any) -> PairedBlocks:  # noqa: ANN401
    values = blocks.values.copy()
    values[..., LOG_RATIO] += shift
    return replace(blocks, values=values)


def test_what_lasts_for_several_blocks_is_seen_by_windows_only() -> None:
    lasting = 0.5 * np.sign(np.sin(2 * np.pi * (np.arange(120) + 0.5) / 60))
    wandering, settings = shifted(DATA["two modes"], lasting), replace(SETTINGS, families=60)
    drawn, windows = (
        false_alarm_row("wandering", wandering, settings, sides) for sides in (TOSSED, IN_ORDER)
    )
    assert windows["standing"] == BROKEN
    assert windows["false"]["count"] > 3 * drawn["false"]["count"]


def test_a_false_faster_is_a_false_alarm_too_and_no_false_slower() -> None:
    quicker = shifted(DATA["two modes"], -1.0)
    row = false_alarm_row("faster", quicker, replace(SETTINGS, families=20))
    assert (row["false"]["count"], row["slower"]["count"]) == (20, 0)


def test_a_row_from_too_few_blocks_is_never_held() -> None:
    # never an alarm: the margin is far beyond the noise
    settings = replace(SETTINGS, families=100, cases=12, margin=0.9)
    last = settings.design(12).looks[-1]
    data = DATA["drift"]
    rows = [
        false_alarm_row("a", replace(data, values=data.values[:, :count]), settings)
        for count in (2 * last, 2 * last - 1, last - 1)
    ]
    assert {(row["false"]["count"], row["blocks_needed"]) for row in rows} == {(0, 2 * last)}
    assert [row["standing"] for row in rows] == [HELD, NOT_SHOWN, NOT_SHOWN]


def test_the_result_depends_on_the_seed_and_not_on_the_number_of_processes() -> None:
    settings = replace(SETTINGS, families=rates.CHUNK + 20, margin=1e-9, alpha=0.5)
    one, two = (false_alarm_row("a", DATA["ties"], replace(settings, jobs=n)) for n in (1, 2))
    assert one == two
    assert one["false"]["trials"] == rates.CHUNK + 20
    assert one != false_alarm_row("a", DATA["ties"], replace(settings, seed=4))


def test_every_few_simulated_families_have_a_simulation_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[int] = []

    def seen(scenario: str, *, cases: int, blocks: int, seed: int) -> PairedBlocks:
        seeds.append(seed)
        return simulate(scenario, cases=cases, blocks=blocks, seed=seed)

    monkeypatch.setattr(rates, "simulate", seen)
    monkeypatch.setattr(rates, "SCENARIOS", {"ties": SCENARIOS["ties"]})
    rates.simulated_rows(replace(SETTINGS, families=2 * rates.FAMILIES_A_SIMULATION + 1, cases=2))
    assert len(set(seeds)) == len(seeds) == 3


def test_blocks_are_drawn_once_where_there_are_enough() -> None:
    rng = np.random.default_rng(1)
    assert sorted(rates.draw_blocks(rng, 40, 10, 4).ravel().tolist()) == list(range(40))
    within = rates.draw_blocks(rng, 39, 10, 4)
    assert all(len(set(row.tolist())) == 10 for row in within)
    assert rates.draw_blocks(rng, 9, 10, 4).shape == (4, 10)
    windows = [rates.draw_blocks(rng, 30, 10, 3, IN_ORDER) for _ in range(200)]
    assert all((np.diff(found, axis=1) == 1).all() for found in windows)
    assert {int(start) for found in windows for start in found[:, 0]} == set(range(21))
    # the first follows the last where there are too few
    assert sorted(rates.draw_blocks(rng, 4, 6, 1, IN_ORDER)[0].tolist()) == [0, 0, 1, 1, 2, 3]


def test_a_family_keeps_the_cases_of_a_block_together_and_sides_are_tossed() -> None:
    data = DATA["shared noise"]
    drawn = rates.draw_family(data, 8, 20, AS_MEASURED, np.random.default_rng(4))
    # a block is known by its base's seconds
    numbers = [
        [data.values[case % 6, :, 2].tolist().index(block[2]) for block in rows]
        for case, rows in enumerate(drawn)
    ]
    assert all(own == numbers[0] for own in numbers[:6])
    assert numbers[6] == numbers[7]
    assert not set(numbers[0]) & set(numbers[6])
    tossed = rates.draw_family(data, 6, 20, TOSSED, np.random.default_rng(4))
    turned = tossed[..., LOG_RATIO] != drawn[:6, :, LOG_RATIO]
    assert (np.abs(tossed) == np.abs(drawn[:6])).all()
    assert (turned == turned[0]).all()
    assert 0 < turned[0].sum() < 20


@pytest.mark.parametrize(("count", "trials"), [(0, 50), (1, 7), (4, 10_000), (30, 200)])
def test_intervals_leave_half_of_five_percent_on_either_side(count: int, trials: int) -> None:
    found = share(count, trials)
    low, high = found["interval_95"]
    assert binom.cdf(count, trials, high) == pytest.approx(0.025)
    assert low == 0 if count == 0 else binom.sf(count - 1, trials, low) == pytest.approx(0.025)
    assert binom.cdf(count, trials, found["upper_bound_95"]) == pytest.approx(0.05)


def test_standing_of_rows_check_and_runs() -> None:
    # four of 10,000 families show one in a thousand and five do not; 90 of 100 break 5 %
    assert [standing(share(n, 10_000), 1e-3) for n in (4, 5, 30)] == [HELD, NOT_SHOWN, BROKEN]
    assert standing(share(0, 10_000), 1e-3, has_enough=False) == NOT_SHOWN
    assert standing(share(90, 100), 0.05, has_enough=False) == BROKEN
    held, unknown, broken = ({"standing": word} for word in (HELD, NOT_SHOWN, BROKEN))
    good, bad, silent = a_run(), a_run(outcomes={"ffn": "slower"}), a_run(exit_status=2)
    faster = a_run(outcomes={"ffn": "faster"})
    slowed = a_run(slowdown={"ffn": 0.1}, outcomes={"ffn": "slower"})

    def of(*rows: Json, check: Json = held, runs: Sequence[Json] = (good,) * 50) -> str:
        document = {"false_alarms": rows, "check": check, "runs": run_rows(runs)}
        return document_standing(document)

    assert [of(held), of(held, unknown), of(held, broken)] == [HELD, NOT_SHOWN, BROKEN]
    assert [of(held, check=unknown), of(held, check=broken)] == [HELD, BROKEN]
    assert document_standing({"false_alarms": [held]}) == HELD
    for runs, expected in (
        ([good] * 49, NOT_SHOWN),
        ([good] * 49 + [silent], NOT_SHOWN),
        ([slowed] * 50, NOT_SHOWN),
        ([good] * 50 + [slowed] * 9, HELD),
        # one of 51 may be chance at 1 of 1,000; three are not
        ([good] * 50 + [bad], NOT_SHOWN),
        ([good] * 50 + [faster] * 3, BROKEN),
    ):
        assert of(held, runs=runs) == expected


def test_the_fraction_of_a_part_is_what_changes_the_step_by_five_percent(tmp_path: Path) -> None:
    write_recording(tmp_path / "r.jsonl", 30)
    quiet = read_recordings([tmp_path / "r.jsonl"]).blocks
    slowed = seconds_of({"ffn": fraction_inside(quiet, "ffn", 0.05)})
    assert slowed["full_step"] == pytest.approx(1.05 * STEP_SECONDS, rel=0.01)
    for part, change, words in (
        ("embedding", 2.0, "too small a part"),
        ("rotary", 0.05, "rotary: not recorded"),
    ):
        with pytest.raises(BadInputError, match=words):
            fraction_inside(quiet, part, change)
    with pytest.raises(ValueError, match="0 cases of full_step"):
        fraction_inside(quiet.only([case_name("ffn")]), "ffn", 0.05)


def test_more_is_found_of_a_larger_slowdown_and_sooner() -> None:
    quiet, design = DATA["spikes"], plan_design(6, alpha=0.01, looks=3)
    rows = [
        rates.detections(quiet, quiet.slowed(x), "case 1", design, 1e6, 40, 1)
        for x in (0.0, 0.12, 0.6)
    ]
    numbers = [rates.detection_numbers("case 1", verdicts) for verdicts in rows]
    shares = [row["found"]["share"] for row in numbers]
    assert shares[0] < shares[1] <= shares[2] == 1
    assert numbers[2]["median_seconds"] < numbers[1]["median_seconds"]
    assert numbers[0]["seconds_for_95_percent"] is None
    # by hand: what comes after the limit does not count
    times = [100.0] * 18 + [400.0, 700.0]
    told = [rates.Verdict(Outcome.SLOWER, 9, time) for time in times]
    row = rates.detection_numbers("c", [*told, rates.Verdict(Outcome.SAME, 9, 50.0)])
    counts = [row[key]["count"] for key in ("found", "found_in_5_minutes", "found_in_10_minutes")]
    assert (counts, row["same"]["count"]) == ([20, 18, 19], 1)
    # 95 % of 21 tries are the twentieth
    assert (row["median_seconds"], row["seconds_for_95_percent"]) == (100.0, 700.0)


# ---- recording

NAMES = ("case 0", "case 1", "case 2", "case 3", "case 4", "case 5")


@dataclass
class Machine:
    """Plays blocks and lets time pass; events replace a case of a block, 0 before the first."""

    slices: dict[str, list[Block]]
    costs: Costs
    events: dict[tuple[int, str], object] = field(default_factory=dict)
    now: float = 0.0
    method: str = "interleaved"

    def __call__(self) -> float:
        return self.now

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[object]:
        assert verify
        self.now += self.costs.opening
        for case in cases:
            yield CaseOpening(case, Side.BASE, 0.01, {"operators": 3.0})
            yield self.events.get((0, case)) or CaseOpening(case, Side.NEW, 0.01)

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[object]:
        self.now += self.costs.block
        yield BothReady()
        # a random order in truth; here each comes first by rotation
        for case in [*cases[index % len(cases) :], *cases[: index % len(cases)]]:
            self.now += self.costs.cases[NAMES.index(case)]
            event = self.events.get((index, case))
            if event is KeyboardInterrupt:
                raise KeyboardInterrupt
            yield event or CaseBlock(index, case, self.slices[case][index - 1], (0,), self.now)


def played(cases: int, blocks: int, **more: Any) -> Machine:  # noqa: ANN401
    """Of growing noise; two cases of six are slower by 30 %."""
    rng = np.random.default_rng(4)
    slices: dict[str, list[Block]] = {}
    for number, name in enumerate(NAMES[:cases]):
        noise = np.exp(rng.normal(0, 0.02 * (1 + number), (blocks, 2, 8)))
        noise[:, 1] *= 1.3 if number in (1, 4) else 1.0
        slices[name] = [Block(*(tuple(side.tolist()) for side in sides)) for sides in noise]
    return Machine(slices, Costs(1.0, [0.2 + 0.1 * n for n in range(cases)], 7.0), **more)


@pytest.mark.parametrize("budget", [1e6, 52.0, 60.0, 70.0, 10.0])
def test_verdicts_are_those_of_the_sequential_run(budget: float) -> None:
    machine = played(6, 60)
    design = plan_design(6, alpha=0.05, margin=0.1, looks=4)
    progress = RunProgress(io.StringIO())
    run = SequentialRun(
        machine, NAMES, design, budget, keep=lambda _: None, progress=progress, clock=machine
    )
    run.run(verify=True)
    values = [[astuple(summarise(b)) for b in blocks] for blocks in machine.slices.values()]
    found = judge_looks(list(np.array(values)), design, machine.costs, budget)
    judged = [run.record.judgements.get(name) for name in NAMES]
    assert [v.outcome for v in found] == [j.outcome if j else Outcome.UNCLEAR for j in judged]
    assert [found[n].outcome is Outcome.SLOWER for n in (1, 4)].count(True) >= (budget > 52)
    if budget > 10:
        assert [v.blocks for v in found] == [len(c.blocks) for c in run.record.cases.values()]
        assert max(v.seconds for v in found) == pytest.approx(machine.now)
    else:
        assert {(v.blocks, v.seconds) for v in found} == {(0, 0.0)}


HEADER = RecordingHeader("a", "b", "interleaved", 8, 0.015, 1, "2026-01-01", {}, {})


def recorded(path: Path, machine: Machine, blocks: int | None, seconds: float = 1e6) -> int:
    with RecordingWriter(path, replace(HEADER, started=f"2026-{path.stem}")) as writer:
        return record.record_blocks(
            machine, list(machine.slices), writer, seconds, blocks, clock=machine
        )


def test_what_was_recorded_is_read_back_with_what_it_cost(tmp_path: Path) -> None:
    machine = played(3, 12)
    assert recorded(tmp_path / "r.jsonl", machine, 12) == 12
    blocks, row, _ = read_recordings([tmp_path / "r.jsonl"])
    assert (blocks.cases, blocks.blocks, row["left_out"]) == (NAMES[:3], 12, 0)
    for values, slices in zip(blocks.values, machine.slices.values(), strict=True):
        assert values == pytest.approx(np.array([astuple(summarise(b)) for b in slices]), abs=1e-5)
    assert blocks.costs.cases == pytest.approx([0.2, 0.3, 0.4])
    assert (blocks.costs.block, blocks.costs.opening) == (pytest.approx(1.0), pytest.approx(7.0))
    assert row["hours"] * 3600 == pytest.approx(7 + 12 * 1.9)
    # a block that was begun is finished, and proofs do not count
    assert recorded(tmp_path / "s.jsonl", played(3, 12), None, seconds=2 * 1.9 + 0.1) == 3


def test_an_interrupted_recording_keeps_what_it_has_and_is_continued(tmp_path: Path) -> None:
    first, second = (tmp_path / f"quiet_000{n}.jsonl" for n in (1, 2))
    with pytest.raises(KeyboardInterrupt):
        recorded(first, played(3, 12, events={(3, "case 1"): KeyboardInterrupt}), 12)
    # killed in the middle of a line
    with first.open("a", encoding="utf-8") as file:
        file.write('{"block": 3, "case": "case 2", "ba')
    recorded(second, played(3, 12), 5)
    (tmp_path / "slowed_5_percent_0001.jsonl").touch()
    assert recording_paths(tmp_path, "quiet") == [first, second]
    blocks, row, _ = read_recordings([second, first])
    assert (blocks.blocks, row["left_out"]) == (2 + 5, 1)
    assert row["started"] == ["2026-quiet_0001", "2026-quiet_0002"]


def test_what_fails_costs_its_block_or_is_left_out(tmp_path: Path) -> None:
    def failure(block: int, case: str) -> dict[tuple[int, str], object]:
        return {(block, case): CaseFailure(block, case, Side.NEW, "crashed")}

    skip = {(1, "case 2"): CaseSkip("case 2", Side.BASE, "too large")}
    for number, (events, cases, blocks, left_out) in enumerate(
        (
            (failure(2, "case 0"), NAMES[:3], 5, 1),
            (failure(2, "case 0") | failure(3, "case 0") | skip, NAMES[1:2], 6, 0),
            # a side cannot open it
            (failure(0, "case 1"), ("case 0", "case 2"), 6, 0),
        )
    ):
        path = tmp_path / f"{number}.jsonl"
        recorded(path, played(3, 12, events=events), 6)
        found, row, _ = read_recordings([path])
        assert (found.cases, found.blocks, row["left_out"]) == (cases, blocks, left_out)
    every = {(1, name): CaseSkip(name, Side.BASE, "no") for name in NAMES[:3]}
    with pytest.raises(BadInputError, match="nothing to record"):
        recorded(tmp_path / "none.jsonl", played(3, 12, events=every), 6)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("base_context.device.name", {"base_context": {"device": {"name": "X"}}}),
        ("new_context.threads", {"new_context": {"threads": 7}}),
        ("pairs", {"pairs": 9}),
        ("slice_seconds", {"slice_seconds": 0.5}),
        ("method", {"method": "whole processes"}),
        ("new_environment", {"settings": {"new_environment": {"A": "b"}}}),
        ("new", {"new": "b A=b"}),
    ],
)
def test_only_recordings_made_alike_are_joined(
    name: str, other: dict[str, Any], tmp_path: Path
) -> None:
    block = CaseBlock(1, "case", Block((1.0,), (1.0,)), (0,), 1.0)
    for file, one in (("one", HEADER), ("two", replace(HEADER, started="2026-01-02", **other))):
        with RecordingWriter(tmp_path / file, one) as writer:
            writer.add(block)
    with pytest.raises(BadInputError, match=rf"two: {name} is .* in .*one: only"):
        read_recordings([tmp_path / "two", tmp_path / "one"])
    assert read_recordings([tmp_path / "one", tmp_path / "one"]).blocks.blocks == 2


# ---- what measures, with fakes of tiny_llama_bench and of compare run

QUICK = ("--", "--pairs", "2", "--slice", "1ms")
CASES = {STEP: 0.04, FFN: 0.005, LOSS: 0.002}


def measured(folder: Path, build: Path, *more: str) -> int:
    return calibrate(folder / "kept", "--build", str(build), *more)


def recordings(folder: Path, kind: str) -> list[Path]:
    return recording_paths(folder / "kept", kind)


def arguments_of(build: Path) -> list[list[str]]:
    return [start["arguments"] for start in starts_of(build)]


def test_recordings_of_a_program_and_only_the_new_side_is_slowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    # slowing wants an A/A recording first
    assert measured(tmp_path, build, "--record-slowed", "1s", *QUICK) == 2
    assert "--record 30m" in capsys.readouterr().err
    assert measured(tmp_path, build, "--record", "1s", *QUICK, "--threads", "1") == 0
    (path,) = recordings(tmp_path, "quiet")
    blocks, row, _ = read_recordings([path])
    assert (set(blocks.cases), row["pairs"]) == (set(CASES), 2)
    assert {len(block.base) for block in read_recording(path).blocks[FFN]} == {2}
    # two processes to greet, two to prove, two a block
    quiet = arguments_of(build)
    assert len(quiet) == 4 + 2 * blocks.blocks
    assert all("--threads=1" in given for given in quiet)
    assert not any(word.startswith("--slow") for given in quiet for word in given)

    assert measured(tmp_path, build, "--record-slowed", "2s", *QUICK) == 0
    slowed = [
        tuple(word for word in given if word.startswith("--slow="))
        for given in arguments_of(build)[len(quiet) :]
    ]
    assert slowed.count(()) == len(slowed) / 2
    assert {("--slow=.=0.02",), ("--slow=.=0.05",), ("--slow=.=0.1",)} < set(slowed)
    # a twentieth of 40 ms, from four layers of 5 ms: a tenth more of each
    (inside,) = {words for words in slowed if len(words) == 2}
    assert inside[1] == "--slow=^full_step/=0.05"
    assert float(inside[0].removeprefix("--slow=^ffn/=")) == pytest.approx(0.1, rel=0.1)
    # a continued recording is slowed as before, whatever the part would need by now
    assert measured(tmp_path, build, "--record-slowed", "1s", *QUICK) == 0
    for kind in ("slowed_2_percent", "slowed_5_percent", "slowed_10_percent", "inside_ffn"):
        headers = [read_recording(path).header for path in recordings(tmp_path, kind)]
        assert len(headers) >= 2
        assert len({json.dumps(header.settings) for header in headers}) == 1
        assert len({header.seed for header in headers}) == len(headers)


def test_a_family_is_a_recording_of_its_own(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    assert measured(tmp_path, build, "--record-family", "1s", *QUICK, "--seq", "32") == 0
    assert (len(recordings(tmp_path, "family")), recordings(tmp_path, "quiet")) == (1, [])
    arguments = arguments_of(build)[-1]
    assert "--batch=1,2,3,4,5" in arguments
    assert "--seq=32" in arguments, "options after -- replace those of the family"


def test_programs_and_recordings_that_will_not_do_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = make_build(tmp_path / "build", cases=CASES, is_served=False)
    assert measured(tmp_path, build, "--record", "1s", *QUICK) == 2
    assert "does not know --serve" in capsys.readouterr().err
    for kind in ("quiet", "inside_ffn"):
        write_recording(tmp_path / "kept" / f"{kind}_0001.jsonl", 3)
    assert measured(tmp_path, tmp_path, "--record-slowed", "1s", *QUICK) == 2
    assert "inside_ffn_0001.jsonl: does not say how" in capsys.readouterr().err


def fake_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """In place of `compare run`: a program that writes a comparison, or does not."""
    script = tmp_path / "run.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--output') + 1])\n" + body,
        encoding="utf-8",
    )
    monkeypatch.setattr(record, "COMMAND", (sys.executable, str(script)))


def test_a_run_is_kept_with_its_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = {"name": "ffn", "outcome": "slower", "attribution": {"culprit": "rotary"}}
    body = (
        f"document = {{'cases': [{case!r}], 'base_context': {CONTEXT!r}}}\n"
        "assert '--slow-new=^ffn/=0.05' in sys.argv\n"
        "(folder / 'comparison.json').write_text(json.dumps(document))\n"
        "sys.exit(1)\n"
    )
    fake_run(monkeypatch, tmp_path, body)
    more = ("--slow", "^ffn/=0.05", "--", "--budget", "1m", "--record", "/a/b/x")
    assert measured(tmp_path, tmp_path, "--runs", "1", *more) == 0
    (run,) = record.kept_runs(tmp_path / "kept")
    assert (run["exit_status"], run["outcomes"], run["reason"]) == (1, {"ffn": "slower"}, "")
    assert (run["culprits"], run["slowdown"]) == ({"ffn": "rotary"}, {"^ffn/": 0.05})
    assert (run["git_commit"], run["threads"]) == (CONTEXT["git_commit"], 2)
    assert run["options"][-4:] == ["--budget", "1m", "--record", "x"]
    (row,) = run_rows([run])
    assert (row["alpha"], row["budget_seconds"], row["slowdown"]) == (0.05, 60, "^ffn/ 0.05")


def test_runs_without_a_verdict_count_and_three_in_a_row_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # every third has a verdict, until there is a file
    body = (
        "marks = pathlib.Path(__file__).with_name('marks')\n"
        "marks.write_text((marks.read_text() if marks.exists() else '') + 'x')\n"
        "case = {'name': 'ffn', 'outcome': 'no verdict'}\n"
        "(folder / 'comparison.json').write_text(json.dumps({'cases': [case]}))\n"
        "print('blocks became slower', file=sys.stderr)\n"
        "sys.exit(0 if len(marks.read_text()) % 3 == 0 and len(marks.read_text()) < 7 else 2)\n"
    )
    fake_run(monkeypatch, tmp_path, body)
    assert measured(tmp_path, tmp_path, "--runs", "20") == 2
    assert "3 runs in a row without a verdict, the last: blocks became" in capsys.readouterr().err
    runs = record.kept_runs(tmp_path / "kept")
    assert [run["exit_status"] for run in runs] == [2, 2, 0, 2, 2, 0, 2, 2, 2]
    (row,) = run_rows(runs)
    assert (row["slower"]["count"], row["slower"]["trials"]) == (0, 9)
    assert row["without_verdict"] == {"blocks became slower": 7}
    # nothing measured at all: an error with its words
    fake_run(monkeypatch, tmp_path, "print('no such build', file=sys.stderr)\nsys.exit(2)\n")
    assert measured(tmp_path, tmp_path, "--runs", "1") == 2
    assert "ended with 2: no such build" in capsys.readouterr().err


def test_runs_are_grouped_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    runs = [
        a_run(),
        a_run(outcomes={"ffn": "same", "loss": "faster"}),
        a_run(slowdown={"ffn": 0.1}, outcomes={"ffn": "slower"}, culprits={"ffn": None}),
        a_run(options=["--budget", "9m"]),
        a_run(git_commit="b"),
    ]
    for run in runs:
        record.keep_run(run, tmp_path)
    with (tmp_path / record.RUNS).open("a", encoding="utf-8") as file:
        file.write('{"slowdown"')
    assert record.kept_runs(tmp_path) == runs
    aa, slow, *others = run_rows(runs)
    assert (aa["slower_or_faster"]["count"], aa["slower_or_faster"]["trials"]) == (1, 2)
    assert (aa["slower"]["count"], aa["by_case"]["ffn"], aa["seconds"]) == (0, {"same": 2}, 120)
    assert (slow["slower"]["count"], slow["culprits"]) == (1, {"ffn": {"nobody": 1}})
    # other options and another commit are groups of their own
    groups = [(row["options"], row["git_commit"], row["runs"]) for row in others]
    assert groups == [("--budget 9m", "a", 1), ("", "b", 1)]


@pytest.mark.parametrize("line", ["{}", "[]", "no json"])
def test_a_line_that_is_no_run_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / record.RUNS).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=r"runs\.jsonl: line 1 is no run"):
        record.kept_runs(tmp_path)


def test_a_whole_run_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = make_build(tmp_path / "build", cases={FFN: 0.005})
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "scripts"))
    rule = ("--alpha", "0.3", "--looks", "1")
    assert measured(tmp_path, build, "--runs", "1", *rule, *QUICK, "--budget", "30s") == 0
    (run,) = record.kept_runs(tmp_path / "kept")
    assert (set(run["outcomes"]), run["options"][:2]) == ({FFN}, ["--alpha", "0.3"])
    assert run["seconds"] > 0
