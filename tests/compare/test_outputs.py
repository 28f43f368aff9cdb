"""What a comparison says: counters, attribution, and every output."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from samples import (
    ATTENTION,
    BLOCK,
    EMBEDDING,
    FFN,
    LOSS,
    NORM,
    OPTIMIZER,
    STEP,
    every_outcome,
)

from chromium import PageOpener
from tinyllama_tools.compare.comparison import (
    KINDS,
    ComparedCase,
    CounterChange,
    compare_counters,
    exit_status,
)
from tinyllama_tools.compare.output import (
    colour_of,
    in_order,
    json_of,
    markdown_of,
    page_of,
    print_comparison,
    text_of,
    write_comparison,
)
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.names import OWN_KEYS
from tinyllama_tools.stats.rank_tests import Interval
from tinyllama_tools.stats.verdicts import Outcome

ORDERED = [STEP, BLOCK, LOSS, OPTIMIZER, FFN, NORM, ATTENTION, "peer/x", EMBEDDING]


def test_every_output_has_the_same_rows_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Text, JSON, Markdown and the page, of one comparison."""
    whole = every_outcome()
    shown = {}
    for form in ("text", "json", "md"):
        print_comparison(whole, form)
        shown[form] = capsys.readouterr().out
    lines = shown["text"].splitlines()
    rows = lines[lines.index("") + 2 :]
    assert [row.split()[0] for row in rows[: len(ORDERED)]] == ORDERED
    assert re.split(r"  +", rows[0]) == [
        STEP, "90 ms", "94.5 ms", "+5.0 %", "[+4.0 %, +6.0 %]", "slower", "23",
    ]  # fmt: skip
    for said in (
        "samples_per_second 88.9 -> 84.7 (-4.7 %), worse",
        "p = 0.0002,",
        "4 x ffn/forward_backward: +4.5 ms, 93 % of the change [85 %, 101 %]",
        "not explained: 5 %; parts not measured: loss/forward_backward",
        "counters of the base only: kernels (cases: 1)",
    ):
        texts = (shown["text"], html.unescape(shown["md"]), html.unescape(page_of(whole)))
        assert all(said in text for text in texts)
    assert "an answer needs about 4 min more" in shown["text"]
    assert lines[-1].startswith("1 slower, 1 faster, 1 same, 1 unclear, 1 no verdict, 1 missing")
    endless = replace(whole.cases[0], interval=Interval(0.0, float("inf"), 0.95))
    text = json_of(replace(whole, cases=(endless, *whole.cases[1:])))
    document = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert json.loads(shown["json"])["cases"][1:] == document["cases"][1:]
    assert document["kind"] == "tiny_llama comparison"
    # of the five that both sides have
    ratios = [1.0, 1.05, 0.8, 1.03, 1.02]
    assert document["geometric_mean_ratio"] == pytest.approx(math.prod(ratios) ** (1 / 5))
    assert document["cases"][0]["interval"] == {"low": 0.0, "high": None, "confidence": 0.95}
    assert document["cases"][1]["attribution"]["culprit"] == FFN
    assert document["cases"][1]["counters"][2] == {
        **{"name": "allocations", "base": 29, "new": 31},
        **{"exact": True, "worse": True},
    }

    text = shown["md"]
    regressions, table = text.index("**Regressions**"), text.index("<details>")
    # EMBEDDING was allowed by name
    assert {n for n in ORDERED if f"| `{n}`" in text[regressions:table]} == {STEP, BLOCK}
    assert all(f"| `{n}`" in text[table:] for n in ORDERED)
    # not broken by what programs said
    assert "crashed \\| &lt;b&gt; then died" in text
    # the largest change comes first
    changes = [(Outcome.SLOWER, 1.1), (Outcome.SLOWER, 1.3), (Outcome.FASTER, 0.9)]
    cases = [ComparedCase("case", *change) for change in (*changes, (Outcome.FASTER, 0.7))]
    assert [case.ratio for case in in_order(cases)] == [1.3, 1.1, 0.7, 0.9]


