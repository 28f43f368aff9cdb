"""What the program says without measuring, and what it refuses: one line that names the option or
file, the value and the rule, with exit status 2, before anything is measured."""

from pathlib import Path

import pytest
from cli_program import (
    BASELINE,
    JOURNAL,
    QUICK,
    SMALL,
    Program,
)

from built_programs import ON_CPU, FinishedRun, message_of, strict_json

ALL_SIZES = "--sizes=tiny,small,medium,large,very_large"
FFN = [*SMALL, "--components=ffn", "--passes=forward"]
MIB = 1 << 20


def shown(program: Program, *arguments: str) -> str:
    """Standard output of a run with nothing to complain of."""
    completed = program.run(*arguments)
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


def test_a_dry_run_has_the_same_figures_in_json_and_as_a_table(program: Program) -> None:
    choice = ["--components=full_step,ffn", BASELINE, ALL_SIZES, "--memory-limit=8GiB", ON_CPU[0]]
    document = strict_json(shown(program, *choice, "--dry-run", "--benchmark_format=json"))
    assert (
        document["device"] == strict_json(shown(program, ON_CPU[0], "--describe-device"))["device"]
    )
    assert document["device"]["backend"] == "cpu" and document["device"]["memory_bytes"] > 0
    cases = {case["name"]: case for case in document["cases"]}
    assert list(cases) == program.names(*choice)
    tiny, large = (
        cases[f"full_step/train/baseline/{size}/f32/batch:8/seq:{seq}"]
        for size, seq in (("tiny", 128), ("large", 1024))
    )
    assert (tiny["model_flops"], tiny["fits"], tiny["reason"]) == (17_678_991_360, True, "")
    assert large["predicted_memory_bytes"] > 8 * 2**30
    assert not large["fits"] and "exceeds 8.00 GiB" in large["reason"]
    lines = shown(program, *choice, "--dry-run").splitlines()
    rows = [line.split()[:2] for line in lines if "/baseline/" in line]
    assert rows == [[name, str(case["parameters"])] for name, case in cases.items()]
    assert lines[-1].startswith(f"{len(cases)} cases")


def test_dry_run_allocates_nothing(program: Program) -> None:
    listing, _ = program.peak_memory(ALL_SIZES, "--list")
    # the smallest of these steps needs more than the difference that is allowed
    dry_run, completed = program.peak_memory(ALL_SIZES, "--device=cpu", "--dry-run")
    assert completed.returncode == 0, completed.stderr
    assert dry_run < listing + 32 * MIB


# Options, and what the message has to say, with | between: one of each part of the program that
# refuses. The C++ tests of options, their grammar, the plan and the journal have every kind.
BAD_OPTIONS = """\
--frobnicate                        --frobnicate | known options:
--components=ffn,nose               --components 'nose' | must be one of embedding
--seq=9999999                       seq = 9999999 | must be between 1 and
--memory-limit=8Gigs                --memory-limit '8Gigs' | 8GiB, 512MiB
--benchmark_filter=zzz              --benchmark_filter 'zzz' | no case
--benchmark_frobnicate=1            --benchmark_frobnicate=1
--serve --list                      --list: not with --serve
--device=cuda:99                    "cuda:99": no such device (allowed: auto, cpu, cuda
--device=cuda:99 --dry-run          "cuda:99": no such device
--weights=nowhere                   nowhere | config.json
--problem-sizes=nowhere             nowhere | cannot be read
"""


@pytest.mark.parametrize("line", BAD_OPTIONS.splitlines())
def test_bad_option_is_refused(program: Program, line: str) -> None:
    options, _, parts = (part.strip() for part in line.partition("  "))
    completed = program.run("--threads=1", *options.split(), timeout=30)
    assert [part for part in parts.split(" | ") if part not in message_of(completed)] == []
    assert completed.stdout == ""


def test_journal_of_another_run_is_refused_and_left_alone(
    smoke_run: FinishedRun, program: Program, tmp_path: Path
) -> None:
    whole = (smoke_run.folder / JOURNAL).read_text(encoding="utf-8")
    # the names of cases are the same
    other_size = whole.replace('"hidden_dim":32', '"hidden_dim":64', 1)
    for content, expected, option in (
        (whole, "was written with seed = ", "--seed=7"),
        (whole, "with settings/sdpa_backends = ", "--sdpa-backend=math"),
        (other_size, "was written with sizes/custom = ", "--seed=42"),
    ):
        file = tmp_path / JOURNAL
        file.write_text(content, encoding="utf-8")
        message = message_of(program.run(*FFN, option, f"--journal={file}", "--resume"))
        assert str(file) in message and expected in message
        assert file.read_text(encoding="utf-8") == content


def test_files_that_cannot_be_written_are_refused_at_once(program: Program, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    for option, file, expected in (
        ("--journal", kept, f"{kept}: exists and is not empty"),
        ("--journal", "/dev/full", "/dev/full: cannot be written: No space left on device"),
        ("--benchmark_out", tmp_path / "no folder/file", "no folder/file"),
        ("--trace", kept, f"--trace '{kept}': "),
    ):
        message = message_of(program.run(*FFN, f"{option}={file}"))
        assert expected in message and option.removeprefix("--") in message
    assert list(tmp_path.iterdir()) == [kept] and kept.read_text() == "mine"


@pytest.mark.parametrize("mode", ["--list", "--dry-run", "--benchmark_format=json"])
def test_standard_output_that_is_full_is_an_error(program: Program, mode: str) -> None:
    with Path("/dev/full").open("w") as full:
        completed = program.run(*FFN, *QUICK, "--verify=off", mode, stdout=full)
    assert completed.returncode == 2
    assert "standard output cannot be written" in completed.stderr
