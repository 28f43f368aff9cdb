"""What a comparison says: counters, attribution, and every output."""

from __future__ import annotations

import io
import json
import math
import re
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
    REGRESSIONS_ONLY,
    ComparedCase,
    Comparison,
    CounterChange,
    Gate,
    Interval,
    attributions,
    compare_counters,
    layers_by_size,
)
from tinyllama_tools.compare.output import (
    json_of,
    markdown_of,
    page_of,
    print_comparison,
    text_of,
    verdict_sentence,
    write_comparison,
)
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.names import OWN_KEYS, parse_case_name
from tinyllama_tools.data.parts import Parts, parts_of
from tinyllama_tools.stats.looks import BlockSummary
from tinyllama_tools.stats.verdicts import Outcome, fewest_blocks

__all__ = ["chromium"]
GOLDEN = Path(__file__).with_name("comparison.golden.txt")
ESCAPE = re.compile(r"\033\[(\d+)m")


def only(outcome: Outcome, count: int = 1) -> Comparison:
    cases = [ComparedCase(f"case {i}", outcome, ratio=1.2) for i in range(count)]
    return replace(every_outcome(), cases=tuple(cases), warnings=())


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
    assert expected.items() <= painted.items()
    # nobody is alarmed by what was allowed
    assert painted["failed (allowed)"] == "90"
    monkeypatch.setenv("NO_COLOR", "1")
    print_comparison(every_outcome(), stream=(plain := Terminal()))
    assert plain.getvalue() == file.getvalue()


@pytest.mark.parametrize(
    ("outcome", "gate", "status", "sentence"),
    [
        (Outcome.SLOWER, REGRESSIONS_ONLY, 1, "Regression: 2 slower of 2 cases; the worst is case"),
        (Outcome.MISSING, REGRESSIONS_ONLY, 1, "Regression: 2 missing of 2 cases."),
        (Outcome.SAME, REGRESSIONS_ONLY, 0, "No regression in 2 cases: 2 same."),
        (Outcome.FASTER, REGRESSIONS_ONLY, 0, "No regression in 2 cases: 2 faster."),
        (Outcome.UNCLEAR, REGRESSIONS_ONLY, 0, "No regression shown in 2 cases: 2 unclear."),
        (Outcome.ADDED, REGRESSIONS_ONLY, 0, "No regression shown in 2 cases: 2 added."),
        (Outcome.UNCLEAR, Gate(strict=True), 3, "No regression shown, but not every case has"),
        (Outcome.NO_VERDICT, REGRESSIONS_ONLY, 0, "No verdict on times: 2 no verdict."),
        (Outcome.NO_VERDICT, Gate(strict=True), 3, "No verdict on times"),
    ],
)
def test_sentence_status_and_last_line_agree(
    outcome: Outcome, gate: Gate, status: int, sentence: str
) -> None:
    comparison = only(outcome, 2)
    assert gate.status(comparison) == status
    assert verdict_sentence(comparison, gate).startswith(sentence)
    text, markdown = text_of(comparison, gate), markdown_of(comparison, gate)
    assert text.splitlines()[-2].startswith(sentence)
    assert text.splitlines()[-1].startswith(f"2 {outcome.value}; exit status {status}: ")
    assert markdown.startswith(f"**{sentence}")
    assert markdown.splitlines()[-1] == text.splitlines()[-1]
    assert json.loads(json_of(comparison, gate))["exit_status"] == status
    assert f"exit status {status}" in page_of(comparison, gate)


@pytest.mark.parametrize(
    ("outcome", "gate", "colour", "code"),
    [
        (Outcome.SLOWER, REGRESSIONS_ONLY, "red", "31"),
        (Outcome.SAME, REGRESSIONS_ONLY, "green", "32"),
        (Outcome.UNCLEAR, Gate(strict=True), "yellow", "33"),
        # nothing failed, and nothing was shown
        (Outcome.UNCLEAR, REGRESSIONS_ONLY, "grey", "90"),
    ],
)
def test_terminal_and_page_give_the_whole_one_colour(
    outcome: Outcome, gate: Gate, colour: str, code: str
) -> None:
    comparison = only(outcome, 2)
    assert text_of(comparison, gate, colour=True).splitlines()[-2].startswith(f"\033[{code}m")
    assert f'<header class="verdict {colour}">' in page_of(comparison, gate)


