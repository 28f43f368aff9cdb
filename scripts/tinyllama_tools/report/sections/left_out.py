"""Everything that is not in the report, each by its name and with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.report.document import Omission, Section, Table, text_column

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import ReportInputs

ID, TITLE = "left_out", "Left out"
COLUMNS = (text_column("kind"), text_column("name"), text_column("reason"), text_column("error"))
# beyond it, names that share a reason stand together
MOST_NAMED = 200


def case_omissions(inputs: ReportInputs) -> list[Omission]:
    """Cases that were skipped or failed, of every result."""
    several = len(inputs.sets) > 1
    return [
        Omission(
            "case",
            f"{case.name} ({results.title})" if several else case.name,
            case.reason,
            is_error=case.is_failure,
        )
        for results in inputs.sets
        for case in results.left_out
    ]


def grouped(omissions: Iterable[Omission]) -> list[tuple[Omission, list[str]]]:
    """The first of those that share kind and reason, with the names of all of them."""
    found: dict[tuple[str, str], tuple[Omission, list[str]]] = {}
    for omission in omissions:
        _, names = found.setdefault((omission.kind, omission.reason), (omission, []))
        names.append(omission.name)
    return list(found.values())


def _rows(omissions: Sequence[Omission]) -> list[list[str]]:
    if len(omissions) <= MOST_NAMED:
        return [[o.kind, o.name, o.reason, "yes" if o.is_error else ""] for o in omissions]
    return [
        [first.kind, "; ".join(names), first.reason, "yes" if first.is_error else ""]
        for first, names in grouped(omissions)
    ]


def build(found: Iterable[Omission]) -> Section:
    """What went wrong first."""
    omissions = sorted(found, key=lambda omission: not omission.is_error)
    if not omissions:
        return Section(ID, TITLE, ["Nothing was left out."])
    errors = sum(omission.is_error for omission in omissions)
    text = (
        f"{len(omissions):,} left out, {errors:,} of them because something went wrong."
        if errors
        else f"{len(omissions):,} left out; nothing went wrong."
    )
    return Section(ID, TITLE, [text], tables=[Table("omissions", TITLE, COLUMNS, _rows(omissions))])
