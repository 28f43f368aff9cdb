"""What a comparison says: counters, attribution, and every output."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare_run import document_of, run
from stored_samples import (
    ATTENTION,
    BLOCK,
    EMBEDDING,
    FFN,
    LOSS,
    NORM,
    OPTIMIZER,
    STEP,
    TIMES,
    every_outcome,
)

from chromium import Chromium, chromium, served
from tinyllama_tools.compare.comparison import (
    HEADLINE,
    KINDS,
    ComparedCase,
    Comparison,
    CounterChange,
    Gate,
    compare_counters,
    layers_by_size,
)
from tinyllama_tools.compare.output import (
    json_of,
    markdown_of,
    page_of,
    print_comparison,
    text_of,
    write_comparison,
)
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.names import OWN_KEYS, parse_case_name, parts_of
from tinyllama_tools.stats.looks import attributions
from tinyllama_tools.stats.rank_tests import BlockSummary, Interval
from tinyllama_tools.stats.verdicts import Outcome, fewest_blocks

__all__ = ["chromium"]
GOLDEN = Path(__file__).with_name("comparison.golden.txt")
ESCAPE = re.compile(r"\033\[(\d+)m")
USUAL, STRICT = Gate(), Gate(strict=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_text_of_a_small_comparison() -> None:
    assert text_of(every_outcome()) == GOLDEN.read_text(encoding="utf-8")


def test_colour_is_for_terminals_and_follows_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal, file = Terminal(), io.StringIO()
    print_comparison(every_outcome(), stream=terminal)
    print_comparison(every_outcome(), stream=file)
    assert ESCAPE.search(file.getvalue()) is None
    assert ESCAPE.sub("", terminal.getvalue()) == file.getvalue()
    found = re.finditer(r"\033\[(\d+)m([^\033]+)", terminal.getvalue())
    painted = {match[2].strip(): match[1] for match in found}
    expected = {"slower": "31", "missing": "31", "unclear": "33", "same": "32", "added": "90"}
    # nobody is alarmed by what was allowed
    assert (expected | {"failed (allowed)": "90"}).items() <= painted.items()
    monkeypatch.setenv("NO_COLOR", "1")
    print_comparison(every_outcome(), stream=(plain := Terminal()))
    assert plain.getvalue() == file.getvalue()


@pytest.mark.parametrize(
    ("outcome", "gate", "status", "colour", "sentence"),
    [
        (Outcome.SLOWER, USUAL, 1, "red", "Regression: 2 slower of 2 cases; the worst is case"),
        (Outcome.MISSING, USUAL, 1, "red", "Regression: 2 missing of 2 cases."),
        (Outcome.SAME, USUAL, 0, "green", "No regression in 2 cases: 2 same."),
        (Outcome.FASTER, USUAL, 0, "green", "No regression in 2 cases: 2 faster."),
        # nothing failed, and nothing was shown
        (Outcome.UNCLEAR, USUAL, 0, "grey", "No regression shown in 2 cases: 2 unclear."),
        (Outcome.ADDED, USUAL, 0, "grey", "No regression shown in 2 cases: 2 added."),
        (Outcome.UNCLEAR, STRICT, 3, "yellow", "No regression shown, but not every case has"),
        (Outcome.NO_VERDICT, USUAL, 0, "grey", "No verdict on times: 2 no verdict (--strict"),
        (Outcome.NO_VERDICT, STRICT, 3, "yellow", "No verdict on times"),
    ],
)
def test_sentence_status_colour_and_last_line_agree(
    outcome: Outcome, gate: Gate, status: int, colour: str, sentence: str
) -> None:
    cases = tuple(ComparedCase(f"case {i}", outcome, ratio=1.2) for i in range(2))
    comparison = replace(every_outcome(), cases=cases, warnings=())
    assert gate.status(comparison) == status
    *_, said, last = text_of(comparison, gate).splitlines()
    assert said.startswith(sentence)
    assert last.startswith(f"2 {outcome.value}; exit status {status}: ")
    markdown = markdown_of(comparison, gate)
    assert markdown.startswith(f"**{sentence}")
    assert markdown.splitlines()[-1] == last
    assert json.loads(json_of(comparison, gate))["exit_status"] == status
    page = page_of(comparison, gate)
    assert f"exit status {status}" in page
    assert f'<header class="verdict {colour}">' in page
    code = {"red": 31, "green": 32, "yellow": 33, "grey": 90}[colour]
    assert text_of(comparison, gate, colour=True).splitlines()[-2].startswith(f"\033[{code}m")


def one_case(**changes: object) -> Comparison:
    case = replace(every_outcome().cases[1], **changes)
    return replace(every_outcome(), cases=(case,), warnings=())


def test_counters_are_better_or_worse_and_those_of_one_side_are_said_first() -> None:
    counters = compare_counters(
        {"samples_per_second": 10.0, "kernels": 7.0}, {"samples_per_second": 12.0, "bytes": 8.0}
    )
    comparison = one_case(counters=counters)
    for text in (text_of(comparison), markdown_of(comparison), page_of(comparison)):
        assert "samples_per_second 10 -&gt; 12 (+20.0 %), better" in text.replace("->", "-&gt;")
        assert "kernels 7 in the base only" in text
        said = [text.index(f"counters of the {side} only: ") for side in ("base", "new")]
        assert max(said) < text.index("kernels 7 in the base only")
    found = json.loads(json_of(comparison))["cases"][0]["counters"]
    assert {c["name"]: (c["base"], c["new"]) for c in found if c["name"] != HEADLINE[0]} == {
        "kernels": (7.0, None),
        "bytes": (None, 8.0),
    }


def test_csv_has_every_figure_of_a_case_in_the_order_of_the_table() -> None:
    out = io.StringIO()
    print_comparison(every_outcome(), "csv", stream=out)
    header, first, *others = csv.reader(out.getvalue().splitlines())
    assert header[:5] == ["name", "outcome", "base_seconds", "new_seconds", "ratio"]
    assert header[5:] == ["low", "high", "p_value", "note"]
    assert first == [STEP, "slower", "0.09", "0.0945", "1.05", "1.04", "1.06", "0.0002", ""]
    assert len(others) == 8
    assert ["peer/x", "skipped", *[""] * 6, "skipped in the base: too large"] in others


def test_growth_only_fails_where_it_was_asked_for() -> None:
    comparison = one_case(outcome=Outcome.SAME)
    assert USUAL.status(comparison) == 0
    gate = Gate(fail_on_growth=True)
    assert gate.status(comparison) == 1
    # what fails is shown with its figures
    assert "counters got worse in 1 case." in text_of(comparison, gate)
    assert "allocations 29 -> 31" in text_of(comparison, gate)


def test_markdown_has_the_verdict_then_regressions_then_all() -> None:
    text = markdown_of(every_outcome())
    verdict, regressions, table = (
        text.index(part) for part in ("**Regression: 1 slower", "**Regressions**", "<details>")
    )
    assert verdict < regressions < table
    between = text[regressions:table]
    # LOSS is unclear, EMBEDDING was allowed by name
    for name, is_there in ((STEP, True), (BLOCK, True), (LOSS, False), (EMBEDDING, False)):
        assert (f"| `{name}`" in between) == is_there
    assert "🔴 missing" in between
    assert f"| `{NORM}`" in text[table:]
    assert "<summary>All 9 cases</summary>" in text
    # not broken by what programs said
    assert "crashed \\| &lt;b&gt;" in text
    said = one_case(outcome=Outcome.FAILED, note="first\nsecond  third")
    assert "| first second third" in markdown_of(said)


def test_markdown_stays_below_what_a_comment_may_have() -> None:
    cases = tuple(
        ComparedCase(f"{FFN}/{i}", Outcome.SLOWER if i % 2 else Outcome.SAME, ratio=1.1)
        for i in range(5000)
    )
    text = markdown_of(replace(every_outcome(), cases=cases))
    assert len(text) < 65_536
    assert "All 5000 cases" in text
    assert re.search(r"and \d+ more in the page\n\n</details>", text)
    assert "and 2480 more in the page" in text


# What a script of the page's own finds after it typed and unticked.
USE = """<script>
search.value = "FULL_STEP";
search.dispatchEvent(new Event("input"));
const found = [document.getElementById("shown").textContent];
search.value = "";
document.querySelector("input[value=same]").click();
found.push(document.getElementById("shown").textContent);
const wide = document.documentElement.scrollWidth > window.innerWidth;
document.body.insertAdjacentHTML("beforeend", `<pre id="use">${found} ${wide}</pre>`);
</script></body>"""


def test_what_is_written_holds_everything_and_the_page_works(
    tmp_path: Path, chromium: Chromium
) -> None:
    endless = replace(every_outcome().cases[0], interval=Interval(0.0, float("inf"), 0.95))
    comparison = replace(every_outcome(), cases=(endless, *every_outcome().cases[1:]))
    written = write_comparison(comparison, tmp_path / "a/b")
    assert sorted(path.suffix for path in written) == [".html", ".json", ".md"]
    text = (tmp_path / "a/b/comparison.json").read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert found["kind"] == "tiny_llama comparison"
    assert found["cases"][0]["outcome"] == "same"
    assert found["cases"][0]["interval"] == {"low": 0.0, "high": None, "confidence": 0.95}
    page = tmp_path / "a/b/comparison.html"
    text = page.read_text(encoding="utf-8")
    assert re.search(r"(src|href)=\"(?!data:)", text) is None, "needs another file"
    page.write_text(text.replace("</body>", USE), encoding="utf-8")
    with served(tmp_path) as address:
        opened = chromium.open(f"{address}/a/b/comparison.html")
    assert opened.console == []
    assert '<pre id="use">1,8 false</pre>' in opened.document
    assert opened.document.count("<tr data-outcome=") == 9
    assert "crashed | &lt;b&gt;" in opened.document


@pytest.mark.parametrize(
    ("name", "base", "new", "exact", "worse", "better"),
    [
        # the least growth of a deterministic counter is worse
        *(
            (name, 1000.0, 1000.0000001, True, True, False)
            for name in ("peak_memory_MiB", "allocations", "operators", "kernels", "model_flops")
        ),
        ("operators", 1000.0, 999.0, True, False, True),
        ("operators", 1000.0, 1000.0, True, False, False),
        # rates are worse when they fall, and not exact
        *(
            (name, 10.0, 9.0, False, True, False)
            for name in ("TFLOPS", "MFU_percent", "MFU_causal_percent", "GB_per_second")
        ),
        ("TFLOPS", 10.0, 11.0, False, False, True),
        ("max_rel_error", 1.0, 2.0, False, True, False),
        ("parameters", 10.0, 11.0, True, False, False),
        ("unknown", 10.0, 11.0, False, False, False),
    ],
)
def test_which_way_a_counter_is_worse(
    name: str, base: float, new: float, exact: bool, worse: bool, better: bool
) -> None:
    found = compare_counters({name: base}, {name: new})
    assert found == (CounterChange(name, base, new, exact, worse, better),)


def test_the_ones_that_matter_come_first_and_all_of_the_schema_are_known() -> None:
    base = {"operators": 1.0, "zeta": 1.0, "samples_per_second": 1.0, "kernels": 5.0}
    new = {"zeta": 1.0, "samples_per_second": 1.0, "operators": 1.0, "bytes": 1.0}
    changes = compare_counters(base, new)
    names = ["samples_per_second", "operators", "kernels", "bytes", "zeta"]
    assert [change.name for change in changes] == names
    lone = [change for change in changes if change.is_one_sided]
    assert [(c.base, c.new) for c in lone] == [(5.0, None), (None, 1.0)]
    assert not any(c.worse or c.better for c in lone)
    schema = json.loads((PROJECT / "results/schema.json").read_text(encoding="utf-8"))
    measured = schema["$defs"]["measured"]["properties"]
    counters = {n for n, rule in measured.items() if isinstance(rule, dict) and "type" in rule}
    assert len(counters) > 20
    assert counters - OWN_KEYS <= KINDS.keys()


def at(name: str, variant: str) -> str:
    return name.replace("/baseline/", f"/{variant}/")


def forward(name: str) -> str:
    return name.replace("forward_backward", "forward")


MODEL = STEP.replace("full_step/train", "model/forward_backward")
ROTARY = ATTENTION.replace("attention", "rotary")
OURS = "qkv+fused_norm"
# of a whole: what was measured, and how often the whole contains which of it, with four layers
PARTS: list[tuple[str, list[str], Mapping[str, int]]] = [
    (STEP, list(TIMES), {EMBEDDING: 1, ATTENTION: 4, FFN: 4, NORM: 9, LOSS: 1, OPTIMIZER: 1}),
    # the block stands in where a part of the layer is missing
    (STEP, [STEP, BLOCK, ATTENTION, NORM, EMBEDDING], {EMBEDDING: 1, BLOCK: 4, NORM: 1}),
    # a block, an attention and a model have parts of their pass
    (
        forward(BLOCK),
        [*map(forward, (FFN, ATTENTION, NORM)), FFN],
        {forward(FFN): 1, forward(ATTENTION): 1, forward(NORM): 2},
    ),
    (ATTENTION, [ROTARY], {ROTARY: 1}),
    (FFN, list(TIMES), {}),
    (MODEL, [FFN, LOSS, OPTIMIZER], {FFN: 4, LOSS: 1}),
    (
        MODEL.replace("forward_backward", "forward_loss"),
        [forward(FFN), forward(LOSS)],
        {forward(FFN): 4, forward(LOSS): 1},
    ),
    (forward(MODEL), [forward(FFN), forward(LOSS)], {forward(FFN): 4}),
    # a part that the variant leaves alone was measured as the baseline; others are not replaced
    (
        at(STEP, OURS),
        [at(ATTENTION, OURS), at(NORM, OURS), FFN, NORM, ATTENTION],
        {at(ATTENTION, OURS): 4, FFN: 4, at(NORM, OURS): 9},
    ),
    *(
        (at(STEP, variant), [ATTENTION, EMBEDDING], {EMBEDDING: 1})
        for variant in ("qkv", "fused", "optimized")
    ),
    # a checkpointed layer is only its block
    (at(STEP, "checkpoint"), [at(BLOCK, "checkpoint"), ATTENTION], {at(BLOCK, "checkpoint"): 4}),
    (at(BLOCK, "checkpoint"), [ATTENTION, FFN, NORM], {}),
]


@pytest.mark.parametrize(("whole", "measured", "expected"), PARTS)
def test_a_whole_is_its_parts(whole: str, measured: list[str], expected: Mapping[str, int]) -> None:
    name = parse_case_name(whole)
    assert name is not None
    found = parts_of(name, 4, measured)
    assert {part.case: part.count for part in found.measured} == expected
    known = {part.case for part in found.measured}
    assert known.isdisjoint(found.missing)
    if name.component == "full_step":
        # each part is there or said to be missing
        every = {case.split("/")[0] for case in (*known, *found.missing)}
        assert {"embedding", "rms_norm", "loss", "optimizer"} <= every
    if name.variant in {"qkv", "fused", "optimized"}:
        assert at(ATTENTION, name.variant) in found.missing


def blocks(seconds: float, slowdown: float, count: int, seed: int) -> list[BlockSummary]:
    logs = math.log1p(slowdown) + np.random.default_rng(seed).normal(0, 0.01, count)
    return [BlockSummary(x, 0.003, seconds, seconds * math.exp(x)) for x in logs]


def slowed(ffn: float, step: float, count: int = 20) -> dict[str, list[BlockSummary]]:
    change = {FFN: ffn, STEP: step}
    return {
        n: blocks(s, change.get(n, 0.0), count, seed) for seed, (n, s) in enumerate(TIMES.items())
    }


def test_a_slowdown_is_put_down_to_the_part_that_has_it() -> None:
    share = 4 * TIMES[FFN] / TIMES[STEP]
    found = attributions(slowed(0.05 / share, 0.05), layers_by_size())[STEP]
    assert found.culprit == found.parts[0].case == FFN
    assert found.parts[0].share == pytest.approx(1.0, abs=0.15)
    assert abs(found.unexplained) < 0.15
    outside = attributions(slowed(0.0, 0.05), layers_by_size())[STEP]
    assert outside.culprit is None
    assert outside.unexplained == pytest.approx(1.0, abs=0.2)
    # single blocks and steps that did not change are left out
    assert attributions(slowed(0.15, 0.05, count=1), layers_by_size()) == {}
    still = slowed(0.15, 0.05) | {STEP: [BlockSummary(0.0, 0.0, 0.09, 0.09)] * 5}
    assert STEP not in attributions(still, layers_by_size())


def test_a_training_step_is_its_phases() -> None:
    phases = {"step": (0.1, 0.1), "forward": (0.03, 0.0), "backward": (0.06, 1 / 6)}
    phases["optimizer"] = (0.01, 0.0)
    cases = {
        f"training/{name}": blocks(*of, 20, seed) for seed, (name, of) in enumerate(phases.items())
    }
    found = attributions(cases, {})["training/step"]
    assert (found.culprit, found.missing) == ("training/backward", ())


NAME = "ffn/forward_backward/baseline/tiny/f32/batch:8/seq:128"
ALPHA, LOOKS = 0.05, 1
# one thread, so that other work on the machine has a processor of its own
SHORT = ["--components=ffn", "--passes=forward_backward", "--device=cpu", "--threads=1"]
SHORT += [f"--alpha={ALPHA}", f"--looks={LOOKS}", "--pairs=4"]


@pytest.mark.parametrize(
    ("option", "status", "outcomes"),
    [
        ("--margin=0.2", 0, {"same", "unclear"}),
        # both sides are one program, so that nothing but the slowdown can be what fails; twice its
        # time is far beyond what other work on the machine makes of it
        ("--slow-new=^ffn/=1", 1, {"slower"}),
    ],
)
def test_a_build_compared_with_itself_passes_unless_slowed(
    option: str, status: int, outcomes: set[str], bench_program: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    found, cases = run(bench_program, bench_program, output, *SHORT, option, quick=False)
    assert found == document_of(output)["exit_status"] == status
    assert list(cases) == [NAME]
    assert cases[NAME]["blocks"] == fewest_blocks(1, ALPHA, LOOKS)
    assert cases[NAME]["outcome"] in outcomes
