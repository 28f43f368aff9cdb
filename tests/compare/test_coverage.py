"""How often the interval of a case's time covers: of made-up runs, whose repetitions vary as much
as they say, and of such as do not."""

import re
from pathlib import Path

import numpy as np
import pytest

from built_programs import read_json, write_json
from published import MEASURED
from tinyllama_tools.calibrate.coverage import coverage_row
from tinyllama_tools.calibrate.rates import BROKEN, HELD
from tinyllama_tools.stats.rank_tests import ends_of_median
from tools import compare


def test_intervals_of_repetitions_that_vary_alike_cover() -> None:
    """Of 100 cases of 30 repetitions."""
    levels = 0.05 * np.random.default_rng(7).standard_normal((100, 30))
    row = coverage_row(np.exp(levels).tolist())
    assert (row["cases"], row["pairs"], row["standing"]) == (100, 100 * 45, HELD)
    assert 0.90 < row["covered"] / row["pairs"] < 0.99
    assert 0.05 < row["half_width"] < 0.2


def test_the_interval_is_students_of_the_logarithms() -> None:
    assert ends_of_median([0.9, 1.1]) == pytest.approx((0.2780, 3.5608), rel=1e-3)
    assert ends_of_median([2.0, 2.0, 2.0]) == pytest.approx((2.0, 2.0))


def test_results_are_judged_and_too_few_repetitions_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = read_json(MEASURED)
    row = next(row for row in document["benchmarks"] if row["run_type"] == "iteration")
    still = np.exp(0.05 * np.random.default_rng(3).standard_normal(30))
    stepping = [1.0] * 15 + [2.0] * 15
    for levels, status in ((still, 0), (stepping, 1), (still[:5], 2)):
        rows = [row | {"repetition_index": i, "real_time": t} for i, t in enumerate(levels)]
        file = write_json(tmp_path / "results.json", document | {"benchmarks": rows})
        folder = ("--out", str(tmp_path), "--recording", str(file))
        assert compare(["calibrate", *folder]) == status
        page, said = capsys.readouterr()
        if status == 2:
            assert "results.json: no case has 6 repetitions; measure with" in said
        else:
            assert "| AMD EPYC (x86-64 AVX2), 2 processors, " in page
            table = re.sub(" +", " ", page.partition("## Coverage")[2])
            # each of five groups before the step and each of five after it
            assert status == 0 or " | 25 | " in table
            assert f"| {BROKEN if status else HELD} " in table
