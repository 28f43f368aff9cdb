"""Every command, file, key, output line and figure of docs/workshop.md, tried at a small size."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from conftest import built_program
from tinyllama_tools.suite_run import Json
from workshop_page import (
    AS_IT_IS,
    COMMAND_TABLE,
    FIGURE_TABLE,
    FILE_TABLE,
    FOLDER_TABLE,
    LINE_TABLE,
    OPTION_TABLE,
    PROGRAM,
    SIZE_TABLE,
    WITHOUT_COMMAND,
    code,
    commands,
    rows,
    snippets,
    tables,
)
from workshop_place import WorkshopPlaces, needs

DOCUMENTS = (
    "Walkthrough",
    "Exercise 1, its own sheet",
    "Exercise 3, its own sheet: bottlenecks",
    "Short walkthrough",
    "Component benchmark and profiling summary",
)
# These would install packages, or take minutes: that the script knows them is all that is checked.
NOT_RUN = {"scripts/bench --setup-only": "--setup-only", "scripts/ablation": "scripts/ablation"}
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")
SERVERS = [command for command in commands() if command.startswith("tensorboard")]
RUN = [command for command in commands() if command not in (*SERVERS, *NOT_RUN)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> WorkshopPlaces:
    built_program("benchmarks/tiny_llama_train")
    built_program("benchmarks/tiny_llama_bench")
    return WorkshopPlaces(tmp_path_factory.mktemp("workshop"))


def value_at(data: Json, path: str) -> Json:
    """`a.b[name].c`: a key may be followed by the name of a list's entry. KeyError where absent."""
    for key, name in re.findall(r"([\w]+)(?:\[((?:[^\[\]]|\[[^\]]*\])+)\])?\.?", path):
        data = data[key]
        if name:
            data = next(entry for entry in data if entry["name"] == name)
    return data


def files_of(command: str) -> list[tuple[str, list[str]]]:
    """Pattern and keys of each file that the page says this command of the program writes."""
    wanted = []
    for text, here, flags, keys in rows(FILE_TABLE):
        names = code(text)[:1] if here == "the same" else code(here)
        switches = [*PROFILERS, "--output-dir"] if "every profiler" in flags else code(flags)
        if any(switch in command for switch in switches):
            wanted.append((names[0], [] if keys.startswith("curves") else code(keys)))
    return wanted


def check_training(command: str, folder: Path, output: str) -> None:
    words = shlex.split(command)
    option = "--profile-dir" if any(flag in words for flag in PROFILERS) else "--output-dir"
    target = words[words.index(option) + 1] if option in words else "profiles"
    last = 5 + (int(words[words.index("--profile-steps") + 1]) if "--profile-steps" in words else 5)
    for name, keys in files_of(command):
        pattern = name.replace("trace_step_5_10", f"trace_step_5_{last}")
        found = list((folder / target).glob(pattern))
        assert len(found) == 1, f"{pattern}: {found}"
        assert found[0].stat().st_size > 0
        for key in keys:
            value = value_at(json.loads(found[0].read_text(encoding="utf-8")), key)
            assert value is not None, f"{found[0]}: {key}"
    for text, here, flags in rows(LINE_TABLE):
        if not flags or any(flag in words for flag in code(flags)):
            for line in code(text if here == "the same" else here):
                wanted = re.escape(line.replace("5-10", f"5-{last}")).replace("1/20", r"1/\d+")
                assert re.search(wanted, output), line


def check_folder(script: str, folder: Path) -> None:
    for _, here, writer in rows(FOLDER_TABLE):
        if code(writer) == [script]:
            for pattern in code(here.split(" in ")[0]):
                assert list(folder.glob(pattern)), f"{folder}/{pattern}"


def check_study(command: str, folder: Path) -> None:
    size = command.split()[1]
    made = list((folder / "results").glob(f"performance_results_{size}_*"))
    assert len(made) == 1, made
    check_folder("scripts/study", made[0])
    if "--enable-profilers" in command:
        check_folder("scripts/study --enable-profilers", made[0] / "pytorch_profiles")


def check_profile(command: str, folder: Path, output: str) -> None:
    words = shlex.split(command)
    if "--profile-dir" in words:
        check_folder("scripts/profile", folder / words[words.index("--profile-dir") + 1])
    elif "--analyze-existing" in words:
        where = folder / words[words.index("--output-dir") + 1]
        check_folder("scripts/profile --analyze-existing", where)
    else:
        assert "aten::mm" in output


def check_exercise(command: str, folder: Path) -> None:
    page = (folder / f"results/exercise_{command.split()[1]}.md").read_text(encoding="utf-8")
    assert "___" not in page


