"""Made-up worksheets of exercise 1, and what they are made from."""

from pathlib import Path

from exercise_stand_in import Changes, measured, options
from tinyllama_tools.commands.exercise_1 import make_sheet, planned_runs

OPTIONS = options(1)
NO_RESULTS = Path("no/results/here")
SHARES = "operators.components"
PEAK = "memory.breakdown_at_peak"
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
POINTS = "flops.roofline_data.points"
LAUNCH = "operators.launch_overhead_percent"
WAIT = "summary.breakdown.data_loading.percent"


def sheet(every: Changes | None = None, **runs: Changes) -> str:
    """The page of made-up runs."""
    return make_sheet(measured(planned_runs(OPTIONS), {"": every or {}, **runs}), NO_RESULTS).page
