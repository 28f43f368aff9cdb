"""scripts/report --format csv, jsonl and parquet: the flat table of all files, its columns, and
what is not known."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
from stored import change, write_everything, write_study

import tools
from built_programs import PROJECT_ROOT, read_json, write_json
from tinyllama_tools.core.app import Json, schema_problem
from tinyllama_tools.report.frame import columns

WRITTEN, WITH_ERRORS, NOTHING_USABLE = 0, 1, 2
# with everything that a field of CSV may not hold as it is
REASON = 'predicted 1,5 GiB "exceeds"\nthe limit'
NAME = "ffn/forward/{}/tiny/f32/batch:{}/seq:8"
Capture = pytest.CaptureFixture[str]


def rows_of(path: Path, *files: object, status: int = WRITTEN) -> list[dict[str, str]]:
    """The rows as the csv module reads them."""
    assert tools.report([*files, "--format=csv", "-o", path]) == status
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def repetition(name: str, index: int, time: float, **more: object) -> Json:
    row = {"name": name, "run_name": name, "run_type": "iteration", "repetition_index": index}
    return row | {"real_time": time, "cpu_time": 2 * time, "time_unit": "ms"} | more


def stopped(name: str, **reason: object) -> Json:
    return repetition(name, 0, 0.0, iterations=0, **reason)


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Two measured cases, one skipped and one failed."""
    whole = read_json(PROJECT_ROOT / "results/reference/tiny_2core_epyc_zen5.json")
    first, second, skipped, failed = (NAME.format("baseline", batch) for batch in (1, 2, 4, 8))
    last = {"kernels": 3, "counter_of_later": 0.5, "label": "a; disturbed: others; b"}
    rows = [
        *(repetition(first, i, time, TFLOPS=0.25) for i, time in enumerate((2.0, 1.0, 4.0))),
        repetition(second, 0, 8.0, **last),
        stopped(skipped, skipped=True, skip_message=REASON),
        stopped(failed, error_occurred=True, error_message=REASON),
    ]
    context = whole["context"] | {"seed": 2**64 - 1}
    return write_json(tmp_path / "made_up.json", {"context": context, "benchmarks": rows})


def test_a_row_is_whole_whatever_the_others_have(made_up: Path, tmp_path: Path) -> None:
    first, second, skipped, failed = rows_of(tmp_path / "a.csv", made_up, status=WITH_ERRORS)
    assert list(first) == [*(column.name for column in columns()), "counter_of_later"]
    # a counter that only the last has, and one that no table knows
    assert (first["kernels"], second["kernels"]) == ("", "3.0")
    assert (first["counter_of_later"], second["counter_of_later"]) == ("", "0.5")
    expected = {
        **{"case": NAME.format("baseline", 1), "component": "ffn", "pass": "forward"},
        **{"batch": "1", "seq": "8", "status": "measured", "reason": "", "repetitions": "3"},
        **{"time_ms": "2.0", "time_range_percent": "150.0", "cpu_time_ms": "4.0"},
        **{"TFLOPS": "0.25", "seed": str(2**64 - 1), "git_dirty": "false"},
        **{"file": str(made_up), "disturbed": ""},
    }
    assert {name: first[name] for name in expected} == expected
    # exp(log(2) -+ 4.302653 * log(2) / sqrt(3)): Student's interval of the logarithms of 2, 1 and 4
    interval = [float(first[name]) for name in ("time_low_ms", "time_high_ms")]
    assert interval == pytest.approx([0.357462, 11.19], rel=1e-5)
    # of one repetition nothing is said about others
    assert [second[name] for name in ("time_low_ms", "time_range_percent")] == ["", ""]
    assert (second["disturbed"], second["label"]) == ("others", "a; disturbed: others; b")
    for row, status in ((skipped, "skipped"), (failed, "failed")):
        assert (row["status"], row["reason"], row["component"]) == (status, REASON, "ffn")
        assert {row[name] for name in ("time_ms", "cpu_time_ms", "repetitions", "TFLOPS")} == {""}


def test_lines_of_json_are_of_the_schema_and_equal_the_csv(made_up: Path, tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "a.csv", made_up, status=WITH_ERRORS)
    assert tools.report([made_up, "--format=jsonl", "-o", tmp_path / "a.jsonl"]) == WITH_ERRORS
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    definitions = read_json(PROJECT_ROOT / "results/schema.json")["$defs"]
    assert schema_problem(found, {"type": "array", "items": definitions["flat_row"]}) == ""
    bad = [found[0] | {"batch": "one"}]
    assert schema_problem(bad, {"items": definitions["flat_row"]}) != ""
    for row, line in zip(rows, found, strict=True):
        assert list(row) == list(line)
        text = {k: json.dumps(v) if isinstance(v, bool | float) else v for k, v in line.items()}
        assert row == {k: "" if v is None else str(v) for k, v in text.items()}


def test_columns_are_documented_and_have_units() -> None:
    pages = [
        (PROJECT_ROOT / f"docs/{name}.md").read_text("utf-8") for name in ("report", "counters")
    ]
    distributed = (PROJECT_ROOT / "docs/distributed.md").read_text("utf-8")
    for column in columns():
        assert re.fullmatch(r"[A-Za-z]+(_[A-Za-z]+)*", column.name), column.name
        assert column.description and column.kind in ("string", "integer", "number", "boolean")
        assert any(f"`{column.name}`" in page for page in (*pages, distributed)), column.name
    assert len({column.name for column in columns()}) == len(columns())


