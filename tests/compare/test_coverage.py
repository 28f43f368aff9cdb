"""How often the interval of a case's time covers: of made-up runs, whose repetitions vary as much
as they say, and of such as do not."""

import json
import statistics
from pathlib import Path

import numpy as np
import pytest

from tinyllama_tools.calibrate.coverage import Coverage, Repetition, coverage, main
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats.rank_tests import ends_of_median


def repetitions(medians: list[float], seed: int = 1) -> list[Repetition]:
    """With samples that resemble each other: each repetition has a level of its own."""
    draw = np.random.default_rng(seed)
    found = []
    for median in medians:
        samples = median * (1 + 0.001 * draw.standard_normal(101))
        found.append(Repetition(list(samples), statistics.median(samples)))
    return found


def of_many(scatter: float, drift: float) -> Coverage:
    """100 cases of 30 repetitions; `drift`: of the level, from the first to the last."""
    draw, total = np.random.default_rng(7), Coverage()
    for case in range(100):
        levels = 1e6 * np.exp(scatter * draw.standard_normal(30) + np.linspace(0, drift, 30))
        total += coverage(repetitions(list(levels), case), 3)
    return total


def test_intervals_of_repetitions_that_vary_alike_cover() -> None:
    total = of_many(scatter=0.05, drift=0)
    assert total.pairs == 100 * 45
    assert 0.90 * total.pairs < total.covered < 0.99 * total.pairs
    # samples alone, of which a repetition has a hundred alike, would claim a tenth of a percent
    assert 0.05 < statistics.median(total.half_widths) < 0.2


def test_a_machine_that_drifts_more_than_repetitions_tell_is_found() -> None:
    total = of_many(scatter=0.002, drift=0.5)
    assert total.covered < 0.7 * total.pairs
    assert total.disjoint > 0


def test_the_interval_is_students_of_the_logarithms() -> None:
    assert ends_of_median([0.9, 1.1]) == pytest.approx((0.2780, 3.5608), rel=1e-3)
    assert ends_of_median([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0))


def write(path: Path, levels: list[float]) -> Path:
    rows = [
        {
            **{"run_name": "ffn", "run_type": "iteration", "time_unit": "us"},
            **{"real_time": one.median / 1e3, "samples_ns": one.samples},
        }
        for one in repetitions(levels)
    ]
    path.write_text(json.dumps({"context": {}, "benchmarks": rows}))
    return path


def test_files_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    still = list(1e6 * np.exp(0.05 * np.random.default_rng(3).standard_normal(30)))
    assert main([str(write(tmp_path / "still.json", still))]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("all: ")
    stepping = [1e6] * 15 + [2e6] * 15
    assert main([str(write(tmp_path / "stepping.json", stepping))]) == 1
    with pytest.raises(BadInputError, match="no case has 6 repetitions"):
        main([str(write(tmp_path / "few.json", still[:5]))])
