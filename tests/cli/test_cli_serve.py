"""--serve: the program stays resident, and opens, times and closes cases as it is asked."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_program import RUN, SMALL, FinishedRun, Program, entries_by_case

from built_programs import TIMEOUT_S, Json, strict_json, wait_until

FFN = "ffn/forward_backward/baseline/custom/f32/batch:2/seq:8"
FFN_ALONE = [*SMALL, "--components=ffn"]
FIXED_COUNTERS = ["peak_memory_MiB", "allocations", "operators", "model_flops", "hardware_flops"]


class Client:
    """The other end of a resident program's pipes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.greeting = self.read()

    def read(self) -> Json:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.endswith("\n"), "the program ended"
        return strict_json(line)

    def send(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def say(self, line: str) -> Json:
        self.send(line)
        return self.read()

    def ask(self, action: str, case: str, **more: object) -> Json:
        return self.say(json.dumps({"do": action, "case": case, **more}))

    def seconds(self, case: str, seconds: float) -> list[float]:
        """Of the iterations timed in that long."""
        return self.ask("time", case, seconds=seconds)["seconds"]

    def end(self) -> int:
        """Closes the program's input and returns its exit status."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_S)


Serve = Callable[..., Client]


@pytest.fixture
def serve(program: Program) -> Iterator[Serve]:
    """Starts resident programs with these options; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> Client:
        process = program.start("--serve", *RUN, *arguments, stdin=subprocess.PIPE)
        started.append(process)
        return Client(process)

    yield start
    for process in started:
        with process:
            process.kill()


def bytes_read(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/io").read_text().split()[1])


def test_every_component_is_proved_metered_and_timed(serve: Serve, smoke_run: FinishedRun) -> None:
    """The counters that do not depend on time are those of an ordinary run, to the byte."""
    usual = entries_by_case(smoke_run.result)
    client = serve(*SMALL)
    context = client.greeting["context"]
    assert {"schema_version", "git_commit", "device", "torch_version", "settings"} <= set(context)
    assert [context[key] for key in ("threads", "seed", "verify")] == [1, 42, "on request"]
    for name in client.greeting["cases"]:
        opened = client.ask("open", name, verify=True, meter=True)
        assert opened["opened"] == name, opened
        assert opened["seconds"] > 0
        entry = usual[name][0]
        assert opened["max_rel_error"] == pytest.approx(entry["max_rel_error"])
        for counter in FIXED_COUNTERS:
            assert opened["counters"][counter] == entry[counter], (name, counter)
        seconds = client.seconds(name, 0.001)
        assert seconds and all(0 < value < 1 for value in seconds)
        assert client.ask("close", name) == {"closed": name}
    assert client.end() == 0


def test_signal_while_it_times_waits_for_the_answer(serve: Serve) -> None:
    client = serve(*FFN_ALONE)
    client.ask("open", FFN)
    request = json.dumps({"do": "time", "case": FFN, "seconds": 0.5})
    before, began = bytes_read(client.process), time.monotonic()
    client.send(request)
    wait_until(lambda: bytes_read(client.process) > before + len(request))
    client.process.send_signal(signal.SIGINT)
    assert client.read()["seconds"]
    # all of it, and not what was left when the signal came
    assert time.monotonic() - began >= 0.5
    assert client.process.wait(TIMEOUT_S) == 130


def test_signal_while_it_waits_and_a_client_that_goes_away_end_the_program(serve: Serve) -> None:
    client = serve(*FFN_ALONE)
    client.process.send_signal(signal.SIGTERM)
    assert client.process.wait(TIMEOUT_S) == 130
    client = serve(*FFN_ALONE)
    assert client.process.stdout
    client.process.stdout.close()
    client.send(json.dumps({"do": "close", "case": FFN}))
    assert client.process.wait(TIMEOUT_S) == 0
