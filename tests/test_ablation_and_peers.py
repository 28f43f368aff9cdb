"""scripts/ablation and scripts/peers, of a fake program and fake peers: what is interleaved in
which order, ratios, verdicts, pages, files and what is refused; and of the real ones, shortly."""

import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from scipy.stats import binom

import tools
from built_programs import PROJECT_ROOT, read_json
from fake_bench import PROGRAM, make_build, noted
from published import FOLDER, MEASURED, OLDER
from tinyllama_tools.commands import interleaved, peers, step_sides
from tinyllama_tools.commands.ablation import SWITCHES, ablation_page
from tinyllama_tools.commands.interleaved import Pair, ratio_row
from tinyllama_tools.commands.peer_packages import PackagesError
from tinyllama_tools.commands.peers import PeerSide, parse_options, peers_page
from tinyllama_tools.compare.sides import (
    CaseFailedError,
    CaseSkippedError,
    KeptProcess,
    ServedProgram,
)
from tinyllama_tools.core.app import Json, schema_problem
from tinyllama_tools.data import programs
from tinyllama_tools.data.names import full_step, parse_case_name
from tinyllama_tools.data.programs import SuiteProgram
from tinyllama_tools.models.step_ratios import StepRatio
from tinyllama_tools.stats.rank_tests import LOG_RATIO, hodges_lehmann, summarise
from tinyllama_tools.stats.verdicts import MARGIN, judge_family, plan_design

# What peer_process.py answers, with made-up times: a bf16 step takes too long, no code is compiled
# for small, and a sequence of 64 kills it.
FAKE_PEER = """
import json, math, os, sys
told = json.loads(sys.argv[1])
keeps = "MALLOC_TRIM_THRESHOLD_" in os.environ
seconds = (0.2 if told["form"]["adamw"] == "for-loop" else 0.1) * (1 if keeps else 1.25)
context = {"torch": "2", "transformers": "4", "python": "3", "threads": int(sys.argv[2][10:])}
context |= {"float32_matmul_precision": "highest", "float32_product_error": 4e-7}
environment = ("MALLOC_TRIM_THRESHOLD_", "OMP_PROC_BIND")
context |= {"environment": {name: os.environ.get(name) for name in environment}}
print(json.dumps({"turns": 1, "cases": [], "context": context}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "open":
        if "seq:64" in asked["case"]:
            print("last words", file=sys.stderr)
            sys.exit(7)
        answer = {"seconds": seconds, "counters": {"loss_error": 2e-7}}
        if "/bf16/" in asked["case"]:
            answer = {"skipped": "a step took 60.0 s"}
        if "/small/" in asked["case"]:
            answer = {"failed": "the compiler is absent"}
    else:
        times = [seconds, 1.4 * seconds, 0.9 * seconds][: math.ceil(asked["seconds"] / seconds)]
        faults = [80 if keeps else 2414] * len(times)
        answer = {"seconds": times, "cpu_seconds": times, "minor_faults": faults}
    print(json.dumps(answer), flush=True)
"""


CASE = full_step("tiny", "f32", 8, 128)
DOCUMENT = read_json(MEASURED)
STEP = next(row for row in DOCUMENT["benchmarks"] if row["name"].startswith("full_step/"))
# as often as long as a step of 0.1 s
TIMES = {"qkv": 0.8, "sdpa": 0.9, "fused": 0.6, "optimized": 0.5}
MEMORY = {"baseline": 100.0, "fused": 80.0, "optimized": 50.0}
WRONG = {"error_occurred": True, "error_message": "wrong result: loss differs by 0.5"}


def tell(
    build: Path,
    times: Mapping[str, float] = MappingProxyType({}),
    rows: Mapping[str, Json] = MappingProxyType({}),
    context_more: Mapping[str, object] = MappingProxyType({}),
    **behaviour: object,
) -> None:
    """How tiny_llama_bench behaves from now on: it skips `graph`, and a machine scatters by 0.5 %
    where `behaviour`, of fake_bench.py, has no other."""
    peak = {"flops_per_second": 2e11, "source": "made up"}
    context = DOCUMENT["context"] | {"git_commit": "0123456789" * 4, **context_more}
    context["peaks"] = context["peaks"] | {
        "measured": context["peaks"]["measured"] | {"f32": peak, "bf16": peak}
    }
    label = "disturbed: proved in a storm; verified; optimized = "
    told = {
        **{"": {"label": f"{label}qkv+sdpa"}, "/bf16/": {"label": f"{label}sdpa"}},
        **{f"/{variant}/": {"peak_memory_MiB": of} for variant, of in MEMORY.items()},
        "graph": {"skipped": True, "skip_message": "graph: only a GPU captures its work"},
    }
    counters = STEP | {"model_flops": 10**10, "peak_memory_MiB": 90.0, "operators": 4050}
    make_build(
        build,
        factor={f"/{variant}/": of for variant, of in {**TIMES, **times}.items()},
        counters=counters | {"max_rel_error": 1e-6},
        rates={"TFLOPS": 0.01, "MFU_percent": 5.0},
        rows={**told, **rows},
        context=context,
        **(
            {"name": "ours", "cases": {}, "seconds": 0.1, "between": 0.005, "within": 0.0}
            | behaviour
        ),
    )