def test_counters_are_better_or_worse_and_those_of_one_side_are_said_first() -> None:
    counters = compare_counters(
        {"samples_per_second": 10.0, "kernels": 7.0}, {"samples_per_second": 12.0, "bytes": 8.0}
    )
    case = replace(every_outcome().cases[2], counters=counters)
    comparison = replace(every_outcome(), cases=(case,), warnings=())
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


def test_growth_only_fails_where_it_was_asked_for() -> None:
    grown = replace(every_outcome().cases[1], outcome=Outcome.SAME)
    comparison = replace(every_outcome(), cases=(grown,))
    assert REGRESSIONS_ONLY.status(comparison) == 0
    gate = Gate(fail_on_growth=True)
    assert gate.status(comparison) == 1
    assert "counters got worse in 1 case." in verdict_sentence(comparison, gate)
    # what fails is shown with its figures
    assert "allocations 29 -> 31" in text_of(comparison, gate)


def test_markdown_has_the_verdict_then_regressions_then_all() -> None:
    text = markdown_of(every_outcome())
    verdict, regressions, table = (
        text.index(part) for part in ("**Regression: 1 slower", "**Regressions**", "<details>")
    )
    assert verdict < regressions < table
    between = text[regressions:table]
    assert f"| `{STEP}`" in between
    assert "🔴 missing" in between
    assert f"| `{LOSS}`" not in between
    # allowed by name
    assert f"| `{EMBEDDING}`" not in between
    assert f"| `{NORM}`" in text[table:]
    assert "<summary>All 9 cases</summary>" in text


def test_markdown_is_not_broken_by_what_programs_said() -> None:
    text = markdown_of(every_outcome())
    assert "crashed \\| &lt;b&gt;" in text
    case = ComparedCase("x", Outcome.FAILED, note="first\nsecond  third")
    assert "| first second third" in markdown_of(replace(every_outcome(), cases=(case,)))


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


def test_json_holds_everything_and_no_infinity(tmp_path: Path) -> None:
    case = replace(every_outcome().cases[0], interval=Interval(0.0, float("inf"), 0.95))
    write_comparison(replace(every_outcome(), cases=(case,)), tmp_path / "a/b")
    text = (tmp_path / "a/b/comparison.json").read_text(encoding="utf-8")
    written = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert written["kind"] == "tiny_llama comparison"
    assert written["cases"][0]["outcome"] == "same"
    assert written["cases"][0]["interval"] == {"low": 0.0, "high": None, "confidence": 0.95}
    names = {path.name for path in (tmp_path / "a/b").iterdir()}
    assert names == {"comparison.json", "comparison.md", "comparison.html"}


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


def test_the_page_opens_without_errors_and_its_filters_work(
    tmp_path: Path, chromium: Chromium
) -> None:
    write_comparison(every_outcome(), tmp_path)
    page = tmp_path / "comparison.html"
    text = page.read_text(encoding="utf-8")
    assert re.search(r"(src|href)=\"(?!data:)", text) is None, "needs another file"
    page.write_text(text.replace("</body>", USE), encoding="utf-8")
    with served(tmp_path) as address:
        opened = chromium.open(f"{address}/comparison.html")
    assert opened.console == []
    assert '<pre id="use">1,8 false</pre>' in opened.document
    assert opened.document.count("<tr data-outcome=") == 9
    assert "crashed | &lt;b&gt;" in opened.document


def counter_change(name: str, base: float, new: float) -> CounterChange:
    (change,) = compare_counters({name: base}, {name: new})
    return change


@pytest.mark.parametrize("name", ["peak_memory_MiB", "allocations", "operators", "kernels"])
def test_the_least_growth_of_a_deterministic_counter_is_worse(name: str) -> None:
    change = counter_change(name, 1000.0, 1000.0000001)
    assert change.exact
    assert change.worse
    assert not change.better
    assert not counter_change(name, 1000.0, 999.0).worse
    assert counter_change(name, 1000.0, 999.0).better
    same = counter_change(name, 1000.0, 1000.0)
    assert not (same.worse or same.better)


@pytest.mark.parametrize("name", ["TFLOPS", "MFU_percent", "MFU_causal_percent", "GB_per_second"])
def test_rates_are_worse_when_they_fall_and_are_not_exact(name: str) -> None:
    assert counter_change(name, 10.0, 9.0).worse
    assert not counter_change(name, 10.0, 11.0).worse
    assert counter_change(name, 10.0, 11.0).better
    assert not counter_change(name, 10.0, 9.0).exact


