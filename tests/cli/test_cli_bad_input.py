"""Bad options and files: one line that names the option or file, the value and the rule, and exit
status 2, before anything is measured."""

import json
import shutil
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

FFN = ["--components=ffn"]
# Options, and what the message has to say, with | between. The C++ tests of options and their
# grammar have more of each kind.
BAD_OPTIONS = """\
--frobnicate                        --frobnicate | known options:
frobnicate                          frobnicate | known options:
--components=ffn,nose               --components 'nose' | must be one of embedding
--components                        --components | required
--passes=sideways                   'sideways' | must be one of forward, backward
--variants=qkv+magic                'qkv+magic' | joined by '+': qkv, gate_up
--variants=sdpa+fused_attention     sdpa | exclude each other
--variants=optimized+qkv            optimized | stands alone
--sizes=tiny,huge                   --sizes 'huge' | must be one of tiny, small
--sizes=custom                      --sizes 'custom' | needs --hidden-dim
--dtypes=f64                        --dtypes 'f64' | must be one of f32, bf16
--batch=0                           --batch '0' | not at least 1
--seq=long                          --seq 'long' | write numbers as 8 or 4,8,16
--seq=64:32:*2                      --seq '64:32:*2' | the last value is below the first
--seq=9999999                       seq = 9999999 | must be between 1 and
--memory-limit=8Gigs                --memory-limit '8Gigs' | 8GiB, 512MiB
--threads=two                       --threads | two
--verify=later                      --verify 'later' | must be one of before, only, off
--max-seconds-per-case=nan          --max-seconds-per-case nan | must be positive
--columns=speed                     --columns 'speed': must be one of all, speedup,
--resume                            --resume | needs --journal FILE
--benchmark_filter=(                --benchmark_filter '(' | regular expression
--benchmark_filter=zzz              --benchmark_filter 'zzz' | no case
--benchmark_out_format=csv          --benchmark_out_format 'csv' | be json
--benchmark_frobnicate=1            --benchmark_frobnicate=1
--benchmark_repetitions=three       --benchmark_repetitions | three
--benchmark_min_time=-1x            --benchmark_min_time | -1x
--benchmark_time_unit=years         --benchmark_time_unit | years
--hidden-dim=30                     n_heads = 8 | must divide hidden_dim = 30
--n-kv-heads=3                      n_kv_heads = 3 | must divide n_heads
--hidden-dim=24                     hidden_dim / n_heads = 24 / 8 | must be even
--n-heads=2 --n-heads=4             --n-heads
--hidden-dim=1048576 --n-layers=1048576   n_layers = 1 | 4e18
--verify=only --journal=j.jsonl     --verify only: times nothing
--serve --benchmark_out=a.json      --benchmark_out: not with --serve
--serve --list                      --list: not with --serve
--serve --components=peak           --serve: needs a case; the peaks are not served
--device=tpu                        "tpu" | unknown kind of device
--device=cpu:1                      "cpu:1" | only a GPU has a number
--weights=                          --weights
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
    for device in ("cuda", "hip", "cuda:1"):
        completed = program.run(*SMALL, f"--device={device}", *mode)
        assert completed.stdout == ""
        expected = f'"{device}": no such device (allowed: auto, cpu, cuda'
        assert expected in message_of(completed)


SIZE = {"vocab_size": 50, "hidden_dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
SIZE |= {"intermediate_dim": 48, "batch": 2, "seq": 8}


def sizes(**changes: Json) -> str:
    return json.dumps({"tiny": {key: v for key, v in (SIZE | changes).items() if v is not ...}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not valid JSON"),
        ("[1, 2]", "must be an object"),
        ('{"tiny": 3}', "tiny = 3: must be an object"),
        (sizes(seq="8"), 'tiny.seq = "8": must be an integer'),
        (sizes(batch=0), "batch = 0: must be between 1 and"),
        (sizes(seq=2**64), "tiny.seq"),
        ('{"tiny": {"seq": 1e999}}', "1e999"),
        (sizes(layers=2), "tiny.layers: unknown key"),
        (sizes(n_heads=...), "tiny: key n_heads is missing"),
        (sizes(n_heads=5), "n_heads = 5: must divide hidden_dim = 32"),
        (None, "cannot be read"),
    ],
)
def test_bad_problem_sizes_are_refused(
    program: Program, tmp_path: Path, text: str | None, expected: str
) -> None:
    file = tmp_path / "sizes.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    message = message_of(program.run(f"--problem-sizes={file}", "--sizes=tiny", "--list"))
    assert str(file) in message
    assert expected in message


def test_own_problem_sizes_are_used(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(json.dumps({"mine": SIZE}), encoding="utf-8")
    choice = ["--sizes=mine", *FFN, "--passes=forward", BASELINE]
    names = program.names(f"--problem-sizes={file}", *choice)
    assert names == ["ffn/forward/baseline/mine/f32/batch:2/seq:8"]


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
    for file in (tmp_path / "absent.jsonl", tmp_path):
        resumed(program, file)


@pytest.mark.parametrize(
    ("option", "key"),
    [("--seed=7", "seed"), ("--cold-cache", "cold_cache"), ("--verify=off", "verify")],
)
def test_resume_under_other_circumstances_is_refused(
    copy_of_journal: Path, program: Program, option: str, key: str
) -> None:
    assert f"was written with {key} = " in resumed(program, copy_of_journal, option)


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
    left = {path.name for path in smoke_run.result_file.parent.iterdir()}
    assert left == {"journal.jsonl", "out.json"}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A folder of weights, to be spoilt: hidden_dim 64, 2 layers, 37 tokens."""
    folder = tmp_path / "my weights"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(PROJECT_ROOT / "fixtures/golden/gqa_groups_2" / name, folder)
    return folder


