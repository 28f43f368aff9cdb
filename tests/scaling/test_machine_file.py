"""machine.json, and steps predicted from it alone and over ranks: on made-up machines, whose truth
is known; with parts that are missing, damaged or wrong; and by the commands."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import published
from built_programs import built_program, write_json
from simulated_machine import SimulatedMachine, costs
from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.collectives import AlphaBeta, Link, ring_all_reduce
from tinyllama_tools.models.data_parallel import Analysis
from tinyllama_tools.models.machine_file import machine_document, machine_text, read_machine
from tinyllama_tools.models.over_ranks import DDP, ZERO1, Range, RankFigures, Sent, over_ranks
from tinyllama_tools.models.prediction import errors_by_axis, fit_step_model, predict_steps
from tools import report, study

# the device of the published ranks; a grid on it has as many threads as a rank
DEVICE = {"name": "Intel(R) Xeon(R) Processor", "architecture": "x86-64 AVX512", "backend": "cpu"}
LINK = Link(20e-6, 2e9)
ALONE, SLOWED = 2.0, 1.03
BUCKETS = [2048000, 24389632, 25276416, 24387584, 7458816]
SENT = Sent(BUCKETS, [2048000, *[9941504] * 8, 2050048])


def grid_results() -> ResultSet:
    found = SimulatedMachine(noise=0.01).measure()
    about = {"device": DEVICE, "threads": 1, "num_cpus": 2, "date": "2026-11-30T10:00:00+00:00"}
    return replace(found, context=found.context | about | {"git_commit": "0123456789abcdef"})


def seconds_of(name: str, ranks: int) -> float:
    """Of a row, on ranks that are joined by LINK in a ring and hide nothing."""
    operation, size = name.split("/")[0], int(name.partition("bytes:")[2].partition("/")[0] or 0)
    reduction = sum(ring_all_reduce(ranks, of, LINK) for of in BUCKETS)
    steps = {
        "alone": ALONE,
        "local": ALONE * SLOWED,
        "communication": reduction,
        "overlap": ALONE * SLOWED + reduction,
        "no_overlap": ALONE * SLOWED + reduction,
    }
    if operation == "full_step":
        return steps[name.rpartition("/")[2]]
    whole = ring_all_reduce(ranks, size, LINK)
    return whole if operation == "all_reduce" else whole / 2


def analysis_of(
    folder: Path, ranks: tuple[int, ...] = (2, 4, 8), off: Callable[[str, int], float] | None = None
) -> Analysis:
    """`off`: factor on the time of a row."""
    folder.mkdir(exist_ok=True)
    for number in ranks:
        made = published.document(number, rounds=2)
        # each on a host of its own, so that the link serves any number
        made["context"]["distributed"]["ranks"] = [
            {"rank": rank, "local_rank": 0, "node": rank, "cores": "0"} for rank in range(number)
        ]
        for row in made["benchmarks"]:
            name = row["run_name"].removesuffix("/manual_time")
            seconds = seconds_of(name.removesuffix(f"/ranks:{number}"), number)
            row["real_time"] = seconds * (off(name, number) if off else 1.0) * 1e3
            row["time_unit"] = "ms"
        published.write_world(folder, number, made)
    return published.analysis_of(folder)


def written(folder: Path, results: ResultSet, *runs: Analysis) -> Path:
    path = folder / "machine.json"
    path.write_text(machine_text(machine_document(results, runs)), encoding="utf-8")
    return path


def test_what_is_read_predicts_as_what_was_measured(tmp_path: Path) -> None:
    results, run = grid_results(), analysis_of(tmp_path / "ranks")
    file = read_machine(written(tmp_path, results, run))
    model, read = fit_step_model(results, "f32", "baseline"), file.model_of("f32", "baseline")
    asked = costs("tiny", "medium", "very_large")
    assert predict_steps(read, asked) == predict_steps(model, asked)
    assert read.held_out == model.held_out and file.missing == {}
    # each section says what it was measured by
    assert file.source_of["steps"]["device"] == DEVICE | {"threads": 1, "whole_node": True}
    assert file.source_of["steps"]["git_commit"] == "0123456789abcdef"
    assert file.source_of["gemms"] == file.source_of["bandwidth"] == file.source_of["steps"]
    assert file.source_of["ranks"]["files"] == ["ranks_2.json", "ranks_4.json", "ranks_8.json"]
    found = file.rank_figures()
    assert found.slowdown[4].value == pytest.approx(SLOWED)
    fits = {(fit.operation, fit.ranks): fit for fit in found.collectives}
    assert fits["all_gather", 4].alpha == pytest.approx(3 * LINK.latency, rel=1e-3)
    assert found.most_ranks is None and found.bucket_bytes == 25 * 2**20
    # what is compressed sends half of float32, and all of a type that is as short
    size, sent = problem_sizes()["small"], replace(found, compress="bf16")
    assert sum(sent.sent(size, "f32").buckets) == sum(found.sent(size, "f32").buckets) / 2
    assert sent.sent(size, "bf16") == found.sent(size, "bf16")
    # what the program says of itself: embedding, 8 blocks, LM head with the final norm
    parts = found.sent(size, "f32").parts
    assert len(parts) == 10 and sum(parts) == sum(BUCKETS) and parts[-1] == parts[0] + 4 * 512


def test_numbers_of_ranks_that_were_not_run_are_predicted(tmp_path: Path) -> None:
    figures = read_machine(written(tmp_path, grid_results(), analysis_of(tmp_path / "ranks"))).ranks
    local = Range(ALONE, 0.9 * ALONE, 1.1 * ALONE)
    # a ring is faster than a tree only for some; both are exact by the link that was fitted
    ring = [ring_all_reduce(16, size, LINK) for size in BUCKETS]
    found = over_ranks(DDP, 16, local, 0.1, SENT, figures)
    assert found.value == pytest.approx(ALONE * SLOWED + sum(ring), rel=0.01)
    assert found.low < 0.95 * found.value and found.high > 1.08 * found.value
    # reduce-scatter and all-gather are an all-reduce; a rank updates a 16th of its weights
    sharded = over_ranks(ZERO1, 16, local, 0.1, SENT, figures)
    assert sharded.value == pytest.approx(found.value - 0.1 * 15 / 16, rel=0.01)
    assert over_ranks(DDP, 1, local, 0.1, SENT, figures) == local
    # where all share a host, more of them slow each other more
    crowded = replace(figures, most_ranks=16)
    assert crowded.slowed(16).value == pytest.approx(1 + (SLOWED - 1) * 15 / 7)
    assert figures.slowed(16).value == pytest.approx(SLOWED)


def test_a_wrong_collective_shows_where_ranks_are_held_out(tmp_path: Path) -> None:
    """Of 4 ranks: every collective takes six times as long as over the ring's link."""

    def slow(name: str, ranks: int) -> float:
        return 6.0 if ranks == 4 and "bytes:" in name else 1.0

    for number, off in enumerate((None, slow)):
        run = analysis_of(tmp_path / str(number), off=off)
        document = machine_document(grid_results(), [run])
        found = read_machine(write_json(tmp_path / "machine.json", document)).ranks.held_out
        way, ranks = errors_by_axis(found)
        assert (way.axis, way.values, way.steps) == ("way", "ddp", 3)
        assert (ranks.axis, ranks.values, ranks.steps) == ("ranks", "2, 4, 8", 3)
        if off is None:
            assert max(abs(way.largest_percent), abs(ranks.largest_percent)) < 1
            assert way.inside_percent == ranks.inside_percent == 100
        else:
            # from those alone the steps of 4 ranks are too long, and 4 spoils 2 or 8
            assert way.largest_percent > 10 and ranks.largest_percent > 10


