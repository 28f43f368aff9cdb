"""The tables of a result of scripts/peers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import template
from tinyllama_tools.data.names import UNITS
from tinyllama_tools.stats.rank_tests import Ratio

PAGE = Path(__file__).parent / "templates/peers.md.j2"


def point_of(name: str) -> tuple[str, ...]:
    """Size, dtype, batch and sequence of a case's name."""
    size, dtype, batch, seq = name.removesuffix("/manual_time").split("/")[3:7]
    return size, dtype, batch.removeprefix("batch:"), seq.removeprefix("seq:")


def circumstances(document: Json) -> Iterator[tuple[str, str]]:
    """What the numbers belong to."""
    context = document["context"]
    about, device = context["peers"], context["device"]
    machine = f"{device['name']} ({device['architecture']})"
    yield "machine", f"{machine}, {context['num_cpus']} processors"
    yield "date", context["date"]
    commits = ", ".join(commit[:12] for commit in about["commits"])
    yield "commit", commits + (" with changes" if context["git_dirty"] else "")
    yield "ours", f"libtorch {context['torch_version']}"
    measured = [form["measured"] for form in about["forms"].values() if form["measured"]]
    versions = {f"torch {m['torch']}, transformers {m['transformers']}" for m in measured}
    yield "peers", ", ".join(sorted(versions))
    yield "threads", str(context["threads"])
    yield (
        "turns and steps",
        f"{about['turns']} turns of {about['steps']} steps, fewer where steps are slow "
        f"({about['max_seconds_per_case']:g} s a side and case)",
    )
    intervals = {r["turns"]: r["interval"]["confidence"] for r in about["ratios"] if r["interval"]}
    texts = [f"{100 * intervals[turns]:.1f} % at {turns} turns" for turns in sorted(intervals)]
    yield "intervals", "; ".join(texts) or "none: one turn"
    loads = ", ".join(f"{load:.2f}" for load in context.get("load_avg", []))
    yield "load average at the start", loads


def form_row(name: str, form: Json) -> tuple[str, ...]:
    """The settings of a peer."""
    precision = form["precision"]
    if measured := form["measured"]:
        found = measured["float32_matmul_precision"]
        precision = f"{found}, error {measured['float32_product_error']:.1e}"
        if found != form["precision"]:
            precision += f" of {form['precision']}, which is not true float32 here"
    inductor = ", ".join(f"{key}={value}" for key, value in form["inductor"].items())
    compiled = f"dynamic=False {inductor}".strip() if form["is_compiled"] else "no"
    return name, form["attention"], compiled, precision, form["adamw"], form["malloc"]


def peers_page(document: Json) -> str:
    """The whole page. Reasons stand below the table, numbered, each once."""
    about = document["context"]["peers"]
    cells: dict[tuple[str, ...], dict[str, list[Json]]] = {}
    for entry in document["benchmarks"]:
        name = entry["run_name"]
        row = cells.setdefault(point_of(name), {})
        row.setdefault(name.split("/")[2], []).append(entry)
    reasons: list[str] = []

    def noted(word: str, reason: str) -> str:
        if reason not in reasons:
            reasons.append(reason)
        return f"{word} [{reasons.index(reason) + 1}]"

    def time(entries: list[Json]) -> str:
        """The median step, or why there is none."""
        if not entries:
            return ""
        last = entries[-1]
        for word, key in (("failed", "error_message"), ("skipped", "skip_message")):
            if key in last:
                return noted(word, f"{word}: {last[key]}")
        median = statistics.median(e["real_time"] * UNITS[e["time_unit"]] for e in entries)
        text = f"{1e3 * median:.4g}"
        above = [entry["above_peak"] for entry in entries if "above_peak" in entry]
        return noted(text, above[-1]) if above else text

    variants = list(dict.fromkeys(variant for row in cells.values() for variant in row))
    ours = [variant for variant in variants if not variant.startswith("peer:")]
    peers = [variant for variant in variants if variant.startswith("peer:")]
    ratios = {
        (point_of(row["case"]), row["case"].split("/")[2], row["peer"]): Ratio.from_json(row)
        for row in about["ratios"]
    }

    def ratio_rows(variant: str) -> list[list[str]]:
        found = [[ratios.get((point, variant, peer)) for peer in peers] for point in cells]
        return [
            [*point, *(ratio.text() if ratio else "" for ratio in row)]
            for point, row in zip(cells, found, strict=True)
        ]

    return template(PAGE).render(
        circumstances=list(circumstances(document)),
        ratios=[(variant, ratio_rows(variant)) for variant in reversed(ours)],
        times=[[*point, *(time(row.get(v, [])) for v in variants)] for point, row in cells.items()],
        forms=[form_row(name, form) for name, form in about["forms"].items()],
        axes=["size", "dtype", "batch", "seq"],
        peers=peers,
        variants=variants,
        about=about,
        reasons=reasons,
    )
