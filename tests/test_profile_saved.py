"""scripts/profile on saved profiles: reports again, damaged files, two versions side by side."""

import json
from pathlib import Path

import pytest

from test_profile import REPORT, contents, profiled, run
from tinyllama_tools.profile.page import component_sides, operator_sides, pair_up
from training_stand_in import made_up_summary, write_profile


@pytest.mark.parametrize("part", ["", "pytorch_profiling", "memory_analysis", "baseline_training"])
def test_existing_profiles_are_reported_again(tmp_path: Path, part: str) -> None:
    folder, out = profiled(tmp_path, "p"), tmp_path / "detailed"
    options = ("--analyze-existing", str(folder / part), "--generate-report")
    assert run(tmp_path, *options, "--output-dir", str(out)) == 0
    report = (out / REPORT).read_text()
    if not part:
        assert report == (folder / REPORT).read_text()
    assert ("aten::mm" in report) == (part in {"", "pytorch_profiling"})


def test_one_run_with_all_profilers_is_reported_too(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    folder = write_profile(tmp_path / "one", made_up_summary())
    assert run(tmp_path, "--analyze-existing", str(folder)) == 0
    report = capsys.readouterr().out
    assert "Not measured" not in report
    assert not (folder / REPORT).exists()


@pytest.mark.parametrize(
    "spoiled",
    [
        "profile_runs.json",
        "baseline_training/performance_summary.json",
        "memory_analysis/performance_summary.json",
        "performance_summary.json",
    ],
)
@pytest.mark.parametrize("way", ["removed", "cut", "other section"])
def test_a_damaged_profile_is_refused(tmp_path: Path, spoiled: str, way: str, capsys) -> None:  # noqa: ANN001
    folder = profiled(tmp_path, "p")
    path = folder / spoiled
    if way == "removed":
        path.unlink()
    elif way == "cut":
        path.write_text(path.read_text()[:100])
    else:
        document = json.loads(path.read_text())
        for key in ("summary", "runs"):
            document.pop(key, None)
        path.write_text(json.dumps(document))
    before = contents(folder)
    assert run(tmp_path, "--analyze-existing", str(folder), "--generate-report") == 2
    assert spoiled in capsys.readouterr().err
    assert contents(folder) == before


def test_a_profiler_that_recorded_nothing_is_named(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    folder = profiled(tmp_path, "p")
    write_profile(folder / "memory_analysis", made_up_summary(profilers=()))
    assert run(tmp_path, "--analyze-existing", str(folder)) == 2
    assert "memory_analysis: its summary has no 'memory' section" in capsys.readouterr().err


def test_a_folder_outside_is_not_followed(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    folder = profiled(tmp_path, "p")
    path = folder / "profile_runs.json"
    path.write_text(path.read_text().replace('"memory_analysis"', '"../elsewhere"'))
    assert run(tmp_path, "--analyze-existing", str(folder)) == 2
    assert "outside" in capsys.readouterr().err


def test_two_versions_side_by_side(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    a, b = profiled(tmp_path, "v1"), profiled(tmp_path, "v2", "--variant", "fused")
    capsys.readouterr()
    out = tmp_path / "out"
    assert run(tmp_path, "--compare", str(a), str(b), "--output-dir", str(out)) == 0
    text = capsys.readouterr().out
    assert text == (out / "comparison_report.md").read_text()
    core = next(line for line in text.splitlines() if line.startswith("| attention/core"))
    assert core.rstrip(" |").endswith("2.00x")
    assert "Not the same work" not in text
    assert run(tmp_path, "--compare", str(a), str(profiled(tmp_path, "v3", "--seq-len", "64"))) == 0
    assert "- seq_len: 128 against 64" in capsys.readouterr().out


def test_pairs_of_operators_and_components() -> None:
    first = made_up_summary()["operators"]
    second = made_up_summary(variant="sdpa")["operators"]
    second["table"] = [row for row in second["table"] if row["name"] != "aten::neg"]
    pairs = {p.name: p for p in pair_up(operator_sides(first), operator_sides(second))}
    assert pairs["aten::bmm"].speedup == pytest.approx(2)
    assert pairs["aten::neg"].b is None
    assert pairs["aten::neg"].saved_seconds > 0
    components = pair_up(component_sides(first), component_sides(second))
    assert components[0].name == "attention/core"
    assert components[0].speedup == pytest.approx(2)
