"""results/PROOF.md: the table of proofs as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.deliberate_faults import FaultOutcome
from tinyllama_tools.proof_rows import ProofRow

INTRODUCTION = """\
Everything that the suite's numbers rest on, compared with programs that are not ours. Each row can
be checked: the golden files and their writer are in
[fixtures/golden/](../fixtures/golden/README.md), the tests are named after what they prove.
`scripts/prove` runs all of it again and writes this page.
"""

NOTES = """\
## How to read it

- Errors are relative: of tensors to the largest magnitude of the expected tensor, of counts to the
  expected count; losses are in nats a token. Tolerance 0 means equal, to the unit or to the byte.
- `model_flops` counts scores in full (S²), as torch's counters do; `causal_flops` beside it counts
  the S (S + 1) / 2 that the mask leaves; `hardware_flops` adds what a variant computes again; the
  look-up of the embedding counts 0 in all of them and is given as `lookup_flops`, because the
  estimate of 6 FLOPs a parameter and token counts it. LlamaForCausalLM makes its rotary angles by a
  small product in every forward; the suite makes them once, so that product, counted apart, is
  taken off.
- float64 means float64 throughout: the oracle's own requests for float32 (norms, softmax, loss) are
  answered in float64. Rotary tables are float32 on both sides, as the world's models have them.
- Bytes are those of live tensors on a CPU; scratch memory inside libraries is in neither count
  (peaks are read with oneDNN off).
"""


def number(value: float) -> str:
    """Two digits; 0 as it is."""
    return "0" if value == 0 else f"{value:.2g}"


def section_lines(section: str, rows: Iterable[ProofRow]) -> list[str]:
    """One heading and its table."""
    header = ("what", "against", "comparisons", "tolerance", "largest error", "held")
    cells = (
        (
            row.check,
            row.against,
            str(row.comparisons),
            number(row.tolerance),
            number(row.largest_error),
            "yes" if row.held else f"**no**: {row.worst}",
        )
        for row in rows
    )
    return [f"## {section}", "", *markdown_table(header, cells), ""]


def fault_lines(outcomes: Iterable[FaultOutcome]) -> list[str]:
    """The faults put in on purpose, and what found them."""
    header = ("fault", "in", "tests that have to find it", "found")
    cells = (
        (
            outcome.fault.name,
            f"`{outcome.fault.source}`",
            f"`{outcome.fault.program}`: `{outcome.fault.found_by}`",
            f"yes, {len(outcome.failed)} failed" if outcome.found else "**no**",
        )
        for outcome in outcomes
    )
    text = "Each was put into a copy of the source and linked into the tests, which have to fail."
    return ["## Broken on purpose", "", text, "", *markdown_table(header, cells), ""]


def proof_page(
    environment: dict[str, str],
    rows: Sequence[ProofRow],
    faults: Sequence[FaultOutcome],
    failed: Sequence[str],
) -> str:
    """The whole page. `environment`: what the proofs ran on; `failed`: tests beside the rows."""
    held = sum(row.held for row in rows)
    found = sum(outcome.found for outcome in faults)
    comparisons = sum(row.comparisons for row in rows)
    summary = f"**{held} of {len(rows)} proofs held, over {comparisons:,} comparisons"
    summary += f"; {found} of {len(faults)} deliberate faults were found.**" if faults else ".**"
    lines = ["# Proof", "", INTRODUCTION, summary, ""]
    lines += [*markdown_table(("", ""), environment.items()), ""]
    if failed:
        lines += ["Tests that failed:", "", *(f"- `{name}`" for name in failed), ""]
    for section in dict.fromkeys(row.section for row in rows):
        lines += section_lines(section, (row for row in rows if row.section == section))
    if faults:
        lines += fault_lines(faults)
    return "\n".join(lines) + "\n" + NOTES
