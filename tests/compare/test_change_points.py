"""stats/change_points.py: how often noise alone makes a change, by how alike neighbours are, and
how often a change is found where it is. docs/compare.md publishes the figures of 2,000 series."""

import re
from itertools import product

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom

from built_programs import PROJECT_ROOT
from tinyllama_tools.stats import change_points
from tinyllama_tools.stats.change_points import FEWEST_VALUES, change_indices

NOISE = 0.02
FILES, AUTOCORRELATIONS = (12, 30, 100, 200), (0.0, 0.3, 0.6)
SERIES = 200
# what is promised of series without a change
AT_MOST = 0.05


def noise(files: int, phi: float, series: int, seed: int = 1) -> np.ndarray:
    """AR(1) noise of log-times, each row a series, with a standard deviation of NOISE."""
    drawn = np.random.default_rng(seed).normal(size=(series, files + 100))
    # the first hundred are its way to the stationary state
    alike = lfilter([1.0], [1.0, -phi], drawn, axis=1)[:, 100:]
    return NOISE * np.sqrt(1 - phi**2) * alike


def changes(logs: np.ndarray, margin: float = 0.0) -> list[list[int]]:
    return [change_indices(np.exp(own).tolist(), margin) for own in logs]


def most(series: int) -> int:
    """With a change by chance, at a rate of AT_MOST: exceeded in 1 of 1,000 tries."""
    return int(binom.ppf(0.999, series, AT_MOST))


@pytest.mark.parametrize(("files", "phi"), list(product(FILES, AUTOCORRELATIONS)))
def test_noise_rarely_makes_a_change_however_alike_neighbours_are(files: int, phi: float) -> None:
    assert sum(map(bool, changes(noise(files, phi, SERIES)))) <= most(SERIES)


def test_a_detector_that_takes_values_as_independent_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_points, "AUTOCORRELATIONS", [0.0])
    for files in (30, 100):
        assert sum(map(bool, changes(noise(files, 0.6, SERIES)))) > 3 * most(SERIES)


def test_wild_values_rarely_make_a_change() -> None:
    """Heavy tails, and one file of ten far off."""
    random = np.random.default_rng(7)
    wild = [NOISE * random.standard_t(3, files) for files in (12, 30, 100) for _ in range(70)]
    spikes = [(random.random(30) < 0.1) * random.exponential(0.4, 30) for _ in range(SERIES)]
    off = [random.normal(own, 0.03) for own in spikes]
    for series in (wild, off):
        assert sum(map(bool, changes(series))) <= most(len(series))


@pytest.mark.parametrize(
    ("files", "phi", "step", "least"),
    [
        # of 5 % where files scatter by 2 %, of independent noise and alike neighbours
        *((30, 0.0, 0.05, 0.85), (30, 0.6, 0.05, 0.5), (100, 0.6, 0.05, 0.9)),
        # of four times the scatter, in few files
        (20, 0.0, 0.08, 0.9),
    ],
)
def test_a_step_is_found_where_it_is(files: int, phi: float, step: float, least: float) -> None:
    half = files // 2
    logs = noise(files, phi, 100) + np.log1p(step) * (np.arange(files) >= half)
    found = changes(logs, 0.03)
    assert sum(any(abs(i - half) <= 3 for i in own) for own in found) >= 100 * least


def test_a_change_that_was_taken_back_is_found() -> None:
    files = np.arange(60)
    logs = noise(60, 0.3, 50) + np.log1p(0.1) * ((files >= 20) & (files < 40))
    found = [own for own in changes(logs, 0.03) if len(own) == 2]
    assert sum(abs(a - 20) <= 2 and abs(b - 40) <= 2 for a, b in found) >= 45


def test_changes_of_one_series() -> None:
    half = FEWEST_VALUES // 2
    rising = [(1 + 1e-3 * i) * (1.0 if i < half else 2.0) for i in range(FEWEST_VALUES)]
    three = np.repeat([0.0, -0.3, 0.1], 10) + np.random.default_rng(9).normal(0, 0.02, 30)
    outlier = np.repeat([0.0, 0.1], 10) + np.random.default_rng(9).normal(0, 0.02, 20)
    outlier[13] += 1.5
    spike = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 5.0, 1.0, 1.01, 0.99, 1.0, 1.01]
    small = [1.0] * 10 + [1.02] * 10
    for values, margin, expected in (
        (np.exp(three).tolist(), 0.03, [10, 20]),
        # one bad file is no change, and hides none
        (spike, 0.03, []),
        (np.exp(outlier).tolist(), 0.03, [10]),
        (small, 0.03, []),
        (small, 0.01, [10]),
        (rising, 0.03, [half]),
        (rising[1:], 0.03, []),
    ):
        assert change_indices(values, margin) == expected


PUBLISHED, AGAIN = 2000, 500


@pytest.mark.long
def test_published_rates_are_those_of_the_code() -> None:
    """The table of docs/compare.md, to three times the scatter between its and this simulation."""
    text = (PROJECT_ROOT / "docs/compare.md").read_text(encoding="utf-8")
    section = text.partition("\n## History\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)
    assert [int(files) for files, _ in rows] == list(FILES)
    for files_text, cells in rows:
        files, half = int(files_text), int(files_text) // 2
        shown = [float(cell.removesuffix(" %")) / 100 for cell in cells.split(" | ")]
        step = np.log1p(0.05) * (np.arange(files) >= half)
        for i, phi in enumerate(AUTOCORRELATIONS):
            drawn = noise(files, phi, AGAIN, seed=2)
            false = np.mean([bool(own) for own in changes(drawn)])
            steps = changes(drawn + step, 0.03)
            found = np.mean([any(abs(k - half) <= 3 for k in own) for own in steps])
            for rate, published in ((false, shown[i]), (found, shown[3 + i])):
                variance = published * (1 - published) * (1 / PUBLISHED + 1 / AGAIN)
                allowed = 0.005 + 3 * np.sqrt(variance)
                assert abs(rate - published) <= allowed, (files, phi, rate, published)