@pytest.fixture
def build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Of what the commands measure, with fake peers, into tmp_path."""
    build = tmp_path_factory.mktemp("build")
    tell(build)
    monkeypatch.setattr(programs, "program_in", lambda *_: build / PROGRAM)
    monkeypatch.setattr(peers, "PEER", (sys.executable, "-c", FAKE_PEER))
    monkeypatch.setattr(interleaved, "RESULTS", tmp_path)
    for name in [name for name in os.environ if name.startswith(("OMP_", "GOMP_", "KMP_"))]:
        monkeypatch.delenv(name)
    return build


def timed(build: Path) -> list[str]:
    """Of each run but the first that did not verify, and of each slice: variant and steps."""
    done = [work for work in noted(build, "work")[1:] if not work["verify"]]
    return [f"{parse_case_name(of['cases'][0]).variant} {of['steps']}" for of in done]


def tables(page: str) -> list[dict[str, str]]:
    """The rows of an ablation's tables of all points, by column."""
    lines = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in page.splitlines() if "|" in line]
    heads = next(line for line in lines if line[0] == "variant")
    rows = [line for line in lines if len(line) == len(heads) and line[0][0] not in "-v"]
    return [dict(zip(heads, line, strict=True)) for line in rows]


# few blocks, and a look that is sure of 95 %
QUICK = ["--alpha=0.2", "--margin=0.02", "--looks=2"]
# scripts/ablation
MAIN = ["--switches=qkv,sdpa,graph", "--dtypes=f32", "--batch=8", *QUICK]


def ablation(folder: Path, *arguments: str, status: int = 0) -> tuple[Json, str]:
    """What the command leaves in the folder."""
    assert tools.ablation([*arguments, f"--out={folder}"]) == status
    document = read_json(folder / "ablation.json")
    return document, (folder / "ABLATION.md").read_text()


def test_figures_of_the_page_are_those_of_the_blocks(build: Path, tmp_path: Path) -> None:
    tell(build, rows={"checkpoint": WRONG})
    switches = "--switches=qkv,sdpa,graph,checkpoint"
    document, page = ablation(tmp_path / "new", switches, *QUICK, status=1)
    judged = {(r["case"], r["peer"]): r for r in document["context"]["ablation"]["ratios"]}
    assert schema_problem(document, PROJECT_ROOT / "results/schema.json") == ""
    assert "f32 | 200 GFLOP/s" in page and "bf16 | 200 GFLOP/s" in page
    # what may be published names no folder
    assert "scripts/ablation --switches" in page and str(tmp_path) not in page
    entries: dict[str, list[Json]] = {}
    for entry in document["benchmarks"]:
        entries.setdefault(entry["name"].removesuffix("/manual_time"), []).append(entry)
    headings = re.findall(r"### tiny (\w+), batch (\d+) x sequence (\d+)", page)
    points = [full_step("tiny", dtype, int(b), int(s)) for dtype, b, s in headings]
    # three dtypes at two shapes; without qkv only where `optimized` has it, and without one of two
    # is what the other is alone
    assert len(points) == len(set(points)) == 6 and len(entries) == 6 * 7
    rows = iter(tables(page))
    for point in points:
        held = ["sdpa"] if point.dtype == "bf16" else ["qkv", "sdpa"]
        without = {"sdpa": "baseline"} if len(held) == 1 else {"qkv": "sdpa", "sdpa": "qkv"}
        known = ["baseline", "qkv", "sdpa", "graph", "checkpoint", "fused", "optimized"]
        wanted = {name: (name, "baseline") for name in known}
        wanted |= {f"optimized without {n}": (v, "optimized") for n, v in without.items()}
        for label, (name, other) in wanted.items():
            row = next(rows)
            assert row["variant"] == label
            if name in {"graph", "checkpoint"}:
                reason = "skipped: graph: only a GPU" if name == "graph" else "failed: wrong"
                assert row["note"].startswith(reason) and row["ms"] == row["ratio"] == "-"
                continue
            ours, theirs = (entries[str(replace(point, variant=v))] for v in (name, other))
            if name != "baseline":
                is_removed = other == "optimized"
                above, below = (name, other) if is_removed else (other, name)
                found = judged[str(replace(point, variant=below)), above]
                times = [[row["real_time"] for row in side] for side in (ours, theirs)]
                pairs = zip(*times, strict=False)
                ratios = [x / y if is_removed else y / x for x, y in pairs]
                # who has all verdicts is measured no more
                assert ratios[: len(found["of_each_block"])] == pytest.approx(
                    found["of_each_block"]
                )
                logs = [math.log(ratio) for ratio in ratios[: found["blocks"]]]
                shown = float(row["ratio"].removeprefix("~ ").split(" ")[0])
                assert shown == pytest.approx(math.exp(hodges_lehmann(logs)), abs=0.0051)
                assert row["verdict"] == ("slower" if is_removed else "faster")
                assert ours[0]["label"].startswith("verified; optimized = ")
                assert found["p_value"] <= 0.2 and not row["ratio"].startswith("~")
            seconds = 1e-3 * statistics.median(entry["real_time"] for entry in ours)
            assert float(row["ms"]) == pytest.approx(1e3 * seconds, abs=0.06)
            assert float(row["samples/s"]) == pytest.approx(point.batch / seconds, abs=0.06)
            # 1e10 FLOPs of 2e11 a second
            assert float(row["MFU %"]) == pytest.approx(5 / seconds, abs=0.06)
            memory = ours[0]["peak_memory_MiB"] / theirs[0]["peak_memory_MiB"]
            assert float(row["memory x"]) == pytest.approx(memory, abs=0.0051)
            assert (row["operators"], row["rel error"]) == ("4,050", "1.0e-06")
    assert next(rows, None) is None


