"""scripts/report on files of the vendors' profilers: whose kernels a component's are, and which
files are refused. kernel_profiles/ has the same eight kernels as each tool would write them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from stored import part, read, section, write_result

import tools
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.kernel_profiles import COMPONENTS, KernelProfile, read_kernel_profile
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.sections.kernels import OUTSIDE

FILES = Path(__file__).with_name("kernel_profiles")
TRACE, STATS = "tiny_kernel_trace.csv", "renamed_kernel_stats.csv"
NSYS, NCU = "tiny_cuda_gpu_kern_sum_nvtx-name.csv", "ncu_raw.csv"
# rms_norm is nested in residual, and both in forward, which has a kernel of its own; the long one
# is of a thread of autograd
MICROSECONDS = {
    **{"ffn/down_proj": 100, "embedding": 20, "optimizer": 15, "rms_norm": 10, "residual": 5},
    "": 250,
}
Capture = pytest.CaptureFixture[str]


def microseconds(profile: KernelProfile) -> dict[str, float]:
    by_component = profile.by_component()
    return {name: 1e6 * sum(k.seconds for k in own) for name, own in by_component.items()}


@pytest.mark.parametrize(
    ("name", "tool", "kernels"),
    [
        (TRACE, "rocprofv3", ["Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x4x1"]),
        ("renamed_kernel_trace.csv", "rocprofv3", [""]),
        (STATS, "rocprofv3", [""]),
        (NSYS, "Nsight Systems", ["ampere_sgemm_128x64_tn"]),
        (NCU, "Nsight Compute", ["ampere_sgemm_128x64_tn"]),
    ],
)
def test_a_kernel_is_the_innermost_components_and_counted_once(
    name: str, tool: str, kernels: list[str]
) -> None:
    profile = read_kernel_profile(FILES / name)
    assert profile.tool == tool
    assert microseconds(profile) == pytest.approx(MICROSECONDS)
    assert list(microseconds(profile)) == list(MICROSECONDS), "the longest first, the rest last"
    assert sum(one.calls for one in profile.kernels) == 8
    own = profile.by_component()["ffn/down_proj"]
    assert [one.kernel[:40] for one in own] == kernels


@pytest.mark.parametrize("name", ["pmc_perf.csv", "results_pmc_perf_0.csv"])
def test_a_launch_with_a_row_for_each_counter_counts_once_and_may_have_no_range(name: str) -> None:
    profile = read_kernel_profile(FILES / name)
    assert profile.tool == "rocprof-compute"
    assert microseconds(profile) == pytest.approx({"": 400})
    assert sum(one.calls for one in profile.kernels) == 8


def test_without_hip_calls_a_kernel_may_have_the_correlation_id_of_its_range(
    tmp_path: Path,
) -> None:
    for name in (TRACE, "tiny_marker_api_trace.csv"):
        shutil.copy(FILES / name, tmp_path)
    trace = tmp_path / TRACE
    assert microseconds(read_kernel_profile(trace)) == pytest.approx({"": 400})
    # those of residual and of ffn/down_proj
    text = trace.read_text("utf-8").replace('",32,', '",5,').replace('",33,', '",9,')
    trace.write_text(text, "utf-8")
    found = microseconds(read_kernel_profile(trace))
    assert found == pytest.approx({"ffn/down_proj": 100, "residual": 5, "": 295})


def test_the_table_has_shares_of_100_percent_and_names_tool_and_file() -> None:
    page = section(build_document(read(FILES / TRACE, FILES / NSYS)), "kernels")
    assert page.heading == "Kernel time by component" and len(page.tables) == 2
    for table, name in zip(page.tables, (TRACE, NSYS), strict=True):
        assert table.title.endswith(name) and not page.omissions
        assert sum(row["share [%]"] for row in table.records) == pytest.approx(100)
        assert table.records[-1]["component"] == OUTSIDE
        assert table.records[0]["time [ms]"] == pytest.approx(0.1)
    (longest,) = (r["longest kernels"] for r in page.tables[1].records if r["calls"] == 3)
    assert longest.startswith("ampere_sgemm_128x64_tn (240 us), ")


def test_a_report_of_profiles_alone_and_beside_results(tmp_path: Path, capsys: Capture) -> None:
    result = write_result(tmp_path / "a.json")
    assert tools.report([FILES / NCU, FILES / "pmc_perf.csv", "--format=md"]) == 0
    alone = capsys.readouterr()
    assert alone.out.startswith("# Kernels of ncu_raw.csv, pmc_perf.csv\n")
    assert "ffn/down_proj" in alone.out and "Roofline" not in alone.out
    assert "pmc_perf.csv: no kernel was launched in a range" in alone.err
    assert tools.report([result, FILES / NCU, "--format=md"]) == 0
    both = capsys.readouterr().out
    assert "ffn/down_proj" in both and "# Tiny LLaMA on " in both and "## Steps" in both
    assert tools.report([result, FILES / NCU, "--format=csv"]) == 0
    assert "a file of a profiler has no cases" in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert tools.report([FILES / NCU, "-o", page]) == 0
    assert "Kernel time by component" in page.read_text("utf-8")


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


CUT = "cut off"
PROJECTED = "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances"
BAD: list[tuple[str, Callable[[str], str], str]] = [
    (TRACE, lambda _: "", "is empty"),
    (TRACE, lambda text: text.splitlines()[0] + "\n", "no kernel in it takes time"),
    (TRACE, lambda text: text[: text.index(",0,0,24") + 4], f"line 2 has 13 cells, .*{CUT}"),
    (TRACE, lambda text: text[: text.index("Large")], f"line 2 cannot be read, .*{CUT}"),
    (TRACE, replaced("End_Timestamp", "EndNs"), "has no column End_Timestamp; its columns are Kin"),
    (TRACE, replaced("1551874061026000", "n/a"), "line 2, End_Timestamp: 'n/a' is no number"),
    (TRACE, replaced("1551874061026000", "nan"), "line 2, End_Timestamp: 'nan' is no number"),
    (TRACE, replaced("1551874061026000", "9"), "line 2: it ends .9. before it begins"),
    (STATS, replaced(",240000,", ",-1,"), "line 2, TotalDurationNs: '-1' is no number of 0 or"),
    (NSYS, replaced("Total Time (ns)", "Total Time (ms)"), r"no column Total Time \(ns\)"),
    (NSYS, lambda _: f"{PROJECTED}\n:forward,PushPop,9,9,1\n", "the gaps between kernels count"),
    (NSYS, lambda _: "NVTX Range,Kernel Name\n:forward,k\n", "counts in every range around it"),
    (NSYS, lambda _: "a,b\n1,2\n", "has no line with the columns Kernel_Name"),
    (NCU, replaced('"us"', '"cycle"'), "its unit is 'cycle'; must be one of ns, us, ms, s"),
    (NCU, replaced('"240.00"', '"n/a"'), "line 4, gpu__time_duration.sum: 'n/a' is no number"),
    (NCU, replaced('"240.00"', '"240.00"\0'), "line 4 cannot be read"),
]


@pytest.mark.parametrize(("name", "damage", "why"), BAD, ids=[why for _, _, why in BAD])
def test_a_bad_file_is_refused_by_name(
    tmp_path: Path, name: str, damage: Callable[[str], str], why: str
) -> None:
    path = tmp_path / name
    path.write_text(damage((FILES / name).read_text("utf-8")), "utf-8")
    with pytest.raises(BadInputError, match=why) as error:
        read_kernel_profile(path)
    assert str(error.value).startswith(f"{path}: ") and "; " in str(error.value)


def test_a_table_of_another_name_and_a_damaged_file_beside_a_trace(tmp_path: Path) -> None:
    other = shutil.copy(FILES / STATS, tmp_path / "tiny_hip_api_stats.csv")
    with pytest.raises(BadInputError, match="other tables of rocprofv3 look the same"):
        read_kernel_profile(other)
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tiny_hip_api_trace.csv").write_bytes(b"\xff\xff")
    with pytest.raises(BadInputError, match=r"tiny_hip_api_trace\.csv: is no text"):
        read_kernel_profile(tmp_path / TRACE)


def test_bad_files_end_with_2_alone_and_1_beside_good_ones(tmp_path: Path, capsys: Capture) -> None:
    bad = tmp_path / "bad.csv"
    assert tools.report([bad, "--format=md"]) == 2
    assert f"error: file {bad}: cannot be read: No such file" in capsys.readouterr().err
    bad.write_text("", "utf-8")
    assert tools.report([bad, FILES / NCU, "--format=md"]) == 1
    said = capsys.readouterr()
    assert "bad.csv: is empty" in said.err and "ffn/down_proj" in said.out


def test_no_component_is_another_with_a_slash() -> None:
    assert not [one for one in COMPONENTS for other in COMPONENTS if one.startswith(f"{other}/")]


def test_devices_with_a_profile_have_it_once(tmp_path: Path) -> None:
    results = (write_result(tmp_path / f"{name}.json", device=name) for name in ("A", "B"))
    report = build_document(read(*results, FILES / NCU))
    assert [one.heading for one in report.sections].count("Kernel time by component") == 1
    assert part(report, "kernel_components").rows
