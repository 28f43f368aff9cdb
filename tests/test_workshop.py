"""Every command, file, key, output line and figure of docs/workshop.md, tried at a small size."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT, built_program
from tinyllama_tools.core.app import Json
from workshop_place import WorkshopPlaces, commands, needs

PROGRAM = "build/benchmarks/tiny_llama_train"
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")
# Tables of the page, by their headers.
COMMANDS = ("in the text", "here")
FILES = ("file in the text", "here", "written with", "keys")
FOLDERS = ("folder in the text", "here", "written with")
FIGURES = ("what", "in the text", "exact", "where")
# Lines of the output by the option that they take, with `|` between them.
LINES = {
    "": "Configuration:|Batch Size:|Sequence Length:|Number of Steps:|Hidden Dim:|Num Layers:|"
    "Num Heads:|Intermediate Dim:|Total Parameters:|Model Size:|Using device:|Starting training...|"
    "Step 1/20: Loss =|Time =|Memory =|Performance Summary:|Average time per step:|Training speed:|"
    "Throughput:|Peak memory usage:|Avg time per forward:|Avg time per backward:|"
    "Avg time per optimizer:",
    "--enable-pytorch-profiler": "Profiling enabled: Steps 5-10|[PROFILING]|Profiling complete!|"
    "Profile files generated:|Top Operations by own time",
    "--profile-memory": "Memory Analysis Summary:|Peak Memory Usage:|Average Memory Usage:|"
    "Memory at Forward Pass:|Memory at Backward Pass:|Memory at Optimizer Step:|"
    "Number of Allocations:|Largest Tensor:",
    "--enable-deepspeed-flops": "Model FLOPS Utilization:|Achieved FLOPS/sec:|"
    "Arithmetic Intensity:|Memory Bandwidth Used:",
}
# These would install packages, take minutes, or serve what tests/training reads.
NOT_RUN = ("scripts/bench --setup-only", "scripts/ablation", "tensorboard")
# Each measures the device's peaks, which takes seconds, and more: with --long only.
LONG = ("scripts/bench", "scripts/exercise 2", "scripts/exercise 3")
LONG_PROFILES = ("./bottleneck_retry", "./top_operations", "./version2_analysis")
RUN = [
    pytest.param(c, marks=pytest.mark.long, id=c)
    if c.startswith(LONG) or c.endswith(LONG_PROFILES)
    else pytest.param(c, id=c)
    for c in commands()
    if not c.startswith(NOT_RUN)
]


@cache
def rows(header: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Of all tables of the page with this header; cells without the escape of `|`."""
    found, inside = [], False
    text = (PROJECT_ROOT / "docs/workshop.md").read_text(encoding="utf-8")
    for line in text.split("\n"):
        parts = re.split(r"(?<!\\)\|", line.strip().strip("|")) if line.startswith("|") else []
        cells = tuple(part.strip().replace("\\|", "|") for part in parts)
        if cells == header:
            inside = True
        elif not cells:
            inside = False
        elif inside and not line.startswith("|--"):
            assert len(cells) == len(header), line
            found.append(cells)
    return found


def code(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def snippets() -> list[str]:
    """The workshop's shell texts that work as they are."""
    text = (PROJECT_ROOT / "tests/workshop_snippets.md").read_text(encoding="utf-8")
    return re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)


def value_at(data: Json, path: str) -> Json:
    """`a.b[name].c`: a key may be followed by the name of a list's entry. KeyError where absent."""
    for key, name in re.findall(r"([\w]+)(?:\[((?:[^\[\]]|\[[^\]]*\])+)\])?\.?", path):
        data = data[key]
        if name:
            data = next(entry for entry in data if entry["name"] == name)
    return data


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> WorkshopPlaces:
    built_program("benchmarks/tiny_llama_train")
    built_program("benchmarks/tiny_llama_bench")
    return WorkshopPlaces(tmp_path_factory.mktemp("workshop"))


def check_training(command: str, folder: Path, output: str) -> None:
    """Files, their keys, and lines of the output."""
    words = shlex.split(command)
    option = "--profile-dir" if any(flag in words for flag in PROFILERS) else "--output-dir"
    target = words[words.index(option) + 1] if option in words else "profiles"
    last = 5 + (int(words[words.index("--profile-steps") + 1]) if "--profile-steps" in words else 5)
    for text, here, flags, keys in rows(FILES):
        names = code(text)[:1] if here == "the same" else code(here)
        switches = [*PROFILERS, "--output-dir"] if "every profiler" in flags else code(flags)
        if not any(switch in command for switch in switches):
            continue
        pattern = names[0].replace("trace_step_5_10", f"trace_step_5_{last}")
        (found,) = (folder / target).glob(pattern)
        assert found.stat().st_size > 0
        for key in [] if keys.startswith("curves") else code(keys):
            value = value_at(json.loads(found.read_text(encoding="utf-8")), key)
            assert value is not None, f"{found}: {key}"
    for flag, lines in LINES.items():
        for line in lines.split("|") if not flag or flag in words else []:
            wanted = re.escape(line.replace("5-10", f"5-{last}")).replace("1/20", r"1/\d+")
            assert re.search(wanted, output), line


