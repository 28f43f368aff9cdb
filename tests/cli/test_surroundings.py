"""tiny_llama_bench where something is missing or scarce: HOME, processors, shared memory, network,
a plain path, or processors' time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import BASELINE, QUICK

from built_programs import SMALL_OPTIONS, environment, finish, read_json, start

SMALL = (*SMALL_OPTIONS, BASELINE, "--device=cpu", "--batch=2", "--seq=8")
PROVED = "1 proved, 0 failed, 0 skipped"
NAMESPACE = ("unshare", "--user", "--map-root-user")
SMALL_SHM = 'mount -t tmpfs -o size=64k none /dev/shm; exec "$0" "$@"'
SURROUNDINGS = {
    "one processor": ("taskset", "-c", str(min(os.sched_getaffinity(0)))),
    "little shared memory": (*NAMESPACE, "--mount", "bash", "-ec", SMALL_SHM),
    "no network": (*NAMESPACE, "--net"),
    "no HOME": ("env", "-u", "HOME"),
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_a_case_is_proved_where_something_is_scarce(
    bench_program: Path, tmp_path: Path, surroundings: str
) -> None:
    before = SURROUNDINGS[surroundings]
    if finish(start([*before, "true"])).returncode != 0:
        pytest.skip(f"{before[0]} is refused here")
    folder = tmp_path / "dossier à moi"
    folder.mkdir()
    verify = ("--components=full_step", "--passes=train", "--verify=only")
    done = finish(start([*before, bench_program, *SMALL, *verify], cwd=folder))
    assert done.returncode == 0, done.stderr
    assert PROVED in done.stderr


@pytest.fixture
def half_a_processor() -> Iterator[Path]:
    """A control group of version 2 or 1 that has no more: the file that a process joins it by."""
    root = Path("/sys/fs/cgroup")
    is_new = (root / "cgroup.controllers").exists()
    group = (root if is_new else root / "cpu") / f"tiny_llama_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError as reason:
        pytest.skip(f"no control group can be made here: {reason}")
    try:
        try:
            if is_new:
                (group / "cpu.max").write_text("50000 100000")
            else:
                (group / "cpu.cfs_period_us").write_text("100000")
                (group / "cpu.cfs_quota_us").write_text("50000")
        except OSError as reason:
            pytest.skip(f"no quota can be set here: {reason}")
        yield group / "cgroup.procs"
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def test_a_quota_sets_the_threads_and_is_named(
    bench_program: Path, tmp_path: Path, half_a_processor: Path
) -> None:
    free = {k: v for k, v in environment().items() if k != "OMP_NUM_THREADS"}
    join = f'echo $$ >"{half_a_processor}"; exec "$0" "$@"'
    out = tmp_path / "out.json"
    measure = ("--components=rms_norm", "--passes=forward", *QUICK, f"--benchmark_out={out}")
    command = ["bash", "-ec", join, bench_program, *SMALL, *measure]
    done = finish(start(command, env=free, cwd=tmp_path))
    assert done.returncode == 0, done.stderr
    assert "a quota of 0.5 processors for 1 threads" in done.stdout + done.stderr
    context = read_json(out)["context"]
    assert (context["threads"], context["settings"]["cpu_quota"]) == (1, "0.5")
