"""results/CALIBRATION.md: what a calibration found, from its document alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tinyllama_tools.calibrate.rates import (
    BROKEN,
    HELD,
    IN_ALL,
    NOT_SHOWN,
    SIMULATED,
    TEN_MINUTES,
)
from tinyllama_tools.calibrate.runs import ENOUGH_RUNS
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import duration, markdown_table
from tinyllama_tools.data.names import parse_case_name


def small_percent(value: float) -> str:
    """`0.092 %`: two digits, however small."""
    return f"{100 * value:.2g} %"


def about(share: Json) -> str:
    """`3 of 10,000`."""
    return f"{share['count']:,} of {share['trials']:,}"


def share_words(share: Json) -> str:
    """`97.0 % (95.1 to 98.3)`; two-sided, 95 %."""
    low, high = share["interval_95"]
    return f"{100 * share['share']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def seconds_words(seconds: float | None) -> str:
    """`140 s`; `never` where it was not reached."""
    return "never" if seconds is None else f"{seconds:.0f} s"


def case_words(name: str) -> str:
    """`ffn forward_backward`; the name itself where it is of no known form."""
    axes = parse_case_name(name)
    return f"{axes.component} {axes.pass_name}" if axes else name


WANTED_SHARE = 0.95
ENOUGH_TRIES = 20
REACHED, MISSED = "reached", "not reached"
# a fraction that slowed the new side, and the words and key of the time it has to be found in
DETECTIONS = (
    (0.05, "10 minutes", "found_in_10_minutes"),
    (0.10, "5 minutes", "found_in_5_minutes"),
)


def _target(target: str, measured: str, reached: str) -> Json:
    return {"target": target, "measured": measured, "reached": reached}


def _of_share(share: Mapping[str, Any], *, is_shown: bool) -> str:
    if not is_shown:
        return NOT_SHOWN
    return REACHED if share["share"] >= WANTED_SHARE else MISSED


def _false_alarm_targets(document: Json) -> list[Json]:
    allowed = small_percent(document["rule"]["alpha"])
    return [
        _target(
            f"false alarms of families, {row['data']}, {row['sides']}: bound at most {allowed}",
            f"{about(row['false'])}, bound {small_percent(row['false']['upper_bound_95'])}, from "
            f"{row['blocks']} blocks",
            {HELD: REACHED, NOT_SHOWN: NOT_SHOWN}.get(row["standing"], MISSED),
        )
        for row in document["false_alarms"]
        # scenarios count together
        if not row["data"].startswith(SIMULATED) or row is _simulated_together(document)
    ]


def _simulated_together(document: Json) -> Json | None:
    found = [row for row in document["false_alarms"] if row["data"].startswith(SIMULATED)]
    return found[-1] if found else None


def _run_targets(rows: Sequence[Json]) -> list[Json]:
    target = f"no `slower` in at least {ENOUGH_RUNS} real A/A runs"
    quiet = [row for row in rows if not row["slowdown"]]
    found = [
        _target(
            target,
            f"{about(row['slower'])}, {sum(row['without_verdict'].values())} of them without a "
            f"verdict: {row['options']}",
            MISSED
            if row["slower"]["count"]
            else (REACHED if row["standing"] == HELD else NOT_SHOWN),
        )
        for row in quiet
    ] or [_target(target, "none", NOT_SHOWN)]
    slowed = [row for row in rows if row["slowdown"]]
    target = f"at least {ENOUGH_TRIES} real slowed runs, `slower` in {WANTED_SHARE:.0%}"
    return found + (
        [
            _target(
                f"{target}: {row['slowdown']}",
                share_words(row["slower"]),
                _of_share(row["slower"], is_shown=row["runs"] >= ENOUGH_TRIES),
            )
            for row in slowed
        ]
        or [_target(target, "none", NOT_SHOWN)]
    )


def _detection_targets(rows: Sequence[Json], margin: float) -> list[Json]:
    """Of the case that is found least often: the target is for each."""
    found: list[Json] = []
    for slowdown, minutes, key in DETECTIONS:
        for row in rows:
            if row["slowdown"] != slowdown or row["margin"] != margin:
                continue
            worst = min(row["cases"], key=lambda case: case[key]["share"])
            found.append(
                _target(
                    f"{slowdown:.0%} slower ({row['how']}) found in {WANTED_SHARE:.0%} within "
                    f"{minutes}, every case",
                    f"all {share_words(row['all'][key])}; least: {case_words(worst['case'])} "
                    f"{share_words(worst[key])}",
                    _of_share(worst[key], is_shown=row["is_shown"]),
                )
            )
    return found


def _attribution_targets(rows: Sequence[Json]) -> list[Json]:
    target = f"a full step 5 % slower found and attributed in {WANTED_SHARE:.0%}"
    return [
        _target(
            f"{target}: inside {row['part']}",
            f"{share_words(row['attributed'])}, from {row['blocks']} blocks",
            _of_share(row["attributed"], is_shown=row["is_shown"]),
        )
        for row in rows
    ] or [_target(target, "none", NOT_SHOWN)]


def target_rows(document: Json) -> list[Json]:
    """Of a calibration's document: `target`, `measured`, `reached`."""
    return [
        *_false_alarm_targets(document),
        *_run_targets(document["runs"]),
        *_detection_targets(document["detection"], document["rule"]["margin"]),
        *_attribution_targets(document["attribution"]),
    ]


