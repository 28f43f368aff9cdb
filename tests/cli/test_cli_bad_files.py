"""Bad files: each a line that names the file and what is wrong in it, and exit status 2."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_program import (
    BASELINE,
    PROJECT_ROOT,
    QUICK,
    RUN,
    SMALL,
    FinishedRun,
    Json,
    Program,
    message_of,
)

GOOD_SIZE = {
    "vocab_size": 50,
    "hidden_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "intermediate_dim": 48,
    "batch": 2,
    "seq": 8,
}
FFN = ["--components=ffn"]


def sizes_with(**changes: Json) -> str:
    return json.dumps({"tiny": GOOD_SIZE | changes})


def without(key: str) -> str:
    return json.dumps({"tiny": {k: v for k, v in GOOD_SIZE.items() if k != key}})


BAD_SIZES = {
    "nothing": ("", "not valid JSON"),
    "cut short": (sizes_with()[:-4], "not valid JSON"),
    "trailing comma": ('{"tiny": {},}', "not valid JSON"),
    "a list": ("[1, 2]", "must be an object"),
    "no size": ("{}", "must be an object"),
    "a size that is a number": ('{"tiny": 3}', "tiny = 3: must be an object"),
    "a text for a number": (sizes_with(seq="8"), 'tiny.seq = "8": must be an integer'),
    "a fraction": (sizes_with(n_layers=1.5), "tiny.n_layers = 1.5: must be an integer"),
    "null": (sizes_with(batch=None), "tiny.batch = null: must be an integer"),
    "a negative number": (sizes_with(hidden_dim=-32), "hidden_dim = -32: must be between 1 and"),
    "zero": (sizes_with(batch=0), "batch = 0: must be between 1 and"),
    "beyond 64 bits": (sizes_with(seq=2**64), "tiny.seq"),
    "beyond a double": ('{"tiny": {"seq": 1e999}}', "1e999"),
    "an unknown key": (sizes_with(layers=2), "tiny.layers: unknown key"),
    "a missing key": (without("n_heads"), "tiny: key n_heads is missing"),
    "heads that do not divide": (sizes_with(n_heads=5), "n_heads = 5: must divide hidden_dim = 32"),
}


@pytest.mark.parametrize("case", BAD_SIZES.values(), ids=BAD_SIZES.keys())
def test_bad_problem_sizes_are_refused(
    program: Program, tmp_path: Path, case: tuple[str, str]
) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(case[0], encoding="utf-8")
    message = message_of(program.run(f"--problem-sizes={file}", "--sizes=tiny", "--list"))
    assert str(file) in message
    assert case[1] in message


def test_missing_problem_sizes_are_refused(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "absent.json"
    message = message_of(program.run(f"--problem-sizes={file}", "--list"))
    assert f"{file}: cannot be read; --problem-sizes names" in message


def test_folder_of_problem_sizes_is_refused(program: Program, tmp_path: Path) -> None:
    message = message_of(program.run(f"--problem-sizes={tmp_path}", "--list"))
    assert str(tmp_path) in message


def test_own_problem_sizes_are_used(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(json.dumps({"mine": GOOD_SIZE}), encoding="utf-8")
    names = program.names(
        f"--problem-sizes={file}", "--sizes=mine", *FFN, "--passes=forward", BASELINE
    )
    assert names == ["ffn/forward/baseline/mine/f32/batch:2/seq:8"]


def test_the_projects_own_sizes_are_the_default(program: Program) -> None:
    file = PROJECT_ROOT / "fixtures" / "problem_sizes.json"
    assert program.names(f"--problem-sizes={file}") == program.names()


def header_and_case(file: Path) -> tuple[Json, Json]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return json.loads(lines[0]), json.loads(lines[-1])


def refused_journal(program: Program, file: Path, *lines: Json) -> str:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    message = message_of(
        program.run(*SMALL, *RUN, *FFN, *QUICK, f"--journal={file}", "--resume", timeout=60)
    )
    assert str(file) in message
    return message


def test_resume_of_files_that_are_no_journal_is_refused(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    assert "line 1: is not a JSON object" in refused_journal(program, file, "hello")
    assert "is not the header of a journal" in refused_journal(program, file, {"a": 1})
    assert "is empty" in refused_journal(program, file)


def test_resume_of_a_damaged_journal_is_refused(copy_of_journal: Path, program: Program) -> None:
    file = copy_of_journal
    header, case = header_and_case(file)
    old = header | {"schema_version": 0}
    assert "schema_version 0" in refused_journal(program, file, old)
    assert "line 2: is not a JSON object" in refused_journal(program, file, header, "{", case)
    nameless = {"entries": case["entries"]}
    assert "line 2: needs a case" in refused_journal(program, file, header, nameless)


@pytest.mark.parametrize("entries", [[], [3], [{}]], ids=["none", "number", "empty"])
def test_resume_of_a_journal_with_useless_entries_is_refused(
    copy_of_journal: Path, program: Program, entries: list[Json]
) -> None:
    header, case = header_and_case(copy_of_journal)
    message = refused_journal(program, copy_of_journal, header, case | {"entries": entries})
    assert "line 2" in message


def test_resume_of_a_journal_with_malformed_peaks_is_refused(
    copy_of_journal: Path, program: Program
) -> None:
    header, case = header_and_case(copy_of_journal)
    header["header"]["peaks"] = {"measured": {"f32": {"flops_per_second": "many"}}}
    assert "peaks" in refused_journal(program, copy_of_journal, header, case)


def test_resume_without_a_journal_there_is_refused(program: Program, tmp_path: Path) -> None:
    for file in (tmp_path / "absent.jsonl", tmp_path / "no folder" / "journal.jsonl", tmp_path):
        message = message_of(program.run(*SMALL, *RUN, f"--journal={file}", "--resume"))
        assert str(file) in message


@pytest.mark.parametrize(
    ("option", "key"), [("--seed=7", "seed"), ("--cold-cache", "cold_cache"), ("--verify=off", "")]
)
def test_resume_under_other_circumstances_is_refused(
    copy_of_journal: Path, program: Program, option: str, key: str
) -> None:
    before = copy_of_journal.read_bytes()
    arguments = [*SMALL, *RUN, *FFN, option, f"--journal={copy_of_journal}", "--resume"]
    message = message_of(program.run(*arguments))
    assert str(copy_of_journal) in message
    assert f"was written with {key or 'verify'} = " in message
    assert copy_of_journal.read_bytes() == before


def test_existing_journal_is_not_overwritten(copy_of_journal: Path, program: Program) -> None:
    before = copy_of_journal.read_bytes()
    completed = program.run(*SMALL, *RUN, *FFN, f"--journal={copy_of_journal}")
    message = message_of(completed)
    assert f"--journal {copy_of_journal}: exists and is not empty" in message
    assert copy_of_journal.read_bytes() == before
    assert "measured peak" not in completed.stderr, "known only after the peaks"


def test_journal_that_cannot_be_created_is_refused(program: Program, tmp_path: Path) -> None:
    for file in (tmp_path / "no folder" / "journal.jsonl", tmp_path):
        message = message_of(program.run(*SMALL, *RUN, *FFN, f"--journal={file}"))
        assert f"{file}: cannot be created" in message


def test_journal_on_a_full_disk_is_refused(program: Program) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    message = message_of(program.run(*SMALL, *RUN, *FFN, "--journal=/dev/full"))
    assert "journal /dev/full: cannot be written: No space left on device" in message


@pytest.mark.parametrize("name", ["no folder/out.json", "."], ids=["no folder", "a folder"])
def test_result_file_that_cannot_be_written_is_refused_at_once(
    program: Program, tmp_path: Path, with_peaks: Callable[..., list[str]], name: str
) -> None:
    arguments = [*SMALL, *with_peaks(), *FFN, *QUICK]
    completed = program.run(*arguments, f"--benchmark_out={tmp_path / name}")
    message = message_of(completed)
    assert "--benchmark_out" in message
    assert str(tmp_path) in message
    assert "[1/" not in completed.stderr, "known only after the cases"


def test_refused_result_file_leaves_nothing(program: Program, smoke_run: FinishedRun) -> None:
    assert sorted(path.name for path in smoke_run.result_file.parent.iterdir()) == [
        "journal.jsonl",
        "out.json",
    ]
    assert program.path.is_file()