def test_the_ones_that_matter_come_first_and_those_that_a_side_lacks_are_there() -> None:
    base = {"operators": 1.0, "zeta": 1.0, "samples_per_second": 1.0, "kernels": 5.0}
    new = {"zeta": 1.0, "samples_per_second": 1.0, "operators": 1.0, "bytes": 1.0}
    changes = {change.name: change for change in compare_counters(base, new)}
    assert list(changes) == ["samples_per_second", "operators", "kernels", "bytes", "zeta"]
    assert [name for name, change in changes.items() if change.is_one_sided] == ["kernels", "bytes"]
    lost, found = changes["kernels"], changes["bytes"]
    assert (lost.base, lost.new) == (5.0, None)
    assert (found.base, found.new) == (None, 1.0)
    assert not (lost.worse or lost.better or found.worse or found.better)


def test_every_counter_of_the_schema_is_known() -> None:
    schema = json.loads((PROJECT / "results/schema.json").read_text(encoding="utf-8"))
    measured = schema["$defs"]["measured"]["properties"]
    counters = {n for n, rule in measured.items() if isinstance(rule, dict) and "type" in rule}
    assert len(counters) > 20
    assert counters - OWN_KEYS <= KINDS.keys()


LAYERS = 4


def counts(parts: Parts) -> dict[str, int]:
    return {part.case: part.count for part in parts.measured}


def parts(whole: str, measured: list[str], layers: int | None = LAYERS) -> Parts:
    name = parse_case_name(whole)
    assert name is not None
    return parts_of(name, layers, measured)


def at(name: str, variant: str) -> str:
    return name.replace("/baseline/", f"/{variant}/")


def blocks(
    seconds: float, slowdown: float, generator: np.random.Generator, count: int = 20
) -> list[BlockSummary]:
    logs = math.log1p(slowdown) + generator.normal(0, 0.01, count)
    return [BlockSummary(x, 0.003, seconds, seconds * math.exp(x)) for x in logs]


def slowed(ffn: float, step: float, count: int = 20) -> dict[str, list[BlockSummary]]:
    generator = np.random.default_rng(7)
    change = {FFN: ffn, STEP: step}
    return {n: blocks(s, change.get(n, 0.0), generator, count) for n, s in TIMES.items()}


def test_a_step_is_its_layers_and_what_is_around_them() -> None:
    found = parts(STEP, list(TIMES))
    assert counts(found) == {
        EMBEDDING: 1,
        ATTENTION: LAYERS,
        FFN: LAYERS,
        NORM: 2 * LAYERS + 1,
        LOSS: 1,
        OPTIMIZER: 1,
    }
    assert found.missing == ()


def test_the_block_stands_in_where_a_part_of_the_layer_is_missing() -> None:
    measured = [STEP, BLOCK, ATTENTION, NORM, EMBEDDING]
    found = parts(STEP, measured)
    assert counts(found) == {EMBEDDING: 1, BLOCK: LAYERS, NORM: 1}
    assert found.missing == (LOSS, OPTIMIZER)


def test_a_block_and_an_attention_have_parts_of_their_pass() -> None:
    forward = [name.replace("forward_backward", "forward") for name in (FFN, ATTENTION, NORM)]
    block = BLOCK.replace("forward_backward", "forward")
    assert counts(parts(block, [*forward, FFN])) == dict(zip(forward, (1, 1, 2), strict=True))
    rotary = ATTENTION.replace("attention", "rotary")
    assert counts(parts(ATTENTION, [rotary])) == {rotary: 1}
    assert parts(FFN, list(TIMES)) == Parts((), ())


def test_the_parts_of_a_model() -> None:
    model = STEP.replace("full_step/train", "model/forward_backward")
    assert OPTIMIZER not in counts(parts(model, list(TIMES)))
    assert counts(parts(model, list(TIMES)))[LOSS] == 1
    with_loss = model.replace("forward_backward", "forward_loss")
    forward = [name.replace("forward_backward", "forward") for name in (FFN, LOSS)]
    assert counts(parts(with_loss, forward)) == dict(zip(forward, (LAYERS, 1), strict=True))
    logits = model.replace("forward_backward", "forward")
    assert counts(parts(logits, forward)) == {forward[0]: LAYERS}


