"""Bad options and files: one line that names the option or file, the value and the rule, and exit
status 2, before anything is measured."""

import json
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
    write_journal,
)

NUMBERS = "write numbers as 8 or 4,8,16"
ONE_OF = "must be one of "
NO_DEVICE = "no such device; allowed: auto, cpu, cuda"
FFN = ["--components=ffn"]

# options, and what the message has to say
BAD_OPTIONS = [
    ("--frobnicate", "--frobnicate", "known options: "),
    ("frobnicate", "frobnicate", "known options: "),
    ("--components=ffn,nose", "--components 'nose'", ONE_OF + "embedding"),
    ("--components=ffn,", "--components 'ffn,'", "empty name"),
    ("--components", "--components", "required"),
    ("--passes=sideways", "'sideways'", ONE_OF + "forward, backward"),
    ("--variants=magic", "'magic'", "must be baseline, fused, optimized"),
    ("--variants=qkv+magic", "'qkv+magic'", "joined by '+': qkv, gate_up"),
    ("--variants=sdpa+fused_attention", "sdpa", "exclude each other"),
    ("--variants=optimized+qkv", "optimized", "stands alone"),
    ("--sizes=tiny,huge", "--sizes 'huge'", ONE_OF + "tiny, small"),
    ("--sizes=custom", "--sizes 'custom'", "needs --hidden-dim"),
    ("--dtypes=f8", "--dtypes 'f8'", ONE_OF + "f32, bf16"),
    ("--dtypes=f64", "--dtypes 'f64'", ONE_OF + "f32, bf16"),
    ("--batch=0", "--batch '0'", "not at least 1"),
    ("--batch=-4", "--batch '-4'", "not at least 1"),
    ("--batch=4,,8", "--batch '4,,8'", NUMBERS),
    ("--seq=long", "--seq 'long'", NUMBERS),
    ("--seq=1.5", "--seq '1.5'", NUMBERS),
    ("--seq=99999999999999999999", "--seq '9999", NUMBERS),
    ("--seq=64:32:*2", "--seq '64:32:*2'", "the last value is below the first"),
    ("--seq=64:128:*1", "--seq '64:128:*1'", "at least 2"),
    ("--seq=64:128:/2", "--seq '64:128:/2'", NUMBERS),
    ("--seq=64:128", "--seq '64:128'", NUMBERS),
    ("--seq=1:999999:+1", "--seq '1:999999:+1'", "more than 1000 values"),
    ("--seq=9999999", "seq = 9999999", "must be between 1 and"),
    ("--memory-limit=8Gigs", "--memory-limit '8Gigs'", "8GiB, 512MiB"),
    ("--memory-limit=-1GiB", "--memory-limit '-1GiB'", "at least 1 byte"),
    ("--memory-limit=", "--memory-limit"),
    ("--threads=0", "--threads 0", "must be between 1 and"),
    ("--threads=two", "--threads", "two"),
    ("--seed=lucky", "--seed", "lucky"),
    ("--seed=-1", "--seed", "-1"),
    ("--verify=later", "--verify 'later'", ONE_OF + "before, only, off"),
    ("--max-seconds-per-case=0", "--max-seconds-per-case 0", "must be positive"),
    ("--max-seconds-per-case=nan", "--max-seconds-per-case nan", "must be positive"),
    ("--columns=speed", "--columns 'speed': must be one of all, speedup, "),
    ("--resume", "--resume", "needs --journal FILE"),
    ("--benchmark_filter=(", "--benchmark_filter '('", "regular expression"),
    ("--benchmark_filter=[a", "--benchmark_filter '[a'", "regular expression"),
    ("--benchmark_filter=-(", "--benchmark_filter '-('", "regular expr"),
    ("--benchmark_filter", "--benchmark_filter", "=VALUE"),
    ("--benchmark_filter=zzz", "--benchmark_filter 'zzz'", "no case"),
    ("--benchmark_format=csv", "--benchmark_format 'csv'", "console or json"),
    ("--benchmark_out_format=csv", "--benchmark_out_format 'csv'", "be json"),
    ("--benchmark_out=", "--benchmark_out", "=VALUE"),
    # a model of one's own
    ("--hidden-dim=30", "n_heads = 8", "must divide hidden_dim = 30"),
    ("--n-kv-heads=3", "n_kv_heads = 3", "must divide n_heads"),
    ("--hidden-dim=24", "hidden_dim / n_heads = 24 / 8", "must be even"),
    ("--n-layers=0", "n_layers = 0", "must be between 1 and"),
    ("--hidden-dim=-64", "hidden_dim = -64", "must be between 1 and"),
    ("--vocab-size=-1", "vocab_size = -1", "must be between 1 and"),
    ("--intermediate-dim=9999999999", "intermediate_dim = 9999999999", "between"),
    ("--n-heads=many", "--n-heads", "many"),
    ("--n-heads=2 --n-heads=4", "--n-heads"),
    ("--hidden-dim=1048576 --n-layers=1048576", "n_layers = 1", "4e18"),
]
BAD_DEVICES = [
    ("cuda", NO_DEVICE),
    ("hip", NO_DEVICE),
    ("cuda:1", NO_DEVICE),
    ("cuda:x", "not a device number"),
    ("hip:-1", "not a device number"),
    ("tpu", "unknown kind of device"),
    ("cpu:1", "only a GPU has a number"),
]
# flags that Google Benchmark knows or does not know, with values that it cannot use
BAD_BENCHMARK_FLAGS = [
    "--benchmark_frobnicate=1",
    "--benchmark_frobnicate",
    "--benchmark_repetitions=three",
    "--benchmark_repetitions=-1",
    "--benchmark_repetitions=0",
    "--benchmark_min_time=soon",
    "--benchmark_min_time=0x",
    "--benchmark_min_time=-1x",
    "--benchmark_min_time=-1s",
    "--benchmark_time_unit=years",
    "--benchmark_context=no_equals_sign",
]


