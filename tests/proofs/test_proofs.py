"""The proofs: the oracle and its files, proved by other means, made anew with the same values, and
faults in them found; weights that go to and fro between transformers and C++; the test runner, the
table of proofs, and the faults that tests have to find."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from built_programs import PROJECT_ROOT, write_program
from tools import golden as run_golden
from tools import prove as run_prove
from tools import require_oracle_packages

require_oracle_packages()

import torch
from safetensors.torch import load_file, save_file

from tinyllama_tools.proofs import golden, prove, run_tests
from tinyllama_tools.proofs.claims import measured_rows, problems_of, read_claims
from tinyllama_tools.proofs.flop_counts import ComponentCounter
from tinyllama_tools.proofs.golden import (
    CURVES,
    F32_FILE,
    F64_FILE,
    GOLDEN_FOLDER,
    INPUTS_FILE,
    WEIGHTS_FILE,
    check_oracle,
)
from tinyllama_tools.proofs.golden_cases import DIMENSIONS, GOLDEN_CASES
from tinyllama_tools.proofs.oracle import Proof, Tensors, build_model, tensor_error
from tinyllama_tools.proofs.prove import FAULTS, Fault, check_round_trip
from tinyllama_tools.proofs.run_tests import (
    GTEST_REPORT,
    PYTEST_REPORT,
    Counts,
    Program,
    run_program,
)

# ---- the oracle and the golden files

CASE, PART = "seq_1", "gqa_groups_2"
TENSOR = "gradient.model.layers.0.mlp.down_proj.weight"


def document(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN_FOLDER / name).read_text())


def spoil(path: Path, name: str, relative: float) -> None:
    """One value, by so much of the largest."""
    tensors = load_file(path)
    tensors[name][..., 3] += relative * tensors[name].abs().max()
    save_file(tensors, path)


def test_the_oracle_is_the_package_but_for_roundings_and_a_wrong_value_is_found(
    tmp_path: Path,
) -> None:
    proof = check_oracle()
    assert proof.held, proof
    assert proof.comparisons >= sum(len(load_file(p)) for p in GOLDEN_FOLDER.glob("*/model.s*"))
    # float32's roundings are there
    assert proof.largest_error > 1e-8
    shutil.copytree(GOLDEN_FOLDER, tmp_path / "golden")
    spoil(tmp_path / "golden" / CASE / F64_FILE, TENSOR, 1e-5)
    proof = check_oracle(tmp_path / "golden")
    assert not proof.held and f"{CASE}: {TENSOR} at index" in proof.worst


def test_a_proof_fails_of_nothing_of_nan_and_of_another_shape_or_type() -> None:
    zeros, spoilt = torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 3.0]])
    assert tensor_error(torch.ones(2, 3), spoilt) == (2.0, (1, 2))
    # where all that is expected is zero, it is absolute
    assert tensor_error(zeros, zeros + 0.25)[0] == 0.25
    for other in (torch.zeros(3, 2), zeros.double(), zeros * math.nan):
        assert tensor_error(zeros, other)[0] == math.inf
    proof = Proof("section", "check", "against", tolerance=0.5)
    assert not proof.held
    proof.add_tensors("file", {"a": zeros}, {"a": zeros + 0.5})
    assert proof.held
    proof.add_tensors("file", {"a": zeros, "b": zeros}, {"a": zeros})
    assert not proof.held and "file: b" in proof.worst


# what a model may lack and still hold the case's weights
WITHOUT_WEIGHTS = ("rope_theta", "rope_scaling", "sliding_window", "padding_token", "norm_eps")
FEATURES_OF_CASES = [
    (case, feature)
    for case, size in GOLDEN_CASES.items()
    for feature in [*(size.keys() - {*DIMENSIONS, "model_type", "own_head_dim"}), "weights"]
]


@pytest.mark.parametrize(("case", "feature"), sorted(FEATURES_OF_CASES))
def test_a_golden_case_without_one_of_its_features_has_other_values(
    case: str, feature: str
) -> None:
    size = dict(GOLDEN_CASES[case])
    weights, inputs, expected = (
        golden.read_tensors(GOLDEN_FOLDER / case / file)
        for file in (WEIGHTS_FILE, INPUTS_FILE, F64_FILE)
    )
    changed: list[Tensors] = []
    if feature in WITHOUT_WEIGHTS:
        del size[feature]
        changed = [weights]
    elif feature == "tied_embeddings":
        # a head of its own that starts as the embedding: the sum of the gradients is missing
        del size[feature]
        changed = [weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}]
    else:
        # each bias and each norm alone
        names = [name for name, tensor in weights.items() if tensor.dim() == 1]
        nothing = {name: float("norm" in name) for name in names}
        changed = [weights | {n: torch.full_like(weights[n], nothing[n])} for n in names]
        kinds = {"qkv_bias": "q_proj.bias", "o_bias": "o_proj.bias", "mlp_bias": "down_proj.bias"}
        kinds |= {"qk_norm": "q_norm", "weights": "norm"}
        assert any(kinds[feature] in name for name in names)
    for tensors in changed:
        found = golden.evaluate(golden.loaded_model(size, tensors, torch.float64), inputs)
        errors = [
            tensor_error(expected[name], tensor.to(torch.float64))[0]
            for name, tensor in found.items()
            if name in expected
        ]
        # a factor of 10,000 above what the C++ may be off in float64
        assert max(errors) > 1e-6


@pytest.mark.parametrize(
    "name", ["grid_00", "grid_18", "grid_43", "tiny", "grid_window_and_head_dim"]
)
def test_flops_counted_anew_are_the_same(name: str) -> None:
    """Their relations to each other are held by flop_proof_test.cpp."""
    (entry,) = (e for e in document("flops.json")["configurations"] if e["name"] == name)
    flops = entry.pop("flops")
    assert ComponentCounter(entry).count() == flops


@pytest.mark.parametrize("name", CURVES)
def test_first_steps_trained_anew_are_the_same(name: str) -> None:
    steps, stored = 10 if name in {"f32", "f64"} else 3, document("training_tiny.json")
    wanted = pytest.approx(stored["losses"][name][:steps], rel=CURVES[name].tolerance)
    assert golden.losses(CURVES[name], steps) == wanted
    # from where our own model starts
    assert golden.weights_checksum(golden.tiny_start()[0]) == stored["weights_checksum"]


def test_written_again_they_are_the_same_and_a_change_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check() -> tuple[int, str]:
        return run_golden([CASE, "--check", f"--folder={tmp_path}"]), capsys.readouterr().out

    assert run_golden([CASE, f"--folder={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"{CASE}: written to {tmp_path}\n"
    files = sorted((tmp_path / CASE).iterdir())
    assert [path.name for path in files] == sorted(p.name for p in (GOLDEN_FOLDER / CASE).iterdir())
    for name in ("config.json", "inputs.safetensors", WEIGHTS_FILE):
        stored, written = (top / CASE / name for top in (GOLDEN_FOLDER, tmp_path))
        assert stored.read_bytes() == written.read_bytes(), name
    assert check()[0] == 0
    assert run_golden([CASE, f"--folder={files[0]}"]) == 2
    assert f"scripts/dev/golden: {files[0]}: File exists" in capsys.readouterr().err
    # one is absent, and one superfluous
    (tmp_path / CASE / F64_FILE).rename(tmp_path / CASE / "other.safetensors")
    status, output = check()
    assert status == 1 and f"{F64_FILE} is absent" in output
    assert "FAILED golden expected_f64.safetensors: " in output
    assert "other.safetensors is not one of the golden files" in output
    # neither a traceback nor the status of a difference
    for name in (F32_FILE, "config.json"):
        path = tmp_path / CASE / name
        path.write_bytes(path.read_bytes()[:-9])
        assert run_golden([CASE, "--check", f"--folder={tmp_path}"]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"scripts/dev/golden: {path}: ")


ATTENTION, LOSS = "configurations.3.flops.attention.forward", "losses.f64.7"


@pytest.mark.parametrize(
    ("file", "place", "change", "held"),
    [
        (f"{CASE}/{F64_FILE}", TENSOR, 1e-9, False),
        (f"{CASE}/{F64_FILE}", TENSOR, 1e-14, True),
        (f"{CASE}/{F32_FILE}", TENSOR, 1e-4, False),
        (f"{CASE}/{F32_FILE}", TENSOR, 1e-6, True),
        ("flops.json", ATTENTION, lambda n: n + 1, False),
        ("training_tiny.json", "torch", lambda _: "9.9", True),
        ("training_tiny.json", LOSS, lambda loss: loss * (1 + 1e-13), True),
        ("training_tiny.json", LOSS, lambda loss: loss * (1 + 1e-9), False),
        ("training_tiny.json", "losses.bf16.7", lambda _: math.nan, False),
        ("training_tiny.json", "losses.bf16.7", lambda _: None, False),
    ],
)
def test_one_changed_value(
    tmp_path: Path, file: str, place: str, change: float | Callable[[Any], Any], held: bool
) -> None:
    path = shutil.copytree(GOLDEN_FOLDER, tmp_path / "golden") / file
    if isinstance(change, float):
        spoil(path, place, change)
    else:
        changed = inner = document(file)
        *way, last = (int(key) if key.isdecimal() else key for key in place.split("."))
        for key in way:
            inner = inner[key]
        inner[last] = change(inner[last])
        path.write_text(json.dumps(changed))
    part = file.split("/")[0].removesuffix(".json")
    proofs = golden.compare([part], tmp_path / "golden", GOLDEN_FOLDER)
    failed = [proof.worst.partition(" at ")[0] for proof in proofs if not proof.held]
    assert failed == ([] if held else [f"{file}: {place}"])


# ---- weights to and fro


def test_round_trip_is_a_proof_that_holds_and_a_lost_bit_is_found(
    copy_program: Path, tmp_path: Path
) -> None:
    proof = check_round_trip(copy_program)
    assert proof.comparisons > 100_000
    assert proof.held, proof
    spoiling = 'sed -i s/null/none/ "$2"/config.json'
    text = f'#!/bin/sh\n"{copy_program}" "$1" "$2" && {spoiling}\n'
    losing = write_program(tmp_path / "losing", text)
    assert "config.json" in check_round_trip(losing).worst


def test_values_that_are_easily_lost_survive_and_shards_are_read(
    copy_program: Path, tmp_path: Path
) -> None:
    model = build_model(GOLDEN_CASES[PART])
    # -0, the smallest denormal, infinity, a quiet and a signalling NaN with payloads
    odd = torch.tensor([-(2**31), 1, 0x7F800000, 0x7FC00123, 0x7F800001], dtype=torch.int32)
    model.model.norm.weight.data[:5].view(torch.int32).copy_(odd)
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    assert len(list((tmp_path / "in").glob("model-*.safetensors"))) > 2
    subprocess.run([copy_program, tmp_path / "in", tmp_path / "out"], timeout=120, check=True)
    found, wanted = load_file(tmp_path / "out" / WEIGHTS_FILE), model.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name].view(torch.int32), tensor.view(torch.int32)), name


# ---- scripts/test and scripts/dev/prove

CLAIM = {"section": "FLOPs", "check": "model_flops", "against": "a counter", "tolerance": 0}
CLAIM |= {"largest_error": "inf", "worst": "embedding at grid_00", "comparisons": 12}
PROOF = json.dumps(CLAIM)
QUOTED = PROOF.replace('"', "&quot;")
GTEST_XML = f"""<testsuites tests="4" failures="1" disabled="1" errors="0" name="AllTests">
  <testsuite name="A" tests="4" failures="1" disabled="1" skipped="1" errors="0">
    <testcase name="Passes" status="run" classname="A">
      <properties><property name="proof_0" value="{QUOTED}"/><property name="x" value="1"/>
      </properties></testcase>
    <testcase name="Fails" status="run" classname="A"><failure message="1 is not 2"/></testcase>
    <testcase name="Skips" status="run" result="skipped" classname="A">
      <skipped message="a.cpp:5&#x0A;needs a GPU"></skipped></testcase>
    <testcase name="DISABLED_Off" status="notrun" result="suppressed" classname="A" />
  </testsuite>
