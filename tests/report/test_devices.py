"""Results of several devices in one report: columns and sections with the devices' names."""

import csv
import io
from pathlib import Path

import pytest
from stored import (
    CUT_OFF,
    DEVICE,
    TINY_STEP,
    change,
    part,
    peak,
    read,
    write_everything,
    write_result,
    write_study,
)

import tools
from chromium import PageOpener
from tinyllama_tools.core.app import Json
from tinyllama_tools.report.command import SECTIONS, build_document
from tinyllama_tools.report.document import Document, cell_text
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.output import markdown_of, page_of

# of the same name, as virtual machines have it
NAMES = [f"{DEVICE}, x86-64 AVX2", f"{DEVICE}, x86-64 AVX512"]
SLOWER = 2.0


def of_the_second(content: Json) -> None:
    """Of half the speed."""
    content["context"]["device"]["architecture"] = "x86-64 AVX512"
    for row in content["benchmarks"]:
        row["real_time"] *= SLOWER


def with_variants(path: Path) -> Path:
    """A run of the baseline and of a variant that takes half of its time."""

    def more(content: Json) -> None:
        copies = [row | {"real_time": row["real_time"] / 2} for row in content["benchmarks"]]
        for row in copies:
            row["run_name"] = row["run_name"].replace("/baseline/", "/optimized/")
        content["benchmarks"] += copies

    return change(write_result(path), more)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    """A study and a run with variants of each of two devices."""
    place = tmp_path_factory.mktemp("devices")
    studies = [write_study(place / name) for name in ("first", "second")]
    runs = [with_variants(place / f"{name}.json") for name in ("first", "second")]
    for path in (*studies[1].glob("round_*.json"), studies[1] / "products.json", runs[1]):
        change(path, of_the_second)

    def with_bf16(content: Json) -> None:
        measured = content["context"]["peaks"]["measured"]
        measured["bf16"] = {"flops_per_second": 4e11, "source": "tiled_gemm"}

    # which the study did not measure
    change(runs[1], with_bf16)
    return read(studies[0], runs[0], studies[1], runs[1])


@pytest.fixture(scope="module")
def built(inputs: ReportInputs) -> Document:
    return build_document(inputs)


def test_devices_are_columns_with_their_names(built: Document) -> None:
    assert built.title == f"Tiny LLaMA on {NAMES[0]} and {NAMES[1]}"
    peaks = {row["figure"]: row for row in part(built, "peaks_by_device").records}
    assert peaks["f32 GEMMs"][NAMES[0]] == pytest.approx(peak("f32", "flops_per_second") / 1e9)
    assert [peaks["bf16 GEMMs"][name] for name in NAMES] == [None, 400.0]
    times = part(built, "times_by_device").records
    for row in times:
        first, second = (float(row[f"{name} [ms]"]) for name in NAMES)
        assert second == pytest.approx(SLOWER * first)
    assert (times[0]["component"], times[0]["variant"]) == ("full_step", "baseline")
    # from the run beside each study
    rows = part(built, "variants_by_device").records
    assert {row["variant"] for row in rows} == {"baseline", "optimized"} and len(rows) > 10
    for row in rows:
        first, second = (float(row[f"{name} [ms]"]) for name in NAMES)
        assert second == pytest.approx(SLOWER * first)
        text = "~ 2.00" if row["variant"] == "optimized" else "\u2013"
        assert [cell_text(row[f"{name}: speed-up"]) for name in NAMES] == [text] * 2
    (parts,) = built.sections[0].figures
    assert [trace["name"] for trace in parts.traces] == NAMES
    about = zip(built.sections[0].text, NAMES, strict=True)
    assert all(text.startswith(f"{name}: commit ") for text, name in about)


def test_every_section_is_there_for_each_device_under_its_name(
    built: Document, tmp_path: Path, open_page: PageOpener
) -> None:
    titles = [title for _, title, _ in SECTIONS]
    headings = [f"{title} · {name}" for title in titles for name in NAMES]
    assert [one.heading for one in built.sections] == ["Devices", *headings, "Left out"]
    for things in (
        built.sections,
        [figure for page in built.sections for figure in page.figures],
        [table for page in built.sections for table in page.tables],
    ):
        assert len({one.id for one in things}) == len(things)
    # each device has its own variants, and its own reasons
    assert all(part(built, f"variants_ffn_forward_backward_0{end}") for end in ("", "_2"))
    assert {one.device for one in built.omissions} == {*NAMES}
    text = markdown_of(built)
    assert f"## Roofline · {NAMES[0]}" not in text and f"## Cases · {NAMES[1]}" in text
    assert f"- {NAMES[1]}: time law " in text
    (tmp_path / "page.html").write_text(page_of(built), encoding="utf-8")
    for width in (1300, 390):
        opened = open_page(tmp_path / "page.html", width)
        assert opened.page.evaluate(CUT_OFF) == [width]
    assert opened.texts("section h2") == [one.heading for one in built.sections]
    # the contents name each subject once
    assert opened.texts("#contents a") == ["Summary", "Devices", *titles, "Left out"]


def test_csv_has_the_rows_of_all_devices_and_figures_of_merit_are_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (write_result(tmp_path / f"{name}.json") for name in ("a", "b"))
    change(second, of_the_second)
    given = [str(first), str(second)]
    assert tools.report([*given, "--format=csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    step = [row for row in rows if row["component"] == "full_step"]
    assert [(row["device"], row["architecture"]) for row in step] == [
        tuple(name.split(", ")) for name in NAMES
    ]
    assert float(step[1]["time_ms"]) == pytest.approx(SLOWER * float(step[0]["time_ms"]), rel=1e-4)
    assert tools.report([*given, "--format=fom"]) == 2
    said = capsys.readouterr().err
    assert f"of one device, and these results of 2 ({'; '.join(NAMES)}): name those of one" in said


def test_a_data_parallel_run_of_another_device_has_sections_of_its_own(tmp_path: Path) -> None:
    grid, _, ranks = write_everything(tmp_path)
    for path in ranks.glob("ranks_*.json"):
        change(path, lambda content: content["context"]["device"].update(name="Another CPU"))
    inputs = read(grid, ranks)
    assert (inputs.scalings, inputs.others[0].main.cases) == ((), {})
    built = build_document(inputs)
    headings = {one.heading: one.missing for one in built.sections}
    assert headings[f"Data-parallel scaling · {DEVICE}"]
    assert not headings["Data-parallel scaling · Another CPU"]
    assert "no result of the suite was given" in headings["Cases · Another CPU"]
    # alone it is the report's device
    assert build_document(read(ranks)).title.startswith("Tiny LLaMA on Another CPU")
    assert inputs.main.cases[TINY_STEP].seconds
