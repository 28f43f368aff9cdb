"""What scripts/scaling and the report say of runs: the reference's figures against those computed
anew from its rows, what is refused, and that file, page and report say the same; and the formulas
of collectives and of steps over links against independent ones."""

import itertools
import json
import math
import re
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

from built_programs import PROJECT_ROOT, Json, read_json, write_json
from fake_training import set_key
from published import analysis_of, document, reference, write_run, write_world
from tinyllama_tools.commands.scaling import answer
from tinyllama_tools.core.app import BadInputError, problem_sizes, write_whole
from tinyllama_tools.data.rank_results import read_scaling_result
from tinyllama_tools.models.collectives import (
    FIXTURE,
    MIB,
    AlphaBeta,
    Link,
    all_reduce,
    buckets_of,
    fit_alpha_beta,
    flat_all_reduce,
    link_of_ring,
    plan_buckets,
    read_interconnects,
    stands_for,
)
from tinyllama_tools.models.data_parallel import Analysis, ScalingPoint
from tinyllama_tools.models.over_ranks import (
    DDP,
    ZERO1,
    Interconnect,
    Range,
    Sent,
    over_ranks,
    rank_figures,
)
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Section
from tinyllama_tools.report.inputs import ReportInputs, read_inputs, source_of
from tinyllama_tools.report.output import figures_of_merit
from tinyllama_tools.stats.rank_tests import Estimate
from tools import compare
from tools import scaling as main

STEP = "full_step/train/baseline/small/f32"
KINDS = ("ranks", "ranks_4gbit", "ranks_strong")
Times = dict[str, np.ndarray]


def point(analysis: Analysis, ranks: int, mode: str = "overlap") -> ScalingPoint:
    return next(p for p in analysis.points if (p.ranks, p.mode) == (ranks, mode))


def times_of(kind: str, key: str = "real_time") -> Times:
    """By mode, of the reference's two ranks, a value a round; `whole`: alone with both batches."""
    rows = [row for row in document(2, 99, kind)["benchmarks"] if STEP in row["run_name"]]
    found: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row["repetition_index"]):
        is_whole = kind == "ranks_strong" and "/batch:8/" in row["run_name"]
        mode = "whole" if is_whole else row["run_name"].rpartition("/")[2]
        found.setdefault(mode, []).append(row[key])
    return {mode: np.array(values) for mode, values in found.items()}


def assert_is(found: Estimate | None, rounds: np.ndarray) -> None:
    assert found is not None and found.interval is not None
    assert (found.median, found.rounds) == (pytest.approx(np.median(rounds)), len(rounds))
    assert found.interval.confidence >= 0.95
    assert found.interval.low < found.median < found.interval.high


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_a_step_are_medians_over_what_each_round_says(kind: str) -> None:
    of, cpu, found = times_of(kind), times_of(kind, "cpu_time"), analysis_of(reference(kind))
    ideal = of["whole"] / 2 if kind == "ranks_strong" else of["alone"]
    local, sums = of["local"], of["communication"]
    for mode in ("overlap", "no_overlap"):
        step, what = of[mode], point(found, 2, mode)
        assert_is(what.seconds, 1e-3 * step)
        assert_is(what.efficiency, 100 * ideal / step)
        assert_is(what.speedup, 2 * ideal / step)
        assert_is(what.communication, 100 * (step - local) / step)
        assert_is(what.busy, 100 * cpu["communication"] / sums)
        assert what.samples_per_second == pytest.approx(2 * what.batch / what.seconds.median)
    costs = of["no_overlap"] > local
    hidden = 100 * (of["no_overlap"] - of["overlap"])[costs] / (of["no_overlap"] - local)[costs]
    assert_is(point(found, 2).overlap, hidden)
    assert point(found, 2, "no_overlap").overlap is None
    if found.results[0].ranks == 1:
        assert point(found, 1).efficiency is not None
    assert point(found, 2).batch == (4 if kind == "ranks_strong" else 8)
    # where the rest of an ideal step went
    parts = {part["name"]: part for part in found.losses}
    assert {part["ranks"] for part in found.losses} == {2}
    # one definition: what one table calls efficiency, or communication, is that of the other
    main_step = point(found, 2, found.results[-1].step.name.mode)
    for name in ("efficiency", "communication"):
        own, other = parts[name], getattr(main_step, name)
        ends = other.interval
        assert (own["percent"], own["low"], own["high"]) == (other.median, ends.low, ends.high)
    assert sum(part["percent"] for part in parts.values()) == pytest.approx(100, abs=1)
    assert ("small batch" in parts) == (kind == "ranks_strong")
    values = [*found.results[-1].step.figures("loss_slower_local_percent").values()]
    part = parts["slower local work"]
    assert part["percent"] == pytest.approx(np.median(values))
    assert part["low"] < part["percent"] < part["high"]


