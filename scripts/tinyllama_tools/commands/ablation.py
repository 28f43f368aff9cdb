"""scripts/ablation: every switch added to the baseline and removed from optimized, interleaved.

What the workshop expects of each optimisation (the one column that is not measured) is from its
documents: exercise 3 (bottleneck assessment, roadmap of version 2, priority order), walkthrough 5.5
(memory) and the quick wins of the profiling summary.
"""

import argparse
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.commands.interleaved import InterleavedSteps, add_run_options
from tinyllama_tools.commands.step_sides import Side
from tinyllama_tools.core.app import Json, command_text, problem_sizes
from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.options import DTYPES, list_of, positive_list, script_parser, variants
from tinyllama_tools.core.text import NOT_MEASURED, number, template
from tinyllama_tools.data.names import (
    BASELINE,
    OPERATOR,
    OPTIMIZED,
    CaseName,
    StoredCase,
    full_step,
    parse_case_name,
)
from tinyllama_tools.data.results import read_rows
from tinyllama_tools.models.step_ratios import StepRatio, point_of, point_title, ratios_in

# Switch: the speedup that the workshop expects, empty where it says nothing. In the order in which
# a variant's name lists switches.
ROADMAP = {
    "qkv": "1.2-1.5x",
    "gate_up": "1.1-1.3x",
    "fused_swiglu": "1.1-1.3x",
    "sdpa": "1.3-2.0x",
    "fused_attention": "1.2-1.8x",
    "fused_norm": "1.4-1.8x",
    "fused_rotary": "1.4-1.8x",
    "fused_loss": "1.1-1.4x",
    "foreach_adamw": "1.1-1.2x",
    "fused_adamw": "1.1-1.2x",
    "library_adamw": "1.1-1.2x",
    "checkpoint": "20-30 % slower, activations / 2-4",
    "tiled_gemm": "",
    "wide_gemm": "",
    "graph": "1.5-3.0x",
    "layout": "1.1-1.3x",
}
SWITCHES = tuple(ROADMAP)
FUSED = "fused"
# with its version 2, and what its roadmap promises of everything together
EXPECTED = ROADMAP | {FUSED: "1.5-2.0x (version 2)", OPTIMIZED: "2.0-3.0x (optimistic target)"}
# begins a row's name, as in `optimized without qkv`
WITHOUT = f"{OPTIMIZED} without "
PAGE = Path(__file__).parent / "templates/ablation.md.j2"
EPILOG = """\
Verdicts are those of scripts/compare run; what cannot run stays in the tables with its reason.
Ctrl-C keeps what was measured and writes the tables from it.

Exit status: 0 all measured, or skipped with a reason; 1 some result was wrong; 2 bad option, the
set-up failed, a budget too short for any verdict, or files that cannot be read or written; 130
interrupted."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Options with `cases` and `variants`. A bad one ends the program with status 2."""
    parser = script_parser(
        "ablation",
        "Measures every optimisation added to the baseline and removed from "
        "`optimized`, interleaved,\nand writes one table a point: speedup, memory, proof.",
        EPILOG,
    )
    switches = list_of(SWITCHES, "switch")
    add = parser.add_argument
    add("--switches", type=switches, default=SWITCHES, help="only these (default: all)")
    further = "more, such as optimized+my::rms_norm of a --plugin"
    add("--variants", dest="further", type=variants, default=(), metavar="LIST", help=further)
    add("--dtypes", type=list_of(DTYPES, "dtype"), default=("f32", "bf16", "amp_bf16"))
    add("--batch", type=positive_list, help="default: 8; with neither, 8 x 128 and 16 x 256")
    add("--seq", type=positive_list, help="default: 128")
    add("--size", choices=problem_sizes(), default="tiny", help="default: tiny")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N]")
    add_run_options(parser, limit=30.0)
    given = parser.parse_args(arguments)
    shapes = list(itertools.product(given.batch or (8,), given.seq or (128,)))
    if not (given.batch or given.seq):
        shapes.append((16, 256))
    given.cases = [full_step(given.size, d, *shape) for d in given.dtypes for shape in shapes]
    given.variants = (BASELINE, *given.switches, FUSED, OPTIMIZED)
    given.variants = tuple(dict.fromkeys((*given.variants, *given.further)))
    return given


def removed(label: str) -> dict[str, str]:
    """By switch that `optimized` consists of, `optimized` without it. `label`: of a case of
    `optimized`, which names the switches; empty where it names none."""
    found = re.search(rf"\b{OPTIMIZED} = ([a-z0-9_+]+)", label)
    held = found[1].split("+") if found and found[1] != BASELINE else []
    return {name: "+".join(other for other in held if other != name) or BASELINE for name in held}


COLUMNS = (
    "variant",
    "ratio",
    "verdict",
    "workshop",
    "ms",
    "samples/s",
    "MFU %",
    "peak MiB",
    "memory x",
)
COLUMNS += ("allocations", "operators", "rel error", "note")


