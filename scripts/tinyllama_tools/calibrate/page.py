"""results/CALIBRATION.md: what a calibration found, from its document alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyllama_tools.calibrate.false_alarm_rows import BROKEN, HELD, IN_ALL, SIMULATED
from tinyllama_tools.calibrate.page_detection import (
    attribution_section,
    detection_section,
    rivals_section,
)
from tinyllama_tools.calibrate.page_runs import runs_section
from tinyllama_tools.calibrate.page_words import about, case_words, small_percent
from tinyllama_tools.core.text import markdown_table

Json = Mapping[str, Any]

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
  checks it; false alarms, detection and the other tools are stated for the later half.
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
- The other tools say `significant` of one case at a time, and correct for nothing. `apart`: base
  processes, then new processes, as two runs one after the other. `in turn`: the interleaved slices
  of the same blocks, a favour, since none of them measures so.
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
        lines += rivals_section(document["rivals"])
        lines += attribution_section(document["attribution"])
        lines += noise_section(document["noise"])
    lines.append(NOTES)
    return "\n".join(lines)
