"""Every command of the README, CONTRIBUTING and docs/ is known to its program, options and all; no
line of a command's help is wider than 100 columns; and docs/vendor_profilers.md names the ranges.

tests/test_workshop.py runs the commands of docs/workshop.md.
"""

import functools
import json
import re
import shlex
from pathlib import Path

import pytest

from built_programs import (
    ON_CPU,
    PROJECT_ROOT,
    SMALL_OPTIONS,
    Completed,
    Program,
    built_program,
    finish,
    start,
)
from tinyllama_tools.__main__ import main as run_tool
from tinyllama_tools.core.subcommands import COMMANDS
from tinyllama_tools.data.kernel_profiles import COMPONENTS
from tools import require_oracle_packages

PAGES = [PROJECT_ROOT / "README.md", PROJECT_ROOT / "CONTRIBUTING.md"]
PAGES += [path for path in (PROJECT_ROOT / "docs").glob("*.md") if path.name != "workshop.md"]
TRACE = PROJECT_ROOT / "tests/fuzzing/corpus/trace/chakra"
# what a launcher or a profiler starts
PROGRAM = re.compile(r"\bbuild/benchmarks/(?:\w+/)?(\w+)(.*)$")


def documented() -> list[str]:
    """Lines of code blocks, and commands in the cells of tables and in sentences, once each."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", "").splitlines()
            found += [line.partition(" #")[0].strip() for line in lines]
        found += [code for code in re.findall(r"`([^`\n]+)`", text) if " " in code]
    parts = [part.strip() for command in found for part in command.split("&&")]
    return list(dict.fromkeys(part for part in parts if "..." not in part))


SCRIPTS = [name for name in COMMANDS if (PROJECT_ROOT / "scripts" / name).is_file()]
# named, not to be typed as they are
NAMES = ("scripts/compare run", "scripts/study --grid")


def commands_of(script: str) -> list[str]:
    """But those of the set-up, which is the shell's, and a mere name."""
    found = [text for text in documented() if text.startswith(f"scripts/{script} ")]
    return [t for t in found if "--setup-only" not in t and t not in NAMES]


@functools.cache
def run(*command: str | Path) -> Completed:
    return finish(start(command), 300)


def test_there_are_commands() -> None:
    assert len(documented()) > 60
    assert [tool for tool in SCRIPTS if not commands_of(tool)] == [
        "ablation",
        "dev/golden",
        "dev/prove",
    ]


@pytest.mark.parametrize("command", [command for tool in SCRIPTS for command in commands_of(tool)])
def test_commands_of_the_tools_have_options_that_exist(command: str) -> None:
    name, *arguments = shlex.split(command.removeprefix("scripts/"))
    assert run_tool(["--check-options", name, *arguments]) == 0


def with_a_plugin_of_the_tests(argument: str) -> str:
    """What a user builds is not there: a library of the tests with one operator stands for it."""
    if not argument.startswith("build-plugin/"):
        return re.sub(r"\b(my|aoti)::", "stable::", argument)
    library = PROJECT_ROOT / "build/tests/plugins/libplugin_over_stable_abi.so"
    if not library.exists():
        pytest.skip("this libtorch has no stable ABI for a plug-in of the tests")
    return str(library)


@pytest.mark.parametrize("command", [*commands_of("bench"), "scripts/bench --quick"])
def test_commands_of_the_suite_have_cases(command: str, bench_script: Path, tmp_path: Path) -> None:
    arguments = shlex.split(command)[1:]
    others = {"--execution-trace": tmp_path, "--replay": TRACE}
    for option, place in others.items():
        if option in arguments:
            arguments[arguments.index(option) + 1] = str(place)
    weights = PROJECT_ROOT / "fixtures/golden/gqa_groups_2"
    arguments = [str(weights) if text.startswith("~") else text for text in arguments]
    arguments = [with_a_plugin_of_the_tests(text) for text in arguments]
    if "--find-limit" in arguments:
        # what is run there takes minutes; its size is that of the test
        arguments = [text.replace("8GiB", "200MiB") for text in arguments if text != "--confirm"]
    elif "--dry-run" not in arguments:
        arguments = [text for text in arguments if text not in ("--verify", "only")]
        arguments.append("--list")
    done = run("bash", bench_script, *arguments)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_commands_of_the_tests_have_options_that_exist() -> None:
    text = (PROJECT_ROOT / "scripts/test").read_text(encoding="utf-8")
    options = re.findall(r"(?<=\s)--?[a-z][a-z-]*", "\n".join(commands_of("test")))
    assert len(options) > 4 and [name for name in options if f"    {name})" not in text] == []


@pytest.mark.parametrize("command", [text for text in documented() if PROGRAM.search(text)])
def test_programs_and_their_options_exist(command: str, bench_program: Path) -> None:
    found = PROGRAM.search(command)
    (path,) = bench_program.parent.rglob(found[1])
    text = run(path, "--help").stdout
    known = re.findall("--[a-z][a-z0-9-]*", text)
    for option in re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", found[2]):
        assert option.startswith("--benchmark") or option in known, option


# train becomes the program, whose help is looked at above
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "train"])
def test_help_of_a_tool(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    if name.startswith("dev/"):
        require_oracle_packages()
    # as it is, and before a build
    for before in ([], ["--check-options"]):
        with pytest.raises(SystemExit, match="0"):
            run_tool([*before, *name.split(), "--help"])
        assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 100] == []


