"""Which rows of an operator table work on values."""

import pytest

from tinyllama_tools.models.bottlenecks import working_rows
from tinyllama_tools.workshop.exercise_1_figures import small_calls_percent
from worksheet_reading import operator_table

VIEWS = [("aten::view", 700, 1e-4, 0.1), ("aten::t", 800, 1e-4, 0.1), ("detach", 9, 1e-6, 0.0)]
NODES = [
    ("autograd::engine::evaluate_function: MmBackward0", 99, 1e-4, 0.1),
    ("torch::autograd::AccumulateGrad", 99, 1e-4, 0.1),
    ("MulBackward0", 99, 1e-4, 0.1),
]
WORK = [
    ("aten::mm", 30, 1.0, 60.0),
    ("aten::_softmax_backward_data", 20, 1.0, 30.0),
    ("aten::add_", 50, 50e-6, 1.0),
    ("aten::transpose_kernel", 100, 100e-6, 0.1),
]


def test_on_a_cpu_dispatch_is_left_out() -> None:
    table = operator_table([*VIEWS, *WORK, *NODES])
    assert working_rows(table) == operator_table(WORK)
    assert small_calls_percent(table) == pytest.approx(75)


def test_on_a_gpu_only_rows_with_time_there_count() -> None:
    table = operator_table([("aten::mm", 30, 1.0, 60.0), ("aten::add_", 10, 9.0, 1.0), *VIEWS])
    for row, seconds in zip(table, (1.0, 1e-5, 0.0, 0.0, None), strict=True):
        row["device_self_seconds"] = seconds
    assert [row["name"] for row in working_rows(table)] == ["aten::mm", "aten::add_"]
    assert small_calls_percent(table) == pytest.approx(25)


def test_nothing_that_works_is_not_measured() -> None:
    assert small_calls_percent(operator_table(VIEWS)) is None
