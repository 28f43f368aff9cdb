"""scripts/scaling and the report's section: figures of made-up and of the reference's results, what
they refuse, files and exit status, with a fake program."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from fake_training import set_key
from made_up_scaling import BUSY, World, analysis_of, document, step_name, write_run, write_world
from tinyllama_tools.commands.ranks import PROGRAM
from tinyllama_tools.core.app import RESULTS, BadInputError, schema_problem
from tinyllama_tools.data.ranks import read_scaling_result
from tinyllama_tools.models.data_parallel import Analysis, Estimate, ScalingPoint
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Section, number_text
from tinyllama_tools.report.inputs import ReportInputs, read_inputs, source_of
from tinyllama_tools.report.output import figures_of_merit
from tools import compare
from tools import scaling as main

Json = dict[str, Any]
FAKE = Path(__file__).with_name("scaling_fake.py")
LINKS = "--interconnects=nvlink4_ndr,ethernet_10g"
SMALL = World(rounds=2)


def point(analysis: Analysis, ranks: int, mode: str = "overlap") -> ScalingPoint:
    return next(p for p in analysis.points if (p.ranks, p.mode) == (ranks, mode))


def median(found: Estimate | None) -> float:
    assert found is not None and found.interval is not None
    assert found.interval.confidence >= 0.95
    return found.median


def test_shares_are_those_of_the_made_up_world(weak: Analysis, strong: Analysis) -> None:
    """The step itself drifts by 5 %, its efficiency by the noise of a row only."""
    world, of_batch = World(), World(ranks=4, global_batch=16)
    found, plain, whole = point(weak, 2), point(weak, 2, "no_overlap"), point(strong, 4)
    step, strong_step = (of.local + (1 - of.hidden) * of.communication for of in (world, of_batch))
    efficiency = 100 * world.alone / step
    for value, expected in (
        (found.efficiency, efficiency),
        (found.speedup, 2 * efficiency / 100),
        (found.communication_free, 100 * world.local / step),
        (found.overlap, 100 * world.hidden),
        (plain.busy, 100 * BUSY),
        # a world of one says what the machinery costs
        (point(weak, 1).efficiency, 100 / 1.01),
        # of the whole batch
        (whole.efficiency, 100 * of_batch.seconds_alone(16) / 4 / strong_step),
    ):
        assert median(value) == pytest.approx(expected, rel=0.005)
    assert found.efficiency.interval.high - found.efficiency.interval.low < 1
    assert found.samples_per_second == pytest.approx(2 * 8 / found.seconds.median)
    assert (plain.overlap, point(weak, 1).busy, whole.batch) == (None, None, 4)


def test_losses_make_up_the_whole(weak: Analysis, strong: Analysis) -> None:
    for of, result in [(a, one) for a in (weak, strong) for one in a.results]:
        parts = {part.name: part for part in of.losses if part.ranks == result.ranks}
        if result.ranks == 1:
            assert not parts
            continue
        assert sum(part.percent for part in parts.values()) == pytest.approx(100)
        assert ("small batch" in parts) == (of is strong)
        values = list(result.step.figures("loss_slower_local_percent").values())
        error = statistics.stdev(values) / math.sqrt(len(values))
        ends = stats.t.interval(0.95, len(values) - 1, statistics.fmean(values), error)
        part = parts["slower local work"]
        assert (part.low, part.high) == pytest.approx(ends)


def test_the_model_is_checked_by_what_was_run(tmp_path: Path) -> None:
    """With a fit of the same ranks, and with that of the next smaller world."""
    for ranks in (2, 3, 4):
        write_world(tmp_path, World(ranks=ranks))
    sums, steps = (
        {(c["ranks"], c["fitted_at"]): c for c in analysis_of(tmp_path).checks if c["what"] == what}
        for what in ("all-reduce of all buckets", "step, from a rank alone")
    )
    assert set(sums) == set(steps) == {(2, 2), (3, 3), (3, 2), (4, 4), (4, 3)}
    for (ranks, _), found in sums.items():
        expected = World(ranks=ranks).communication
        assert found["low"] == found["high"] == pytest.approx(expected, rel=0.05)
        assert found["percent_off"] == pytest.approx(100 * (found["low"] / found["measured"] - 1))
    # all but the last bucket is hidden, and slower work, which is not in the model, is more
    bounds = steps[2, 2]
    assert bounds["low"] < bounds["high"] < bounds["measured"]
    assert bounds["percent_off"] == pytest.approx(100 * (bounds["high"] / bounds["measured"] - 1))


def test_rows_that_are_missing_or_failed_cost_what_needs_them(tmp_path: Path) -> None:
    """Of two ranks of GPUs."""
    made = document(World())
    made["context"]["distributed"]["backend"] = "nccl"
    alone, overlap, sharded = (step_name(World(), mode) for mode in ("alone", "overlap", "sharded"))
    every, few = made["benchmarks"], []
    for row in every:
        is_early_alone = row["run_name"] == alone and row["repetition_index"] in (0, 3)
        if not is_early_alone and ("all_gather" not in row["name"] or "bytes:1024/" in row["name"]):
            few.append(row)
    own = [row for row in every if row["run_name"] == overlap]
    few += [row | {"name": sharded, "run_name": sharded} for row in own]
    failed = own[0] | {"name": overlap + "x", "run_name": step_name(World(size="x"), "local")}
    few.append(failed | {"error_occurred": True, "error_message": "rank 1 was lost"})
    found = analysis_of(write_world(tmp_path, World(), made | {"benchmarks": few}))
    assert point(found, 2).efficiency.rounds == World().rounds - 2
    assert list(found.failed.values()) == ["rank 1 was lost"]
    # a sharded step makes no all-reduce that could be hidden
    whole, part = point(found, 2), point(found, 2, "sharded")
    assert (part.efficiency, part.overlap) == (whole.efficiency, None)
    assert whole.busy is None, "no processor's work"
    assert found.refused == (
        "all_gather, 2 ranks: 1 sizes, at least 3 are needed; raise --max-bytes",
    )
    # and without any step there is no projection
    few = [row for row in every if "full_step" not in row["run_name"]]
    write_world(tmp_path, World(), made | {"benchmarks": few})
    assert main([f"--from={tmp_path}"]) == 0
    found = read(tmp_path)
    assert found["points"] == [] and len(found["fits"]) == 3
    assert "no data-parallel step was measured" in found["projection"]["missing"]["tiny"]


def test_results_that_cannot_be_used_and_worlds_that_make_no_run_are_named(tmp_path: Path) -> None:
    for key, value, said in (
        ("context.distributed.world_size", "two", "world_size: 'two' is not of type 'integer'"),
        ("context.distributed.scaling", "both", "scaling: 'both' is not one of"),
        ("context.distributed", None, r"has no context\.distributed"),
        ("benchmarks.0.cpu_time", None, "cpu_time: None is not of type"),
        ("benchmarks.0.real_time", 0, "must be a positive, finite number"),
        ("benchmarks", [], "neither a data-parallel step nor a collective"),
    ):
        changed = document(SMALL)
        set_key(changed, key, value)
        with pytest.raises(BadInputError, match=said):
            read_scaling_result(write_world(tmp_path, SMALL, changed))
    for number, (world, said) in enumerate(
        (
            (None, "measure first: scripts/scaling"),
            (World(ranks=4, size="small"), "results of different steps"),
            (World(ranks=2, seed=2), "twice of as many ranks"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        if world is not None:
            write_world(folder, SMALL).rename(folder / "ranks_2_2.json")
            write_world(folder, world)
        with pytest.raises(BadInputError, match=said):
            analysis_of(folder)
    write_world(folder, World(ranks=2)).unlink()
    write_world(folder, World(ranks=4, bucket_MiB=1.0))
    said = "ranks_4.json: distributed.bucket_MiB is 1.0, in ranks_2_2.json 25.0"
    assert said in analysis_of(folder).warnings


def test_the_published_schema_knows_such_results() -> None:
    for world in (World(ranks=1, rounds=2), World(rounds=2, global_batch=16)):
        assert schema_problem(document(world), RESULTS / "schema.json") == ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with its scaling.json and a number of ranks that failed."""
    made = write_run(tmp_path_factory.mktemp("results") / "20260304T050607Z_scaling")
    (made / "ranks_8.json").write_text("{", encoding="utf-8")
    assert main([f"--from={made}", LINKS]) == 1
    # what is known to have failed stays known
    (made / "ranks_8.json").unlink()
    assert main([f"--from={made}", LINKS]) == 1
    return made


