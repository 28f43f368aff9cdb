"""Bad options and files: one line that names the option or file, the value and the rule, and exit
status 2, before anything is measured."""

import json
from pathlib import Path

import pytest
from cli_program import BASELINE, QUICK, RUN, SMALL, FinishedRun, Program, write_journal

from built_programs import PROJECT_ROOT, Json, message_of

FFN = ["--components=ffn"]
GOLDEN = PROJECT_ROOT / "fixtures/golden/gqa_groups_2"
# Options, and what the message has to say, with | between: one of each part of the program that
# refuses. The C++ tests of options, their grammar, the plan and the journal have every kind.
BAD_OPTIONS = """\
--frobnicate                        --frobnicate | known options:
--components=ffn,nose               --components 'nose' | must be one of embedding
--variants=sdpa+fused_attention     sdpa | exclude each other
--sizes=custom                      --sizes 'custom' | needs --hidden-dim
--seq=64:32:*2                      --seq '64:32:*2' | the last value is below the first
--seq=9999999                       seq = 9999999 | must be between 1 and
--memory-limit=8Gigs                --memory-limit '8Gigs' | 8GiB, 512MiB
--threads=two                       --threads | two
--resume                            --resume | needs --journal FILE
--benchmark_filter=zzz              --benchmark_filter 'zzz' | no case
--benchmark_out_format=csv          --benchmark_out_format 'csv' | be json
--benchmark_frobnicate=1            --benchmark_frobnicate=1
--hidden-dim=30                     n_heads = 8 | must divide hidden_dim = 30
--hidden-dim=1048576 --n-layers=1048576   n_layers = 1 | 4e18
--serve --list                      --list: not with --serve
--device=tpu                        "tpu" | unknown kind of device
--weights=nowhere                   nowhere | config.json
--problem-sizes=nowhere             nowhere | cannot be read
"""


@pytest.mark.parametrize("line", BAD_OPTIONS.splitlines())
def test_bad_option_is_refused(program: Program, line: str) -> None:
    options, _, parts = (part.strip() for part in line.partition("   "))
    message = message_of(program.run(*RUN[1:], *options.split(), timeout=30))
    assert [part for part in parts.split(" | ") if part not in message] == []


@pytest.mark.parametrize("mode", [["--describe-device"], ["--dry-run"], []])
def test_absent_device_is_refused(program: Program, mode: list[str]) -> None:
    if '"backend":"cpu"' not in program.run("--describe-device").stdout:
        pytest.skip("there is a GPU here")
    completed = program.run(*SMALL, "--device=cuda:1", *mode)
    assert completed.stdout == ""
    assert '"cuda:1": no such device (allowed: auto, cpu, cuda' in message_of(completed)


def test_own_problem_sizes_are_used_or_refused(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    size = {"vocab_size": 50, "hidden_dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
    size |= {"intermediate_dim": 48, "batch": 2, "seq": 8}
    choice = [f"--problem-sizes={file}", "--sizes=mine", *FFN, "--passes=forward", BASELINE]
    file.write_text(json.dumps({"mine": size}), encoding="utf-8")
    assert program.names(*choice) == ["ffn/forward/baseline/mine/f32/batch:2/seq:8"]
    for text, expected in (
        ("", "not valid JSON"),
        ('{"mine": {"seq": 1e999}}', "1e999"),
        (json.dumps({"mine": size | {"seq": "8"}}), 'mine.seq = "8": must be an integer'),
        (json.dumps({"mine": size | {"layers": 2}}), "mine.layers: unknown key"),
    ):
        file.write_text(text, encoding="utf-8")
        message = message_of(program.run(*choice, "--list"))
        assert str(file) in message
        assert expected in message


def test_journal_of_another_run_or_none_is_refused_and_left_alone(
    copy_of_journal: Path, program: Program, tmp_path: Path
) -> None:
    lines = copy_of_journal.read_text(encoding="utf-8").splitlines()
    other_size = lines[0].replace('"hidden_dim":32', '"hidden_dim":64')
    bad: list[tuple[list[Json], str, str]] = [
        ([{"a": 1}], "is not the header of a journal", ""),
        ([lines[0], "{", lines[-1]], "line 2: is not valid JSON", ""),
        (lines, "was written with seed = ", "--seed=7"),
        # the names of cases are the same
        ([other_size, *lines[1:]], "was written with sizes/custom = ", ""),
        (lines, "was written with settings/sdpa_backends = ", "--sdpa-backend=math"),
    ]
    for content, expected, option in bad:
        file = write_journal(tmp_path / "journal.jsonl", *content)
        before = file.read_bytes()
        choice = [*SMALL, *RUN, *FFN, *QUICK, *option.split(), f"--journal={file}", "--resume"]
        message = message_of(program.run(*choice, timeout=60))
        assert str(file) in message
        assert expected in message
        assert file.read_bytes() == before


@pytest.mark.parametrize("mode", ["--list", "--dry-run", "--benchmark_format=json"])
def test_standard_output_that_is_full_is_an_error(program: Program, mode: str) -> None:
    with Path("/dev/full").open("w") as full:
        process = program.start(*SMALL, *RUN, *FFN, *QUICK, mode, stdout=full)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "standard output cannot be written" in said


def test_files_that_cannot_be_written_are_refused_at_once(
    copy_of_journal: Path, program: Program, tmp_path: Path, smoke_run: FinishedRun
) -> None:
    before = copy_of_journal.read_bytes()
    nowhere = tmp_path / "no folder/file"
    for option, file, expected in (
        ("--journal", copy_of_journal, f"{copy_of_journal}: exists and is not empty"),
        ("--journal", nowhere, "file: cannot be created"),
        ("--journal", tmp_path, f"{tmp_path}: cannot be created"),
        ("--journal", "/dev/full", "/dev/full: cannot be written: No space left on device"),
        ("--benchmark_out", nowhere, str(nowhere)),
        ("--benchmark_out", tmp_path, str(tmp_path)),
        ("--trace", copy_of_journal, f"--trace '{copy_of_journal}': "),
    ):
        message = message_of(program.run(*SMALL, *RUN, *FFN, f"{option}={file}"))
        assert expected in message
        assert option.removeprefix("--") in message
    assert copy_of_journal.read_bytes() == before
    assert list(tmp_path.iterdir()) == [copy_of_journal]
    kept = tmp_path / "out.json.part"
    kept.write_text("of the user's")
    program.run(*SMALL, *RUN, *FFN, *QUICK, f"--benchmark_out={tmp_path}/out.json")
    assert kept.read_text() == "of the user's"
    left = {path.name for path in smoke_run.result_file.parent.iterdir()}
    assert left == {"journal.jsonl", "out.json"}
