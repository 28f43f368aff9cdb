"""Puts the sections together. One that cannot be made names its reason; the others stay."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace

from tinyllama_tools.stats.laws import LawRefusedError
from tinyllama_tools.models.prediction import RatesRefusedError
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.report.document import Document, Omission, Section, not_foreseen
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.data.nameless import without_places
from tinyllama_tools.report.sections import (
    ablation,
    cases,
    comparison,
    data_parallel,
    environment,
    frontier,
    left_out,
    memory,
    predictions,
    roofline,
    scaling,
    speed_of_light,
    time,
    training,
)
from tinyllama_tools.report.summary import SENTENCES
from tinyllama_tools.data.programs import SuiteError

Builder = Callable[[ReportInputs], Section]
# in the order in which they are read; what was left out comes last, when all of it is known
BUILDERS: Sequence[tuple[str, str, Builder]] = tuple(
    (module.ID, module.TITLE, module.build)
    for module in (
        cases,
        environment,
        roofline,
        speed_of_light,
        time,
        scaling,
        memory,
        frontier,
        predictions,
        data_parallel,
        ablation,
        training,
        comparison,
    )
)
REFUSALS = (BadInputError, LawRefusedError, RatesRefusedError, SuiteError)


def _section(identity: str, title: str, build: Builder, inputs: ReportInputs) -> Section:
    try:
        return _without_empty(build(inputs))
    except REFUSALS as error:
        reason = str(error)
    except Exception as error:
        # a fault of ours in one section must not cost the reader the others
        reason = not_foreseen(error)
    return Section(
        identity,
        title,
        missing=reason,
        omissions=[Omission("section", title, reason, is_error=True)],
    )


def _sentences(inputs: ReportInputs) -> tuple[list[str], list[Omission]]:
    """Five, and those of them that cannot be made."""
    texts, omissions = [], []
    for what, sentence in SENTENCES:
        try:
            texts.append(sentence(inputs))
        except Exception as error:
            reason = str(error) if isinstance(error, REFUSALS) else not_foreseen(error)
            texts.append(f"There is no sentence on {what}: Left out says why.")
            omissions.append(Omission("summary", what, reason, is_error=True))
    return texts, omissions


def _without_empty(section: Section) -> Section:
    """A table without a row, or a figure without a point, becomes a sentence."""
    tables = [table for table in section.tables if table.rows]
    figures = [figure for figure in section.figures if figure.points]
    empty = [table.title for table in section.tables if not table.rows]
    empty += [figure.title for figure in section.figures if not figure.points]
    if section.missing or not empty:
        return replace(section, tables=tables, figures=figures)
    text = [*section.text, f"Nothing was measured for: {'; '.join(empty)}."]
    return replace(section, tables=tables, figures=figures, text=text)


def default_title(inputs: ReportInputs) -> str:
    """Of the first result, else of the first of anything."""
    if inputs.main is not None:
        return f"Tiny LLaMA on {inputs.main.title}"
    named = [str(source.path.name) for source in inputs.sources]
    return f"Tiny LLaMA: {named[0]}" if named else "Tiny LLaMA"


def build_document(inputs: ReportInputs, title: str = "") -> Document:
    """Every section, in order; `title`: instead of the one made from the data."""
    sections = [_section(*builder, inputs) for builder in BUILDERS]
    sentences, unsaid = _sentences(inputs)
    omissions = [
        *inputs.omissions,
        *left_out.case_omissions(inputs),
        *unsaid,
        *(omission for section in sections for omission in section.omissions),
    ]
    omissions = without_places(omissions)
    last = left_out.build(omissions)
    now = datetime.datetime.now(datetime.timezone.utc)
    return Document(
        title or default_title(inputs),
        now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        without_places(sentences),
        [environment.set_summary(results) for results in inputs.sets],
        without_places([*sections, last]),
        comparison.comparison_json(inputs.sets),
        omissions,
    )