CASE_BY_CASE = (0.05, 0.10)


def detection_section(rows: Sequence[Json]) -> list[str]:
    """All cases together at every slowdown, then case by case at 5 and 10 %."""
    header = (
        "slowdown", "how", "margin", "found in 5 min", "found in 10 min", "`unclear`", "`same`",
        "half found after", "95 % found after", "blocks (needed)", "",
    )  # fmt: skip
    cells = (
        (
            f"{row['slowdown']:.0%}",
            row["how"],
            f"{row['margin']:.0%}",
            share_words(row["all"]["found_in_5_minutes"]),
            _in_ten_minutes(row["all"], row),
            share_words(row["all"]["unclear"]),
            share_words(row["all"]["same"]),
            seconds_words(row["all"]["median_seconds"]),
            seconds_words(row["all"]["seconds_for_95_percent"]),
            f"{min(row['blocks'])} ({row['blocks_needed']})",
            shown_words(row),
        )
        for row in rows
    )
    lines = ["## Detection", "", *markdown_table(header, cells), ""]
    drawings = dict.fromkeys(f"{row['how']}: {row['drawing']}" for row in rows)
    lines += [f"How blocks are drawn: {'; '.join(drawings)}.", ""]
    for slowdown in CASE_BY_CASE:
        lines += [f"Case by case at {slowdown:.0%}:", ""]
        for row in rows:
            if row["slowdown"] == slowdown:
                lines += _case_by_case(row)
    return lines


def shown_words(row: Json) -> str:
    """Empty, or that the row's blocks are too few to show anything."""
    return "" if row["is_shown"] else f"**{NOT_SHOWN}**"


def _in_ten_minutes(share: Json, row: Json) -> str:
    """Nothing where tries ended earlier."""
    if row["budget_seconds"] < TEN_MINUTES:
        return "-"
    return share_words(share["found_in_10_minutes"])


def _case_by_case(row: Json) -> list[str]:
    header = (
        f"case, {row['how']}", "true change", "found in 5 min", "found in 10 min", "`unclear`",
        "half found after", "95 % found after",
    )  # fmt: skip
    cells = (
        (
            case_words(case["case"]),
            f"{100 * case['true_change']:+.1f} %",
            share_words(case["found_in_5_minutes"]),
            _in_ten_minutes(case, row),
            share_words(case["unclear"]),
            seconds_words(case["median_seconds"]),
            seconds_words(case["seconds_for_95_percent"]),
        )
        for case in row["cases"]
    )
    return [*markdown_table(header, cells), ""]


def attribution_section(rows: Sequence[Json]) -> list[str]:
    """A full step that became slower inside one part."""
    title = "## Attribution of a slower full step"
    if not rows:
        return [title, "", "None recorded: `scripts/compare calibrate --record-slowed TIME`.", ""]
    header = (
        "slowed inside",
        "full step changed by",
        "found",
        "found and attributed",
        "blamed",
        "blocks (needed)",
        "",
    )
    cells = (
        (
            row["part"],
            f"{100 * row['change']:+.1f} %",
            share_words(row["found"]),
            share_words(row["attributed"]),
            ", ".join(f"{name} {count}" for name, count in row["culprits"].items()) or "nobody",
            f"{row['blocks']} ({row['blocks_needed']})",
            shown_words(row),
        )
        for row in rows
    )
    return [title, "", *markdown_table(header, cells), "", f"Blocks: {rows[0]['drawing']}.", ""]


SHORT_COMMIT = 10


def runs_section(rows: Sequence[Json]) -> list[str]:
    """A part for every group of runs of the same slowdown, options and commit."""
    lines = ["## Whole runs of `scripts/compare run`", ""]
    if not rows:
        return [*lines, "None yet: `scripts/compare calibrate --runs N`.", ""]
    for row in rows:
        lines += _group(row)
    return lines


