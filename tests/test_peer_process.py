"""A peer's process: its environment, how it is talked to, and that it really trains."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from oracle_packages import require_oracle_packages
from tinyllama_tools.peers.sides import (
    FORMS,
    CachingMalloc,
    PeerError,
    PeerProcess,
    caching_malloc,
    peer_environment,
    start_peer,
)

MALLOC = CachingMalloc({"LD_PRELOAD": "libx.so"}, "libx.so preloaded")
ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "crash":
        print("last words", file=sys.stderr)
        sys.exit(7)
    print(json.dumps({"error": "no"} if asked["do"] == "fail" else {"got": asked}), flush=True)
"""


@pytest.fixture
def echo() -> Iterator[PeerProcess]:
    process = PeerProcess("peer:echo", os.environ, [sys.executable, "-c", ECHO])
    yield process
    process.close()


def test_answers_follow_requests(echo: PeerProcess) -> None:
    assert echo.ask("time", steps=3) == {"got": {"do": "time", "steps": 3}}
    assert echo.is_running


def test_refusal_names_the_peer_and_leaves_it_running(echo: PeerProcess) -> None:
    with pytest.raises(PeerError, match="peer:echo: no"):
        echo.ask("fail")
    assert echo.ask("x") == {"got": {"do": "x"}}


def test_crash_names_the_peer_its_status_and_its_last_words(echo: PeerProcess) -> None:
    for _ in range(2):
        with pytest.raises(PeerError, match="peer:echo: its process ended with 7: last words"):
            echo.ask("crash")
    assert not echo.is_running


def test_environment_places_threads_as_our_program_does() -> None:
    eager, tuned = FORMS["eager"], FORMS["compile_tuned"]
    assert peer_environment(eager, MALLOC, {})["OMP_PROC_BIND"] == "true"
    assert "OMP_PROC_BIND" not in peer_environment(eager, MALLOC, {"OMP_NUM_THREADS": "1"})
    assert "LD_PRELOAD" not in peer_environment(eager, MALLOC, {})
    assert peer_environment(tuned, MALLOC, {})["LD_PRELOAD"] == "libx.so"


def test_malloc_is_the_first_that_is_installed_and_else_glibc_with_settings() -> None:
    found = caching_malloc({"jemalloc": "libjemalloc.so.2"}.get)
    assert found.environment["LD_PRELOAD"] == "libjemalloc.so.2"
    assert "decay_ms:-1" in found.environment["MALLOC_CONF"]
    absent = caching_malloc(lambda _: None)
    assert set(absent.environment) == {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    assert "none of tcmalloc_minimal, tcmalloc, jemalloc is installed" in absent.description


SIZE = {
    "vocab_size": 50,
    "hidden_dim": 32,
    "n_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 2,
    "intermediate_dim": 48,
}


def can_compile() -> bool:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header.is_file() and shutil.which("g++") is not None


@pytest.mark.parametrize(
    ("name", "dtype"), [("eager", "amp_bf16"), ("sdpa", "bf16"), ("compile_tuned", "f32")]
)
def test_peer_really_trains(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_oracle_packages()
    form = FORMS[name]
    if form.is_compiled and not can_compile():
        pytest.skip("torch.compile needs g++ and Python.h: install g++ and python3-dev")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    malloc = caching_malloc()
    process = start_peer(form, malloc)
    try:
        about = process.ask("hello", form=form.as_json(), threads=1)
        assert about["threads"] == 1
        wanted = malloc.environment.get("LD_PRELOAD", "").split() if form.malloc else []
        assert about["preloaded"] == wanted
        if about["float32_matmul_precision"] == form.precision:
            assert about["float32_product_error"] <= 1e-5
        process.ask("build", size=SIZE, dtype=dtype, batch=2, seq=8)
        assert len(process.ask("warm_up", limit=60.0)["seconds"]) >= 3
        answer = process.ask("time", steps=20)
        assert len(answer["seconds"]) == len(answer["cpu_seconds"]) == 20
        # log(50) = 3.91 before it learned anything
        assert answer["loss"] < 3.9
    finally:
        process.close()