def check_folder(script: str, folder: Path) -> None:
    for _, here, writer in rows(FOLDERS):
        if code(writer) == [script]:
            for pattern in code(here.split(" in ")[0]):
                assert list(folder.glob(pattern)), f"{folder}/{pattern}"


def check_script(command: str, folder: Path, output: str) -> None:
    """What a script of ours leaves."""
    words = shlex.split(command)
    if words[0] == "scripts/study" and "--dry-run" not in words:
        (made,) = (folder / "results").glob(f"performance_results_{words[1]}_*")
        check_folder("scripts/study", made)
        if "--enable-profilers" in words:
            check_folder("scripts/study --enable-profilers", made / "pytorch_profiles")
    elif words[0] == "scripts/profile" and "--profile-dir" in words:
        check_folder("scripts/profile", folder / words[words.index("--profile-dir") + 1])
    elif words[0] == "scripts/profile" and "--analyze-existing" in words:
        where = folder / words[words.index("--output-dir") + 1]
        check_folder("scripts/profile --analyze-existing", where)
    elif words[0] == "scripts/profile":
        assert "aten::mm" in output
    elif words[0] == "scripts/exercise":
        page = (folder / f"results/exercise_{words[1]}.md").read_text(encoding="utf-8")
        assert "## Success criteria" in page
    elif words[0] not in ("mkdir", "chmod"):
        assert output.strip()


@pytest.mark.parametrize("command", RUN)
def test_the_command_does_what_the_page_says(command: str, places: WorkshopPlaces) -> None:
    done = places.run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    if "--validate-setup" in command:
        for name in ("device", "libtorch", "memory", "HIP runtime", "output"):
            assert re.search(rf"^(ok|warning) +{name}: ", done.stdout, re.MULTILINE), name
    elif PROGRAM in command:
        check_training(command, places.home(command), done.stdout)
    else:
        check_script(command, places.home(command), done.stdout)


@pytest.mark.parametrize("text", snippets(), ids=["flops", "intensity", "sizes"])
def test_the_snippet_runs_as_it_is(text: str, places: WorkshopPlaces) -> None:
    for command in needs(text):
        assert places.run(command).returncode == 0
    loops = "performance_results_" in text
    folder = places.home(needs(text)[0])
    done = places.shell(text, folder / "results" if loops else folder)
    assert (done.returncode, done.stderr) == (0, "")
    if loops:
        for size in ("tiny", "small"):
            assert re.search(rf"^{size}: [\d.]+ samples/sec", done.stdout, re.MULTILINE)
            assert re.search(rf"^{size}: \d+ MB", done.stdout, re.MULTILINE)
    else:
        figures = re.findall(r"^[\w /]+: (\S+)", done.stdout, re.MULTILINE)
        assert len(figures) == text.count("print(f")
        assert "not available" not in done.stdout


# The page's exact figures, and the form of its rows.


def test_what_the_page_names_is_what_the_tests_type() -> None:
    typed = "\n".join(commands())
    named = [text for _, here in rows(COMMANDS) for text in code(here)]
    scripts = {text.split()[0] for text in named if text.startswith(("scripts/", "build/"))}
    assert len(scripts) > 6
    assert [text for text in scripts - {"scripts/peers"} if text not in typed] == []
    options = {word for text in named for word in text.split() if word.startswith("--")}
    assert [word for word in options - {"--num-heads"} if word not in typed] == []
    assert len(commands()) > 80 and len(snippets()) == 3


def test_the_exact_figures(tmp_path: Path) -> None:
    # the default size as it is: the page's figures are of this run
    program = built_program("benchmarks/tiny_llama_train")
    options = ["--num-steps=10", "--threads=1", "--device=cpu", *PROFILERS]
    command = [str(program), *options, f"--profile-dir={tmp_path}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    summary = json.loads((tmp_path / "performance_summary.json").read_text(encoding="utf-8"))
    checked = 0
    for what, _, exact, where in rows(FIGURES):
        key = (code(where) or [""])[0]
        # a key of performance_summary.json on any device
        if not key.startswith(("model.", "memory.", "operators.steps", "flops.")):
            continue
        value, checked = value_at(summary, key), checked + 1
        scales = {" MB": 2**20, "M": 1e6, "B": 1e9}
        unit = next((unit for unit in scales if exact.endswith(unit)), "")
        if unit:
            value = f"{value / scales[unit]:,.1f}{unit}"
        assert (value if isinstance(value, str) else f"{value:,}") == exact, what
    assert checked > 10
