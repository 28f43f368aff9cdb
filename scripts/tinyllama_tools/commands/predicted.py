"""scripts/study --grid --machine: predicts the steps of a grid from what a run told of its machine,
and measures nothing."""

from collections.abc import Iterator, Sequence

from tinyllama_tools.core.app import BadInputError, say_line
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import section
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.models.collectives import read_interconnects, stands_for
from tinyllama_tools.models.machine_file import (
    BANDWIDTH,
    GEMMS,
    RANKS,
    STEPS,
    MachineFile,
    source_text,
)
from tinyllama_tools.models.over_ranks import Interconnect, Network
from tinyllama_tools.models.prediction import StepPrediction, errors_by_axis, predict_steps
from tinyllama_tools.report.document import Table, markdown_section, step_text, table_of
from tinyllama_tools.report.sections.predictions import rows_over_ranks

# what each section of the file is used as
WORDS = {
    BANDWIDTH: "bandwidth curve",
    GEMMS: "rates of GEMMs",
    STEPS: "costs of a step",
    RANKS: "collectives between ranks",
}


def networks_of(file: MachineFile, names: Sequence[str]) -> list[Network]:
    """Those of fixtures/interconnects.json with these names, else the one that was measured.
    BadInputError where there is none, or it is of another device than the steps."""
    if not names:
        return [file.rank_figures()]
    device = file.source_of[STEPS]["device"]
    found = [one for one in read_interconnects() if one["name"] in names]
    for one in found:
        if not stands_for(one, device):
            raise BadInputError(
                f"--interconnects {one['name']}: its figures are of other devices than the steps "
                f"of {shown(file.path)}, which are of {source_text(file.source_of[STEPS])}"
            )
    return [Interconnect(one) for one in found]


def _sources(file: MachineFile, networks: Sequence[Network]) -> Iterator[str]:
    """Which device each part of the predictions was measured on."""
    by_source: dict[str, list[str]] = {}
    used = [BANDWIDTH, GEMMS, STEPS] + [RANKS] * any(one is file.ranks for one in networks)
    for key in used:
        by_source.setdefault(source_text(file.source_of[key]), []).append(WORDS[key])
    for source, words in by_source.items():
        yield f"- {', '.join(words)}: {source}"
    for one in networks:
        if isinstance(one, Interconnect):
            yield f"- links, not measured: {one.title}"


def _held_out_tables(file: MachineFile, asked: Sequence[tuple[str, str]]) -> Iterator[Table]:
    """For each dtype and variant, and for ranks."""
    for model in (file.models[key] for key in asked):
        rows = (error._asdict() for error in errors_by_axis(model.held_out))
        yield table_of("held_out_steps", rows, basis=model.basis())
    if file.ranks is not None:
        rows = (error._asdict() for error in errors_by_axis(file.ranks.held_out))
        yield table_of("held_out_ranks", rows)


def print_predictions(
    file: MachineFile,
    costs: Sequence[CaseCost],
    asked: Sequence[tuple[str, str]],
    ranks: Sequence[int],
    interconnects: Sequence[str],
) -> int:
    """Predicts every step among the costs of the `asked` dtypes and variants, alone and over
    `ranks`. Returns 1 where some step could not be predicted. BadInputError where the file lacks
    what that takes."""
    models = [file.model_of(*one) for one in asked]
    networks = networks_of(file, interconnects) if ranks else []
    steps: list[StepPrediction] = []
    refused: list[str] = []
    for model in models:
        found, lacking = predict_steps(model, costs)
        steps += found
        refused += [why for _, why in lacking]
    if not steps:
        why = "; ".join(refused) or "no training step (full_step/train) has these axes"
        raise BadInputError(f"nothing to predict from {shown(file.path)}: {why}")
    rows = [{**step._asdict(), "what": step_text(step.cost.name)} for step in steps]
    tables = [table_of("predicted_grid", rows)]
    for network in networks:
        try:
            over = list(rows_over_ranks(steps, ranks, network))
        except BadInputError as error:
            raise BadInputError(f"{shown(file.path)}: {error}") from error
        tables.append(table_of("predicted_ranks", over, over=network.title))
    tables += _held_out_tables(file, asked)
    lines = [f"Predicted from {shown(file.path)}, and not measured:", *_sources(file, networks), ""]
    lines += [line for table in tables if table.records for line in markdown_section(table)]
    lines += section("Left out", [f"- {why}" for why in refused]) if refused else []
    say_line("\n".join(lines))
    return int(bool(refused))
