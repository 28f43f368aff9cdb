"""Where a step stands under the roofline, in exercise 3's three positions."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllama_tools.suite_run import Json

# Of what the roofline allows at the step's intensity: nearer than this, it is on the roof.
ON_THE_ROOF_PERCENT = 80.0
MEMORY_BOUND = "Below roofline - memory bound (optimize data movement)"
ON_ROOFLINE = "On roofline - balanced (optimize both)"
COMPUTE_BOUND = "Below compute ceiling - compute bound (optimize kernels)"
POSITIONS = (MEMORY_BOUND, ON_ROOFLINE, COMPUTE_BOUND)


@dataclass(frozen=True)
class RooflinePosition:
    """`position` is one of POSITIONS; `ridge` and `intensity` in FLOP/byte, `percent` of the
    attainable rate at that intensity."""

    position: str
    intensity: float
    ridge: float | None
    percent: float
    reason: str


def roofline_position(flops: Json | None) -> RooflinePosition | None:
    """Of the step; `flops` as in performance_summary.json. None where the peak is not known."""
    roofline = (flops or {}).get("roofline_data") or {}
    step = next((p for p in roofline.get("points", []) if p["name"] == "step"), None)
    if not step or step.get("percent_of_attainable") is None or step.get("bound") is None:
        return None
    intensity, percent = step["arithmetic_intensity_flops_per_byte"], step["percent_of_attainable"]
    # the ridge of the bandwidth that this working set sees, which may be a cache's
    bandwidth, peak = step.get("attainable_bandwidth"), roofline.get("peak_flops")
    ridge = peak / bandwidth if bandwidth and peak else None
    where = f"{intensity:.1f} FLOP/byte" + (f" against a ridge at {ridge:.1f}" if ridge else "")
    reach = f"{percent:.1f} % of what the roofline allows there"
    if percent >= ON_THE_ROOF_PERCENT:
        position = ON_ROOFLINE
    else:
        position = MEMORY_BOUND if step["bound"] == "memory" else COMPUTE_BOUND
    return RooflinePosition(position, intensity, ridge, percent, f"{where}; {reach}")