def test_the_model_is_checked_by_what_was_run(tmp_path: Path) -> None:
    """With fits of the same ranks, and with those of other numbers, as a ring."""
    found, of = analysis_of(write_run(tmp_path, ranks=(1, 2, 4), rounds=99)), times_of("ranks")
    figures, buckets = rank_figures(found), np.array(found.results[0].distributed["bucket_bytes"])
    fit = next(fit for fit in found.fits if (fit.operation, fit.ranks) == ("all_reduce", 2))
    own = fit.alpha + buckets / fit.bandwidth
    # of two ranks a ring is two messages of a half; of four six of a fourth
    ring = 6 * (fit.alpha / 2 + buckets / 4 / fit.bandwidth)
    alone, slower = 1e-3 * np.median(of["alone"]), np.median(of["local"] / of["alone"]) - 1
    held = {(one.axis, one.value, "ranks:4" in one.case): one for one in figures.held_out}
    assert len(held) == len(figures.held_out) == 2 * 2
    # on one host, four slow each other three times as much as two
    for key, times, share in ((("way", "ddp", False), own, 1), (("ranks", "4", True), ring, 3)):
        one, local = held[key], alone * (1 + share * slower)
        # over Gloo nothing is hidden
        assert one.predicted == pytest.approx(local + times.sum())
        assert one.measured == pytest.approx(1e-3 * np.median(of["overlap"]))
        least = max(times[-1], times.sum() - 2 / 3 * local)
        assert one.low < local + least and one.high > one.predicted


def test_rows_that_are_missing_or_failed_cost_what_needs_them(tmp_path: Path) -> None:
    """Of two ranks of GPUs."""
    made = document()
    made["context"]["distributed"]["backend"] = "nccl"
    every, step = made["benchmarks"], f"{STEP}/batch:8/seq:256/ranks:2"
    few = [row for row in every if not re.match("all_gather.*/bytes:(?!1024/)", row["run_name"])]
    own = [row for row in every if row["run_name"] == f"{step}/overlap"]
    for row in own:
        if row["repetition_index"] in (0, 3):
            del row["weak_efficiency_percent"]
    few += [row | {"run_name": f"{step}/sharded"} for row in own]
    failed = own[0] | {"run_name": f"{step}/local".replace("small", "x")}
    few.append(failed | {"error_occurred": True, "error_message": "rank 1 was lost"})
    found = analysis_of(write_world(tmp_path, 2, made | {"benchmarks": few}))
    assert point(found, 2).efficiency.rounds == 8 - 2
    assert list(found.failed.values()) == ["rank 1 was lost"]
    # a sharded step makes no all-reduce that could be hidden
    whole, part = point(found, 2), point(found, 2, "sharded")
    assert (part.efficiency, part.overlap) == (whole.efficiency, None)
    assert whole.busy is None, "no processor's work"
    assert found.refused == (
        "all_gather, 2 ranks: 1 sizes, at least 3 are needed; raise --max-bytes",
    )
    # and without any step there are collectives all the same
    few = [row for row in every if "full_step" not in row["run_name"]]
    write_world(tmp_path, 2, made | {"benchmarks": few})
    assert main([f"--from={tmp_path}"]) == 0
    stated = read_json(tmp_path / "scaling.json")
    assert stated["points"] == [] and len(stated["fits"]) == 3


