"""What people and programs read of a comparison, all from one value."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from stored_samples import EMBEDDING, FFN, LOSS, NORM, STEP, every_outcome

from chromium import Chromium, chromium, served
from tinyllama_tools.compare.comparison import (
    HEADLINE,
    REGRESSIONS_ONLY,
    ComparedCase,
    Comparison,
    Gate,
    Interval,
    compare_counters,
)
from tinyllama_tools.compare.output import (
    change_text,
    json_of,
    markdown_of,
    page_of,
    print_comparison,
    seconds_text,
    text_of,
    value_text,
    verdict_sentence,
    write_comparison,
)
from tinyllama_tools.stats.verdicts import Outcome

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


def test_the_columns_of_the_text_are_aligned() -> None:
    lines = text_of(every_outcome()).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("case "))
    header, rows = lines[start], lines[start + 1 : start + 10]
    verdict = header.index("verdict")
    words = {row[verdict:].split("  ")[0] for row in rows}
    assert words == {o.value for o in Outcome if o is not Outcome.FAILED} | {"failed (allowed)"}


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


def test_numbers_as_people_read_them() -> None:
    assert [seconds_text(s) for s in (None, 2.5, 0.0945, 5e-4, 2e-8)] == [
        *("-", "2.5 s", "94.5 ms", "500 us"),
        "20 ns",
    ]
    assert [change_text(r) for r in (None, 1.0, 0.99996, 1.051, 0.5, 25.0)] == [
        *("-", "+0.0 %", "+0.0 %", "+5.1 %", "-50.0 %"),
        "25x",
    ]
    assert [value_text(v) for v in (1234567.0, 12.34567, 1e-7)] == ["1,234,567", "12.346", "1e-07"]


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


def test_the_page_shows_where_an_interval_lies() -> None:
    page = page_of(every_outcome())
    # the widest interval ends at -22 %: log(0.78) from the middle is the left end
    assert '<i style="left:0.0%' in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
