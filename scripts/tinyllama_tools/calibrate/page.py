"""results/CALIBRATION.md: what a calibration found, from its document alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllama_tools.calibrate.standing import (
    BROKEN,
    ENOUGH_RUNS,
    HELD,
    IN_ALL,
    NOT_SHOWN,
    SIMULATED,
    TEN_MINUTES,
)
from tinyllama_tools.core.text import duration, template
from tinyllama_tools.data.names import parse_case_name

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json


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
NO_BROKEN_RUN = f"no `slower` in at least {ENOUGH_RUNS} real A/A runs"
SLOWED_RUNS = f"at least {ENOUGH_TRIES} real slowed runs, `slower` in {WANTED_SHARE:.0%}"
ATTRIBUTED = f"a full step 5 % slower found and attributed in {WANTED_SHARE:.0%}"


def _wanted(share: Json, *, is_shown: bool) -> str:
    if not is_shown:
        return NOT_SHOWN
    return REACHED if share["share"] >= WANTED_SHARE else MISSED


def target_rows(document: Json) -> list[Json]:
    """Of a calibration's document: `target`, `measured`, `reached`."""
    found: list[tuple[str, str, str]] = []
    allowed = small_percent(document["rule"]["alpha"])
    rows = document["false_alarms"]
    simulated = [row for row in rows if row["data"].startswith(SIMULATED)]
    # scenarios count together
    for row in [*simulated[-1:], *(row for row in rows if row not in simulated)]:
        target = f"false alarms of families, {row['data']}, {row['sides']}: bound at most {allowed}"
        bound = small_percent(row["false"]["upper_bound_95"])
        measured = f"{about(row['false'])}, bound {bound}, from {row['blocks']} blocks"
        reached = {HELD: REACHED, NOT_SHOWN: NOT_SHOWN}.get(row["standing"], MISSED)
        found.append((target, measured, reached))
    quiet = [row for row in document["runs"] if not row["slowdown"]]
    for row in quiet:
        without = sum(row["without_verdict"].values())
        words = f"{about(row['slower'])}, {without} of them without a verdict: {row['options']}"
        shown = REACHED if row["standing"] == HELD else NOT_SHOWN
        found.append((NO_BROKEN_RUN, words, MISSED if row["slower"]["count"] else shown))
    if not quiet:
        found.append((NO_BROKEN_RUN, "none", NOT_SHOWN))
    slowed = [row for row in document["runs"] if row["slowdown"]]
    for row in slowed:
        reached = _wanted(row["slower"], is_shown=row["runs"] >= ENOUGH_TRIES)
        found.append((f"{SLOWED_RUNS}: {row['slowdown']}", share_words(row["slower"]), reached))
    if not slowed:
        found.append((SLOWED_RUNS, "none", NOT_SHOWN))
    for slowdown, minutes, key in DETECTIONS:
        for row in document["detection"]:
            if (row["slowdown"], row["margin"]) != (slowdown, document["rule"]["margin"]):
                continue
            # the target is for each case
            worst = min(row["cases"], key=lambda case: case[key]["share"])
            found.append(
                (
                    f"{slowdown:.0%} slower ({row['how']}) found in {WANTED_SHARE:.0%} within "
                    f"{minutes}, every case",
                    f"all {share_words(row['all'][key])}; least: {case_words(worst['case'])} "
                    f"{share_words(worst[key])}",
                    _wanted(worst[key], is_shown=row["is_shown"]),
                )
            )
    for row in document["attribution"]:
        words = f"{share_words(row['attributed'])}, from {row['blocks']} blocks"
        reached = _wanted(row["attributed"], is_shown=row["is_shown"])
        found.append((f"{ATTRIBUTED}: inside {row['part']}", words, reached))
    if not document["attribution"]:
        found.append((ATTRIBUTED, "none", NOT_SHOWN))
    return [{"target": t, "measured": m, "reached": r} for t, m, r in found]