def a_fit(operation: str, ranks: int = 2) -> AlphaBeta:
    ends = ({"low": 0.0, "high": 2e-4}, {"low": 5e8, "high": None})
    return AlphaBeta(operation, ranks, 1e-4, 1e9, *ends, 13, 5.0, 4.0, 9.0)


def test_what_was_not_measured_is_not_predicted(tmp_path: Path) -> None:
    local = Range(1.0, 0.9, 1.1)
    one_host = RankFigures("gloo", 25e6, "none", 2, (a_fit("all_reduce"),), {})
    with pytest.raises(BadInputError, match=r"64 ranks: all .* on one host, which has room for 2"):
        over_ranks(DDP, 64, local, 0.1, SENT, one_host)
    with pytest.raises(BadInputError, match="reduce_scatter: no alpha and beta were measured"):
        over_ranks(ZERO1, 2, local, 0.1, SENT, one_host)
    # without an end of the fit's range there is one of the prediction all the same
    found = over_ranks(DDP, 2, local, 0.1, SENT, one_host)
    assert 0.9 < found.low < found.value < found.high

    alone = read_machine(written(tmp_path, grid_results()))
    with pytest.raises(BadInputError, match=r"machine.json: has no ranks: no data-parallel run"):
        alone.rank_figures()
    with pytest.raises(BadInputError, match=r"no steps, bf16, qkv \(it has f32, baseline\)"):
        alone.model_of("bf16", "qkv")
    run = analysis_of(tmp_path / "ranks")
    # a grid with two threads says nothing of a rank with one
    results = grid_results()
    two = replace(results, context=results.context | {"threads": 2})
    with pytest.raises(
        BadInputError, match=r"threads: 2\), collectives of ranks .* threads: 1\): a"
    ):
        read_machine(written(tmp_path, two, run)).rank_figures()
    # collectives alone are kept, and no step is predicted from them
    nothing = ResultSet((), {}, {})
    only = read_machine(written(tmp_path, nothing, run))
    assert only.rank_figures().collectives
    with pytest.raises(BadInputError, match="has no bandwidth: no bandwidth curve was measured"):
        only.model_of("f32", "baseline")
    with pytest.raises(BadInputError, match="there is no machine to tell"):
        machine_document(nothing, [])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kind", "grid", r"kind is 'grid', must be 'machine'"),
        ("schema_version", 2, r"schema_version is 2, must be 1"),
        ("schema_version", None, r"schema_version is None, must be 1"),
        ("sources", [], r"sources"),
        ("bandwidth.source", 7, r"is no result of scripts/report --format machine"),
        ("bandwidth.curve.0.bytes", 1e12, "bytes must ascend"),
        ("gemms.rates.0.flops_per_second", -1, r"gemms.rates\[0\].flops_per_second: -1"),
        ("gemms.rates.0.flops_per_second", float("nan"), r"flops_per_second: nan"),
        ("steps.0.costs.launch", "3 us", r"steps\[0\].costs.launch: '3 us'"),
        ("steps.0.costs.elementwise", {}, "costs.elementwise lacks attention, embedding"),
        ("steps.0.flops", [1.0], r"steps\[0\].flops"),
        ("steps.0.held_out.0.axis", "weather", "weather"),
        ("ranks.collectives.0.ranks", 1, r"ranks.collectives\[0\].ranks: 1"),
    ],
)
def test_a_damaged_file_is_refused_by_key_and_value(
    tmp_path: Path, key: str, value: object, words: str
) -> None:
    document = json.loads(
        written(tmp_path, grid_results(), analysis_of(tmp_path / "ranks")).read_text("utf-8")
    )
    place, names = document, [int(n) if n.isdecimal() else n for n in key.split(".")]
    for name in names[:-1]:
        place = place[name]
    place[names[-1]] = value
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(BadInputError, match=rf"^{path}: .*{words}"):
        read_machine(path)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, grid_results())
    whole = path.read_bytes()
    for share in (0, 3, 50, 97):
        path.write_bytes(whole[: len(whole) * share // 100])
        with pytest.raises(BadInputError, match=f"^{path}: is (cut short|empty)"):
            read_machine(path)


# ---- the commands

PREDICT = ("--grid", "tiny,medium", "--batch=2", "--seq=512")


def predict(machine: Path, *more: str) -> int:
    build = built_program("benchmarks/tiny_llama_bench").parents[1]
    return study([*PREDICT, f"--machine={machine}", f"--build-folder={build}", *more])


def test_a_machine_file_of_the_published_study_predicts_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = tmp_path / "machine.json"
    assert report([published.STUDY, "--format=machine", "-o", machine]) == 0
    assert "left out: ranks: no data-parallel run was given" in capsys.readouterr().err
    assert predict(machine) == 0
    said = capsys.readouterr().out
    assert "rates of GEMMs, costs of a step: AMD EPYC (cpu, threads: 2), commit f86c09df" in said
    assert "| medium, baseline, f32, 2 x 512 |" in said and "55 of 352 cases were disturbed" in said
    # as the report says of the study itself
    held = {line.split("|")[1].strip(): line for line in said.splitlines() if line[:1] == "|"}
    assert "small, tiny" in held["size"] and "64, 128, 256, 512" in held["seq"]
    # over ranks: refused, but over a link whose figures are published
    assert predict(machine, "--ranks=2,4096") == 2
    assert "has no ranks: no data-parallel run was given" in capsys.readouterr().err
    assert predict(machine, "--ranks=8,4096", "--interconnects=ethernet_100g") == 0
    said = capsys.readouterr().out
    assert "links, not measured: 100 Gb/s Ethernet, one device a node (datasheet" in said
    rows = [line for line in said.splitlines() if "| 4,096 | zero1 |" in line]
    assert len(rows) == 2
    assert predict(machine, "--ranks=8", "--interconnects=mi300x_ndr") == 2
    assert "figures are of other devices than the steps" in capsys.readouterr().err


def test_options_of_prediction_are_refused_where_they_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = write_json(tmp_path / "machine.json", {"kind": "machine", "schema_version": 99})
    for more, words in (
        ((f"--machine={machine}",), "schema_version is 99, must be 1"),
        ((f"--machine={tmp_path / 'none.json'}",), "cannot be read"),
        (("--ranks=8",), "takes a --machine"),
        ((f"--machine={machine}", "--interconnects=ethernet_10g"), "over how many --ranks"),
    ):
        try:
            status = study([*PREDICT, *more])
        except SystemExit as end:
            status = end.code
        assert status == 2 and words in capsys.readouterr().err


def test_devices_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = published.write_run(tmp_path / "ranks", (1, 2))
    asked = [published.STUDY, ranks, "--format=machine"]
    assert report([*asked, "-o", tmp_path / "machine.json"]) == 2
    assert "a machine file: of one device, and these results of 2" in capsys.readouterr().err
    # of the ranks alone there are collectives
    assert report([ranks, "--format=machine"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["steps"] == [] and said["missing"]["steps"].startswith("no training step")
    assert {fit["operation"] for fit in said["ranks"]["collectives"]} == {
        *("all_reduce", "reduce_scatter", "all_gather")
    }
