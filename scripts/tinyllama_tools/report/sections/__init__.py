"""The sections of a report in the order in which they are read; what was left out comes last, when
all of it is known. Each fills a Section, and raises Missing where there is nothing to show."""

from collections.abc import Callable, Sequence

from tinyllama_tools.report.document import Section
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.sections import costs, data_parallel, laws, machine, runs, step

SECTIONS: Sequence[tuple[str, str, Callable[[Section, ReportInputs], None]]] = (
    ("cases", "Cases", machine.cases),
    ("environment", "Environment", machine.environment),
    ("roofline", "Roofline", step.roofline),
    ("speed_of_light", "Speed of light", step.speed_of_light),
    ("time", "Where the time goes", step.time),
    ("scaling", "Scaling", laws.scaling),
    ("memory", "Memory", laws.memory),
    ("frontier", "What fits into memory", costs.frontier),
    ("predictions", "Predictions", costs.predictions),
    ("data_parallel", "Data-parallel scaling", data_parallel.build),
    ("ablation", "What each optimisation buys", runs.ablation),
    ("training", "Training runs", runs.training),
    ("comparison", "Comparison", machine.comparison),
)
