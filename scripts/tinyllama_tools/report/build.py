"""Puts the sections together. One that cannot be made names its reason; the others stay."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from tinyllama_tools.laws import LawRefusedError
from tinyllama_tools.prediction.refusal import RatesRefusedError
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.report.document import Document, Omission, Section
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.sections import (
    ablation,
    comparison,
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
from tinyllama_tools.report.summary import five_sentences
from tinyllama_tools.suite_run import SuiteError

Builder = Callable[[ReportInputs], Section]
# in the order in which they are read; what was left out comes last, when all of it is known
BUILDERS: Sequence[tuple[str, str, Builder]] = tuple(
    (module.ID, module.TITLE, module.build)
    for module in (
        environment,
        roofline,
        speed_of_light,
        time,
        scaling,
        memory,
        frontier,
        predictions,
        ablation,
        training,
        comparison,
    )
)
REFUSALS = (BadInputError, LawRefusedError, RatesRefusedError, SuiteError)


def _section(identity: str, title: str, build: Builder, inputs: ReportInputs) -> Section:
    try:
        return build(inputs)
    except REFUSALS as error:
        reason = str(error)
    except Exception as error:
        # a fault of ours in one section must not cost the reader the others
        reason = f"not foreseen: {type(error).__name__}: {error}"
    return Section(
        identity,
        title,
        missing=reason,
        omissions=[Omission("section", title, reason, is_error=True)],
    )


def _sentences(inputs: ReportInputs) -> list[str]:
    try:
        return five_sentences(inputs)
    except REFUSALS as error:
        return [f"There is no summary: {error}."]


def default_title(inputs: ReportInputs) -> str:
    """Of the first result, else of the first of anything."""
    if inputs.main is not None:
        return f"Tiny LLaMA on {inputs.main.title}"
    named = [str(source.path.name) for source in inputs.sources]
    return f"Tiny LLaMA: {named[0]}" if named else "Tiny LLaMA"


def build_document(inputs: ReportInputs, title: str = "") -> Document:
    """Every section, in order; `title`: instead of the one made from the data."""
    sections = [_section(*builder, inputs) for builder in BUILDERS]
    omissions = [
        *inputs.omissions,
        *left_out.case_omissions(inputs),
        *(omission for section in sections for omission in section.omissions),
    ]
    last = left_out.build(inputs, omissions)
    now = datetime.datetime.now(datetime.timezone.utc)
    return Document(
        title or default_title(inputs),
        now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        _sentences(inputs),
        [environment.set_summary(results) for results in inputs.sets],
        [*sections, last],
        comparison.comparison_json(inputs.sets),
        omissions,
    )