def test_other_ways_to_share_a_step_are_points_beside_it(tmp_path: Path) -> None:
    """Of `tensor` both ranks have one batch, whatever the run scales; `zero3` can hide."""
    made, step = document(), f"{STEP}/batch:8/seq:256/ranks:2"
    own = [row for row in made["benchmarks"] if row["run_name"] == f"{step}/overlap"]
    ways = [row | {"run_name": f"{step}/zero3"} for row in own]
    for row in own:
        joint = row | {"run_name": f"{step}/tensor", "strong_efficiency_percent": 30.0}
        ways.append({key: joint[key] for key in joint if key != "weak_efficiency_percent"})
    made["benchmarks"] += ways
    found = analysis_of(write_world(tmp_path, 2, made))
    whole = point(found, 2)
    zero3, tensor = point(found, 2, "zero3"), point(found, 2, "tensor")
    assert (zero3.efficiency, zero3.overlap) == (whole.efficiency, whole.overlap)
    assert zero3.samples_per_second == pytest.approx(2 * tensor.samples_per_second)
    assert (tensor.efficiency.median, tensor.speedup.median) == (30, 0.6)
    assert tensor.overlap is zero3.busy is None


def test_results_that_cannot_be_used_and_worlds_that_make_no_run_are_named(tmp_path: Path) -> None:
    for key, value, said in (
        ("context.distributed.world_size", "two", "world_size: 'two' is not of type 'integer'"),
        ("context.distributed", None, r"has no context\.distributed"),
        ("benchmarks.0.cpu_time", None, "cpu_time: None is not of type"),
        ("benchmarks.0.real_time", 0, "must be a positive, finite number"),
        ("benchmarks", [], "neither a data-parallel step nor a collective"),
    ):
        changed = document(1, 1)
        set_key(changed, key, value)
        with pytest.raises(BadInputError, match=said):
            read_scaling_result(write_world(tmp_path, 1, changed))
    # a peak of the machine is no row of the ranks
    peak = {"run_name": "peak/x", "run_type": "iteration", "real_time": None, "time_unit": "s"}
    changed = document(1, 1)
    changed["benchmarks"].append(peak | {"error_occurred": True})
    assert read_scaling_result(write_world(tmp_path, 1, changed)).step
    (tmp_path / "ranks_1.json").unlink()
    with pytest.raises(BadInputError, match="measure first: scripts/scaling"):
        analysis_of(tmp_path)
    other = json.dumps(document(4, 1)).replace("/small/", "/medium/")
    for ranks, changed, said in (
        (4, json.loads(other), "results of different steps"),
        (3, document(2, 1), "twice of as many ranks"),
    ):
        write_run(tmp_path, ranks=(2,), rounds=1)
        file = write_world(tmp_path, ranks, changed)
        with pytest.raises(BadInputError, match=said):
            analysis_of(tmp_path)
        file.unlink()
    changed = document(4, 1)
    changed["context"]["device"]["name"] = "Another CPU"
    write_world(tmp_path, 4, changed)
    with pytest.raises(BadInputError, match=r"device\.name is 'Another CPU', in ranks_2\.json"):
        analysis_of(tmp_path)
    changed = document(4, 1)
    changed["context"]["distributed"]["bucket_MiB"] = 1.0
    write_world(tmp_path, 4, changed)
    said, found = "distributed.bucket_MiB is 1.0, in ranks_2.json 25.0", analysis_of(tmp_path)
    assert found.warnings == (f"ranks_4.json: {said}",)
    # nothing is carried from the one to the other
    with pytest.raises(BadInputError, match=f"not alike: ranks_4.json: {said}"):
        rank_figures(found)