def _head(document: Json) -> list[Sequence[str]]:
    context, meta, rule = document.get("context", {}), document["meta"], document["rule"]
    device = context.get("device", {})
    machine = f"{device.get('name', 'unknown')} ({device.get('architecture', 'unknown')})"
    judged = f"alpha {rule['alpha']:g} a family, margin {rule['margin']:.0%}, {rule['looks']} looks"
    return [
        ("machine", f"{machine}, {context.get('num_cpus', '?')} processors" if context else "none"),
        ("date", meta["date"]),
        ("commit", meta["commit"] + (", changed" if meta["dirty"] else "")),
        ("threads", str(context.get("threads", "-"))),
        ("rule", judged),
        ("command", f"`{meta['command']}`"),
    ]


def _recording(row: Json) -> Sequence[str]:
    left_out = f" ({row['left_out']} left out)" if row["left_out"] else ""
    return (
        row["name"],
        f"{row['blocks']}{left_out}",
        str(len(row["cases"])),
        f"{row['pairs']} x {1000 * row['slice_seconds']:g} ms",
        f"{row['hours']:.2f}",
        f"{row['block_seconds']:.1f} s",
        row["started"][0],
    )


def _false_alarms(row: Json) -> Sequence[str]:
    unclear = row["verdicts"].get("unclear", 0) / max(1, sum(row["verdicts"].values()))
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


def _found(numbers: Json, row: Json) -> Sequence[str]:
    """Nothing within ten minutes where tries ended earlier."""
    in_ten = share_words(numbers["found_in_10_minutes"])
    return (
        share_words(numbers["found_in_5_minutes"]),
        in_ten if row["budget_seconds"] >= TEN_MINUTES else "-",
        share_words(numbers["unclear"]),
    )


def _after(numbers: Json) -> Sequence[str]:
    return tuple(seconds_words(numbers[k]) for k in ("median_seconds", "seconds_for_95_percent"))


def _blocks(blocks: int, row: Json) -> Sequence[str]:
    """How many, how many are needed, and whether they are too few to show anything."""
    return (f"{blocks} ({row['blocks_needed']})", "" if row["is_shown"] else f"**{NOT_SHOWN}**")


def _detection(row: Json) -> Sequence[str]:
    return (
        f"{row['slowdown']:.0%}",
        row["how"],
        f"{row['margin']:.0%}",
        *_found(row["all"], row),
        share_words(row["all"]["same"]),
        *_after(row["all"]),
        *_blocks(min(row["blocks"]), row),
    )


def _detected_case(case: Json, row: Json) -> Sequence[str]:
    change = f"{100 * case['true_change']:+.1f} %"
    return (case_words(case["case"]), change, *_found(case, row), *_after(case))


def _attribution(row: Json) -> Sequence[str]:
    return (
        row["part"],
        f"{100 * row['change']:+.1f} %",
        share_words(row["found"]),
        share_words(row["attributed"]),
        ", ".join(f"{name} {count}" for name, count in row["culprits"].items()) or "nobody",
        *_blocks(row["blocks"], row),
    )


def _noise(row: Json) -> Sequence[str]:
    return (
        case_words(row["case"]),
        f"{1000 * row['median_seconds']:.3g} ms",
        f"{row['processes']:.1%}",
        f"{row['blocks']:.1%}",
        str(row["degrees"] + 1),
        "-" if row["autocorrelation"] is None else f"{row['autocorrelation']:+.2f}",
    )


def _outcomes(cases: Json) -> tuple[list[str], list[list[str]]]:
    """Of a group of runs: headings and rows of how often each case had which verdict."""
    outcomes = list(dict.fromkeys(word for found in cases.values() for word in found))
    rows = [
        [case_words(n), *(str(found.get(w, 0)) for w in outcomes)] for n, found in cases.items()
    ]
    return ["case", *outcomes], rows


# what the template calls
WORDS = {
    "about": about, "attribution": _attribution, "case_words": case_words,
    "detected_case": _detected_case, "detection": _detection, "duration": duration,
    "false_alarms": _false_alarms, "noise": _noise, "outcomes": _outcomes, "recording": _recording,
    "rows": lambda cells, rows, *more: [cells(row, *more) for row in rows],
    "small_percent": small_percent, "target": lambda row: list(row.values()),
}  # fmt: skip


def calibration_page(document: Json) -> str:
    """The whole page."""
    values = {"BROKEN": BROKEN, "ENOUGH_RUNS": ENOUGH_RUNS, "SIMULATED": SIMULATED}
    page = template(Path(__file__).with_name("page.md.j2"))
    return page.render(d=document, head=_head(document), w=WORDS, **values)
