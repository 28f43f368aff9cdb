"""The result file of scripts/peers and its page, from played sides; and that the schema has it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tinyllama_tools.data.programs import SuiteCase, SuiteError, SuiteResult, read_case
from tinyllama_tools.data.results import checked_result
from tinyllama_tools.peers import command as peers
from tinyllama_tools.peers.result import Notes, milliseconds, peers_page, read_rows
from tinyllama_tools.peers.sides import FORMS, PeerError, PeerForm, PeerSide, SideError

Json = dict[str, Any]
SPEEDS = {"peer:eager": 0.2, "peer:sdpa": 0.1}


class PlayedProcess:
    """Answers as a peer's process does; a bf16 step takes a minute, a build of small fails."""

    is_running = True

    def __init__(self, variant: str) -> None:
        self.seconds = SPEEDS[variant]
        self.request: Json = {}
        self.built: Json = {}

    def send(self, do: str, **what: Any) -> None:  # noqa: ANN401 -- as the real one
        self.request = {"do": do, **what}

    def receive(self) -> Json:
        do = self.request["do"]
        if do == "hello":
            versions = {"torch": "2", "transformers": "4", "python": "3", "threads": 2}
            precision = {"float32_matmul_precision": "highest", "float32_product_error": 4e-7}
            return {**versions, **precision, "preloaded": []}
        if do == "build":
            self.built = self.request
            if self.request["size"]["hidden_dim"] > 256:
                raise PeerError("peer:x: the compiler is absent")
        seconds = 60.0 if self.built["dtype"] == "bf16" else self.seconds
        times = [seconds] * self.request.get("steps", 1)
        return {"seconds": times, "cpu_seconds": times}

    def ask(self, do: str, **what: Any) -> Json:  # noqa: ANN401
        self.send(do, **what)
        return self.receive()

    def close(self) -> None:
        pass


class PlayedProgram:
    """Answers from a real result's context and entries: 0.1 s a step."""

    def __init__(self, context: Json, entry: Json) -> None:
        self.context = context
        self.entry = entry

    def run(self, cases: Any, repetitions: int, *, verify: bool = False, more: Any = ()) -> Any:  # noqa: ANN401, ARG002
        (case,) = cases
        if case.variant == "nonsense":
            raise SuiteError("tiny_llama_bench: --variants: variant 'nonsense': must be baseline")
        name = f"{case.name}/manual_time"
        entries = [
            {**self.entry, "name": name, "run_name": name, "real_time": 100.0, "time_unit": "ms"}
            | {"repetition_index": i}
            for i in range(repetitions)
        ]
        if verify:
            entries = [e | {"max_rel_error": 1e-6} for e in entries]
        return SuiteResult(self.context, (read_case(case.name, entries),))


