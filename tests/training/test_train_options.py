"""Options, bad input and the set-up check of tiny_llama_train."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from train_program import Program, files_below, small, whole_summary

from built_programs import ON_CPU, Completed, message_of

# What a run's configuration says of an option that differs from every default.
RECORDED: dict[str, str | int] = {
    **{"batch_size": 3, "seq_len": 10, "num_steps": 4, "gradient_accumulation_steps": 2},
    **{"dtype": "bf16", "variant": "qkv+sdpa", "seed": 7, "hidden_dim": 48, "n_layers": 3},
    **{"n_heads": 6, "n_kv_heads": 3, "intermediate_dim": 20, "vocab_size": 77},
}


def test_the_configuration_records_what_was_asked_for(program: Program, tmp_path: Path) -> None:
    options = small(**RECORDED, learning_rate="0.002", eval_interval=2, eval_iters=3)
    summary = program.trained(tmp_path, *options)
    expected = RECORDED | {"size": "custom", "deterministic": False, "data": "synthetic"}
    expected |= {"learning_rate": 0.002, "switches": "qkv+sdpa"}
    assert {name: summary["configuration"][name] for name in expected} == expected
    assert summary["context"]["threads"] == 1


def test_where_files_go(program: Program, tmp_path: Path) -> None:
    for option, left in (("--seed=1", []), ("--profile-memory", ["profiles"])):
        completed = program.run(*small(num_steps=3), option, cwd=tmp_path)
        assert completed.returncode == 0, completed.stderr
        assert [path.name for path in tmp_path.iterdir()] == left
    assert (tmp_path / "profiles/memory_timeline.json").is_file()


# Options, with the folder of these files in place of {}, and how the message begins; more in
# train_options_test.cpp and token_data_test.cpp.
FILES = {"empty": 0, "short": 79}
REFUSED = """\
--nonsense                       '--nonsense': is no option; known options: --help, --batch-size
--batch-size=                    --batch-size: 1 required INT missing
--variant=graph                  --variant 'graph'
--device=tpu                     device "tpu": unknown kind of device
--batch-size=9223372036854775807 batch = 9223372036854775807: must be between
--data={}/empty                  --data: {}/empty: is empty (0 bytes); name a file with text in it
--data={}/short                  --data: {}/short: has 79 bytes; must have at least 10 x seq_len (8)
--data={}                        --data: {}: cannot be read: it is a folder
--weights={}/w                   --weights: {}/w/config.json: cannot be read: No such file
--output-dir={}/empty/below      --output-dir '{}/empty/below': must be a folder that can be written
--save-weights={}/empty/below    --save-weights '{}/empty/below': must be a folder that can be
"""


@pytest.mark.parametrize("line", REFUSED.splitlines())
def test_what_is_refused_leaves_nothing(program: Program, tmp_path: Path, line: str) -> None:
    for name, count in FILES.items():
        (tmp_path / name).write_bytes(b"a" * count)
    option, message = line.replace("{}", str(tmp_path)).split(maxsplit=1)
    name = option.partition("=")[0]
    model = ON_CPU if name == "--weights" else small(num_steps=1)
    kept = [text for text in model if text.partition("=")[0] != name]
    given = [name] if option.endswith("=") else [option]
    completed = program.run(*kept, *given, cwd=tmp_path)
    assert message_of(completed).startswith(message)
    assert "Step 1/" not in completed.stdout
    assert {name: (tmp_path / name).stat().st_size for name in files_below(tmp_path)} == FILES


def test_too_much_memory_is_refused_before_it_is_taken(program: Program, tmp_path: Path) -> None:
    idle, _ = program.peak_memory("--help")
    profilers = ["--enable-pytorch-profiler", f"--profile-dir={tmp_path}"]
    peak, completed = program.peak_memory(*small(hidden_dim=65536), *profilers)
    pattern = r"--batch-size 2 --seq-len 8: .* needs [\d.]+ \wiB of memory, and [\d.]+ \wiB is"
    assert re.match(pattern, message_of(completed))
    assert completed.stdout == ""
    assert peak < idle + (100 << 20)
    assert files_below(tmp_path) == set()


CHECKS = ["device", "libtorch", "memory", "GPU runtime", "threads", "output", "variant"]
LINE = re.compile(r"(?P<status>ok|warning|failed) +(?P<what>[A-Za-z ]+): (?P<detail>.+)")


def checks(completed: Completed) -> dict[str, tuple[str, str]]:
    """Status and detail of each line; fails on one that has another form."""
    lines = [LINE.fullmatch(line) for line in completed.stdout.splitlines()]
    assert all(lines), completed.stdout
    found = {m["what"]: (m["status"], m["detail"]) for m in lines if m}
    return {re.sub("^(HIP|CUDA) runtime", "GPU runtime", name): of for name, of in found.items()}


def test_a_good_setup(program: Program, tmp_path: Path) -> None:
    completed = program.run("--validate-setup", "--device=cpu", f"--output-dir={tmp_path / 'new'}")
    assert (completed.returncode, completed.stderr) == (0, "")
    found = checks(completed)
    assert list(found) == CHECKS
    assert {status for status, _ in found.values()} <= {"ok", "warning"}
    assert re.match(r"2\.\d+\.\d+ for \w+; computes on cpu", found["libtorch"][1])
    assert re.match(r"[\d.]+ GiB free of [\d.]+ GiB; batch 8 x seq 128", found["memory"][1])
    assert found["output"] == ("ok", f"{tmp_path}/new: can be written to")
    # what it made to try, it removed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "line", "detail"),
    [
        ("--device=cuda:99", "device", 'device "cuda:99": no such device (allowed: auto, cpu'),
        ("--device=cpu --hidden-dim=65536", "memory", "needs about 791."),
        ("--device=cpu --variant=graph", "variant", "only a GPU"),
        ("--device=cpu --output-dir=file", "output", "name another folder with --output-dir"),
    ],
)
def test_what_cannot_run_fails_its_line_of_the_setup(
    program: Program, tmp_path: Path, options: str, line: str, detail: str
) -> None:
    (tmp_path / "file").write_text("mine")
    completed = program.run("--validate-setup", *options.split(), cwd=tmp_path)
    assert completed.returncode == 1
    found = checks(completed)
    assert [name for name, (status, _) in found.items() if status == "failed"] == [line]
    assert detail in found[line][1]
    assert (tmp_path / "file").read_text() == "mine"


EARLIER = {"trace_step_5_10.json": '{"traceEvents": []}\n', "notes.txt": "of an earlier run\n"}


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system in memory of this size; only root may mount it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


# a disk that holds the start of what the profiler writes, but not all
@pytest.mark.parametrize(
    ("profiler", "disk"),
    [("--enable-pytorch-profiler", "600k"), ("--profile-memory", "64k")],
    indirect=["disk"],
)
def test_a_disk_that_runs_full_leaves_whole_files(
    program: Program, disk: Path, tmp_path: Path, profiler: str
) -> None:
    for name, text in EARLIER.items():
        (disk / name).write_text(text, encoding="utf-8")
    output = tmp_path / "output"
    options = small(num_steps=12, profile_steps=6, profile_dir=disk, output_dir=output)
    completed = program.run(*options, profiler)
    message = message_of(completed)
    assert str(disk) in message
    assert "No space left on device" in message or "is the disk full?" in message
    assert "Performance Summary:" in completed.stdout
    summary = whole_summary(disk)
    # what could not be written is neither there nor listed
    assert files_below(disk) == set(summary["files"]) | set(EARLIER)
    assert {name: (disk / name).read_text(encoding="utf-8") for name in EARLIER} == EARLIER
    assert not Path(message.split(": ")[0]).exists()
    # one full disk keeps no other folder empty
    assert whole_summary(output)["steps"] == summary["steps"]