def on_nodes(made: Json, nodes: int) -> Json:
    """Its ranks on so many hosts."""
    for rank in made["context"]["distributed"]["ranks"]:
        rank["node"] = rank["rank"] % nodes
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run over two hosts with its scaling.json and a number of ranks that failed."""
    made = write_run(tmp_path_factory.mktemp("results") / "20260304T050607Z_scaling")
    for ranks in (1, 2, 4):
        write_world(made, ranks, on_nodes(document(ranks), 2))
    (made / "ranks_8.json").write_text("{", encoding="utf-8")
    assert main([f"--from={made}"]) == 1
    # what is known to have failed stays known
    (made / "ranks_8.json").unlink()
    assert main([f"--from={made}"]) == 1
    return made


@pytest.fixture(scope="module")
def inputs(folder: Path) -> ReportInputs:
    return read_inputs([source_of(folder)])


def section(inputs: ReportInputs) -> Section:
    return next(one for one in build_document(inputs).sections if one.id == "data_parallel")


def rows(of: Section, identity: str) -> list[Json]:
    """With the headings of the table."""
    (table,) = (table for table in of.tables if table.id == identity)
    titles = [heading.partition(" [")[0] for heading in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def test_document_page_and_section_say_the_same(
    folder: Path, inputs: ReportInputs, capsys: pytest.CaptureFixture[str]
) -> None:
    found, of, analysis = read_json(folder / "scaling.json"), section(inputs), analysis_of(folder)
    assert (found["kind"], found["processes"], found["scaling"]) == ("scaling", [1, 2, 4], "weak")
    assert found["git_commit"] == document(1)["context"]["git_commit"], "what was measured"
    assert [(one["ranks"], one["status"]) for one in found["failures"]] == [(8, 1)]
    medians = [point["efficiency"]["median"] for point in found["points"]]
    assert medians == [point.efficiency.median for point in analysis.points]
    assert [figure.id for figure in of.figures] == ["speedup", "scaling_loss"]
    points = rows(of, "parallel_efficiency")
    assert [row["step"] for row in points] == [
        pytest.approx(1e3 * p["seconds"]["median"]) for p in found["points"]
    ]
    assert points[1]["efficiency"].text.startswith(f"{medians[1]:.1f} (")
    # one efficiency in every table
    shares = [row["of the step"] for row in rows(of, "scaling_losses") if row["ranks"] == 4]
    assert shares[0] == medians[3] and len(shares) == 4
    fit = rows(of, "collective_fits")[0]
    assert fit["latency"] == pytest.approx(1e6 * found["fits"][0]["alpha"])
    assert fit["bandwidth to"] == pytest.approx(1e-9 * found["fits"][0]["bandwidth_range"]["high"])
    rate = next(row for row in rows(of, "collective_rates") if row["ranks"] == 4)
    assert rate["algorithm"] == pytest.approx(1e-9 * 1024 / (1e-6 * rate["time"]))
    # nccl-tests: 2 (N - 1) / N
    assert rate["bus"] == pytest.approx(1.5 * rate["algorithm"])
    held = {row["left out"]: row for row in rows(of, "held_out_ranks")}
    assert held["ranks"]["values"] == "2, 4" and held["way"]["steps"] == 2
    capsys.readouterr()
    assert main([f"--from={folder / 'ranks_4.json'}"]) == 0
    said, page = capsys.readouterr().out, (folder / "scaling.md").read_text(encoding="utf-8")
    assert "scaling.json" not in said and "8 ranks" not in said
    for text in (said, page):
        assert text.count("## ") >= 4 and "None" not in text and "nan" not in text
        assert points[3]["efficiency"].text in text
    assert "ranks_8.json: is cut short" in page


def test_tables_are_printed_first_and_fit_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the folder takes no files, as one of a read-only disk; a folder in the place of a
    file stands for that, since root may write anywhere."""
    made = write_run(tmp_path / "made")
    for world in (1, 2, 4):
        other = document(world)
        other["context"]["device"]["name"] = "AMD Instinct MI300X OAM with a long name"
        write_world(made, world, other)
    (made / "scaling.json").mkdir()
    assert main([f"--from={made}"]) == 2
    said, why = capsys.readouterr()
    tables = [line for line in said.splitlines() if line.startswith("|")]
    assert max(map(len, tables)) <= 120 and said.count("## ") >= 4
    assert f"{made} takes no files" in why and "copy that" in why
    assert [path.name for path in made.iterdir() if path.name.startswith("scaling")] == [
        "scaling.json"
    ]
    # every piece of a table tells its rows apart
    heads = [line for line, rule in pairwise(tables) if rule[1] == "-"]
    assert [head.split("|")[2].strip() for head in heads if "overlap hides" in head] == ["mode"]