def refusal(program: Program, weights: Path, *options: str) -> str:
    return message_of(program.run(f"--weights={weights}", *RUN, BASELINE, *options, timeout=60))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--sizes=tiny", "--sizes 'tiny': must be custom or left out with --weights"),
        ("--hidden-dim=32", "--hidden-dim 32: must be 64 or left out with --weights"),
    ],
)
def test_options_that_contradict_the_weights_are_refused(
    program: Program, weights: Path, option: str, expected: str
) -> None:
    assert expected in refusal(program, weights, option)


def test_missing_or_cut_weights_are_refused(program: Program, weights: Path) -> None:
    file = weights / "model.safetensors"
    content = file.read_bytes()
    for kept in (0, 7, 100, -1):
        file.write_bytes(content[:kept])
        assert f"--weights: safetensors file {file}: " in refusal(program, weights)
    file.unlink()
    assert f"{weights}: has neither model.safetensors nor" in refusal(program, weights)
    (weights / "config.json").unlink()
    assert f"{weights / 'config.json'}: cannot be read" in refusal(program, weights)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"intermediate_size": 20}, "'model.layers.0.mlp.gate_proj.weight' has shape [19, 64]"),
        ({"num_hidden_layers": 3}, "'model.layers.2.self_attn.q_proj.weight' of shape [64, 64] is"),
        ({"num_hidden_layers": 1}, "'model.layers.1.input_layernorm.weight' is not part of the"),
        ({"num_hidden_layers": 10**6}, "1000000 layers, but there are only 21 tensors"),
        ({"model_type": "mistral"}, 'config.json: model_type = "mistral": must be "llama"'),
        ({"tie_word_embeddings": True}, "config.json: tie_word_embeddings = true: must be false"),
        ({"rope_scaling": {"rope_type": "llama3"}}, 'rope_scaling.rope_type = "llama3": only'),
        ({"hidden_size": "64"}, 'config.json: hidden_size = "64": must be an integer'),
    ],
)
def test_weights_of_another_model_are_refused(
    program: Program, weights: Path, changes: dict[str, Json], expected: str
) -> None:
    config = weights / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes), encoding="utf-8")
    message = refusal(program, weights)
    assert str(weights) in message
    assert expected in message