@pytest.fixture(scope="module")
def inputs(folder: Path) -> ReportInputs:
    return read_inputs([source_of(folder)])


def read(folder: Path) -> Json:
    return json.loads((folder / "scaling.json").read_text(encoding="utf-8"))


def section(inputs: ReportInputs) -> Section:
    return next(one for one in build_document(inputs).sections if one.id == "data_parallel")


def rows(of: Section, identity: str) -> list[Json]:
    """With the headings of the table."""
    (table,) = (table for table in of.tables if table.id == identity)
    titles = [heading.partition(" [")[0] for heading in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def test_the_document_has_every_figure(folder: Path, weak: Analysis) -> None:
    found = read(folder)
    assert (found["kind"], found["processes"], found["scaling"]) == ("scaling", [1, 2, 4], "weak")
    assert [(one["ranks"], one["status"]) for one in found["failures"]] == [(8, 1)]
    assert [p["efficiency"]["median"] for p in found["points"]] == [
        p.efficiency.median for p in weak.points if p.efficiency
    ]
    projection = found["projection"]
    assert [one["name"] for one in projection["interconnects"]] == [
        *("measured", "nvlink4_ndr", "ethernet_10g")
    ]
    assert len(projection["steps"]) == 3 * 10
    (step,) = projection["local_steps"]
    alone = weak.results[0].steps["alone"]
    assert (step["seconds"], step["kind"]) == (alone.median_seconds, "measured")


def test_page_and_section_show_what_the_document_says(
    folder: Path, inputs: ReportInputs, capsys: pytest.CaptureFixture[str]
) -> None:
    found, of = read(folder), section(inputs)
    assert {figure.id for figure in of.figures} == {"speedup", "scaling_loss"}
    assert all(figure.points for figure in of.figures)
    points = rows(of, "parallel_efficiency")
    assert [row["step"] for row in points] == [
        pytest.approx(1e3 * p["seconds"]["median"]) for p in found["points"]
    ]
    assert points[1]["efficiency"].startswith(f"{found['points'][1]['efficiency']['median']:.1f} (")
    shares = [row["of the step"] for row in rows(of, "scaling_losses") if row["ranks"] == 4]
    assert sum(shares) == pytest.approx(100) and len(shares) == 4
    (figure,) = (one for one in of.figures if one.id == "scaling_loss")
    assert sum(trace["y"][1] for trace in figure.traces) == pytest.approx(100)
    fit, rate = rows(of, "collective_fits")[0], rows(of, "collective_rates")[0]
    assert fit["latency"] == pytest.approx(1e6 * found["fits"][0]["alpha"])
    assert fit["bandwidth to"] == pytest.approx(1e-9 * found["fits"][0]["bandwidth_range"]["high"])
    assert fit["held out, worst"] == found["fits"][0]["worst_held_out"]
    four = next(row for row in rows(of, "collective_rates") if row["ranks"] == 4)
    assert rate["algorithm"] == pytest.approx(1e-9 * 1024 / (1e-6 * rate["time"]))
    # nccl-tests: 2 (N - 1) / N
    assert four["bus"] == pytest.approx(1.5 * four["algorithm"])
    first = found["projection"]["steps"][0]
    ends = f"{first['efficiency_low']:.0f} to {first['efficiency_high']:.0f}"
    assert rows(of, "projected_efficiency")[0]["8 devices"] == ends
    (link,) = (row for row in rows(of, "projection_links") if row["link"] == "NVLink 4")
    assert (link["bandwidth"], link["latency"]) == pytest.approx((450, 3.4))
    capsys.readouterr()
    assert main([f"--from={folder / 'ranks_4.json'}", LINKS]) == 0
    said, page = capsys.readouterr().out, (folder / "scaling.md").read_text(encoding="utf-8")
    assert "scaling.json" not in said and "8 ranks" not in said
    for text in (said, page):
        assert text.count("## ") >= 5 and "None" not in text and "nan" not in text
        assert points[3]["efficiency"] in text and ends in text
    assert "ranks_8.json: is cut short" in page and "| NVLink 4" in page
    assert f" {number_text(1e3 * first['seconds_high'])} " in page
    assert len([line for line in page.splitlines() if line.endswith("| projection |")]) == 33


def test_a_report_of_several_runs_names_what_it_lacks(
    inputs: ReportInputs, folder: Path, tmp_path: Path
) -> None:
    assert "scripts/scaling --processes 1,2 makes one" in section(ReportInputs()).missing
    one_file = section(read_inputs([source_of(folder / "ranks_4.json")]))
    assert any("scripts/scaling --from" in one.reason for one in one_file.omissions)
    (failed,) = (one for one in section(inputs).omissions if one.is_error)
    assert failed.kind == "ranks" and failed.name.endswith("8 ranks")
    # a second run whose projections are damaged; of figures of the same name the first run's count
    other, found = write_run(tmp_path / "other", ranks=(2, 3), rounds=3), read(folder)
    found["projection"]["steps"][3]["ranks"] = "many"
    (other / "scaling.json").write_text(json.dumps(found), encoding="utf-8")
    both = read_inputs([*inputs.sources, source_of(other)])
    (damaged,) = both.omissions
    assert damaged.is_error and "steps[3].ranks: 'many'" in damaged.reason
    assert rows(section(both), "parallel_efficiency_2")
    # nor is anything taken from failures that are none
    for wrong in ({"ranks": [8]}, {"words": 9}, {"status": "1"}):
        found["failures"] = [{"ranks": 8, "status": 1, "words": "lost"} | wrong]
        (other / "scaling.json").write_text(json.dumps(found), encoding="utf-8")
        (one,) = read_inputs([source_of(other)]).omissions
        assert (one.is_error, one.reason.startswith("failures[0].")) == (True, True)
    own, figures = (figures_of_merit(of).splitlines()[:-1] for of in (inputs, both))
    names = [line.split()[1] for line in figures]
    assert len(names) == len(set(names)) and figures[: len(own)] == own
    assert any("/ranks:3/" in name for name in names)
    merits = {line.split()[1]: float(line.split()[3]) for line in own}
    assert 85 < merits[f"{step_name(World(ranks=4), 'overlap')}/weak_efficiency_percent"] < 100


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build folder with the fake, which finds made-up results."""
    program = tmp_path / "build" / PROGRAM
    program.parent.mkdir(parents=True)
    shutil.copy(FAKE, program)
    monkeypatch.setenv("FAKE_FOLDER", str(write_run(tmp_path / "seen")))
    return tmp_path / "build"


def run(tmp_path: Path, *arguments: str) -> tuple[int, Path]:
    """Exit status and the folder of the run."""
    given = ["--oversubscribe", f"--build-folder={tmp_path / 'build'}", LINKS]
    status = main([*given, f"--results={tmp_path / 'results'}", *arguments])
    return status, next((tmp_path / "results").glob("*_scaling"), tmp_path)


# the world of four is lost, or its file cannot be used: what was measured before is kept
EMPTY = json.dumps(document(World(ranks=4)) | {"benchmarks": []})


@pytest.mark.parametrize(
    ("fault", "content", "words"),
    [
        ("3:dies", "", "rank 3 of 4 was ended by SIGKILL"),
        ("", "{", "is cut short"),
        ("", EMPTY, "neither a data-"),
    ],
)
def test_a_run_leaves_its_files_whatever_happens(
    tmp_path: Path,
    build: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    content: str,
    words: str,
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    if content:
        (build.parent / "seen/ranks_4.json").write_text(content, encoding="utf-8")
    status, folder = run(tmp_path, "--processes=1,2,4", "--timeout=0.5", "--", "--size=tiny")
    (failure,) = read(folder)["failures"]
    assert (status, read(folder)["processes"], failure["ranks"]) == (1, [1, 2], 4)
    page = (folder / "scaling.md").read_text(encoding="utf-8")
    assert words in failure["words"] and words in page
    expected = {f"ranks_{ranks}.{kind}" for ranks in (1, 2, 4) for kind in ("json", "log")}
    expected -= set() if content else {"ranks_4.json"}
    assert {path.name for path in folder.iterdir()} == {*expected, "scaling.json", "scaling.md"}
    # what may be tracked as it is: no path outside the checkout
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        assert str(tmp_path) not in text, path.name


def test_the_programs_own_help_is_shown(
    tmp_path: Path, build: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (build / PROGRAM).write_text('#!/bin/sh\necho "its own $*"\n', encoding="utf-8")
    assert run(tmp_path, "--", "--help")[0] == 0
    assert capfd.readouterr().out == "its own --help\n"
    assert not (tmp_path / "results").exists()
    # and a run without a fault
    shutil.copy(FAKE, build / PROGRAM)
    status, folder = run(tmp_path, "--processes=1,2")
    assert (status, read(folder)["failures"]) == (0, [])
    assert capfd.readouterr().out.splitlines()[-1].endswith("scaling.json")


def test_bad_options_and_files_are_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("frontier.json").write_text('{"kind": "frontier"}', encoding="utf-8")
    for arguments, said in (
        ("--processes=0", "'0': must be a whole number of 1 or more"),
        ("--timeout=-1", "must be a positive number of seconds"),
        ("--from=x --processes=2", "--processes: nothing is measured with --from"),
        ("--from=x -- --size=tiny", "what follows --: nothing is measured with --from"),
        ("-- --threads=4", "'--threads=4' after --: scripts/scaling gives it itself"),
        ("--from=no_such_folder/ranks_2.json", "cannot be read: No such file"),
        ("--from=. --interconnects=token_ring", "interconnect 'token_ring': must be one of"),
        ("--local-step=frontier.json", "frontier.json: is no result of"),
    ):
        try:
            status = main(["--build-folder=none", *arguments.split()])
        except SystemExit as ended:
            status = ended.code
        assert (status, said in capsys.readouterr().err) == (2, True), arguments


def test_two_runs_are_compared_row_by_row(tmp_path: Path) -> None:
    first, second = document(World(rounds=4)), document(World(rounds=4))
    second["context"]["distributed"]["started_by"] = "slurm"
    sides = {"base": first, "new": second}
    paths = [write_world(tmp_path / side, World(), made) for side, made in sides.items()]
    out = tmp_path / "out"
    assert compare([*map(str, paths), "--format=json", f"--output={out}"]) == 0
    found = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    names = {case["name"] for case in found["cases"]}
    assert {step_name(World(), "overlap"), "all_reduce/f32/bytes:1024/ranks:2"} <= names
    assert any("started_by: torchrun in the base, slurm" in text for text in found["warnings"])


def test_what_the_reference_reaches() -> None:
    """Percent, of small in f32. Ranks share two busy processors: overlap hides waiting for a slow
    link, not what keeps the processors at work."""
    page = " ".join((RESULTS / "MEASURED.md").read_text(encoding="utf-8").split())
    reference = {}
    for kind in ("ranks", "ranks_4gbit", "ranks_strong"):
        assert f"(reference/{kind}_2core_xeon_avx512/" in page
        reference[kind] = analysis_of(RESULTS / f"reference/{kind}_2core_xeon_avx512")
        for result in reference[kind].results:
            assert result.context["git_dirty"] is False
            assert result.context.get("host_name", "host_").startswith("host_")
            assert (result.name.size, result.name.dtype) == ("small", "f32")
    one, two = (point(reference["ranks"], ranks) for ranks in (1, 2))
    slow, strong = (point(reference[kind], 2) for kind in ("ranks_4gbit", "ranks_strong"))
    assert median(one.efficiency) >= 98 and median(two.communication_free) >= 85
    assert median(two.efficiency) <= median(two.communication_free) + 1
    assert median(slow.overlap) >= 50
    assert 100 - median(two.busy) < 50 < 100 - median(slow.busy)
    told = (one.efficiency, two.efficiency, two.communication_free, two.overlap, two.busy)
    for of in (*told, slow.overlap, slow.busy, strong.efficiency):
        assert of is not None and of.text(1).replace(" (", " % (") in page
