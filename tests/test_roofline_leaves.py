"""Roofline points of the components that an operator profile tells apart."""

import pytest

from tinyllama_tools.models.roofline import roofline_point
from tinyllama_tools.workshop.exercise_3_figures import bounds, memory_bound_percent
from worksheet_reading import components, roofline

POINTS = roofline(
    {
        "step": ("memory", 1.0),
        "attention": ("compute", 20.0),
        "attention/rotary": ("memory", 30.0),
        "ffn": ("memory", 40.0),
        "loss": ("compute", 50.0),
    }
)


@pytest.mark.parametrize(
    ("component", "percent"),
    [
        ("attention/core", 20.0),
        ("attention/rotary", 30.0),
        ("attention/core/deeper", 20.0),
        ("ffn/gate_up_proj", 40.0),
        ("loss", 50.0),
    ],
)
def test_own_point_else_the_nearest_ancestors(component: str, percent: float) -> None:
    found = roofline_point(POINTS, component)
    assert found is not None
    assert found["percent_of_attainable"] == percent


@pytest.mark.parametrize("component", ["residual", "ffn_norm", "step", "step/other"])
def test_without_a_point_of_its_family_there_is_none(component: str) -> None:
    assert roofline_point(POINTS, component) is None


def test_exercise_3_counts_leaves_by_their_groups() -> None:
    shares = components(
        attention__core=40.0, attention__rotary=10.0, ffn__gate_up_proj=25.0, optimizer=5.0
    )
    operators = {"components": shares, "launch_overhead_percent": 20.0}
    summary = {"operators": operators, "flops": {"roofline_data": {"points": POINTS}}}
    assert memory_bound_percent(summary) == 40.0
    assert memory_bound_percent(summary, ("ffn",)) == 15.0
    assert memory_bound_percent(summary, ("ff",)) == 40.0
    assert bounds(summary).memory == pytest.approx(32.0)
    assert bounds(summary).compute == pytest.approx(48.0)