def _group(row: Json) -> list[str]:
    what = f"Slowed: {row['slowdown']}" if row["slowdown"] else "A/A"
    where = f"{row['device']}, {row['threads']} threads, commit {row['git_commit'][:SHORT_COMMIT]}"
    lines = [
        f"{what}; options `{row['options'] or 'none'}`; budget {duration(row['budget_seconds'])} a "
        f"run, {duration(row['seconds'])} in all; {where}.",
        "",
    ]
    slower, either = row["slower"], row["slower_or_faster"]
    if row["slowdown"]:
        lines += [f"`slower` in {about(slower)} runs.", ""]
    else:
        no = f"no `slower` in {slower['trials']} runs"
        words = no if slower["count"] == 0 else f"`slower` in {about(slower)} runs"
        lines += [
            f"{words}, bound {small_percent(slower['upper_bound_95'])}; `slower` or `faster` in "
            f"{about(either)}, bound {small_percent(either['upper_bound_95'])} (Clopper-Pearson, "
            f"one-sided, 95 %). {row['standing']}: `held` wants {ENOUGH_RUNS} runs with verdicts.",
            "",
        ]
    for reason, count in row["without_verdict"].items():
        lines += [f"Without a verdict, and counted all the same: {count}: {reason}", ""]
    lines += [*_by_case(row["by_case"]), ""]
    return [*lines, *_culprit_lines(row["culprits"])]


def _by_case(cases: Mapping[str, Mapping[str, int]]) -> list[str]:
    outcomes = list(dict.fromkeys(word for found in cases.values() for word in found))
    rows = (
        (case_words(name), *(str(found.get(word, 0)) for word in outcomes))
        for name, found in cases.items()
    )
    return markdown_table(("case", *outcomes), rows)