def test_a_part_that_the_variant_leaves_alone_was_measured_as_the_baseline() -> None:
    step = at(STEP, "qkv+fused_norm")
    measured = [at(ATTENTION, "qkv+fused_norm"), at(NORM, "qkv+fused_norm"), FFN, NORM, ATTENTION]
    assert counts(parts(step, measured)) == {
        at(ATTENTION, "qkv+fused_norm"): LAYERS,
        FFN: LAYERS,
        at(NORM, "qkv+fused_norm"): 2 * LAYERS + 1,
    }


def test_a_part_that_the_variant_changes_is_not_replaced_by_the_baseline() -> None:
    for variant in ("qkv", "fused", "optimized"):
        found = parts(at(STEP, variant), [ATTENTION, EMBEDDING])
        assert counts(found) == {EMBEDDING: 1}
        assert at(ATTENTION, variant) in found.missing


def test_a_checkpointed_layer_is_only_its_block() -> None:
    step, block = at(STEP, "checkpoint"), at(BLOCK, "checkpoint")
    assert counts(parts(step, [block, ATTENTION, FFN])) == {block: LAYERS}
    assert parts(block, [ATTENTION, FFN, NORM]) == Parts((), ())


def test_a_slowdown_of_the_ffn_is_put_down_to_it() -> None:
    share = 4 * TIMES[FFN] / TIMES[STEP]
    found = attributions(slowed(0.05 / share, 0.05), layers_by_size())[STEP]
    assert found.culprit == FFN
    assert found.parts[0].case == FFN
    assert found.parts[0].share == pytest.approx(1.0, abs=0.15)
    assert abs(found.unexplained) < 0.15


def test_a_slowdown_outside_all_parts_has_no_culprit() -> None:
    found = attributions(slowed(0.0, 0.05), layers_by_size())[STEP]
    assert found.culprit is None
    assert found.unexplained == pytest.approx(1.0, abs=0.2)


def test_single_blocks_and_steps_that_did_not_change_are_left_out() -> None:
    assert attributions(slowed(0.15, 0.05, count=1), layers_by_size()) == {}
    cases = slowed(0.15, 0.05)
    cases[STEP] = [BlockSummary(0.0, 0.0, 0.09, 0.09)] * 5
    assert STEP not in attributions(cases, layers_by_size())


def test_a_training_step_is_its_phases() -> None:
    generator = np.random.default_rng(3)
    cases = {
        "training/step": blocks(0.1, 0.1, generator),
        "training/forward": blocks(0.03, 0.0, generator),
        "training/backward": blocks(0.06, 1 / 6, generator),
        "training/optimizer": blocks(0.01, 0.0, generator),
    }
    found = attributions(cases, {})["training/step"]
    assert found.culprit == "training/backward"
    assert found.missing == ()


NAME = "ffn/forward_backward/baseline/tiny/f32/batch:8/seq:128"
ALPHA, LOOKS = 0.05, 1
# one thread, so that other work on the machine has a processor of its own
SHORT = ["--components=ffn", "--passes=forward_backward", "--device=cpu", "--threads=1"]
SHORT += [f"--alpha={ALPHA}", f"--looks={LOOKS}", "--pairs=4"]
# far beyond what other work on the machine makes of it
TWICE_ITS_TIME = "--slow-new=^ffn/=1"


def judged(status: int, cases: dict[str, dict[str, object]], output: Path) -> dict[str, object]:
    """The case, once it is sure that it was measured and judged at its only look."""
    assert list(cases) == [NAME]
    case = cases[NAME]
    assert document_of(output)["exit_status"] == status
    assert case["blocks"] == fewest_blocks(1, ALPHA, LOOKS)
    return case


def test_a_build_compared_with_itself_passes(bench_program: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    status, cases = run(bench_program, bench_program, output, *SHORT, "--margin=0.2", quick=False)
    assert status == 0
    assert judged(status, cases, output)["outcome"] in {"same", "unclear"}


def test_a_build_slowed_on_purpose_fails(bench_program: Path, tmp_path: Path) -> None:
    """Both sides are one program, so that nothing but the slowdown can be what fails."""
    output = tmp_path / "out"
    slow = [*SHORT, TWICE_ITS_TIME]
    status, cases = run(bench_program, bench_program, output, *slow, quick=False)
    assert status == 1
    assert judged(status, cases, output)["outcome"] == "slower"