</testsuites>
"""
PYTEST_XML = """<testsuites>
  <testcase classname="tests.test_a" name="test_passes" time="0.1" />
  <testcase classname="tests.test_a" name="test_breaks"><error message="x">x</error></testcase>
  <testcase classname="tests.test_a" name="test_skips"><skipped message="no browser" /></testcase>
</testsuites>
"""
EMPTY_XML = '<?xml version="1.0"?><testsuites tests="0" name="AllTests"></testsuites>'
NO_TEST = f"echo '{EMPTY_XML}' >\"${{2#*xml:}}\""
ONE_PASSED = '<testsuites><testcase name="Passes" status="run" classname="A" /></testsuites>'


HEADER = "import os, sys; report = sys.argv[-1].partition('xml')[2].lstrip(':=')\n"
WRITE = "open(report, 'w').write({!r}); {}"
BEFORE = "ended with status {} before it wrote its report"


@pytest.mark.parametrize(
    ("code", "option", "counts"),
    [
        # without a report the status is the test
        ("", "", Counts(1)),
        ("sys.exit(1)", "", Counts(0, ["ended with status 1"])),
        ("echo last words; exec sleep 60", "", Counts(0, ["did not end in time"])),
        # pytest where nothing was selected
        (WRITE.format(EMPTY_XML, "sys.exit(5)"), PYTEST_REPORT, Counts()),
        (
            WRITE.format(PYTEST_XML, "sys.exit(1)"),
            PYTEST_REPORT,
            Counts(1, ["tests.test_a.test_breaks"], ["tests.test_a.test_skips: no browser"]),
        ),
        (
            WRITE.format(GTEST_XML, "sys.exit(1)"),
            GTEST_REPORT,
            Counts(1, ["A.Fails"], ["A.Skips: needs a GPU", "A.DISABLED_Off: disabled"], [PROOF]),
        ),
        # it says that some failed, and reports none
        (WRITE.format(ONE_PASSED, "sys.exit(1)"), GTEST_REPORT, Counts(1, ["ended with status 1"])),
        ("", GTEST_REPORT, Counts(0, [BEFORE.format(0)])),
        (WRITE.format("<a><b>", "sys.exit(1)"), GTEST_REPORT, Counts(0, [BEFORE.format(1)])),
        (WRITE.format(EMPTY_XML, "sys.exit(5)"), GTEST_REPORT, Counts(0, ["ended with status 5"])),
    ],
)
def test_report_and_end_of_a_program_count(
    tmp_path: Path, code: str, option: str, counts: Counts
) -> None:
    (tmp_path / "r.xml").write_text(ONE_PASSED)  # of an earlier run
    # a shell starts at once, however busy the machine
    hangs = "sleep" in code
    command = ("sh", "-c", code) if hangs else (sys.executable, "-c", HEADER + code)
    program = Program("made_up", command, tmp_path, option)
    outcome = run_program(program, tmp_path / "r.xml", 2 if hangs else 60)
    assert outcome.counts == counts
    assert ("last words" in outcome.output) == hangs


def made_build(folder: Path, *tests: str) -> None:
    """A build folder as CMake leaves it."""
    lines = [f"add_test([=[{test.partition(' ')[0]}]=] {test.partition(' ')[2]})" for test in tests]
    (folder / "CTestTestfile.cmake").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("tests", "last_line"),
    [
        (["good"], "1 passed, 0 failed, 0 skipped"),
        (["good", "crash", "absent"], "2 passed, 2 failed, 0 skipped"),
        (["empty"], "0 passed, 1 failed, 0 skipped"),
        ([], "0 passed, 1 failed, 0 skipped"),
    ],
)
def test_runner_from_ctest_to_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tests: list[str], last_line: str
) -> None:
    """A good program, one that crashes after its report, one that was not built."""
    for name, text in (("good", ONE_PASSED), ("empty", EMPTY_XML), ("crash", ONE_PASSED)):
        end = "os.abort()" if name == "crash" else ""
        (tmp_path / f"{name}.py").write_text(HEADER + WRITE.format(text, end))
    programs = dict.fromkeys(tests, sys.executable) | {"absent": "/absent"}
    made_build(tmp_path, *(f'{name} "{programs[name]}" "{tmp_path}/{name}.py"' for name in tests))
    status = run_tests.main(["--no-pytest", "--build-folder", str(tmp_path)])
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == last_line
    assert status == (0 if " 0 failed" in last_line else 1)
    assert ("crash" in tests) == (f"failed: {tmp_path.name}/crash: ended with status -6" in output)


def test_pattern_environment_and_folders_reach_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_build(tmp_path, f'a "{sys.executable}"')
    held = "ATEN_CPU_CAPABILITY=avx2;B=c"
    with (tmp_path / "CTestTestfile.cmake").open("a") as file:
        file.write(f'\nset_tests_properties([=[a]=] PROPERTIES ENVIRONMENT "{held}")\n')
    monkeypatch.setattr(run_tests, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2 fma")
    assert run_tests.gtest_programs(tmp_path) == []
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2 avx512f")
    (program,) = run_tests.gtest_programs(tmp_path, "rotary")
    assert program.command[-1] == "--gtest_filter=*rotary*"
    assert program.environment == {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2", "B": "c"}
    # no test runs twice
    for name in ("cli", "training"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / "test_it.py").touch()
    rest, *folders = run_tests.pytest_programs(tmp_path, "rotary", is_long=True)
    ignored = ("--ignore=tests/cli", "--ignore=tests/training")
    assert rest.command[-6:] == ("tests", *ignored, "-k", "rotary", "--long")
    assert [program.command[4] for program in folders] == ["tests/cli", "tests/training"]


def test_any_python_runs_the_tests_and_the_oracles_alone_prove(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT / "scripts")}
    command = [sys.executable, "-S", "-m", "tinyllama_tools.proofs.run_tests", "--help"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tinyllama_tools"]:
        monkeypatch.delitem(sys.modules, name)
    for package in ("jsonschema", "scipy", "plotly"):
        monkeypatch.setitem(sys.modules, package, None)
    assert importlib.import_module("tinyllama_tools.proofs.prove") is not prove


def test_page_and_status_say_what_held_and_what_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = prove.proof_of(json.dumps(CLAIM))
    assert (claim.largest_error, claim.held) == (float("inf"), False)
    good = Proof("Training", "logits", "oracle", 1e-5, 3, 3e-7, "logits[7]")
    faults = {Fault("wrong | scale", "a.cpp", "", "", {}): ["A.B"], Fault("late", *"bcd", {}): []}
    monkeypatch.setattr(prove, "prove_programs", lambda *_: ([good, claim], ["golden_test: A.B"]))
    monkeypatch.setattr(prove, "prove_oracle", lambda _: [])
    monkeypatch.setattr(prove, "find_faults", lambda *_: faults)
    monkeypatch.setattr(prove, "environment", lambda _: {"commit": "abc"})
    page = tmp_path / "new/folder/PROOF.md"
    assert run_prove(["-o", str(page)]) == 1
    assert "1 of 2 proofs held, 1 of 2 faults found, 5 tests failed" in capsys.readouterr().out
    text = page.read_text()
    assert "1 of 2 proofs held, over 15 comparisons; 1 of 2 deliberate faults were found" in text
    rows = [re.sub(" +", " ", line).strip("| ").split(" | ") for line in text.splitlines()]
    assert ["logits", "oracle", "3", "1e-05", "3e-07", "yes"] in rows
    assert any(row[-1] == "**no**: embedding at grid_00" for row in rows)
    found = {row[0]: row[-1] for row in rows}
    assert (found["wrong \\| scale"], found["late"]) == ("yes, 1 failed", "**no**")
    assert "- `golden_test: A.B`" in text
    claims = read_claims()
    assert all(f"| **{claim.name}**: {claim.claim} | " in text for claim in claims)
    assert all(f"`{test}`" in text for claim in claims for test in claim.tests)
    assert "- `nothing was proved about: Memory`" in text
    for output, words in ((page / "PROOF.md", "File exists"), (page.parent, "Is a directory")):
        assert run_prove(["-o", str(output)]) == 2
        assert re.search(f"^scripts/dev/prove: .*: {words}$", capsys.readouterr().err, re.M)


def test_every_row_of_the_readme_has_a_claim_whose_tests_are_there(tmp_path: Path) -> None:
    readme, claims = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8"), read_claims()
    assert list(problems_of(claims, readme)) == []
    assert len(measured_rows(readme)) >= 5
    assert all(min(map(len, (one.claim, one.false_if, *one.tests))) > 20 for one in claims)
    # a row that nobody stands behind, one that is gone, tests that are renamed or gone
    (row, *_), (first, *others) = measured_rows(readme), claims
    assert first.row == row and first.row not in {claim.row for claim in others}
    more = readme.replace(f"| {row} |", "| a new claim | | |\n| a better one |")
    assert list(problems_of(claims, more)) == [
        "no claim for README's row 'a new claim'",
        "no claim for README's row 'a better one'",
        f"README has no row '{row}'",
    ]
    assert list(problems_of(others, readme)) == [f"no claim for README's row '{row}'"]
    absent = ("tests/proofs/test_proofs.py::test_of_nothing", "tests/none.py::test_a")
    absent += ("model/golden_test.cpp::GoldenTest.Logits", "model/none_test.cpp::GoldenTest.A")
    for tests, said in ((absent, [f"no test {test}" for test in absent]), ((), ["has no test"])):
        found = list(problems_of([replace(first, tests=tests), *others], readme))
        assert [text.partition("' ")[2] or text.partition("': ")[2] for text in found] == said
    # a claim without what would make it false
    (tmp_path / "claims.ini").write_text("[a]\nclaim = it is so\ntests = a::b\n")
    with pytest.raises(KeyError, match="false if"):
        read_claims(tmp_path / "claims.ini")


# what is compiled in seconds; the others take minutes
FEW = [fault for fault in FAULTS if fault.source == "model/attention.cpp"]
REST = [fault for fault in FAULTS if fault not in FEW]


@pytest.mark.parametrize("faults", [FEW, pytest.param(REST, marks=pytest.mark.long)])
def test_faults_are_found_by_tests_that_pass_without(
    bench_program: Path, tmp_path: Path, faults: list[Fault]
) -> None:
    found = prove.find_faults(bench_program.parents[1], tmp_path, faults)
    assert [fault.name for fault in faults if not found[fault]] == []


def test_stale_replacement_a_crash_and_no_test_find_nothing(tmp_path: Path) -> None:
    for source in {fault.source for fault in FAULTS}:
        assert "(planted == " in prove.faulty_source(source)
    stale = Fault("stale", "model/rotary.cpp", "golden_test", "x", {"no such text": ""})
    with pytest.raises(RuntimeError, match="no longer has 'no such text'"):
        prove.faulty_source("model/rotary.cpp", [stale])
    for code, message in (
        ("kill -ABRT $$", "golden_test ended with status -6"),
        (NO_TEST, "no test"),
    ):
        write_program(tmp_path / "golden_test", f"#!/bin/sh\n{code}\n")
        with pytest.raises(RuntimeError, match=message):
            prove.failed_tests(FAULTS[0], tmp_path)