def _culprit_lines(culprits: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for whole, found in culprits.items():
        counts = ", ".join(f"{case_words(name)} {count}" for name, count in found.items())
        yield from (f"`{case_words(whole)}` found slower, attributed to: {counts}.", "")


INTRODUCTION = """\
How often `scripts/compare run` errs, and what it finds, measured on one machine. A family is all
cases of one comparison; a false alarm is a family of which any case is called `slower` or `faster`
although both sides are the same program. `scripts/compare calibrate` measures and writes this page.
"""
NOTES = """\
## How to read it

- Intervals are exact binomial ones (Clopper-Pearson): two-sided at 95 % in brackets, the bound
  one-sided at 95 %. They count draws; draws from one recording share its blocks, so they say what
  the method does on this machine as recorded, and not on every machine.
- A block is a fresh pair of processes with all cases in it. Blocks are drawn whole: what disturbs
  several cases at once stays together. A family with more cases than were recorded has the recorded
  cases several times over, with other blocks each time.
- `as measured`: the side that was the base stays the base. `tossed anew`: of each block, chance
  decides which side is called the base. That is as good an A/A block, and it makes the hypothesis
  true exactly, whatever the recording as a whole happened to favour.
- Everything is stated for the level that `compare run` uses. The earlier half of the A/A blocks
  checks it; false alarms and detection are stated for the later half.
- `in order of time`: windows of consecutive blocks from a random start, so that what lasted for
  several blocks is in a family as it was. The autocorrelation of a block's log-ratio with the next
  one's says how much lasts; 0 is none.
- `not shown` stands where a family could not have different blocks everywhere, however good the
  figures are: blocks drawn several times show less than they seem to.
- Simulated families have a fresh simulation for every 50 of them at most.
- Arithmetical slowdowns multiply the new side's times; injected ones are recordings of a program
  that really takes longer, by spinning for that fraction of each iteration (`--slow`). In a
  detection family one case is slow and all others are A/A; the full step, which takes longer than
  all of them, is not in that family. Time is what the blocks of the cases that are still open cost,
  with the proofs before them.
- For attribution a part spins, and the full step by what its layers' parts would add to it, as the
  A/A blocks say. So it shows whether a part's share is found in measured times, and not that a slow
  part makes a step slower.
- A change within the margin is `same`, and rightly so: 2 % is not called slower at a margin of 3 %.
"""


def head_section(document: Json) -> list[str]:
    """Machine, date, commit, rule, and what was recorded."""
    context, meta, rule = document.get("context", {}), document["meta"], document["rule"]
    device = context.get("device", {})
    machine = f"{device.get('name', 'unknown')} ({device.get('architecture', 'unknown')})"
    rows = [
        ("machine", f"{machine}, {context.get('num_cpus', '?')} processors" if context else "none"),
        ("date", meta["date"]),
        ("commit", meta["commit"] + (", changed" if meta["dirty"] else "")),
        ("threads", str(context.get("threads", "-"))),
        (
            "rule",
            f"alpha {rule['alpha']:g} a family, margin {rule['margin']:.0%}, {rule['looks']} looks",
        ),
        ("command", f"`{meta['command']}`"),
    ]
    return ["# Calibration", "", INTRODUCTION, *markdown_table(("", ""), rows), ""]


def targets_section(rows: Sequence[Json]) -> list[str]:
    """What had to be reached, and what was."""
    header = ("target", "measured", "reached")
    cells = ((row["target"], row["measured"], row["reached"]) for row in rows)
    return ["## Targets", "", *markdown_table(header, cells), ""]


def recordings_section(rows: Sequence[Json]) -> list[str]:
    """A row a recording."""
    header = ("recording", "blocks", "cases", "pairs and slice", "hours", "a block", "started")
    cells = (
        (
            row["name"],
            f"{row['blocks']}" + (f" ({row['left_out']} left out)" if row["left_out"] else ""),
            str(len(row["cases"])),
            f"{row['pairs']} x {1000 * row['slice_seconds']:g} ms",
            f"{row['hours']:.2f}",
            f"{row['block_seconds']:.1f} s",
            row["started"][0],
        )
        for row in rows
    )
    return ["## What was recorded", "", *markdown_table(header, cells), ""]


def false_alarm_section(document: Json) -> list[str]:
    """Families with a false verdict, on simulated and recorded data."""
    header = (
        "data", "sides", "blocks (needed)", "families", "with a false alarm", "bound", "allowed",
        "standing", "`unclear` cases",
    )  # fmt: skip
    cells = (_false_alarm_cells(row) for row in document["false_alarms"])
    lines = ["## False alarms", "", *markdown_table(header, cells), ""]
    recorded = [row for row in document["false_alarms"] if not row["data"].startswith(SIMULATED)]
    lines += [f"{row['data']}, {row['sides']}: drawn {row['drawing']}." for row in recorded]
    lines += [""] if recorded else []
    check = document.get("check")
    if check:
        words = f"{about(check['false'])} families, {check['standing']}, from {check['blocks']}"
        lines += [f"Check of alpha {check['alpha']:g} on the earlier half: {words} blocks.", ""]
        if check["standing"] == BROKEN:
            lines += ["**The level is broken there: no figure of this page can be relied on.**", ""]
    return lines


def _false_alarm_cells(row: Json) -> tuple[str, ...]:
    verdicts = row["verdicts"]
    unclear = verdicts.get("unclear", 0) / max(1, sum(verdicts.values()))
    return (
        row["data"],
        row["sides"],
        f"{row['blocks']:,} ({row['blocks_needed']:,})",
        f"{row['false']['trials']:,} x {row['cases']}",
        about(row["false"]),
        small_percent(row["false"]["upper_bound_95"]),
        small_percent(row["alpha"]),
        row["standing"] if row["standing"] in {HELD, IN_ALL} else f"**{row['standing']}**",
        f"{unclear:.0%}",
    )


def noise_section(rows: Sequence[Json]) -> list[str]:
    """Scatter of whole processes against that of blocks."""
    header = ("case", "median", "between processes", "between blocks", "blocks", "autocorrelation")
    cells = (
        (
            case_words(row["case"]),
            f"{1000 * row['median_seconds']:.3g} ms",
            f"{row['processes']:.1%}",
            f"{row['blocks']:.1%}",
            str(row["degrees"] + 1),
            "-" if row["autocorrelation"] is None else f"{row['autocorrelation']:+.2f}",
        )
        for row in rows
    )
    words = (
        "Standard deviations: of the log of a process's median time over blocks, which has the "
        "machine's\ndrift in it and is what two stored results differ by; and of a block's "
        "log-ratio, which has not. Autocorrelation: of block log-ratios, lag 1."
    )
    return ["## Noise", "", words, "", *markdown_table(header, cells), ""]


def calibration_page(document: Json) -> str:
    """The whole page."""
    lines = head_section(document)
    if "recordings" in document:
        lines += targets_section(document["targets"])
        lines += recordings_section(document["recordings"])
    lines += false_alarm_section(document)
    if "recordings" in document:
        lines += runs_section(document["runs"])
        lines += detection_section(document["detection"])
        lines += attribution_section(document["attribution"])
        lines += noise_section(document["noise"])
    lines.append(NOTES)
    return "\n".join(lines)
