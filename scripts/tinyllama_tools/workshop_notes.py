"""Where the workshop's text contradicts itself: its figures beside the exact one."""

from __future__ import annotations

from tinyllama_tools.exercise_runs import MeasuredRun
from tinyllama_tools.worksheet import megabytes, number, table

# Figures of the text, quoted to be corrected.
TEXT_PARAMETERS = "2,345,984 (4.2), 2,873,600 (2.1)"
TEXT_WEIGHTS = "9.2 MB (2.7, 4.2), 11.0 MB (2.1)"
TEXT_OPTIMIZER = "36.8 MB (2.7), 22 MB (2.1)"
TEXT_MEMORY = "2-4 GB (4.3), 63.5 MB (2.7), 160 MB and 200-500 MB (2.1)"


def exact_figures(run: MeasuredRun, memory: MeasuredRun) -> list[str]:
    """The table of notes. `memory`: a run with the memory profiler."""
    weights = run.value("model.model_size_bytes")
    states = memory.figure("memory.breakdown_at_peak.optimizer_states")
    moments = "AdamW keeps two values a parameter: twice the weights"
    rows = [
        (
            "parameters",
            TEXT_PARAMETERS,
            number(run.value("model.total_parameters")),
            "counted; for the default size the derivation in 2.1 is right",
        ),
        ("weights", TEXT_WEIGHTS, megabytes(weights), "parameters times bytes of the dtype"),
        ("optimizer states", TEXT_OPTIMIZER, megabytes(states.value), moments),
        (
            "peak memory",
            TEXT_MEMORY,
            megabytes(run.value("summary.peak_memory_bytes")),
            "live tensors of this model; the text's parts add up to tens of MB, not to GB",
        ),
    ]
    return [
        "Where the text contradicts itself, this is what the model really has (MB: 2^20 bytes):",
        "",
        *table(
            ("what", "in the workshop's text", "exact", "why"),
            rows,
            run.source("model.total_parameters"),
            run.source("model.model_size_bytes"),
            states,
            run.source("summary.peak_memory_bytes"),
        ),
    ]