@pytest.mark.parametrize("case", BAD_OPTIONS, ids=[case[0] for case in BAD_OPTIONS])
def test_bad_option_is_refused(program: Program, case: tuple[str, ...]) -> None:
    options, *parts = case
    message = message_of(program.run("--list", *options.split(" ")))
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(("device", "reason"), BAD_DEVICES)
def test_absent_device_is_refused(program: Program, device: str, reason: str) -> None:
    if reason == NO_DEVICE and '"backend":"cpu"' not in program.run("--describe-device").stdout:
        pytest.skip("there is a GPU here")
    for mode in (["--describe-device"], ["--dry-run"], []):
        completed = program.run(*SMALL, f"--device={device}", *mode)
        message = message_of(completed)
        assert completed.stdout == ""
        for part in (f'"{device}"', *reason.split("; ")):
            assert part in message


@pytest.mark.parametrize("flag", BAD_BENCHMARK_FLAGS)
def test_bad_benchmark_flag_is_refused(program: Program, flag: str) -> None:
    choice = [*SMALL, *RUN, "--components=embedding", "--passes=forward", flag]
    message = message_of(program.run(*choice, timeout=30))
    name, _, value = flag.partition("=")
    assert name in message
    assert value in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--benchmark_frobnicate=1 --list", "--benchmark_frobnicate=1"),
        ("--benchmark_frobnicate=1 --dry-run", "--benchmark_frobnicate=1"),
        ("--verify=only --journal=j.jsonl", "--verify only: times nothing"),
        ("--verify=only --benchmark_out=r.json", "--verify only: times nothing"),
        ("--serve --benchmark_out=a.json", "--benchmark_out: not with --serve"),
        ("--serve --journal=a", "--journal: not with --serve"),
        ("--serve --list", "--list: not with --serve"),
        ("--serve --dry-run", "--dry-run: not with --serve"),
        ("--serve --verify=only", "--verify only: not with --serve"),
        ("--serve --components=peak", "--serve: needs a case; the peaks are not served"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    program: Program, options: str, expected: str
) -> None:
    assert expected in message_of(program.run(*SMALL, *RUN, *options.split()))


SIZE = {
    "vocab_size": 50,
    "hidden_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "intermediate_dim": 48,
    "batch": 2,
    "seq": 8,
}


def sizes(**changes: Json) -> str:
    return json.dumps({"tiny": {key: v for key, v in (SIZE | changes).items() if v is not ...}})


BAD_SIZES = [
    ("", "not valid JSON"),
    (sizes()[:-4], "not valid JSON"),
    ('{"tiny": {},}', "not valid JSON"),
    ("[1, 2]", "must be an object"),
    ("{}", "must be an object"),
    ('{"tiny": 3}', "tiny = 3: must be an object"),
    (sizes(seq="8"), 'tiny.seq = "8": must be an integer'),
    (sizes(n_layers=1.5), "tiny.n_layers = 1.5: must be an integer"),
    (sizes(batch=None), "tiny.batch = null: must be an integer"),
    (sizes(hidden_dim=-32), "hidden_dim = -32: must be between 1 and"),
    (sizes(batch=0), "batch = 0: must be between 1 and"),
    (sizes(seq=2**64), "tiny.seq"),
    ('{"tiny": {"seq": 1e999}}', "1e999"),
    (sizes(layers=2), "tiny.layers: unknown key"),
    (sizes(n_heads=...), "tiny: key n_heads is missing"),
    (sizes(n_heads=5), "n_heads = 5: must divide hidden_dim = 32"),
]