def test_peaks_are_the_best_of_all_processes(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is not the one that the others' rows are of."""
    measure = SuiteProgram.measure

    def better(*given: object, **more: object) -> Json:
        found = measure(*given, **more)
        peaks = found["context"]["peaks"]
        rate = 1e11 * (2 + len(noted(build, "work")) % 3)
        measured = peaks["measured"] | {"f32": {"flops_per_second": rate, "source": "made up"}}
        return found | {"context": found["context"] | {"peaks": peaks | {"measured": measured}}}

    monkeypatch.setattr(SuiteProgram, "measure", better)
    document, page = ablation(tmp_path, *MAIN)
    assert document["context"]["peaks"]["measured"]["f32"]["flops_per_second"] == 4e11
    assert "f32 | 400 GFLOP/s" in page


@pytest.mark.parametrize(("name", "page_of"), [("ablation", ablation_page), ("peers", peers_page)])
def test_a_published_page_is_that_of_the_published_result(
    name: str, page_of: Callable[[Json], str]
) -> None:
    path = FOLDER / f"{name}_{OLDER}.json"
    page = page_of(read_json(path))
    assert (PROJECT_ROOT / f"results/{name.upper()}.md").read_text() == page


def test_sides_change_order_and_who_fails_twice_has_its_reason_and_no_block_more(
    build: Path, tmp_path: Path
) -> None:
    # in its third block, after three processes that serve none, and in the next one
    dying = {"at": "time", "how": "signal", "processes": [*range(3 + 3, 99)]}
    tell(build, rows={"/qkv/": WRONG}, trouble={"/fused/": dying})
    document, page = ablation(tmp_path, *MAIN, status=1)
    # verified first, all in one process; what is left of `optimized` is among them
    known = ["baseline", "qkv", "sdpa", "graph", "fused", "optimized"]
    cases = [str(replace(CASE, variant=variant)) for variant in known]
    verified = {"cases": cases, "steps": 1, "verify": True}
    assert [work for work in noted(build, "work") if work["verify"]] == [verified]
    calls = [call.split(" ")[0] for call in timed(build)]
    blocks = [calls[i : i + 4] for i in range(0, 16, 4)]
    blocks += [calls[i : i + 3] for i in range(16, len(calls), 3)]
    can_run = ["baseline", "fused", "optimized", "sdpa"]
    assert [sorted(block) for block in blocks[:4]] == [can_run] * 4
    can_run.remove("fused")
    first = plan_design(5 + 6, alpha=0.2, looks=2).looks[0]
    assert [sorted(block) for block in blocks[4:]] == [can_run] * (first - 4)
    assert len({tuple(block) for block in blocks}) > 3
    # a fresh process a block, and another one after it was lost
    lost = sum(block[-1] != "fused" for block in blocks[2:4])
    assert sum("--serve" in one["arguments"] for one in noted(build, "starts")) == first + lost
    notes = {row["variant"]: (row["note"], row["ms"]) for row in tables(page)}
    assert notes["qkv"] == ("failed: wrong result: loss differs by 0.5", "-")
    assert notes["optimized without sdpa"] == notes["qkv"]
    assert re.fullmatch("failed: .* by signal SIGSEGV .*; it last said: out .*", notes["fused"][0])
    ratios = document["context"]["ablation"]["ratios"]
    assert not [r for r in ratios if "fused" in r["peer"] or "/fused/" in r["case"]]
    # no times beside the reason
    assert [e["iterations"] for e in document["benchmarks"] if "/fused/" in e["name"]] == [0]


@pytest.mark.parametrize(
    ("times", "budget", "text", "slower", "said"),
    [
        # of 0.1, 0.08 and 0.09 s: qkv's is 0.94 of `optimized`'s
        (
            {"optimized": 0.85},
            "1h",
            r"1\.2\d \(1\.[12]\d to 1\.[23]\d\)",
            ["qkv"],
            r"at most \d\.\d % slower",
        ),
        (
            {"qkv": 1.0},
            "1h",
            r"~ \d\.\d\d \((0\.99|1\.00) to 1\.0\d\)",
            [],
            r"at least 4\d\.\d % faster",
        ),
        # too few blocks show no difference, which is no evidence that there is none
        ({"optimized": 0.85}, "1ms", r"~ 1\.2\d", [], ""),
    ],
)
def test_a_page_says_how_much_slower_optimized_may_be_and_what_shows_no_difference(
    build: Path,
    tmp_path: Path,
    times: Mapping[str, float],
    budget: str,
    text: str,
    slower: list[str],
    said: str,
) -> None:
    tell(build, times)
    status = 0 if said else 2
    document, page = ablation(tmp_path, *MAIN, f"--budget={budget}", status=status)
    assert ("the first verdicts on" in page) == (status == 2)
    assert re.fullmatch(text, tables(page)[1]["ratio"])
    assert f"{len(slower)} of 3 show `optimized` slower" in page
    found = re.findall(r"^\| tiny f32, batch 8 x sequence 128 \| (\w+) +\| \d.*to.*$", page, re.M)
    words = {row["variant"]: row["verdict"] for row in tables(page)}
    assert {words["fused"], words["optimized"]} == {"faster" if said else "no verdict"}
    assert found == slower
    assert bool(said) == ("With 95 % confidence" in page)
    assert bool(said) != ("may be is not known" in page and "Nothing can be said of 3 of 3" in page)
    if said:
        assert re.search(rf"`optimized` is {said} than the baseline", page)
        ratios = document["context"]["ablation"]["ratios"]
        beside = [r for r in ratios if "/optimized/" in r["case"]]
        assert len(beside) == 3
        assert f"| {max(1 / r['interval']['low'] for r in beside):.3f} " in page


def test_no_more_pairs_are_judged_than_the_family_has(build: Path, tmp_path: Path) -> None:
    """`optimized` of two switches is, without one of them, a switch that was not asked for."""
    document, _ = ablation(tmp_path, "--switches=sdpa", "--dtypes=f32", "--batch=8", *QUICK)
    about = document["context"]["ablation"]
    assert len(about["ratios"]) == about["design"]["family"] == 3 + 2
    assert {r["verdict"] for r in about["ratios"]} == {"slower"}
    assert len(timed(build)) == 5 * about["design"]["looks"][0]


def test_an_operator_of_a_plug_in_is_a_row_and_both_commands_load_its_library(
    build: Path, tmp_path: Path
) -> None:
    known = {"file": "libmy.so", "sha256": 64 * "a", "operators": ["my::rms_norm"]}
    tell(build, {"my::rms_norm": 0.9}, context_more={"plugins": [known]})
    added = ["--plugin=libmy.so", "--variants=my::rms_norm,optimized+my::rms_norm"]
    document, text = ablation(tmp_path, *MAIN, *added)
    shown = {row["variant"]: row for row in tables(text)}
    assert shown["my::rms_norm"]["ratio"].startswith("1.11")
    assert "optimized+my::rms_norm" in shown and "| libmy.so, SHA-256 aaaaaaaaaaaa |" in text
    assert document["context"]["plugins"] == [known]
    assert schema_problem(document, PROJECT_ROOT / "results/schema.json") == ""
    asked = [*QUICK, "--sizes=tiny", "--dtypes=f32", "--batch=8", "--seq=128", "--peers=eager"]
    more = [*added[:1], "--variants=my::rms_norm"]
    assert tools.peers([*asked, *more, f"--out={tmp_path}"]) == 0
    assert "| libmy.so, SHA-256 aaaaaaaaaaaa |" in (tmp_path / "PEERS.md").read_text()
    starts = noted(build, "starts")
    assert all("--plugin=libmy.so" in start["arguments"] for start in starts)


def test_a_short_budget_is_told_for_all_cases(build: Path, tmp_path: Path) -> None:
    document, _ = ablation(tmp_path, *MAIN, "--batch=8,16", "--budget=2ms", status=2)
    first, second = document["context"]["ablation"]["refusals"]
    assert first.startswith("tiny f32, batch 8 x sequence 128: --budget")
    assert "minutes in all for each of 2 shares; give --budget 2m or more, fewer --batch" in first
    assert "minutes in all; give --budget 1m or more" in second
    # all have times in spite of it
    assert {row["iterations"] > 0 for row in document["benchmarks"]} == {True, False}
    assert len(timed(build)) == 2 * 5


PAIR = Pair(CASE, "optimized", "baseline")


def test_the_bound_of_many_comparisons_covers_the_slowest_of_them() -> None:
    """The first look of 36 comparisons whose blocks scatter by 10 %, of which `optimized` is 5 %
    slower in one, some or all: the largest bound is below 5 % in at most 5 % of families, although
    a third of those with one show nothing slower."""
    random, families = np.random.default_rng(1), 400
    design = plan_design(36, alpha=interleaved.ALPHA, margin=MARGIN, looks=interleaved.LOOKS)
    for slow in (1, 6, 36):
        wrong = unseen = 0
        for _ in range(families):
            truth = np.where(np.arange(36) < slow, -math.log(1.05), math.log(1.2))
            logs = truth[:, None] + random.normal(0, 0.1, (36, design.looks[0]))
            blocks = np.zeros((*logs.shape, 4))
            blocks[..., LOG_RATIO] = logs
            judged = judge_family(dict(enumerate(blocks)), design).values()
            rows = [ratio_row(PAIR, blocks[0], found) for found in judged]
            ratios = [StepRatio.from_json(row) for row in rows]
            wrong += max(1 / (of.at_least or 0) for of in ratios) < 1.05 - 1e-12
            unseen += not any(of.median < 1 and of.shows_difference for of in ratios)
        assert wrong <= binom.ppf(0.999, families, 0.05)
        assert slow > 1 or unseen > families / 3
    few = np.array([summarise([1.0], [1.0])])
    assert StepRatio.from_json(ratio_row(PAIR, few, None)).at_least is None


def test_a_ratio_is_of_neighbours_not_of_medians() -> None:
    # the machine became twice as slow in the middle; each block says 0.5
    times = (1.0, 2.0, 2.0, 4.0, 4.0, 8.0)
    row = ratio_row(PAIR, np.array([summarise([2 * s], [s]) for s in times]), None)
    assert [row["ratio"], *row["of_each_block"]] == pytest.approx([0.5] * 7)
    assert StepRatio.from_json(row).text() == "0.50 (0.50 to 0.50)"
    assert StepRatio.from_json(row).inverse.text() == "2.00 (2.00 to 2.00)"


def test_switches_are_those_of_the_program(bench_program: Path) -> None:
    command = [bench_program, "--list", "--variants=nonsense"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    names = refused.stderr.rpartition(": ")[2].strip()
    assert names.partition(";")[0].split(", ") == list(SWITCHES)


@pytest.mark.usefixtures("bench_program")
def test_smoke_with_the_program(tmp_path: Path) -> None:
    """In one block, which is too short for verdicts."""
    options = [
        "--batch=2",
        "--seq=16",
        "--dtypes=f32",
        "--budget=1ms",
        "--slice=1ms",
        "--switches=qkv",
    ]
    _, page = ablation(tmp_path, *options, status=2)
    rows = {row["variant"]: row for row in tables(page)}
    for name in ("baseline", "qkv", "fused", "optimized", "optimized without qkv"):
        assert float(rows[name]["ms"]) > 0 and float(rows[name]["rel error"]) < 1e-4


# scripts/peers


def test_cases_are_the_default_grid_or_those_of_the_axes(bench_program: Path) -> None:
    names = {str(case) for case in parse_options(["--dtypes=f32,bf16"]).cases}
    listed = subprocess.run([bench_program, "--list"], capture_output=True, text=True, check=True)
    every = listed.stdout.split()
    assert names == {name for name in every if name.startswith("full_step/train/baseline/")}
    options = parse_options(["--sizes=medium", "--dtypes=bf16,f32", "--batch=8,4"])
    found = [(c.dtype, c.batch, c.seq) for c in options.cases]
    assert found == [("f32", 8, 512), ("f32", 4, 512), ("bf16", 8, 512), ("bf16", 4, 512)]


SIZE = {"vocab_size": 50, "hidden_dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2}
SIZE |= {"intermediate_dim": 48}


def test_peer_really_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and under autocast: what is neither is less of the same."""
    tools.require_oracle_packages()
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not (header.is_file() and shutil.which("g++")):
        pytest.skip("torch.compile needs g++ and Python.h: install g++ and python3-dev")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(peers, "problem_sizes", lambda: {"tiny": SIZE})
    side, case = PeerSide("compile_tuned", "cpu", 1, 60.0), full_step("tiny", "amp_bf16", 2, 8)
    try:
        seconds = side.get_ready(case)
        assert side.settings["threads"] == 1
        # whatever the form asks for, true float32 where float32 is asked for
        if side.settings["float32_matmul_precision"] == side.form["precision"]:
            assert side.settings["float32_product_error"] <= 1e-5
        assert set(peers.KEEPING) <= side.settings["environment"].keys()
        row = side.time(case, 20 * seconds)
        assert row["iterations"] == len(row["samples_ns"]) == 20
        assert row["real_time"] > 0 < row["cpu_time"]
        # log(50) = 3.91 before it learned anything
        assert side._kept.ready().timed(str(case), seconds)["loss"] < 3.9
    finally:
        side.close()


def test_peer_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEER", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(peers, "LIMIT_S", 0.2)
    side = PeerSide("eager", "cpu", 1, 60.0)
    with pytest.raises(CaseFailedError, match="no answer to its start within"):
        side.get_ready(CASE)
    assert not side._kept._process.is_running
    side.close()


def test_a_malloc_that_keeps_its_memory_has_few_faults_and_they_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of logits of 41 MB: from 32 MiB on glibc maps and unmaps whatever was freed before."""
    tools.require_oracle_packages()
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if pages.is_file() and "[always]" in pages.read_text():
        pytest.skip("huge pages for every mapping leave few faults to count")
    monkeypatch.setattr(peers, "problem_sizes", lambda: {"tiny": SIZE | {"vocab_size": 80_000}})
    case, faults = full_step("tiny", "f32", 2, 64), {}
    for name in ("eager", "eager_default_malloc"):
        side = PeerSide(name, "cpu", 1, 60.0)
        try:
            seconds = side.get_ready(case)
            # what a first block still maps is none of a step's
            for _ in range(2):
                row = side.time(case, 4.5 * seconds)
            faults[name] = row["minor_faults"]
        finally:
            side.close()
    assert faults["eager_default_malloc"] > 1000 > 4 * faults["eager"]
    slow = PeerSide("eager", "cpu", 1, 1e-9)
    try:
        with pytest.raises(CaseSkippedError, match="more than --max-seconds-per-case 1e-09"):
            slow.get_ready(case)
    finally:
        slow.close()


def test_our_faults_are_counted_from_outside(bench_program: Path) -> None:
    """Of a step whose memory is kept; and a block's rates are those of its own time."""
    program = programs.SuiteProgram(("--device=cpu", "--threads=1"), bench_program)
    case = full_step("tiny", "f32", 2, 16)
    arguments = (*programs.axis_options([case]), *program.arguments)
    served = KeptProcess(ServedProgram("ours", bench_program, arguments), 60.0, random.Random(0))
    side = step_sides.OurSide("baseline", program, served, 60.0, {})
    try:
        assert side.get_ready(case) > 0
        row = side.time(case, 0.2)
    finally:
        served.end()
    # weights and moments alone, of 2.9 million parameters, are 8,000 pages
    assert 0 <= row["minor_faults"] < 500
    flops = row["model_flops"] / (1e-3 * row["real_time"])
    assert row["TFLOPS"] == pytest.approx(1e-12 * flops)
    assert row["samples_per_second"] == pytest.approx(2 / (1e-3 * row["real_time"]))
    assert row["max_rel_error"] < 1e-4 and "speedup" not in row
    assert row["iterations"] == len(row["samples_ns"])


# of the three times that a fake peer has
STEPS = "--slice=3"
AXES = ["--dtypes=f32,bf16", "--batch=8", "--seq=128,256", "--peers=eager,sdpa", *QUICK]
AXES_OF_ALLOCATORS = ["--peers=eager,eager_default_malloc", "--sizes=tiny", "--dtypes=f32"]


def test_a_page_says_what_of_a_ratio_is_the_allocators(build: Path, tmp_path: Path) -> None:
    tell(build, between=0.0)
    axes = [*AXES_OF_ALLOCATORS, "--batch=8", "--seq=128", STEPS, *QUICK]
    assert tools.peers([*axes, f"--out={tmp_path}"]) == 0
    document = read_json(tmp_path / "peers.json")
    assert schema_problem(document, PROJECT_ROOT / "results/schema.json") == ""
    page = re.sub(" +", " ", (tmp_path / "PEERS.md").read_text(encoding="utf-8"))
    point = "tiny f32, batch 8 x sequence 128 | peer:eager"
    assert f"| {point} | 1.25 (1.25 to 1.25), slower | 2,414 | 80 |" in page
    over = "2.00 (2.00 to 2.00), slower | 4.00 (4.00 to 4.00), slower"
    assert f"| peer:eager | 200 | 80 | {over} |" in page
    assert "| peer:eager_default_malloc | 250 | 2,414 | 2.50 (2.50 to 2.50), slower |" in page
    assert (
        "| peer:eager | eager | no | highest, error 4.0e-07 | for-loop | glibc that keeps" in page
    )
    assert "| for-loop | glibc by default |" in page


def test_result_and_page_have_every_case_with_ratios_times_and_reasons(
    build: Path, tmp_path: Path
) -> None:
    tell(build, between=0.0, trouble={"/qkv/": {"at": "measure", "how": "signal"}})
    assert tools.peers([*AXES, STEPS, "--variants=baseline,optimized,qkv"]) == 1
    (folder,) = tmp_path.glob("*_peers")
    document = read_json(folder / "peers.json")
    assert schema_problem(document, PROJECT_ROOT / "results/schema.json") == ""
    entries, about = document["benchmarks"], document["context"]["peers"]
    sdpa = [e for e in entries if e["name"] == str(CASE).replace("baseline", "peer:sdpa")]
    assert (sdpa[0]["samples_per_second"], sdpa[0]["tokens_per_second"]) == (80.0, 10240.0)
    assert sdpa[0]["TFLOPS"] == pytest.approx(0.1)
    ratios = {(r["case"], r["peer"]): r for r in about["ratios"]}
    ratio = ratios[str(CASE), "peer:eager"]
    first = about["design"]["looks"][0]
    # of eight cases, two peers beside three of ours
    assert about["design"]["family"] == 8 * 2 * 3
    assert (ratio["ratio"], ratio["blocks"]) == (pytest.approx(2.0), first)
    assert ratio["verdict"] == "slower" and ratio["p_value"] <= 0.2
    # as long as ours: the same
    assert len(sdpa) == first and sdpa[0]["samples_ns"] == [10**8, 14 * 10**7, 9 * 10**7]
    assert ratios[str(CASE), "peer:sdpa"]["verdict"] == "same"
    assert "small" not in {parse_case_name(case).size for case, _ in ratios}
    page = (folder / "PEERS.md").read_text(encoding="utf-8")
    page = re.sub(" +", " ", page)  # the columns are aligned
    page = re.sub(r"(\| optimized \| 50) \| [\d,]+", r"\1 | FAULTS", page)
    assert "| side | ms | faults | over baseline | over optimized | over qkv | note |" in page
    for row in (
        "f32 | 8 | 128 | optimized | 50 | FAULTS | | | | |",
        "f32 | 8 | 128 | qkv | failed | - | | | | tiny_llama_bench was ended by signal SIGSEGV",
        "f32 | 8 | 128 | peer:eager | 200 | 80 | 2.00 (2.00 to 2.00), slower | 4.00",
        "bf16 | 8 | 128 | peer:sdpa | skipped | - | | | | a step took 60.0 s",
    ):
        assert f"| tiny | {row}" in page
    failed = "failed | - | | | | the compiler is absent |"
    assert f"| small | f32 | 8 | 256 | peer:eager | {failed}" in page
    assert "| peer:sdpa | sdpa | no | highest, error 4.0e-07 | fused | glibc that keeps" in page


def test_a_peer_that_cannot_be_installed_hinders_nobody(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_network(*_: str) -> Path:
        raise PackagesError("ERROR: No matching distribution")

    monkeypatch.setattr(peers, "folder_with", without_network)
    tell(build, between=0.0)
    axes = ["--peers=zentorch,sdpa", "--sizes=tiny", "--dtypes=f32", "--batch=8", "--seq=128"]
    assert tools.peers([*axes, *QUICK, f"--out={tmp_path}"]) == 0
    document = read_json(tmp_path / "peers.json")
    assert schema_problem(document, PROJECT_ROOT / "results/schema.json") == ""
    page = re.sub(" +", " ", (tmp_path / "PEERS.md").read_text(encoding="utf-8"))
    reason = "skipped | - | | | zentorch: ERROR: No matching distribution |"
    assert f"| peer:zentorch | {reason}" in page
    assert "| peer:sdpa | 100 | 80 | 1.00 (1.00 to 1.00), same | 2.00" in page
    # and of each that ran how far its losses are from those of an eager model
    lines = [line for line in page.splitlines() if "| fused | glibc that keeps" in line]
    assert [line.rpartition("its memory |")[2] for line in lines] == [" |", " f32 2.0e-07 |"]


def test_a_peer_has_times_where_none_of_ours_can_run(build: Path, tmp_path: Path) -> None:
    tell(build, rows={"/baseline/": WRONG})
    options = ["--sizes=tiny", "--dtypes=f32", "--batch=8", "--seq=128", "--slice=1ms"]
    options += ["--peers=sdpa", "--variants=baseline", f"--out={tmp_path}"]
    assert tools.peers(options) == 1
    document = read_json(tmp_path / "peers.json")
    assert [entry["iterations"] for entry in document["benchmarks"]] == [0, 1]


def test_one_of_ours_that_dies_with_nothing_beside_it_leaves_its_reason(
    build: Path, tmp_path: Path
) -> None:
    # a sequence of 64 kills the peer
    tell(build, trouble={"/baseline/": {"at": "time", "how": "crash"}})
    options = ["--sizes=tiny", "--dtypes=f32", "--batch=8", "--seq=64", "--slice=1ms"]
    options += ["--peers=sdpa", "--variants=baseline", f"--out={tmp_path}"]
    assert tools.peers(options) == 1
    reasons = [row["error_message"] for row in read_json(tmp_path / "peers.json")["benchmarks"]]
    assert ["out of luck" in reasons[0], "last words" in reasons[1]] == [True, True]


def test_slow_steps_are_fewer_and_who_dies_leaves_its_reason_alone(
    build: Path, tmp_path: Path
) -> None:
    tell(build, between=0.0)
    # a slice of 0.15 s has two steps of 0.1 s, and three of 0.05 s
    options = ["--sizes=tiny", "--dtypes=f32", "--batch=8", "--seq=64,128", "--slice=150ms"]
    options += ["--peers=eager_default_malloc,compile_tuned", *QUICK]
    assert tools.peers([*options, f"--out={tmp_path}"]) == 1
    first = plan_design(2 * 5, alpha=0.2, looks=2).looks[0]
    # with no peer beside them, once
    assert {*timed(build)} == {"baseline 2", "optimized 3"}
    assert len(timed(build)) == 2 + 2 * first
    document = read_json(tmp_path / "peers.json")
    entries, about = document["benchmarks"], document["context"]["peers"]
    assert [e["error_message"] for e in entries if "error_message" in e] == [
        f"the process ended with 7 at open {name}; it last said: last words"
        for name in 2 * [str(replace(CASE, seq=64))]
    ]
    assert [e["name"].count("peer:") for e in entries].count(1) == 2 + first * 2
    found = {(row["case"], row["peer"]) for row in about["ratios"]}
    ours = (str(CASE), str(replace(CASE, variant="optimized")))
    assert found == {(case, peer) for case in ours for peer in about["forms"]}
    # who died was started anew, with its threads and its malloc
    found = [form["measured"]["environment"] for form in about["forms"].values()]
    assert [of["MALLOC_TRIM_THRESHOLD_"] for of in found] == [None, str(2**33)]
    assert {of["OMP_PROC_BIND"] for of in found} == {"true"}


# both


# one look, and one step a side and block
ONCE = ["--looks=1", "--slice=1ms"]


def blocks_of(family: int) -> int:
    """How many each case then has."""
    return plan_design(family, alpha=0.2, looks=1).looks[0]


@pytest.mark.parametrize(
    ("tool", "options", "processes", "rows", "missing"),
    [
        # two cases, of which one was verified and had blocks of five sides, one skipped beside
        (
            tools.ablation,
            [*MAIN, "--batch=8,16", *ONCE],
            1 + 5 * blocks_of(2 * 11),
            1 + 5 * blocks_of(2 * 11),
            ["tiny f32, batch 16 x sequence 128"],
        ),
        # two cases of a verified process and blocks, of four
        (
            tools.peers,
            [*AXES, "--sizes=tiny", "--variants=baseline", *ONCE],
            2 * (1 + blocks_of(4 * 2)),
            2 * 3 * blocks_of(4 * 2),
            [f"tiny bf16, batch 8 x sequence {seq}" for seq in (128, 256)],
        ),
    ],
    ids=("ablation", "peers"),
)
def test_interrupt_writes_what_was_measured_and_tables_are_made_anew(
    build: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    tool: Callable[..., int],
    options: list[str],
    processes: int,
    rows: int,
    missing: list[str],
) -> None:
    name, made, again = request.node.callspec.id, tmp_path / "made", tmp_path / "again"
    # before any case has a figure, and later
    for interrupt_at in (1, 1 + processes):
        tell(build, interrupt_at=interrupt_at)
        (build / PROGRAM).with_name("work").unlink(missing_ok=True)
        assert tool([*options, f"--out={made}"]) == 130
    file, page = made / f"{name}.json", made / f"{name.upper()}.md"
    document = read_json(file)
    assert len(document["benchmarks"]) == rows
    assert document["context"][name]["not_measured"] == missing
    assert f"Not measured: {'; '.join(missing)}." in page.read_text()
    assert tool([f"--from={file}", f"--out={again}"]) == 0
    for path in (file, page):
        assert (again / path.name).read_text() == path.read_text()
    text = file.read_text()
    for old, new, words in (
        ('"real_time": ', '"real_time": -', "must be a positive, finite number"),
        ('"ratios": [{', '"ratios": [{}, {', f"no result of scripts/{name} as it wrote it"),
        (f'"{name}": ', '"others": ', f"must be a result of scripts/{name}"),
    ):
        file.write_text(text.replace(old, new, 1))
        assert tool([f"--from={file}"]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("tool", [tools.ablation, tools.peers])
def test_a_program_that_refuses_its_options_leaves_nothing(
    tool: Callable[..., int], build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = "tiny_llama_bench: device 'cuda:9': no such device"
    tell(build, refuse=refusal)
    assert tool([f"--out={tmp_path / 'none'}"]) == 2
    assert refusal in capsys.readouterr().err
    assert noted(build, "work") == [] and not list(tmp_path.iterdir())