# what is wrong is told by whoever starts a tool, before a build: command | words, $: their end
BAD_OPTIONS = """
compare a.json b.json --alpha 0 | '0': must be a number between 0 and 1
compare rnu --base HEAD | 'rnu': is no file and no sub-command; did you mean run?
compare a.json b.json --format txt | did you mean text?
compare history ad a.json | did you mean add?
compare history add a.json --skip-knwn | did you mean --skip-known?
compare calibrate --record=1m --zzz=4 | '--zzz=4': is no option$
compare calibrate --recrd=1m -- --pears=4 | did you mean --record?
compare a.json | 1 files, 0 of --base, 0 of --new (a.json): either BASE.json NEW.json
compare --base a.json | 0 files, 1 of --base, 0 of --new
compare --variants a,b --new c.json | --variants with 0 files
compare a.json b.json --filter ( | is no regular expression
compare run --base=build --new=build --budget=10x | '10x': must be a time such as
compare run --base=build --new=build --pairs=0 | '0': must be a whole number of 1 or more
compare run --base=build --new=build --environment-new=A | 'A': must be NAME=VALUE
compare run --new=build | required: --base
compare run --base HEAD --budgte=5m | '--budgte=5m': is no option; did you mean --budget?
compare run --bse=build | '--bse=build': is no option; did you mean --base?
compare history | add|show|changes|page
compare calibrate --slow=0.05 | --runs
compare calibrate -- --pairs 12 | --pairs 12
ablation --switches=qkv,nonsense | 'nonsense': must be one of qkv, gate_up
ablation --batch=8by128 | '8by128': must be a whole number of 1 or more
peers --seq=1 | --seq '1': must be at least 2
peers --device=auto | 'auto': must be cpu, cuda[:N] or hip[:N]
exercise 9 | 9
exercise 1 --seq 7 | must be even
exercise 1 --batch-size 8 | '--batch-size': is no option; did you mean --batch?
exercise 2 --max-seconds-per-case -1 | a positive number
gpu_check --device=cpu | device 'cpu': must be auto, cuda[:N] or hip[:N]
gpu_check --sizes=tony | size 'tony': must be one of tiny
gpu_check --steps=device,kernel | --steps: step 'kernel': must be one of device, kernels
gpu_check --steps=kernel | did you mean kernels?
gpu_check --limit=proofs | '': must be a positive number of seconds
gpu_check --limit=proof=9 | --limit: step 'proof': must be one of
profile --generate-report | --generate-report: has no meaning
profile --analyze-existing x --batch-size 4 | --batch-size: has no meaning
profile --analyze-existing x --output-dir y | --output-dir: has no meaning
profile --compare x y --analyze-existing z | not allowed with argument --compare
scaling --processes=0 | '0': must be a whole number of 1 or more
scaling --processes=4, | --processes: '4,': must be a whole number
scaling --processes=² | --processes: '²': must be a whole number
scaling --processes=8:4:*2 | --processes: '8:4:*2': must be a whole number
scaling --processes=1:8:+0 | --processes: '1:8:+0': must be a whole number
scaling --processes=1:8:*1 | --processes: '1:8:*1': must be a whole number
scaling --processes=1:1001:+1 | --processes: '1:1001:+1': must be a whole number
scaling --processes=111111111111111111111111111111 | 1': must be a whole number
scaling --timeout=-1 | must be a positive number of seconds
scaling --from=x --processes=2 | --processes: nothing is measured with --from
scaling --from=x -- --size=tiny | what follows --: nothing is measured with --from
scaling -- --threads=4 | '--threads=4' after --: scripts/scaling gives it itself
study --grid tiny --interconnects=token_ring | interconnect 'token_ring': must be one of
study | required: SIZE
study tony | size 'tony': must be one of tiny
study tiny --max-seconds-per-case=x | 'x': must be a positive number of seconds
study tiny --results=x | '--results=x': is no option
study tiny --check-size=off | '--check-size=off': is no option
study --grid | required: SIZE
study --grid tiny --grid-batch=4 | '--grid-batch=4': is no option; did you mean --batch?
study --grid tiny --check-size=tony | invalid choice: 'tony'
study --grid tiny --num-steps=3 | '--num-steps=3': is no option
"""


@pytest.mark.parametrize("line", BAD_OPTIONS.strip().splitlines())
def test_bad_options_are_named(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, words = line.split(" | ")
    with pytest.raises(SystemExit, match="2"):
        run_tool(["--check-options", *command.split()])
    said = capsys.readouterr().err.splitlines(keepends=True)[-1]
    assert words.replace("$", "\n") in said


RANGES = (
    "--batch-size=2 --seq-len=8 --num-steps=8 --eval-interval=6 --eval-iters=1 "
    "--enable-pytorch-profiler --profile-steps=3 --emit-ranges"
)


def test_the_ranges_of_a_profile_are_those_of_the_program(tmp_path: Path) -> None:
    program = Program(built_program("benchmarks/tiny_llama_train"))
    options = [*ON_CPU, *SMALL_OPTIONS, *RANGES.split(), f"--profile-dir={tmp_path}"]
    done = program.run(*options)
    if "without roctx, NVTX and ITT" in done.stderr:
        pytest.skip("this libtorch has no ranges to emit")
    assert done.returncode == 0, done.stderr
    trace = json.loads((tmp_path / "trace_step_5_8.json").read_text(encoding="utf-8"))
    ranges = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    names = {e["name"] for e in ranges if not e["name"].startswith("ProfilerStep#")}
    page = (PROJECT_ROOT / "docs/vendor_profilers.md").read_text(encoding="utf-8")
    table = page.split("| ranges | around |")[1].split("\n\n")[0]
    assert names == set(re.findall(r"`([^`]+)`", table))


def test_the_components_of_the_report_are_the_ranges_of_the_page() -> None:
    page = (PROJECT_ROOT / "docs/vendor_profilers.md").read_text(encoding="utf-8")
    ranges = re.findall(r"`([^`]+)`", page.split("| ranges | around |")[1].split(". A step")[0])
    assert {*ranges} == {*COMPONENTS, "forward", "backward"}