@pytest.mark.parametrize("command", RUN)
def test_the_command_does_what_the_page_says(command: str, places: WorkshopPlaces) -> None:
    done = places.run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = places.home(command)
    if "--validate-setup" in command:
        for name in ("device", "libtorch", "memory", "HIP runtime", "output"):
            assert re.search(rf"^(ok|warning) +{name}: ", done.stdout, re.MULTILINE), name
    elif PROGRAM in command:
        check_training(command, folder, done.stdout)
    elif command.startswith("scripts/study") and "--dry-run" not in command:
        check_study(command, folder)
    elif command.startswith("scripts/profile"):
        check_profile(command, folder, done.stdout)
    elif command.startswith("scripts/exercise"):
        check_exercise(command, folder)
    elif not command.startswith(("mkdir", "chmod")):
        assert done.stdout.strip()


@pytest.mark.parametrize("command", NOT_RUN)
def test_what_takes_too_long_is_known_to_its_script(command: str, project_root: Path) -> None:
    help_text = [str(project_root / command.split()[0]), "--help"]
    done = subprocess.run(help_text, capture_output=True, text=True, timeout=60, check=True)
    assert NOT_RUN[command] in done.stdout


@pytest.mark.parametrize("text", snippets(), ids=["flops", "intensity", "sizes"])
def test_the_snippet_runs_as_it_is(text: str, places: WorkshopPlaces) -> None:
    for command in needs(text):
        assert places.run(command).returncode == 0
    loops = "performance_results_" in text
    folder = places.home(needs(text)[0])
    done = places.shell(text, folder / "results" if loops else folder)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    if loops:
        for size in ("tiny", "small"):
            assert re.search(rf"^{size}: [\d.]+ samples/sec", done.stdout, re.MULTILINE)
            assert re.search(rf"^{size}: \d+ MB", done.stdout, re.MULTILINE)
    else:
        figures = re.findall(r"^[\w /]+: (\S+)", done.stdout, re.MULTILINE)
        assert len(figures) == text.count("print(f")
        assert "not available" not in done.stdout


def test_every_document_has_its_commands() -> None:
    sections = {
        table.section for table in tables() if table.header in (OPTION_TABLE, COMMAND_TABLE)
    }
    assert sections == set(DOCUMENTS)
    assert len(snippets()) == 3


@pytest.mark.parametrize("row", rows(COMMAND_TABLE), ids=lambda row: f"{row[0]} {row[1]}"[:60])
def test_each_row_says_what_to_type_or_why_nothing(row: tuple[str, ...]) -> None:
    _, text, here, _ = row
    if here == AS_IT_IS[0]:
        assert code(text)
    elif here.startswith(AS_IT_IS[1]):
        assert "#snippets-of-the-text" in here
    else:
        assert code(here) or here in WITHOUT_COMMAND


def shown(value: Json) -> str:
    """Bytes, counts and texts as the page writes them, by the size of the figure."""
    return value if isinstance(value, str) else f"{value:,}"


@pytest.fixture(scope="module")
def tiny_summary(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The default size as it is: the page's figures are of this run."""
    program = built_program("benchmarks/tiny_llama_train")
    folder = tmp_path_factory.mktemp("tiny")
    options = ["--num-steps=10", "--threads=1", "--device=cpu", *PROFILERS]
    command = [str(program), *options, f"--profile-dir={folder}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return json.loads((folder / "performance_summary.json").read_text(encoding="utf-8"))


def measured_figures() -> list[tuple[str, ...]]:
    """Rows whose exact figure is a key of performance_summary.json on any device."""
    keys = ("model.", "memory.", "operators.steps", "flops.")
    return [row for row in rows(FIGURE_TABLE) if code(row[3]) and code(row[3])[0].startswith(keys)]


@pytest.mark.parametrize("row", measured_figures(), ids=lambda row: row[0])
def test_the_exact_figures(row: tuple[str, ...], tiny_summary: Json) -> None:
    _, _, exact, where = row
    value = value_at(tiny_summary, code(where)[0])
    if exact.endswith(" MB"):
        assert f"{value / 2**20:.1f} MB" == exact
    elif exact.endswith("M"):
        assert f"{value / 1e6:,.1f}M" == exact
    elif exact.endswith("B"):
        assert f"{value / 1e9:.1f}B" == exact
    else:
        assert shown(value) == exact


def test_the_parameters_of_the_sizes(bench_program: Path) -> None:
    sizes = {size: count.replace(",", "") for size, _, count in rows(SIZE_TABLE)}
    options = ["--dry-run", "--components=full_step", "--variants=baseline", "--dtypes=f32"]
    command = [str(bench_program), *options, f"--sizes={','.join(sizes)}"]
    table = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for size, count in sizes.items():
        assert re.search(rf"/{size}/\S+ +{count} ", table), size
