"""scripts/gpu_check of fake programs: for every step a good answer, and faults that are found; what
is run again and what is not; time limits; verdicts, exit statuses, files and the page."""

import copy
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tools
from built_programs import Program, read_json, write_program
from chromium import PageOpener
from fake_gpu_programs import CONTEXT, DEVICE, GOOD, PCI, UUID, make_programs, starts
from published import reference
from tinyllama_tools.commands import gpu_check, gpu_steps, peers
from tinyllama_tools.commands import gpu_judgements as judge
from tinyllama_tools.core import process
from tinyllama_tools.core.app import BadInputError, schema_problem
from tinyllama_tools.core.process import Ended
from tinyllama_tools.data import gpu_cards
from tinyllama_tools.data.gpu_checks import GPU_CHECK, Finding, State, read_gpu_check, state_of
from tinyllama_tools.data.studies import SCHEMAS

Json = dict[str, Any]
SIZES = ["--sizes=tiny,large"]
GRAPH = "qkv+sdpa+library_adamw+graph"
COMPILED, EAGER = judge.COMPILED, judge.EAGER
# seconds of a step by side, all of the same size
SPEED = {"baseline": 4.0, "fused": 3.0, "optimized": 1.2, GRAPH: 1.0, EAGER: 5.0, COMPILED: 1.5}


