"""How much more memory measured steps took than was predicted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from frontier_stand_in import result_file

from tinyllama_tools.frontier.overhead import Overhead, measured_overheads, tightest
from tinyllama_tools.prediction.memory_overhead import MIB, MemoryOverhead
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.suite_run import PROJECT


def test_nothing_measured_is_no_overhead() -> None:
    (found,) = measured_overheads([])
    assert found.model.most_bytes(1e9) == 1e9
    assert found.source == "no --measured results were given, so none is assumed"


def test_steps_that_took_less_than_predicted_widen_nothing(tmp_path: Path) -> None:
    (overhead,) = measured_overheads([result_file(tmp_path / "a.json", 0.9, 0.98)])
    assert overhead.model.most_bytes(1e9) == pytest.approx(1e9, rel=0.002)
    assert overhead.source.startswith("measured on 2 steps of tiny: 0.0 MiB + 0.00 % beyond")
    assert "card" in overhead.source
    assert overhead.device == "card"


def test_the_largest_overhead_of_several_results_counts(tmp_path: Path) -> None:
    files = [result_file(tmp_path / f"{ratio}.json", ratio) for ratio in (1.01, 1.1, 1.05)]
    assert tightest(measured_overheads(files), 2**33).model.share == pytest.approx(0.1)


def test_the_overhead_that_leaves_the_least_room_depends_on_the_limit() -> None:
    share, fixed = Overhead(MemoryOverhead(0.0, 0.1)), Overhead(MemoryOverhead(100 * MIB, 0.0))
    assert tightest([share, fixed], 2**33) is share
    assert tightest([fixed, share], 2**29) is fixed
    for limit in (2**29, 2**33):
        model = tightest([share, fixed], limit).model
        most = model.formula_bytes(limit)
        assert all(one.model.most_bytes(most) <= limit * (1 + 1e-9) for one in (share, fixed))


def test_a_folder_holds_rounds_or_one_run(tmp_path: Path) -> None:
    result_file(tmp_path / "results.json", 1.5)
    assert measured_overheads([tmp_path])[0].model.share == pytest.approx(0.5)
    result_file(tmp_path / "round_1.json", 1.2)
    result_file(tmp_path / "round_2.json", 1.3)
    # the median of the rounds
    assert measured_overheads([tmp_path])[0].model.share == pytest.approx(0.25)
    with pytest.raises(BadInputError, match=r"holds neither round_\*.json nor results.json; name"):
        measured_overheads([tmp_path.parent])


def test_results_without_a_training_step_are_refused(tmp_path: Path) -> None:
    path = result_file(tmp_path / "a.json", 1.1)
    path.write_text(path.read_text().replace("full_step/train", "block/forward"))
    with pytest.raises(BadInputError, match="no full_step/train case with peak_memory_MiB"):
        measured_overheads([path])


def test_published_results_say_how_good_the_prediction_is(tmp_path: Path) -> None:
    reference = PROJECT / "results/reference/tiny_f32_2core_xeon_avx512.json"
    (found,) = measured_overheads([Path(shutil.copy(reference, tmp_path))])
    assert 1 <= found.model.most_bytes(1.0) < 1.02
    assert "steps of tiny" in found.source