@pytest.mark.parametrize(
    ("outcome", "strict", "status", "colour"),
    [
        (Outcome.SLOWER, False, 1, "red"),
        (Outcome.MISSING, True, 1, "red"),
        (Outcome.SAME, True, 0, "green"),
        # nothing failed, and nothing was shown
        (Outcome.UNCLEAR, False, 0, "grey"),
        (Outcome.ADDED, True, 0, "grey"),
        (Outcome.UNCLEAR, True, 3, "yellow"),
        (Outcome.NO_VERDICT, True, 3, "yellow"),
    ],
)
def test_status_colour_and_headline_of_all_outputs_agree(
    outcome: Outcome, strict: bool, status: int, colour: str
) -> None:
    cases = tuple(ComparedCase(f"case {i}", outcome, ratio=1.2) for i in range(2))
    assert exit_status(cases, strict, fail_on_growth=True) == status
    found = replace(every_outcome(), cases=cases, exit_status=status)
    assert colour_of(found) == colour
    last = text_of(found).splitlines()[-1]
    assert last.startswith(f"2 {outcome.value}; exit status {status}: ")
    assert markdown_of(found).startswith(f"**{last}**")
    assert json.loads(json_of(found))["exit_status"] == status
    assert f'<header class="verdict {colour}">\n<h1>{last}</h1>' in page_of(found)
    # growth only fails where it was asked for
    (step,) = [replace(c, outcome=Outcome.SAME) for c in every_outcome().cases if c.name == STEP]
    assert [exit_status([step], False, fail_on_growth=asked) for asked in (False, True)] == [0, 1]
    empty = replace(found, cases=())
    for output in (text_of, markdown_of, page_of, json_of):
        assert output(empty)
    # what was allowed by name fails nothing, whatever grew
    allowed = [replace(case, allowed=True) for case in (*cases, step)]
    assert exit_status(allowed, strict=strict, fail_on_growth=True) == 0


def test_a_comment_is_no_longer_than_it_may_be() -> None:
    cases = tuple(
        ComparedCase(f"{FFN}/{i}", Outcome.SLOWER if i % 2 else Outcome.SAME, ratio=1.1)
        for i in range(5000)
    )
    text = markdown_of(replace(every_outcome(), cases=cases))
    assert len(text) < 65_536
    (more,) = re.findall(r"and (\d+) more in the page\n\n</details>", text)
    table = text[text.index("<details>") :]
    assert table.count("\n| `") == 5000 - int(more) == 150
    assert "and 2480 more in the page" in text


def test_what_is_written_is_whole_and_the_page_works(tmp_path: Path, open_page: PageOpener) -> None:
    written = write_comparison(every_outcome(), tmp_path / "a/b")
    assert sorted(path.suffix for path in written) == [".html", ".json", ".md"]
    assert sorted(written) == sorted((tmp_path / "a/b").iterdir())
    page = tmp_path / "a/b/comparison.html"
    text = page.read_text(encoding="utf-8")
    assert re.search(r"(src|href)=\"(?!data:)", text) is None, "needs another file"
    opened = open_page(page)
    assert opened.said == []
    assert not opened.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    assert opened.page.locator("#cases tbody tr").count() == 9
    assert "crashed | &lt;b&gt; then died" in opened.document

    # all bars have the scale of the widest interval, whose lower end is 0.78
    def place(ratio: float) -> float:
        return 50 * (1 - math.log(ratio) / math.log(0.78))

    assert f'<i style="left:{place(1.04):.2f}%;width:3.8' in text
    assert f'<b style="left:{place(1.05):.2f}%">' in text
    assert '<i style="left:0.0%;' in text


def test_counters_their_direction_and_order_and_that_all_of_the_schema_are_known() -> None:
    for name, before, after, exact, worse in (
        # the least growth of a deterministic counter is worse
        ("peak_memory_MiB", 1000.0, 1000.0000001, True, True),
        ("operators", 1000.0, 999.0, True, False),
        ("operators", 1000.0, 1000.0, True, False),
        # rates are worse when they fall, and not exact
        ("TFLOPS", 10.0, 9.0, False, True),
        ("TFLOPS", 10.0, 11.0, False, False),
        ("max_rel_error", 1.0, 2.0, False, True),
        ("parameters", 10.0, 11.0, True, False),
        ("unknown", 10.0, 11.0, False, False),
    ):
        found = compare_counters({name: before}, {name: after})
        assert found == (CounterChange(name, before, after, exact, worse),)
        assert not compare_counters({name: before}, {name: after}, [name])[0].exact
    base = {"operators": 1.0, "zeta": 1.0, "samples_per_second": 1.0, "kernels": 5.0}
    changes = compare_counters(base, {"zeta": 1.0, "bytes": 1.0, "operators": 1.0})
    names = ["samples_per_second", "operators", "kernels", "bytes", "zeta"]
    assert [change.name for change in changes] == names
    assert [c.name for c in changes if c.is_one_sided] == [names[0], "kernels", "bytes"]
    assert compare_counters(base, {}) == ()
    schema = json.loads((PROJECT / "results/schema.json").read_text(encoding="utf-8"))
    measured = schema["$defs"]["measured"]["properties"]
    counters = {n for n, rule in measured.items() if isinstance(rule, dict) and "type" in rule}
    assert len(counters) > 20
    assert counters - OWN_KEYS <= KINDS.keys()