class Card:
    """A machine with one card, on which all is well; `told`: as make_programs() takes it; `speed`,
    `mfu`, `interval`: what scripts/peers measures."""

    def __init__(self, root: Path) -> None:
        self.root, self.build, self.out = root, root / "build", root / "out"
        self.told: Json = copy.deepcopy(GOOD)
        self.speed, self.mfu, self.interval = dict(SPEED), 60.0, 0.05
        self.watts = root / f"sys/bus/pci/devices/{PCI}/hwmon/hwmon1/power1_average"
        self.watts.parent.mkdir(parents=True)
        device = self.watts.parents[2]
        (device / "vendor").write_text("0x1002\n")
        (device / "unique_id").write_text(UUID.removeprefix("GPU-") + "\n")
        self.told["power"] = [str(self.watts), 600]
        self.told["ranks_files"] = str(reference("ranks"))
        (root / "dev").mkdir()
        (root / "dev/kfd").touch()

    def check(self, *options: str, status: int | None = None) -> Json:
        """The verdict file that the command leaves."""
        self.watts.write_text("100000000\n")
        make_programs(self.build, **self.told)
        given = [*SIZES, f"--build-folder={self.build}", f"--out={self.out}", *options]
        found = tools.gpu_check(given)
        document = read_json(self.out / "gpu_check.json")
        assert schema_problem(document, SCHEMAS[GPU_CHECK]) == ""
        assert status in (None, found)
        return document

    def step(self, name: str, *options: str) -> Json:
        """One step alone."""
        (found,) = self.check(f"--steps={name}", *options)["steps"]
        return found

    def measured_by_peers(self, size: str) -> Json:
        """What scripts/peers would write."""
        own = {"tiny": (8, 128), "large": (8, 1024)}[size]
        name = f"full_step/train/{{}}/{size}/bf16/batch:{own[0]}/seq:{own[1]}"
        rows = []
        for side, seconds in self.speed.items():
            of = {"run_name": name.format(side), "run_type": "iteration", "repetition_index": 0}
            row = {**of, "name": of["run_name"], "real_time": 1e3 * seconds, "time_unit": "ms"}
            counters = {"peak_memory_MiB": 100.0, "predicted_memory_MiB": 100.0}
            ours = {**counters, "MFU_percent": self.mfu, "samples_per_second": 1.0}
            rows.append(row | ({} if side.startswith("peer:") else ours))
        ratios = [
            {
                **{"case": name.format(ours), "peer": peer, "ratio": theirs / self.speed[ours]},
                "interval": {
                    "low": theirs / self.speed[ours] - self.interval,
                    "high": theirs / self.speed[ours] + self.interval,
                    "confidence": 0.95,
                },
                **{"verdict": "slower", "p_value": 0.01, "blocks": 9, "of_each_block": []},
            }
            for peer, theirs in self.speed.items()
            if peer.startswith("peer:")
            for ours in self.speed
            if not ours.startswith("peer:")
        ]
        # without peaks nothing is computed anew
        context = {key: value for key, value in CONTEXT.items() if key != "peaks"}
        return {"context": {**context, "peers": {"ratios": ratios}}, "benchmarks": rows}


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    """Of which libtorch, its loader and the system know; scripts/peers answers at once."""
    card = Card(tmp_path)
    for name in ("dev", "sys", "proc"):
        monkeypatch.setattr(gpu_cards, name.upper(), tmp_path / name)
    loader = "libtorch_hip.so => /torch/libtorch_hip.so\n\tlibamdhip64.so.7 => /rocm/lib"
    write_program(tmp_path / "bin/ldd", f"#!/bin/sh\necho '\t{loader}'\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    wall = iter([0.0, 2.0] * 50)
    monkeypatch.setattr(gpu_steps, "perf_counter", lambda: next(wall))
    real = gpu_steps.Session.tool

    def tool(self: gpu_steps.Session, name: str, *options: str, ok: Sequence[int]) -> Ended:
        if name != "peers":
            return real(self, name, *options, ok=ok)
        given = peers.parse_options(options)
        given.out.mkdir()
        document = card.measured_by_peers(*given.sizes)
        (given.out / "peers.json").write_text(json.dumps(document))
        return Ended(0, "", "", 0.0, False)

    monkeypatch.setattr(gpu_steps.Session, "tool", tool)
    return card


def test_a_card_where_all_is_well_passes(card: Card, capsys: pytest.CaptureFixture[str]) -> None:
    card.told["devices"] = 2
    document = card.check(status=0)
    states = {step["step"]: (step["state"], step["why"]) for step in document["steps"]}
    assert states == dict.fromkeys(document["plan"], ("passed", ""))
    assert list(document["plan"])[-2:] == ["speed_tiny", "speed_large"]
    assert document["verdict"] == "passed" and document["fake"] == ""
    # every step says how it is done again, and what was looked at
    assert all(step["commands"] and step["findings"] for step in document["steps"][:-2])
    commands = [command for step in document["steps"] for command in step["commands"]]
    assert not any(str(card.root) in text for text in (*commands, json.dumps(document["build"])))
    graph = f"--variants={GRAPH} --sizes=large --dtypes=bf16"
    assert any(f"{graph} --batch=57" in command for command in commands)
    assert "passed: 12 passed" in capsys.readouterr().out


def test_our_adamw_is_in_graphs_but_where_kernels_are_counted(card: Card) -> None:
    card.told["limit"]["switches"] = "qkv+fused_adamw"
    commands = card.step("graphs")["commands"]
    trained = [command for command in commands if "tiny_llama_train" in command]
    assert all("qkv+library_adamw" in command for command in trained) and len(trained) == 6
    assert "--variants=qkv+fused_adamw+graph" in commands[-1]


def test_one_device_skips_the_ranks_and_passes(card: Card) -> None:
    document = card.check("--steps=ranks", status=3)
    (step,) = document["steps"]
    assert (step["state"], step["why"]) == ("skipped", "a second device: there is one device")
    assert card.check(status=0)["verdict"] == "passed"


def told(key: str, value: object) -> Callable[[Card], None]:
    """A fault of what the programs are told."""
    path = key.split(".")

    def plant(card: Card) -> None:
        found = card.told
        for part in path[:-1]:
            found = found[part]
        found[path[-1]] = value

    return plant


def setting(name: str, value: object) -> Callable[[Card], None]:
    """A fault of the result's settings."""
    return lambda card: card.told["context"]["settings"].update({name: value})


def row(part: str, **counters: object) -> Callable[[Card], None]:
    """A fault of the rows whose names have this part."""
    return lambda card: card.told["rows"].update({part: counters})


def proof(part: str, how: str) -> Callable[[Card], None]:
    return lambda card: card.told["proofs"].update({part: how})


def speed(side: str, seconds: float) -> Callable[[Card], None]:
    return lambda card: card.speed.update({side: seconds})


def loader(text: str) -> Callable[[Card], None]:
    """A fault of what ldd says."""
    return lambda card: (card.root / "bin/ldd").write_text(f"#!/bin/sh\necho '{text}'\n") and None


def nameless(card: Card) -> None:
    """Neither the runtime nor the datasheets know it."""
    card.told["context"]["device"]["name"] = "AMD Radeon Graphics"
    card.told["context"]["peaks"]["datasheet"] = {}


def other_card(card: Card) -> None:
    """The power of another card rises."""
    other = card.root / "sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon2/power1_average"
    other.parent.mkdir(parents=True)
    (other.parents[2] / "vendor").write_text("0x1002\n")
    other.write_text("90000000\n")
    card.told["power"] = [str(other), 500]


MATH = {"error_occurred": True, "error_message": "sdpa was computed as a score matrix"}
NO_KERNELS = {"kernels": None, "device_ms": None, "host_bound": None}
# step | fault | state | words of why
FAULTS = {
    "a library is missing": (
        *("device", loader("\tlibtorch_hip.so => /a\n\tlibMIOpen.so.1 => not found")),
        *("failed", "libMIOpen.so.1"),
    ),
    "libtorch is one for CPUs": (
        *("device", loader("\tlibtorch_cpu.so => /a")),
        *("failed", "neither libtorch_hip nor libtorch_cuda"),
    ),
    "the card has no name": (
        *("device", nameless),
        *("cannot tell", "name: the runtime has no name for it"),
    ),
    "the driver is not known": (
        *("device", told("context.device.driver_version", "")),
        *("cannot tell", "driver version"),
    ),
    "no card has the UUID": (
        *("device", setting("gpu.uuid", "GPU-ffff")),
        *("cannot tell", "no card with this UUID"),
    ),
    "the datasheet is not known": (
        *("device", told("context.peaks.datasheet", {})),
        *("cannot tell", "device_peaks.json"),
    ),
    "a kernel is wrong": (
        *("kernels", told("tests", {"AdamW": "FAILED", "CrossEntropy": "COMPLETED"})),
        *("failed", "AdamW"),
    ),
    "the kernels were skipped": (
        *("kernels", told("tests", {"AdamW": "SKIPPED"})),
        *("failed", "tests that were skipped: no GPU is here"),
    ),
    "there are no tests": ("kernels", told("tests", {}), "cannot tell", "tests: 0"),
    "the tests crash": ("kernels", told("crash", "gtest"), "failed", "memory access fault"),
    "a proof fails": (
        *("proofs", proof("/sdpa/tiny/f16", "FAILED: loss differs by 0.5")),
        *("failed", "loss differs by 0.5"),
    ),
    "only an odd sequence fails": (
        *("proofs", proof("/baseline/tiny/f32/batch:2/seq:65", "FAILED: gradient of q")),
        *("failed", "cases that failed, tiny, sequence 65"),
    ),
    "only an odd width fails": (
        *("proofs", proof("/fused_norm/hidden/bf16", "FAILED: norm differs")),
        *("failed", "cases that failed, hidden 130"),
    ),
    "the build has no kernels": (
        *("proofs", proof("/fused_norm/", "skipped: fused_norm: this build has no kernels")),
        *("cannot tell", "fused_norm f32, fused_norm bf16"),
    ),
    "a graph trains otherwise": (
        *("graphs", told("losses", {"": [7.0, 6.5, 6.25], "graph": [7.0, 6.5, 6.25001]})),
        *("failed", "losses of a graph"),
    ),
    "a graph has other kernels": (
        *("graphs", row("+graph/", kernels=499.0)),
        *("failed", "499, must be 500, as eager"),
    ),
    "a graph takes more memory": (
        *("graphs", row("+graph/tiny", peak_memory_MiB=103.0)),
        *("failed", "against eager: 3 %"),
    ),
    "kernels are not seen": ("graphs", row("+graph/tiny", **NO_KERNELS), "cannot tell", "kernels"),
    "a graph does not fit at 80 %": (
        *("graphs", row("/batch:57/", error_occurred=True, error_message="out of memory")),
        *("failed", "80 % of the memory: out of memory"),
    ),
    "the timer's cost is not said": (
        *("clocks", told("context.timer", {})),
        *("cannot tell", "what the timer costs"),
    ),
    "two events cost 10 us": (
        *("clocks", told("context.timer", {"empty_pair_us": 10.0})),
        *("cannot tell", "10 us are up to 20 % of the shortest samples"),
    ),
    "the step does not fit": ("clocks", told("skip", "36 GiB exceed 4"), "cannot tell", "36 GiB"),
    "the profiler sees less": ("clocks", row("/large/", device_ms=9.0), "failed", "-10 %"),
    "the events see less than the wall": (
        *("clocks", told("seen", 0.9)),
        *("failed", "events against wall time"),
    ),
    "GEMMs are slow": (
        *("peaks", told("context.peaks.measured.bf16.flops_per_second", 0.5e15)),
        *("failed", "bf16 GEMM, of the datasheet's: 38.46 %, must be 40 to 100"),
    ),
    "the triad is too fast": (
        *("peaks", told("context.peaks.measured.memory_bandwidth.bytes_per_second", 6e12)),
        *("failed", "113.2 %"),
    ),
    "attention is math": ("peaks", row("attention", **MATH), "failed", "score matrix"),
    "attention says math": (
        *("peaks", row("attention/", label="attention: math; BLAS: ck")),
        *("failed", "math, must be not math"),
    ),
    "attention is not named": ("peaks", row("attention/", label=""), "cannot tell", "does not say"),
    "tiny is not bound by the host": (
        *("host", row("/tiny/", host_bound=0.0, device_ms=9.8)),
        *("failed", "step of tiny is bound by the host"),
    ),
    "very_large is bound by the host": (
        *("host", row("/very_large/", host_bound=1.0)),
        *("failed", "block of very_large is not bound by the host"),
    ),
    "what bounds it is not seen": ("host", row("/tiny/", **NO_KERNELS), "cannot tell", "profiler"),
    "memory is not as predicted": (
        *("memory", row("/checkpoint/large/bf16", peak_memory_MiB=108.8)),
        *("failed", "8.8 %, must be within 2"),
    ),
    "the largest batch does not fit": (
        *("memory", told("tried", [{"fits": False, "failure": "out of memory"}, {"fits": False}])),
        *("failed", "batch 57 fits: out of memory"),
    ),
    "one more fits too": (
        *("memory", told("tried", [{"fits": True}, {"fits": True}])),
        *("failed", "batch 58 does not fit: it fits"),
    ),
    "the power is another card's": ("power", other_card, "failed", "0000:05:00.0 by 410 W"),
    "the power is not read": (
        *("power", row("full_step", power_W=None, joules_per_token=None)),
        *("cannot tell", "the program read no power"),
    ),
    "the power is not the card's": (
        *("power", row("full_step", power_W=50.0)),
        *("failed", "50 W, must be 100 to 600"),
    ),
    "two ranks fail": (
        *("ranks", lambda card: card.told.update(devices=2, ranks=1)),
        *("failed", "of 2 ended with 1"),
    ),
    "torch.compile is faster": (
        *("speed_tiny", speed(COMPILED, 0.9)),
        *("failed", f"0.9 times as fast by {GRAPH}, must be 1 or more, its interval too"),
    ),
    "who is faster is not clear": (
        *("speed_tiny", speed(COMPILED, 1.02)),
        *("cannot tell", "its interval reaches 0.97"),
    ),
    "a graph gains too little": ("speed_tiny", speed(EAGER, 3.5), "failed", "graph against eager"),
    "torch.compile was not measured": (
        *("speed_large", lambda card: card.speed.pop(COMPILED)),
        *("cannot tell", "no ratio"),
    ),
    "half of the card is not used": (
        *("speed_large", lambda card: setattr(card, "mfu", 46.0)),
        *("failed", "MFU, best of optimized and graph: 46 %, must be 50 or more"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, card: Card) -> None:
    step, plant, state, words = FAULTS[fault]
    plant(card)
    found = card.step(step)
    assert (found["state"], words in found["why"]) == (state, True), found["why"]
    # and the check says so
    verdict = read_json(card.out / "gpu_check.json")["verdict"]
    assert verdict == ("failed" if state == "failed" else "incomplete")


def test_each_step_has_a_fault_that_is_found() -> None:
    session = gpu_steps.Session("hip", "hip", Path(), Path(), ("tiny", "large"), "very_large")
    assert {step.name for step in gpu_steps.steps_of(session)} == {s for s, *_ in FAULTS.values()}


def test_proofs_are_of_every_switch(bench_program: Path) -> None:
    """As the program's help lists them."""
    text = " ".join(Program(bench_program).run("--help").stdout.split())
    listed = re.search(r"or all as plugin: ([a-z_, ]+)", text)[1].split()
    names = [name.removesuffix(",") for name in listed]
    # up to the next option, which has no comma before it
    switches = names[: next(i for i, name in enumerate(listed) if not name.endswith(",")) + 1]
    assert len(switches) > 10 and set(switches) <= set(gpu_steps.VARIANTS)


# ---- the sanitizer, which only NVIDIA has


def sanitized(card: Card, said: str) -> Json:
    """The kernels' step on a card of NVIDIA."""
    card.told["device"] = DEVICE | {"backend": "cuda", "name": "NVIDIA H200"}
    (card.root / "dev/nvidiactl").touch()
    write_program(card.root / "bin/compute-sanitizer", f"#!/bin/sh\ncat <<'E'\n{said}\nE\n")
    return card.step("kernels")


CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors"
BEYOND = "========= Invalid __global__ read of size 4 bytes\n========= ERROR SUMMARY: 3 errors"
REFUSED = "========= Error: Device not supported."


@pytest.mark.parametrize(
    ("said", "state", "words"),
    [
        (CLEAN, "passed", ""),
        (BEYOND, "failed", "Invalid __global__ read"),
        (REFUSED, "cannot tell", "Device not supported"),
    ],
)
def test_memory_accesses_of_kernels_are_checked(
    said: str, state: str, words: str, card: Card
) -> None:
    found = sanitized(card, said)
    assert (found["state"], words in found["why"]) == (state, True), found["why"]


# ---- what a run keeps


def test_steps_of_the_same_machine_build_and_settings_are_not_run_again(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("--steps=device,host",)

    def runs(*options: str) -> int:
        """How many programs measured."""
        before = len(starts(card.build))
        card.check(*chosen, *options)
        return sum("benchmark_out" in one for one in starts(card.build)[before:])

    assert runs() == 3
    first = read_json(card.out / "gpu_check.json")
    assert runs() == 0
    assert read_json(card.out / "gpu_check.json")["steps"] == first["steps"]
    assert runs("--largest=large") == 2
    assert runs("--largest=large", "--again") == 3
    card.told["device"] = DEVICE | {"driver_version": "7.3"}
    assert runs("--largest=large") == 3
    assert "of another device: all of its steps are run again" in capsys.readouterr().err
    assert first["started"] != "" and runs("--largest=large") == 0


def test_another_build_is_checked_again(card: Card, capsys: pytest.CaptureFixture[str]) -> None:
    card.step("host")
    card.told["context"]["git_commit"] = "f" * 40
    before = len(starts(card.build))
    card.step("host")
    assert "is of another build" in capsys.readouterr().err
    assert any("benchmark_out" in one for one in starts(card.build)[before:])


def test_a_step_that_takes_too_long_is_ended_and_the_others_go_on(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LATE_S", 0.2)
    card.told["hang"] = "--verify=only"
    limits = ("--steps=proofs,host", "--limit=proofs=0.5")
    document = card.check(*limits, status=3)
    proofs, host = document["steps"]
    assert (proofs["state"], host["state"]) == ("timed out", "passed")
    assert "did not end within" in proofs["why"] and proofs["seconds"] < 60
    assert proofs["commands"][0].endswith("--sizes=tiny")
    # with the same limit it would do so again
    card.told["hang"] = ""
    assert card.check(*limits)["steps"][0] == proofs
    again = card.check("--steps=proofs,host", "--limit=proofs=60")
    assert again["steps"][0]["state"] == "passed" and again["steps"][1] == host


def test_a_served_program_that_hangs_is_ended(card: Card) -> None:
    card.told["hang"] = "--serve"
    found = card.step("clocks", "--limit=clocks=1")
    assert found["state"] == "timed out" and "gave no answer" in found["why"]


def test_what_failed_before_the_end_of_the_time_stays_failed(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LATE_S", 0.2)
    card.told["proofs"]["/baseline/tiny/f32"] = "FAILED: wrong"
    card.told["hang"] = "--config"
    found = card.step("proofs", "--limit=proofs=3")
    assert found["state"] == "failed" and "wrong" in found["why"]
    assert "did not end within 3 s" in found["why"]


def test_every_step_is_saved_at_once(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_steps, "risen", interrupt)
    document = card.check("--steps=host,power", status=130)
    assert [step["step"] for step in document["steps"]] == ["host"]
    assert document["verdict"] == "incomplete"


# ---- no card


def test_what_answers_without_a_driver_is_fake(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    (card.root / "dev/kfd").unlink()
    card.told["devices"] = 2
    document = card.check(status=4)
    assert document["verdict"] == "fake" and "has no /dev/kfd" in document["fake"]
    # every step is made and judged all the same
    states = {step["step"]: step["state"] for step in document["steps"]}
    assert states.pop("device") == "cannot tell" and set(states.values()) == {"passed"}
    assert "driver's device node" in document["steps"][0]["why"]
    assert "fake: 11 passed, 1 cannot tell: AMD Instinct MI300X answered" in capsys.readouterr().out
    # on a page, too
    assert tools.report([str(card.out), "--format=md"]) == 0
    assert "# Tiny LLaMA on fake AMD Instinct MI300X" in capsys.readouterr().out
    # nor does a driver that comes later make a card of it
    (card.root / "dev/kfd").touch()
    assert card.check(status=0)["verdict"] == "passed"
    assert "is of another fake" in capsys.readouterr().err


def test_the_driver_of_another_vendor_is_none(card: Card) -> None:
    (card.root / "dev/kfd").rename(card.root / "dev/nvidiactl")
    assert card.check("--steps=host", status=4)["verdict"] == "fake"


def test_no_gpu_ends_with_2_and_leaves_no_file(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = DEVICE | {"name": "AMD EPYC", "backend": "cpu"}
    make_programs(card.build, device=cpu)
    given = [f"--build-folder={card.build}", f"--out={card.out}"]
    assert tools.gpu_check(given) == 2 and not card.out.exists()
    said = capsys.readouterr().err
    assert "no GPU: libtorch computes on AMD EPYC (cpu), and a driver's /dev/kfd is there" in said
    assert tools.gpu_check([*given, "--device=hip:1"]) == 2
    assert "no such device" in capsys.readouterr().err
    assert tools.gpu_check([f"--build-folder={card.root}", f"--out={card.out}"]) == 2
    assert "build it: scripts/bench --setup-only" in capsys.readouterr().err


# ---- files


def test_bad_files_are_named(card: Card, capsys: pytest.CaptureFixture[str]) -> None:
    card.check("--steps=host")
    file = card.out / "gpu_check.json"
    good = read_json(file)
    passed, *_ = good["steps"]
    bad = {
        "no JSON": "{,",
        "steps[0].state: 'fine' is not one of": good | {"steps": [passed | {
            "state": "fine", "why": "so"}]},
        "verdict: is passed, by its steps incomplete": good | {"verdict": "passed"},
        "kernels is not in its plan": good | {"plan": {"host": "what bounds a step"}, "steps": [
            passed | {"step": "kernels"}]},
        "host passed, and its findings did not": good | {"steps": [passed | {"findings": [
            passed["findings"][0] | {"state": "failed"}]}]},
        "Additional properties are not allowed": good | {"more": 1},
    }  # fmt: skip
    for words, document in bad.items():
        text = document if isinstance(document, str) else json.dumps(document)
        file.write_text(text)
        given = [*SIZES, f"--build-folder={card.build}", f"--out={card.out}"]
        assert tools.gpu_check(given) == 2
        said = capsys.readouterr().err
        assert words in said and file.name in said, said
        # and it stays as it is
        assert file.read_text() == text
        with pytest.raises(BadInputError):
            read_gpu_check(file)


def test_a_file_that_cannot_be_written_ends_the_check_before_it_begins(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    make_programs(card.build, **card.told)
    in_the_way = card.root / "a file"
    in_the_way.touch()
    given = [f"--build-folder={card.build}", f"--out={in_the_way / 'out'}"]
    assert tools.gpu_check(given) == 2
    assert "a file" in capsys.readouterr().err
    assert not any("benchmark_out" in one for one in starts(card.build))


def test_a_full_disk_keeps_what_was_written(
    card: Card, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = card.check("--steps=device")

    def full(path: Path, text: str) -> None:
        if '"step": "host"' in text:
            raise OSError(28, "No space left on device", str(path))
        real(path, text)

    real = gpu_check.write_whole
    monkeypatch.setattr(gpu_check, "write_whole", full)
    document = card.check("--steps=device,host", status=2)
    assert document["steps"] == first["steps"]
    assert "gpu_check.json: No space left on device" in capsys.readouterr().err


def test_a_program_whose_answer_cannot_be_read_fails_its_step(card: Card) -> None:
    card.told["limit"] = {"switches": "qkv"}
    found = card.step("memory")
    assert found["state"] == "failed" and "cannot be read: KeyError" in found["why"]


# ---- cards of the system


@pytest.mark.parametrize("has_files", [True, False])
def test_cards_are_found_by_their_uuid(
    has_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the driver's files; in a container that has none, by nvidia-smi."""
    monkeypatch.setattr(gpu_cards, "PROC", tmp_path if has_files else tmp_path / "none")
    parent, part = "GPU-11111111-2222-3333-4444-555555555555", "MIG-99999999-8888"
    information = tmp_path / "driver/nvidia/gpus/0000:c1:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text(f"Model: \t\t NVIDIA H200\nGPU UUID: \t {parent}\n")
    listed = f"GPU 0: NVIDIA H200 (UUID: {parent})\n  MIG 1g.18gb Device 0: (UUID: {part})"
    power = "00000000:C1:00.0, 512.25\n00000000:C2:00.0, [N/A]"
    uuids = f"GPU-0123, 00000000:C2:00.0\n{parent}, 00000000:C1:00.0"
    cases = f"-L) echo '{listed}';; *power*) echo '{power}';; *) echo '{uuids}';;"
    write_program(tmp_path / "nvidia-smi", f"#!/bin/sh\ncase $1 in {cases} esac\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    whole = gpu_cards.find_card("cuda", parent)
    assert whole == gpu_cards.Card("0000:c1:00.0", "whole card")
    # as our programs write it
    mig = gpu_cards.find_card("cuda", part.replace("MIG", "GPU"))
    assert mig == gpu_cards.Card("0000:c1:00.0", "MIG 1g.18gb")
    assert gpu_cards.find_card("cuda", "GPU-0000") is None
    assert gpu_cards.find_card("cuda", "") is None
    assert gpu_cards.powers("cuda") == {"0000:c1:00.0": 512.25}


# ---- states


def test_the_worst_finding_is_the_state_of_a_step() -> None:
    of = {state: Finding("a", state, why=state.value) for state in State}
    passed, failed, unknown = (of[s] for s in (State.PASSED, State.FAILED, State.UNKNOWN))
    assert state_of([])[0] is State.UNKNOWN
    assert state_of([of[State.NOTED]])[0] is State.UNKNOWN
    assert state_of([of[State.SKIPPED], of[State.NOTED]])[0] is State.SKIPPED
    assert state_of([of[State.SKIPPED], passed]) == (State.PASSED, "")
    assert state_of([passed, unknown])[0] is State.UNKNOWN
    assert state_of([unknown, failed, passed])[0] is State.FAILED


# ---- the page


def test_the_page_shows_the_verdict_and_what_did_not_pass(
    card: Card, open_page: PageOpener, capsys: pytest.CaptureFixture[str]
) -> None:
    card.told["rows"]["/checkpoint/large/bf16"] = {"peak_memory_MiB": 108.8}
    card.check("--steps=device,memory,host")
    page = card.root / "page.html"
    assert tools.report([str(card.out), "-o", str(page)]) == 0, capsys.readouterr().err
    opened = open_page(page)
    assert opened.texts("h2") == ["GPU check", "Left out"]
    (verdict,) = [text for text in opened.texts("p.prose") if text.startswith("Verdict")]
    assert "Verdict: failed: a step found something wrong." in verdict
    rows = opened.texts("#table-gpu_open tbody tr")
    assert "8.8 %" in rows[0] and len(opened.texts("#table-gpu_steps tbody tr")) == 12
    assert not opened.said
    # also beside a result, and as the file alone
    both = [str(card.out / "gpu_check.json"), str(card.out / "host_step.json"), "--format=md"]
    assert tools.report(both) == 0
    text = capsys.readouterr().out
    assert "### What did not pass" in text and "### Every case" in text