@pytest.mark.parametrize(("text", "expected"), BAD_SIZES)
def test_bad_problem_sizes_are_refused(
    program: Program, tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(text, encoding="utf-8")
    message = message_of(program.run(f"--problem-sizes={file}", "--sizes=tiny", "--list"))
    assert str(file) in message
    assert expected in message


def test_problem_sizes_that_are_no_file_are_refused(program: Program, tmp_path: Path) -> None:
    absent = tmp_path / "absent.json"
    message = message_of(program.run(f"--problem-sizes={absent}", "--list"))
    assert f"{absent}: cannot be read; --problem-sizes names" in message
    assert str(tmp_path) in message_of(program.run(f"--problem-sizes={tmp_path}", "--list"))


def test_own_problem_sizes_are_used(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(json.dumps({"mine": SIZE}), encoding="utf-8")
    choice = ["--sizes=mine", *FFN, "--passes=forward", BASELINE]
    names = program.names(f"--problem-sizes={file}", *choice)
    assert names == ["ffn/forward/baseline/mine/f32/batch:2/seq:8"]
    default = PROJECT_ROOT / "fixtures" / "problem_sizes.json"
    assert program.names(f"--problem-sizes={default}") == program.names()


def resumed(program: Program, file: Path, *options: str) -> str:
    """The message of a run that cannot continue this journal, and leaves it as it was."""
    before = file.read_bytes() if file.is_file() else None
    choice = [*SMALL, *RUN, *FFN, *QUICK, *options]
    message = message_of(program.run(*choice, f"--journal={file}", "--resume", timeout=60))
    assert str(file) in message
    assert (file.read_bytes() if file.is_file() else None) == before
    return message


def test_resume_of_what_is_no_journal_is_refused(
    copy_of_journal: Path, program: Program, tmp_path: Path
) -> None:
    lines = copy_of_journal.read_text(encoding="utf-8").splitlines()
    header, case = json.loads(lines[0]), json.loads(lines[-1])
    peaks = {"measured": {"f32": {"flops_per_second": "many"}}}
    bad: list[tuple[list[Json], str]] = [
        (["hello"], "line 1: is not a JSON object"),
        ([{"a": 1}], "is not the header of a journal"),
        ([], "is empty"),
        ([header | {"schema_version": 0}], "schema_version 0"),
        ([header, "{", case], "line 2: is not a JSON object"),
        ([header, {"entries": case["entries"]}], "line 2: needs a case"),
        *(([header, case | {"entries": found}], "line 2") for found in ([], [3], [{}])),
        ([header | {"header": header["header"] | {"peaks": peaks}}, case], "peaks"),
    ]
    for content, expected in bad:
        file = write_journal(tmp_path / "journal.jsonl", *content)
        assert expected in resumed(program, file), content
    for file in (tmp_path / "absent.jsonl", tmp_path / "no folder" / "journal.jsonl", tmp_path):
        resumed(program, file)


@pytest.mark.parametrize(
    ("option", "key"),
    [("--seed=7", "seed"), ("--cold-cache", "cold_cache"), ("--verify=off", "verify")],
)
def test_resume_under_other_circumstances_is_refused(
    copy_of_journal: Path, program: Program, option: str, key: str
) -> None:
    assert f"was written with {key} = " in resumed(program, copy_of_journal, option)


def test_journal_that_cannot_be_written_is_refused(
    copy_of_journal: Path, program: Program, tmp_path: Path
) -> None:
    before = copy_of_journal.read_bytes()
    bad = [
        (copy_of_journal, f"--journal {copy_of_journal}: exists and is not empty"),
        (tmp_path / "no folder" / "j.jsonl", "j.jsonl: cannot be created"),
        (tmp_path, f"{tmp_path}: cannot be created"),
        (Path("/dev/full"), "journal /dev/full: cannot be written: No space left on device"),
    ]
    for file, expected in bad:
        assert expected in message_of(program.run(*SMALL, *RUN, *FFN, f"--journal={file}"))
    assert copy_of_journal.read_bytes() == before


def test_result_file_that_cannot_be_written_is_refused_at_once(
    program: Program, tmp_path: Path, smoke_run: FinishedRun
) -> None:
    file = tmp_path / "file"
    file.touch()
    for out in (tmp_path / "no folder" / "out.json", tmp_path):
        message = message_of(program.run(*SMALL, *RUN, *FFN, f"--benchmark_out={out}"))
        assert "--benchmark_out" in message
        assert str(out) in message
    assert f"--trace '{file}': " in message_of(program.run(*SMALL, *RUN, f"--trace={file}"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    left = {path.name for path in smoke_run.result_file.parent.iterdir()}
    assert left == {"journal.jsonl", "out.json"}