@pytest.fixture
def played(project_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes scripts/peers measure played sides and write into the folder that is returned."""
    reference = project_root / "results" / "reference" / "tiny_f32_2core_xeon_avx512.json"
    document = checked_result(json.loads(reference.read_text(encoding="utf-8")), reference)
    step = next(e for e in document["benchmarks"] if e["name"].startswith("full_step/"))
    del step["max_rel_error"]
    program = PlayedProgram(document["context"], step)
    monkeypatch.setattr(peers, "our_program", lambda _: program)
    monkeypatch.setattr(peers, "start_peer", lambda form, _: PlayedProcess(form.variant))
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    monkeypatch.setattr(peers, "changed_files", lambda _: "")
    return tmp_path


AXES = ["--dtypes=f32,bf16", "--batch=8", "--seq=128", "--peers=eager,sdpa", "--turns=6"]


def test_result_has_every_case_and_is_of_the_schema(played: Path, project_root: Path) -> None:
    schema = json.loads((project_root / "results/schema.json").read_text(encoding="utf-8"))
    assert peers.main([*AXES, "--variant=baseline,nonsense", "--publish=here"]) == 1
    (folder,) = played.glob("*_peers")
    document = json.loads((folder / "peers.json").read_text(encoding="utf-8"))
    validator = Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(document)] == []
    names = {entry["run_name"].removesuffix("/manual_time") for entry in document["benchmarks"]}
    assert len(names) == 2 * 2 * 4  # sizes, dtypes, sides
    assert "full_step/train/peer:sdpa/tiny/f32/batch:8/seq:128" in names
    (ratio,) = (
        row
        for row in document["context"]["peers"]["ratios"]
        if row["peer"] == "peer:eager" and "/tiny/f32/" in row["case"]
    )
    assert (ratio["median"], ratio["turns"]) == (pytest.approx(2.0), 6)
    published = played / "reference" / "peers_here.json"
    assert json.loads(published.read_text(encoding="utf-8")) == document
    assert (played / "PEERS.md").read_text() == (folder / "PEERS.md").read_text()


def test_page_has_ratios_times_and_every_reason(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"--out={played / 'o.json'}", f"--markdown={played / 'o.md'}"]
    assert peers.main([*AXES, "--variant=baseline,nonsense", *files]) == 1
    page = capsys.readouterr().out
    assert page == (played / "o.md").read_text(encoding="utf-8")
    page = re.sub(" +", " ", page)  # the columns are aligned
    assert "| tiny | f32 | 8 | 128 | 2.00 (2.00 to 2.00) | 1.00 (1.00 to 1.00) |" in page
    assert "| tiny | f32 | 8 | 128 | 100 | failed [1] | 200 | 100 |" in page
    assert "must be baseline" in page
    assert "| tiny | bf16 | 8 | 128 | 100 | failed [1] | skipped [" in page
    assert "skipped: a step took 60.0 s, more than --max-seconds-per-case 10" in page
    assert "failed: peer:x: the compiler is absent" in page
    assert "96.9 % at 6 turns" in page
    for form in ("eager", "sdpa"):
        assert f"| peer:{form} | {FORMS[form].attention} | no | highest, error 4.0e-07" in page
    assert not list(played.glob("*_peers"))


def test_page_has_the_time_of_a_case_above_its_peak_and_why() -> None:
    name = "full_step/train/baseline/tiny/f32/batch:8/seq:128/manual_time"
    row = {"run_name": name, "real_time": 100.0, "time_unit": "ms", "above_peak": "107 % of it"}
    notes = Notes()
    ((cell,),) = (of.values() for of in read_rows({"benchmarks": [row]}).values())
    assert milliseconds(cell, notes) == "100 [1]"
    assert notes.lines() == ["1. 107 % of it"]


def test_interrupt_writes_what_was_measured(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = PlayedProcess.receive

    def receive(self: PlayedProcess) -> Json:
        if self.request.get("dtype") == "bf16":
            raise KeyboardInterrupt
        return measured(self)

    monkeypatch.setattr(PlayedProcess, "receive", receive)
    assert peers.main([*AXES, "--sizes=tiny", "--variant=baseline", f"--out={played / 'o'}"]) == 130
    document = json.loads((played / "o").read_text(encoding="utf-8"))
    assert len([e for e in document["benchmarks"] if "/f32/" in e["name"]]) == 3 * 6 * 3
    assert len(re.findall(r"\| tiny +\| f32 ", peers_page(document))) == 2


def test_what_is_published_has_to_be_of_a_commit(
    played: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "changed_files", lambda _: " M model/cost.cpp")
    assert peers.main([*AXES, "--publish=here"]) == 2
    assert "--publish: commit first, these files are changed:\n M model/cost.cpp" in (
        capsys.readouterr().err
    )
    assert not (played / "PEERS.md").exists()


class KilledProcess(PlayedProcess):
    """Dies while it builds."""

    is_running = False

    def receive(self) -> Json:
        if self.request["do"] == "hello":
            return super().receive()
        raise PeerError("peer:eager: its process ended with -9: it said nothing")


def test_a_peer_that_dies_while_it_builds_is_not_waited_for() -> None:
    started: list[PeerForm] = []

    def start(form: PeerForm) -> KilledProcess:
        started.append(form)
        return KilledProcess(form.variant)

    side = PeerSide(FORMS["eager"], start, 2, 10.0)
    case = SuiteCase("tiny", "f32", 8, 128)
    side.start(case)
    for what in (side.wait_until_built, lambda: side.get_ready(case), lambda: side.time(case, 1)):
        with pytest.raises(SideError, match="ended with -9"):
            what()
    assert len(started) == 1


def test_results_of_parts_become_one(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [played / "f32.json", played / "bf16.json"]
    for part in parts:
        axes = [f"--dtypes={part.stem}", "--sizes=tiny", "--batch=8", "--seq=128"]
        peers.main([*axes, "--peers=eager,sdpa", f"--out={part}"])
    sources = [f"--from={part}" for part in parts]
    whole = played / "whole.json"
    assert peers.main([*sources, "--batch=8", "--seq=128", f"--out={whole}"]) == 0
    document, first, second = (
        json.loads(path.read_text(encoding="utf-8")) for path in (whole, *parts)
    )
    assert document["benchmarks"] == first["benchmarks"] + second["benchmarks"]
    assert document["context"]["peers"]["not_measured"] == [
        f"{size} {dtype} 8 x 128"
        for dtype, size in (
            ("f32", "small"),
            ("amp_bf16", "tiny"),
            ("amp_bf16", "small"),
            ("bf16", "small"),
        )
    ]
    assert "Not measured: small f32 8 x 128, tiny amp_bf16" in capsys.readouterr().out
    twice = peers.main([f"--from={parts[0]}", f"--from={parts[0]}", f"--out={whole}"])
    assert twice == 0
    assert json.loads(whole.read_text(encoding="utf-8"))["benchmarks"] == first["benchmarks"]


def test_results_of_two_machines_are_not_mixed(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = played / "here.json", played / "there.json"
    peers.main([*AXES, "--sizes=tiny", f"--out={here}"])
    document = json.loads(here.read_text(encoding="utf-8"))
    document["context"]["threads"] = 64
    there.write_text(json.dumps(document), encoding="utf-8")
    assert peers.main([f"--from={here}", f"--from={there}"]) == 2
    assert "threads is 64, and 2 in the first file" in capsys.readouterr().err