def test_a_report_of_several_runs_names_what_it_lacks(
    inputs: ReportInputs, folder: Path, tmp_path: Path
) -> None:
    one_file = section(read_inputs([source_of(folder / "ranks_4.json")]))
    assert not one_file.omissions
    (failed,) = (one for one in section(inputs).omissions if one.is_error)
    assert failed.kind == "ranks" and failed.name.endswith("8 ranks")
    # a second run whose file of failures is damaged; its figures count
    other, found = write_run(tmp_path / "other", (2, 3), 3), read_json(folder / "scaling.json")
    set_key(found, "failures.0.ranks", "many")
    write_json(other / "scaling.json", found)
    both = read_inputs([*inputs.sources, source_of(other)])
    (damaged,) = both.omissions
    assert damaged.is_error and "ranks: 'many' is not" in damaged.reason
    assert rows(section(both), "parallel_efficiency_run_2")
    own, figures = (figures_of_merit(of).splitlines()[:-1] for of in (inputs, both))
    names = [line.split()[1] for line in figures]
    assert len(names) == len(set(names)) and figures[: len(own)] == own
    assert any("/ranks:3/" in name for name in names)
    merits = {line.split()[1]: float(line.split()[3]) for line in own}
    merit = merits[f"{STEP}/batch:8/seq:256/ranks:4/overlap/weak_efficiency_percent"]
    assert merit == pytest.approx(point(analysis_of(folder), 4).efficiency.median, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_comes_first_and_is_what_the_tables_say(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / reference(kind).name
    shutil.copytree(reference(kind), folder, ignore=shutil.ignore_patterns("scaling.*"))
    assert main(["--from", str(folder)]) == 0
    first, page = capsys.readouterr().out.splitlines()[0], (folder / "scaling.md").read_text()
    found = analysis_of(folder)
    two, parts = point(found, 2), {part["name"]: part["percent"] for part in found.losses}
    speedup, efficiency = f"{two.speedup.median:.2f}", f"{two.efficiency.median:.1f}"
    assert first.startswith(
        f"2 ranks: {speedup} x the samples/s of one rank alone, efficiency {efficiency} %; the "
        f"rest of the step is communication ({parts['communication']:.1f} %), "
    )
    assert all(f"{name} ({parts[name]:.1f} %)" in first for name in parts if name != "efficiency")
    assert page.splitlines()[2] == first
    assert f" {efficiency} (" in page and f" {speedup} (" in page
    # what is published is what a run of today writes
    stored = (reference(kind) / "scaling.md").read_text(encoding="utf-8")
    pages = [text.replace("results/reference/", "") for text in (page, stored)]
    assert pages[0] == pages[1], "make it again: scripts/scaling --from its folder"


def test_a_run_that_has_no_answer_says_what_is_missing() -> None:
    one = analysis_of(reference("ranks") / "ranks_1.json")
    assert answer(one).startswith("1 rank: 3.619 samples/s; how a step scales needs 2 ranks")
    nothing = replace(one, points=())
    assert answer(nothing) == "No step was measured: what collectives take alone is below."
    two = analysis_of(reference("ranks") / "ranks_2.json")
    assert answer(replace(two, losses=())).endswith(", efficiency 95.1 %.")
    # the program found a rank that the other waits for
    words = "rank 1 arrives last in 47 of 48 collectives: 3.1 ms after the others"
    last = two.results[-1]
    assert last.step is not None
    rounds = {n: entry | {"label": f"a; {words}; b"} for n, entry in last.step.rounds.items()}
    named = {**last.steps, last.step.name.mode: replace(last.step, rounds=rounds)}
    late = replace(two, losses=(), results=(*two.results[:-1], replace(last, steps=named)))
    assert answer(late).endswith(f", efficiency 95.1 %. R{words[1:]}.")


def test_two_runs_are_compared_row_by_row(tmp_path: Path) -> None:
    sides = [write_world(write_run(tmp_path / side, ()), 2) for side in ("base", "new")]
    assert compare([*map(str, sides), "--format=json", f"--out={tmp_path / 'out'}"]) == 0
    names = {case["name"] for case in read_json(tmp_path / "out/comparison.json")["cases"]}
    step = f"{STEP}/batch:8/seq:256/ranks:2/overlap"
    assert {step, "all_reduce/f32/bytes:1024/ranks:2"} <= names


def test_what_the_page_says_of_the_reference_is_what_it_holds() -> None:
    page = " ".join((PROJECT_ROOT / "results/MEASURED.md").read_text(encoding="utf-8").split())
    weak, slow, strong = (analysis_of(reference(kind)) for kind in KINDS)
    for kind, of in zip(KINDS, (weak, slow, strong), strict=True):
        assert f"(reference/{reference(kind).name}/" in page
        assert all(result.context["git_dirty"] is False for result in of.results)
    two, slow, strong = (point(of, 2) for of in (weak, slow, strong))
    told = (two.efficiency, two.communication, two.overlap, two.busy, slow.overlap, slow.busy)
    for of in (point(weak, 1).efficiency, *told, strong.efficiency):
        assert of.text(1).replace(" (", " % (") in page


# ---- the formulas behind

ALPHA, BANDWIDTH = 30e-6, 1.5e9
SIZES = np.array([1024.0 * 4**i for i in range(9)])


def fitted(seconds: np.ndarray) -> AlphaBeta:
    """Of the first sizes."""
    times = {int(size): float(time) for size, time in zip(SIZES, seconds, strict=False)}
    return fit_alpha_beta("all_reduce", 2, times)


def test_a_fit_is_that_of_scipy() -> None:
    """Its weights, its covariance, its misfits and what it predicts of a size left out."""
    noise = np.random.default_rng(0).normal(0, 0.1, len(SIZES))
    seconds = (ALPHA + SIZES / BANDWIDTH) * np.exp(noise)
    fit = fitted(seconds)

    def expected(sizes: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def line(size: np.ndarray, a: float, b: float) -> np.ndarray:
            return ALPHA * a + size / BANDWIDTH * b

        scale = np.array([ALPHA, 1 / BANDWIDTH])
        found, covariance = optimize.curve_fit(line, sizes, times, p0=(1, 1), sigma=times)
        return found * scale, np.sqrt(np.diag(covariance)) * scale

    (alpha, per_byte), errors = expected(SIZES, seconds)
    assert (fit.alpha, 1 / fit.bandwidth) == pytest.approx((alpha, per_byte), rel=1e-4)
    reach = 2.364624 * errors  # Student's, of 7 degrees of freedom
    assert fit.alpha_range["high"] == pytest.approx(alpha + reach[0], rel=1e-4)
    assert fit.bandwidth_range["low"] == pytest.approx(1 / (per_byte + reach[1]), rel=1e-4)
    misfits = 100 * np.abs((alpha + per_byte * SIZES) / seconds - 1)
    assert fit.scatter == pytest.approx(misfits.max(), rel=1e-3)
    off = []
    for i, (size, time) in enumerate(zip(SIZES, seconds, strict=True)):
        (alpha, per_byte), _ = expected(np.delete(SIZES, i), np.delete(seconds, i))
        off.append(100 * abs((alpha + per_byte * size) / time - 1))
    found = (fit.median_held_out, fit.worst_held_out)
    assert found == pytest.approx((np.median(off), max(off)), rel=1e-3)
    assert fitted(seconds[:3]).worst_held_out is None


def test_a_fit_that_the_data_does_not_support_is_refused() -> None:
    for seconds, said in (
        (SIZES[:2] / BANDWIDTH, "all_reduce, 2 ranks: 2 sizes, at least 3"),
        (1e-3 + 1e-12 * (SIZES[-1] - SIZES), "has a time a byte of -"),
        (SIZES**1.5 * 1e-12, "has a latency of -"),
    ):
        with pytest.raises(BadInputError, match=said):
            fitted(seconds)


def ring(ranks: int, size: float, link: Link) -> float:
    """N - 1 messages of an Nth, there and back."""
    return 2 * sum(link.latency + size / ranks / link.bandwidth for _ in range(ranks - 1))


def tree(ranks: int, size: float, link: Link) -> float:
    """The best number of packets, each of which goes up and down a level of two trees a step."""
    steps, whole = 2 * math.ceil(math.log2(ranks)), size / link.bandwidth
    packets = np.arange(1, 20_000)
    return float((2 * (steps + packets) * (link.latency + whole / packets)).min())


@pytest.mark.parametrize("ranks", [2, 5, 80, 4096])
@pytest.mark.parametrize("size", [1.0, 1 << 20, 1e8, 1 << 40])
def test_an_all_reduce_is_the_faster_of_ring_and_tree(ranks: int, size: float) -> None:
    link = Link(1e-5, 1e9)
    ways = {"ring": ring(ranks, size, link), "tree": tree(ranks, size, link)}
    # between whole numbers of packets the formula may be a little faster
    assert flat_all_reduce(ranks, size, link) == pytest.approx(min(ways.values()), rel=5e-3)
    # the link of a measured ring
    alpha, per_byte = 2 * (ranks - 1) * link.latency, 2 * (ranks - 1) / ranks / link.bandwidth
    found = link_of_ring(alpha, 1 / per_byte, ranks)
    assert (found.latency, found.bandwidth) == pytest.approx((1e-5, 1e9))


MI300X = {"name": "AMD Instinct MI300X", "backend": "hip", "threads": 8, "whole_node": True}
H100 = MI300X | {"name": "NVIDIA H100 80GB HBM3", "backend": "cuda"}
XEON = MI300X | {"name": "Intel(R) Xeon(R) Processor", "backend": "cpu"}


def test_steps_over_links_are_bounds_of_what_links_and_buckets_allow() -> None:
    """Nothing hidden, and all that can be; over nodes of one device and of several."""
    wanted = {"nvlink4_ndr", "ethernet_10g"}
    links = [one for one in read_interconnects() if one["name"] in wanted]
    assert sorted(link["devices_per_node"] for link in links) == [1, 8]
    buckets = document(2)["context"]["distributed"]["bucket_bytes"]
    for one, ranks in itertools.product(links, (8, 64, 512, 4096)):
        each, per_node = [], one["devices_per_node"]
        network, device = (one[key] and Link(**one[key]["link"]) for key in ("network", "device"))
        for size in buckets:
            within = ring(per_node, size, device) if device else 0
            of = (ranks // per_node, size / per_node, network)
            between = min(ring(*of), tree(*of)) if ranks > per_node else 0
            each.append(within + between)
        for local in (0.01, 2.0):
            # of the last bucket all is seen
            least = local + max(each[-1], sum(each) - 2 / 3 * local)
            # as if the buckets were the parts of a model of three blocks
            sent = Sent(buckets, buckets)
            own = (ranks, Range(local, local, local), 0.004, sent, Interconnect(one))
            found = over_ranks(DDP, *own)
            assert found == pytest.approx((least, least, local + sum(each)), rel=5e-3)
            # an all-reduce is a reduce-scatter and an all-gather; of the update a share
            shared, half = local - 0.004 * (1 - 1 / ranks), sum(each) / 2
            least = shared + half + max(each[-1] / 2, half - 2 / 3 * shared)
            found = over_ranks(ZERO1, *own)
            assert found == pytest.approx((least, least, shared + 2 * half), rel=5e-3)
            # blocks are gathered twice
            total = 2 * half + sum(each[1:-1]) / 2
            least = shared + max(each[0], total - shared)
            found = over_ranks("zero3", *own)
            assert found == pytest.approx((least, least, shared + total), rel=5e-3)
    (nvlink,) = (one for one in links if one["devices_per_node"] == 8)
    with pytest.raises(ValueError, match="12 ranks: must be a multiple of the 8 devices"):
        all_reduce(12, 1024, nvlink)
    with pytest.raises(BadInputError, match="nvlink4_ndr: 12 ranks: must be a multiple"):
        Interconnect(nvlink).seconds("all_gather", 12, 1024)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (H100, {"nvlink4_ndr"}),
        (H100 | {"name": "NVIDIA H200"}, {"nvlink4_ndr"}),
        (H100 | {"name": "NVIDIA GH200 480GB"}, set()),
        (H100 | {"name": "NVIDIA H100 PCIe"}, {"pcie5_100gbe"}),
        (H100 | {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}, set()),
        (MI300X, {"mi300x_ndr"}),
        (MI300X | {"name": "AMD Instinct MI250X"}, {"mi250x_slingshot11"}),
        (XEON, set()),
        # any GPU may be alone in a node with an adapter, and a CPU whose step had all of its host
        (XEON | {"whole_node": False}, None),
    ],
)
def test_links_stand_for_their_own_device_alone(device: Json, expected: set[str] | None) -> None:
    found = {
        one["name"]
        for one in read_interconnects()
        if stands_for(one, device | {"architecture": ""})
    }
    ethernet = {"ethernet_100g", "ethernet_10g"}
    assert found == (set() if expected is None else expected | ethernet)


def test_ranks_on_one_host_say_nothing_of_more_than_it_has_room_for(tmp_path: Path) -> None:
    for nodes, most in ((1, 2), (2, None)):
        for ranks in (1, 2):
            write_world(tmp_path, ranks, on_nodes(document(ranks), nodes))
        figures = rank_figures(analysis_of(tmp_path))
        assert figures.most_ranks == most
        # of two ranks the published step is predicted from the one of a rank alone
        (held,) = figures.held_out
        assert held.axis == "way" and held.low < held.measured < held.high
        assert held.predicted == pytest.approx(held.measured, rel=0.01)
    found = figures.seconds("all_reduce", 4096, 1e6)
    assert found.low < found.value < found.high
    # the room is that of the ranks that were run last, with collectives or without
    made = on_nodes(document(4), 1)
    rows = [row for row in made["benchmarks"] if "full_step" in row["run_name"]]
    write_world(tmp_path, 2)
    write_world(tmp_path, 4, made | {"benchmarks": rows})
    assert rank_figures(analysis_of(tmp_path)).most_ranks == 4


def test_buckets() -> None:
    """From the last parameter: the first has 1 MiB or more, the others what was asked for."""
    sizes = [3 * MIB, 2 * MIB, 2 * MIB, MIB // 2, MIB // 2, MIB // 2]
    assert plan_buckets(sizes, 4 * MIB) == [MIB, 9 * MIB // 2, 3 * MIB]
    assert plan_buckets([10 * MIB, 1], MIB) == [10 * MIB + 1]
    assert sum(buckets_of(problem_sizes()["tiny"], "bf16", MIB)) == 2 * 2_873_600
    # Qwen3-0.6B's first layer and its tables: heads of 128 where 1024 / 16 is 64
    wide = {"vocab_size": 151936, "hidden_dim": 1024, "n_layers": 1, "n_heads": 16}
    wide |= {"n_kv_heads": 8, "intermediate_dim": 3072, "head_dim": 128}
    of_layer = 2 * 1024 * 128 * (16 + 8) + 3 * 1024 * 3072 + 2 * 1024
    assert sum(buckets_of(wide, "f32", MIB)) == 4 * (2 * 151936 * 1024 + of_layer + 1024)


def test_links_have_their_sources_and_a_bad_one_is_named(tmp_path: Path) -> None:
    for one in read_interconnects():
        for of in filter(None, (one["device"], one["network"])):
            is_assumed = of["latency_source"].startswith("Assumption: ")
            assert of["is_assumed"] == is_assumed, one["name"]
            assert "http" in of["bandwidth_source"] or "IEEE" in of["bandwidth_source"]
    (ndr,) = (one for one in read_interconnects() if one["name"] == "nvlink4_ndr")
    assert Link(**ndr["network"]["link"]) == (9.6e-6, 50e9)
    for text, wrong, said in (
        ('"devices_per_node": 8', '"devices_per_node": 6', "devices_per_node: 6 is not one"),
        ('"latency"', '"more": 1, "latency"', "link: .* has too many properties"),
    ):
        path, good = tmp_path / "links.json", FIXTURE.read_text(encoding="utf-8")
        write_whole(path, good.replace(text, wrong, 1))
        with pytest.raises(BadInputError, match=rf"interconnects\[0\].*{said}"):
            read_interconnects(path)
