"""Bad options and files: one line that names the value and what is allowed, and exit status 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from train_program import ON_CPU, SMALL_MODEL, Program, files_below, message_of, small

# option -> words of the message
BAD_OPTIONS = {
    ("--nonsense",): ["--nonsense", "known options: --help, --batch-size"],
    ("leftover",): ["leftover", "known options"],
    ("--batch-size",): ["--batch-size: 1 required INT missing"],
    ("--num-steps=0",): ["--num-steps: '0' must be 1 or more"],
    ("--num-steps=5.5",): ["--num-steps: '5.5' must be an integer"],
    ("--seq-len=1",): ["--seq-len: '1' must be 2 or more"],
    ("--learning-rate=-1",): ["--learning-rate -1: must be a positive number"],
    ("--learning-rate=nan",): ["--learning-rate nan: must be a positive number"],
    ("--learning-rate=fast",): ["--learning-rate", "'fast' must be a number"],
    ("--seed=-1",): ["--seed: '-1' must be an integer from 0"],
    ("--threads=0",): ["--threads 0: must be 1 or more"],
    ("--size=huge",): ["--size 'huge': must be one of tiny, small, medium, large, very_large"],
    ("--variant=fast",): ["--variant", "'fast': must be baseline, fused, optimized, or", "sdpa"],
    ("--variant=graph", "--device=cpu"): ["--variant 'graph'", "only a GPU"],
    ("--dtype=f64",): ["--dtype 'f64': must be one of f32, bf16, f16, amp_bf16, amp_f16"],
    ("--use-amp", "--dtype=bf16"): ["--use-amp with --dtype bf16"],
    ("--device=tpu",): ['device "tpu"', "allowed: auto, cpu, cuda, cuda:N, hip, hip:N"],
    ("--device=cuda:99",): ['device "cuda:99": no such device', "allowed: auto, cpu"],
    ("--n-heads=7",): ["n_heads = 7: must divide hidden_dim = 256"],
    ("--batch-size=9223372036854775807",): ["batch = 9223372036854775807: must be between"],
    ("--profile-operators",): ["--profile-operators", "add --enable-pytorch-profiler"],
    ("--profile-memory", "--profile-dir="): ["--profile-dir", "TEXT missing"],
    ("--profile-memory", "--enable-pytorch-profiler", "--num-steps=1"): ["raise --num-steps"],
}


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=" ".join)
def test_bad_options_are_refused(
    program: Program, tmp_path: Path, options: tuple[str, ...]
) -> None:
    completed = program.run(*options, folder=tmp_path)
    message = message_of(completed)
    assert [words for words in BAD_OPTIONS[options] if words not in message] == []
    assert completed.stdout == ""
    assert list(tmp_path.iterdir()) == []


# content of the file -> words of the message
BAD_DATA = {
    "empty": (b"", "is empty (0 bytes); name a file with text in it"),
    "too_short": (b"a" * 79, "has 79 bytes; must have at least 10 x seq_len (8)"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_refused(program: Program, tmp_path: Path, name: str) -> None:
    content, words = BAD_DATA[name]
    file = tmp_path / name
    file.write_bytes(content)
    message = message_of(program.run(*small(num_steps=2), f"--data={file}"))
    assert message.startswith(f"--data: {file}: {words}")


def test_shortest_data_is_taken(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "shortest"
    file.write_bytes(b"a" * 80)
    assert program.run(*small(num_steps=1), f"--data={file}").returncode == 0


@pytest.mark.parametrize(
    ("name", "words"), [("absent", "cannot be read: No such file"), (".", "is a folder")]
)
def test_data_that_is_no_file_is_refused(
    program: Program, tmp_path: Path, name: str, words: str
) -> None:
    path = tmp_path / name
    message = message_of(program.run(*small(num_steps=1), f"--data={path}"))
    assert message.startswith(f"--data: {path}")
    assert words in message


def test_vocabulary_without_all_bytes_is_refused(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"a" * 200)
    message = message_of(program.run(*small(vocab_size=255), f"--data={file}"))
    assert message == "--vocab-size 255: must be 256 or more with --data, whose tokens are bytes"


def test_weights_that_are_not_there_are_refused(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "absent"
    message = message_of(program.run(*ON_CPU, f"--weights={folder}"))
    assert message.startswith(f"--weights: {folder}/config.json: cannot be read: No such file")


@pytest.mark.parametrize("name", ["hidden-dim", "vocab-size"])
def test_weights_bring_their_own_dimensions(program: Program, tmp_path: Path, name: str) -> None:
    message = message_of(program.run(f"--weights={tmp_path}", f"--{name}={SMALL_MODEL[name]}"))
    assert message.startswith(f"--{name}: must be left out with --weights {tmp_path}")


# A model that is too big by its own size, by its batch, and by more than 64 bits can count.
TOO_BIG = {
    "model": "--hidden-dim=65536 --num-steps=1",
    "batch": "--batch-size=1048576 --seq-len=1048576",
    "beyond 64 bits": "--batch-size=1 --seq-len=1048576 --n-layers=1048576 --n-heads=2 "
    "--n-kv-heads=1 --hidden-dim=4 --intermediate-dim=4 --vocab-size=10",
}


@pytest.mark.parametrize("options", TOO_BIG.values(), ids=TOO_BIG.keys())
def test_too_much_memory_is_refused_before_it_is_taken(
    program: Program, tmp_path: Path, options: str
) -> None:
    idle, _ = program.peak_memory("--help")
    profilers = ["--enable-pytorch-profiler", f"--profile-dir={tmp_path}"]
    peak, completed = program.peak_memory(*ON_CPU, *options.split(), *profilers)
    pattern = r"--batch-size \d+ --seq-len \d+: .* needs [\d.]+ \wiB of memory, and [\d.]+ \wiB is"
    assert re.match(pattern, message_of(completed))
    assert completed.stdout == ""
    assert peak < idle + (100 << 20)
    assert files_below(tmp_path) == set()
