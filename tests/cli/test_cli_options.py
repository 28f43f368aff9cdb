"""What the program says without measuring, and what it refuses: one line that names the option or
file, the value and the rule, with exit status 2, before anything is measured."""

import shutil
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


def test_help_shows_every_option_and_the_exit_status(program: Program) -> None:
    text = shown(program, "--help")
    options = (
        "device components passes variants sizes dtypes batch seq hidden-dim n-layers n-heads "
        "n-kv-heads intermediate-dim vocab-size problem-sizes threads seed verify memory-limit "
        "max-seconds-per-case cold-cache weights journal resume list dry-run find-limit confirm "
        "admit describe-device figures-of-merit trace serve columns benchmark_filter"
    )
    assert [name for name in options.split(" ") if f"--{name}" not in text] == []
    assert "Exit status: 0 " in text


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
--hidden-dim=30                     n_heads = 8 | must divide hidden_dim = 30
--memory-limit=8Gigs                --memory-limit '8Gigs' | 8GiB, 512MiB
--benchmark_filter=zzz              --benchmark_filter 'zzz' | no case
--benchmark_frobnicate=1            --benchmark_frobnicate=1
--serve --list                      --list: not with --serve
--device=cuda:99                    "cuda:99": no such device (allowed: auto, cpu, cuda
--device=cuda:99 --describe-device  "cuda:99": no such device
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


def test_own_problem_sizes_are_used_or_refused(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    sizes = '{"mine": {"vocab_size": 50, "hidden_dim": 32, "n_layers": 2, "n_heads": 4, '
    sizes += '"n_kv_heads": 2, "intermediate_dim": 48, "batch": 2, "seq": 8}}'
    choice = [f"--problem-sizes={file}", "--sizes=mine", BASELINE, *FFN[-2:]]
    file.write_text(sizes, encoding="utf-8")
    assert program.names(*choice) == ["ffn/forward/baseline/mine/f32/batch:2/seq:8"]
    file.write_text(sizes.replace("seq", "sequence"), encoding="utf-8")
    message = message_of(program.run(*choice, "--list"))
    assert str(file) in message and "mine.sequence: unknown key" in message


def test_journal_of_another_run_is_refused_and_left_alone(
    smoke_run: FinishedRun, program: Program, tmp_path: Path
) -> None:
    header, *lines = (smoke_run.folder / JOURNAL).read_text(encoding="utf-8").splitlines()
    # the names of cases are the same
    other_size = header.replace('"hidden_dim":32', '"hidden_dim":64')
    for content, expected, option in (
        ([header, "{", lines[-1]], "line 2: is not valid JSON", []),
        ([header, *lines], "was written with seed = ", ["--seed=7"]),
        ([other_size, *lines], "was written with sizes/custom = ", []),
        ([header, *lines], "with settings/sdpa_backends = ", ["--sdpa-backend=math"]),
    ):
        file = tmp_path / "journal.jsonl"
        before = "".join(f"{line}\n" for line in content)
        file.write_text(before, encoding="utf-8")
        message = message_of(program.run(*FFN, *option, f"--journal={file}", "--resume"))
        assert str(file) in message and expected in message
        assert file.read_text(encoding="utf-8") == before


def test_files_that_cannot_be_written_are_refused_at_once(
    smoke_run: FinishedRun, program: Program, tmp_path: Path
) -> None:
    kept = Path(shutil.copy(smoke_run.folder / JOURNAL, tmp_path))
    before = kept.read_bytes()
    nowhere = tmp_path / "no folder/file"
    for option, file, expected in (
        ("--journal", kept, f"{kept}: exists and is not empty"),
        ("--journal", nowhere, "file: cannot be created"),
        ("--journal", "/dev/full", "/dev/full: cannot be written: No space left on device"),
        ("--benchmark_out", nowhere, str(nowhere)),
        ("--benchmark_out", tmp_path, str(tmp_path)),
        ("--trace", kept, f"--trace '{kept}': "),
    ):
        message = message_of(program.run(*FFN, f"{option}={file}"))
        assert expected in message and option.removeprefix("--") in message
    assert kept.read_bytes() == before
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize("mode", ["--list", "--dry-run", "--benchmark_format=json"])
def test_standard_output_that_is_full_is_an_error(program: Program, mode: str) -> None:
    with Path("/dev/full").open("w") as full:
        completed = program.run(*FFN, *QUICK, "--verify=off", mode, stdout=full)
    assert completed.returncode == 2
    assert "standard output cannot be written" in completed.stderr