def test_parquet_has_the_same_values_with_types(made_up: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow, of the group parquet")
    assert tools.report([made_up, "--format=parquet", "-o", tmp_path / "a.parquet"]) == WITH_ERRORS
    assert tools.report([made_up, "--format=jsonl", "-o", tmp_path / "a.jsonl"]) == WITH_ERRORS
    table = parquet.read_table(tmp_path / "a.parquet")
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert table.to_pylist() == [json.loads(line) for line in lines]
    types = {field.name: str(field.type) for field in table.schema}
    wanted = {"case": "string", "batch": "int64", "time_ms": "double", "git_dirty": "bool"}
    # whatever the values: of this file every one is missing
    wanted |= {"message_bytes": "double", "weights": "string", "seed": "uint64", "ranks": "double"}
    assert {name: types[name] for name in wanted} == wanted
    pandas = pytest.importorskip("pandas", reason="pandas, of the group test")
    frame = (
        pandas.read_csv(tmp_path.joinpath("a.csv"), keep_default_na=True)
        if rows_of(tmp_path / "a.csv", made_up, status=WITH_ERRORS)
        else None
    )
    again = pandas.read_parquet(tmp_path / "a.parquet")
    assert list(frame.columns) == list(again.columns)
    assert frame["time_ms"].tolist()[:2] == again["time_ms"].tolist()[:2] == [2.0, 8.0]
    assert (frame.isna() == again.isna()).all().all()


def test_without_pyarrow_parquet_is_refused(
    made_up: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "a.parquet"
    assert tools.report([made_up, "--format=parquet", "-o", file]) == NOTHING_USABLE
    said = capsys.readouterr().err
    assert "pyarrow is not installed; run `" in said and "or write --format csv" in said
    assert not file.exists()


def test_files_of_every_kind_are_rows_of_one_table(tmp_path: Path, capsys: Capture) -> None:
    grid, suite, ranks = write_everything(tmp_path)
    write_json(tmp_path / "gpu_check.json", {"kind": "gpu_check"})
    rows = rows_of(tmp_path / "a.csv", grid, suite.parent, ranks, tmp_path / "gpu_check.json")
    assert "a check of a GPU has no cases" in capsys.readouterr().err
    by_file: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_file.setdefault(row["file"], []).append(row)
    rounds = [str(grid / f"round_{number}.json") for number in (1, 2, 3)]
    scaling = [str(ranks / f"ranks_{number}.json") for number in (1, 2, 4)]
    assert list(by_file) == [*rounds, str(grid / "products.json"), str(suite), *scaling]
    assert {row["device"] for row in by_file[str(suite)]} == {"Another CPU"}
    # one row a case and file, none of them nameless
    assert len({(row["file"], row["case"]) for row in rows}) == len(rows)
    peaks = by_file[str(grid / "products.json")]
    assert all(row["case"].startswith("peak/") and row["TFLOPS"] for row in peaks)
    modes = {row["mode"] for row in by_file[scaling[1]]}
    assert {"overlap", "local"} < modes
    (reduce, *_) = (row for row in by_file[scaling[1]] if row["component"] == "all_reduce")
    assert (reduce["dtype"], reduce["ranks"]) == ("f32", "2.0") and reduce["message_bytes"]


def test_a_variant_without_a_speedup_gets_the_one_over_its_files_baseline(
    made_up: Path, tmp_path: Path
) -> None:
    def variants(content: Json) -> None:
        names = {NAME.format(variant, 1): share for variant, share in (("baseline", 2), ("qkv", 1))}
        content["benchmarks"] = [
            repetition(name, i, share * time)
            for name, share in names.items()
            for i, time in enumerate((0.99, 1.0, 1.01))
        ]

    baseline, variant = rows_of(tmp_path / "a.csv", change(made_up, variants))
    assert float(variant["speedup"]) == pytest.approx(2)
    assert float(variant["speedup_low"]) < 2 < float(variant["speedup_high"])
    assert (baseline["variant"], baseline["speedup"]) == ("baseline", "")
    # what the program wrote stays, which timed them interleaved
    change(made_up, lambda content: content["benchmarks"][3].update(speedup=3.0))
    *_, variant = rows_of(tmp_path / "a.csv", made_up)
    assert [variant[f"speedup{end}"] for end in ("", "_low", "_high")] == ["3.0", "", ""]


def test_what_cannot_be_used_is_named(made_up: Path, tmp_path: Path, capsys: Capture) -> None:
    bad = write_json(tmp_path / "bad.json", {})
    study = write_study(tmp_path / "study", rounds=2)
    change(study / "round_2.json", lambda content: content["benchmarks"][0].update(real_time=-1))
    rows = rows_of(tmp_path / "a.csv", bad, study, status=WITH_ERRORS)
    said = capsys.readouterr().err
    assert f"error: file {bad}: is no result" in said
    assert f"error: file {study / 'round_2.json'}: " in said and "real_time -1" in said
    assert {Path(row["file"]).name for row in rows} == {"round_1.json", "products.json"}
    assert tools.report([bad, "--format=csv"]) == NOTHING_USABLE
    said = capsys.readouterr()
    assert (
        said.out == "" and f"no case of the suite to make rows of: {bad}: is no result" in said.err
    )
    # an interval that is none
    change(made_up, lambda content: content["benchmarks"][0].update(interval_ns=[1, "x"]))
    assert tools.report([made_up, "--format=csv"]) == NOTHING_USABLE
    assert "interval_ns is [1, 'x'], must be two finite numbers" in capsys.readouterr().err