def figures(
    row: str, batch: int, case: StoredCase, other: StoredCase | None, ratio: StepRatio | None
) -> list[str]:
    """The cells of a row. `other`: the case that this one is compared with."""
    # of the row's variant, whose time is below in the ratio unless it is `optimized` without one
    verdict = ratio and (ratio if row.startswith(WITHOUT) else ratio.inverse).verdict.value
    counter, seconds = case.counters.get, case.seconds
    peak, before = counter("peak_memory_MiB"), other and other.counters.get("peak_memory_MiB")
    error, note = counter("max_rel_error"), f"failed: {case.failed}"
    if not case.failed:
        note = f"skipped: {case.skipped}" if case.skipped else case.above_peak
    return [
        row,
        # over itself, the baseline has no interval
        "1" if row == BASELINE else ratio.marked_text() if ratio else NOT_MEASURED,
        verdict or NOT_MEASURED,
        EXPECTED.get(row) or NOT_MEASURED,
        number(seconds and seconds * 1e3, 2 if seconds and seconds < 0.1 else 1),
        number(seconds and batch / seconds),
        number(counter("MFU_percent")),
        number(peak, 2 if peak is not None and peak < 10 else 1),
        number(peak / before if peak and before else None, 2),
        number(counter("allocations"), 0),
        # on a GPU the column is that of kernels
        number(counter("kernels") or counter("operators"), 0),
        NOT_MEASURED if error is None else f"{error:.1e}",
        note,
    ]


def ablation_page(document: Json) -> str:
    """The text of ABLATION.md."""
    context, ratios = document["context"], ratios_in(document, "ablation")
    measured: dict[CaseName, dict[str, StoredCase]] = {}
    for text, case in read_rows(document, Path("ablation.json")).cases.items():
        name = parse_case_name(text)
        measured.setdefault(point_of(name), {})[name.variant] = case
    points, compared = [], []
    for point, cases in measured.items():
        label = cases[OPTIMIZED].label if OPTIMIZED in cases else ""
        # of each row: its variant, the one it is compared with, and the ratio's two sides
        rows = {v: (v, BASELINE, (BASELINE, v)) for v in cases if "+" not in v or OPERATOR in v}
        for name, remaining in removed(label).items():
            if remaining in cases:
                rows[WITHOUT + name] = (remaining, OPTIMIZED, (remaining, OPTIMIZED))

        def ratio(above: str, below: str, at: CaseName = point) -> StepRatio | None:
            return ratios.get((above, replace(at, variant=below)))

        table = [
            figures(row, point.batch, cases[variant], cases.get(other), ratio(*pair))
            for row, (variant, other, pair) in rows.items()
        ]
        points.append((point_title(point), "+".join(removed(label)) or BASELINE, table))
        # `optimized` against the baseline and each single switch
        others = ((name, ratio(name, OPTIMIZED)) for name in (BASELINE, *SWITCHES))
        compared += [(point_title(point), name, speedup) for name, speedup in others if speedup]
    slower = [found for found in compared if found[2].median < 1 and found[2].shows_difference]
    # the time of `optimized` over the other's, at most and as estimated; the largest first
    bounds = [(1 / r.at_least, 1 / r.median, *rest) for *rest, r in compared if r.at_least]
    bounds.sort(reverse=True)
    is_gpu = context["device"]["backend"] != "cpu"
    return template(PAGE).render(
        context=context,
        about=context["ablation"],
        compared=len(compared),
        bounds=bounds,
        unbounded=[f"{name} at {title}" for title, name, r in compared if not r.at_least],
        slower=[(*found, r.text()) for *found, r in slower],
        columns=[{"operators": "kernels"}.get(n, n) if is_gpu else n for n in COLUMNS],
        points=points,
    )


class Ablation(InterleavedSteps):
    """Every switch beside the baseline; and beside `optimized`, `optimized` without it."""

    name = "ablation"
    fewer = "fewer --batch, --seq, --dtypes or --switches"
    page = staticmethod(ablation_page)

    def further(self) -> list[Side]:
        (proof,) = (s.proof for s in self.sides if s.variant == OPTIMIZED)
        remaining = removed(proof.get("label", "")).items()
        asked = [variant for name, variant in remaining if name in self.options.switches]
        return self.ours(v for v in asked if v not in self.options.variants)

    def pairs(self, names: Collection[str]) -> Iterable[tuple[str, str]]:
        over_baseline = [(BASELINE, n) for n in names if n in self.options.variants]
        # `fused` is no single switch, nor anything without one
        return over_baseline + [(n, OPTIMIZED) for n in names if n not in (BASELINE, FUSED)]


def main(arguments: Sequence[str]) -> int:
    """The command."""
    options = parse_options(arguments)
    # over the baseline; and, of each switch and without each, over `optimized`
    pairs = len(options.variants) - 1 + 2 * len(options.switches) + len(options.further)
    return Ablation(options, command_text([*typed("ablation").split(), *arguments]), pairs).main()
