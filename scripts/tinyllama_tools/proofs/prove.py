"""scripts/dev/prove: runs every proof and writes the table of what was compared with what.

It also plants faults, each of which has to make the right test fail: copies of the model's sources,
in which an environment variable chooses one fault, are compiled with the build's own commands and
linked in front of the library that holds the right ones. Neither the sources nor the build folder
change.
"""

import argparse
import json
import operator
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from tinyllama_tools.core.app import ToolError, checkout_state, now_text, processor_name
from tinyllama_tools.core.installation import RESULTS, ROOT
from tinyllama_tools.core.options import add_build_folder, add_out, script_parser
from tinyllama_tools.core.text import say, template
from tinyllama_tools.proofs.claims import problems_of, read_claims
from tinyllama_tools.proofs.golden import (
    GOLDEN_CASES,
    GOLDEN_FOLDER,
    PARTS,
    WEIGHTS_FILE,
    check_oracle,
    made_anew,
)
from tinyllama_tools.proofs.oracle import ORACLE_SECTION, Proof, build_model
from tinyllama_tools.proofs.run_tests import (
    TIMEOUT_S,
    Program,
    gtest_programs,
    output_of,
    run_program,
)


@dataclass(frozen=True, eq=False)
class Fault:
    """One mistake that people make: what replaces what in the source, each an expression, and the
    tests of which one has to find it, by a part of their names."""

    name: str
    source: str
    program: str
    found_by: str
    replacements: dict[str, str]


def read_faults(text: str) -> list[Fault]:
    """The faults of faults.txt, which says what its form is."""
    faults = []
    for block in text.strip().split("\n\n")[1:]:
        name, where, lines = block.split("\n", 2)
        pairs = re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", f"{lines}\n", re.MULTILINE)
        texts = (("\n".join(line[1:] for line in half.splitlines()) for half in p) for p in pairs)
        faults.append(Fault(name, *where.split(" ", 2), dict(texts)))
    return faults


FAULTS = read_faults((Path(__file__).parent / "faults.txt").read_text("utf-8"))
FAULT_TIMEOUT_S = 600
WEIGHTS_SECTION = "Weights in and out"
# which fault is there, counted from 1; 0: none
CHOICE = "TINY_LLAMA_FAULT"
CHOOSING = f'#include <cstdlib>\nstatic const int planted = std::atoi(std::getenv("{CHOICE}"));\n'


def faulty_source(source: str, faults: Sequence[Fault] = FAULTS) -> str:
    """The source with all its faults, of which CHOICE selects one when the program runs.
    RuntimeError where a text that is to be replaced is gone."""
    text = CHOOSING + (ROOT / source).read_text("utf-8")
    for number, fault in enumerate(faults, start=1):
        for old, new in fault.replacements.items() if fault.source == source else ():
            if old not in text:
                raise RuntimeError(f"{source} no longer has '{old}': '{fault.name}' is stale")
            text = text.replace(old, f"(planted == {number} ? ({new}) : ({old}))")
    return text


def build_faulty_programs(build_folder: Path, scratch: Path, faults: Sequence[Fault]) -> None:
    """Builds in `scratch` every program that has to find a fault. RuntimeError where one cannot be
    built."""
    commands = {
        entry["file"]: entry["command"]
        for entry in json.loads((build_folder / "compile_commands.json").read_text("utf-8"))
        # programs under sanitizers compile some sources again; what is replaced is the library's
        if "/CMakeFiles/tiny_llama_" in entry["command"]
    }
    for source in {fault.source for fault in faults}:
        file = str(ROOT / source)
        if file not in commands:
            raise RuntimeError(f"{build_folder} is not of this checkout: it has no {source}")
        faulty = scratch / Path(source).name
        faulty.write_text(faulty_source(source), "utf-8")
        before, _, _ = commands[file].rpartition(" -o ")
        output_of(f"{before} -w -o '{faulty.with_suffix('.o')}' -c '{faulty}'", build_folder)
    for program in {fault.program for fault in faults}:
        sources = {fault.source for fault in faults if fault.program == program}
        # before all libraries, so that they are the ones taken
        objects = " ".join(f"'{scratch / Path(source).stem}.o'" for source in sources)
        listed = output_of(f"ninja -t commands {program}", build_folder)
        before, _, after = listed.rstrip().rpartition("\n")[2].partition(" -o ")
        libraries = after.partition(" ")[2]
        output_of(f"{before} {objects} -o '{scratch / program}' {libraries}", build_folder)


def failed_tests(fault: Fault, scratch: Path, *, is_there: bool = True) -> list[str]:
    """Of the tests that have to find the fault, those that fail with it, or without it.
    RuntimeError where the program did not come to its end, or has no such test: that finds
    nothing."""
    program, number = fault.program, FAULTS.index(fault) + 1 if is_there else 0
    command = (str(scratch / program), f"--gtest_filter=*{fault.found_by}*")
    environment = {"OMP_NUM_THREADS": "1", CHOICE: str(number)}
    run = Program(program, command, scratch, environment=environment)
    counts = run_program(run, scratch / "report.xml", FAULT_TIMEOUT_S).counts
    if unfinished := [text for text in counts.failures if " " in text]:
        raise RuntimeError(f"{fault.name}: {program} {unfinished[0]}")
    if not counts.passed + len(counts.failures):
        raise RuntimeError(f"{program} has no test *{fault.found_by}*")
    return counts.failures


def find_faults(
    build_folder: Path, scratch: Path, faults: Sequence[Fault] = FAULTS
) -> dict[Fault, list[str]]:
    """The tests that found each fault. RuntimeError where one of them fails without it."""
    build_faulty_programs(build_folder, scratch, faults)
    # one of each, though several have the same tests
    for fault in {(fault.program, fault.found_by): fault for fault in faults}.values():
        if failed := failed_tests(fault, scratch, is_there=False):
            raise RuntimeError(f"without a fault {fault.program} fails: {', '.join(failed)}")
    found = {}
    for fault in faults:
        found[fault] = failed_tests(fault, scratch)
        say(f"fault: {fault.name}: {'found' if found[fault] else 'NOT FOUND'}")
    return found


SECTIONS = (
    "Values, gradients and updates",
    "Training",
    "FLOPs",
    "Memory",
    WEIGHTS_SECTION,
    ORACLE_SECTION,
)


def proof_of(text: str) -> Proof:
    """A proof as ProofRecord (model/proof_record.hpp) writes it to a report; infinity comes as
    text."""
    proof = Proof(**json.loads(text))
    proof.largest_error = float(proof.largest_error)
    return proof


def prove_programs(build_folder: Path, scratch: Path) -> tuple[list[Proof], list[str]]:
    """Proofs of all test programs, and their tests that failed."""
    proofs: list[Proof] = []
    failed: list[str] = []
    for program in gtest_programs(build_folder):
        counts = run_program(program, scratch / "report.xml", TIMEOUT_S).counts
        say(f"{program.name}: {len(counts.proofs)} proofs, {counts}")
        proofs += map(proof_of, counts.proofs)
        failed += [f"{program.name}: {name}" for name in counts.failures]
    if not any("sanitizers" in proof.against for proof in proofs):
        failed.append("readers_sanitized_test was not built: this compiler has no sanitizers")
    return proofs, failed


def check_round_trip(copy_program: Path) -> Proof:
    """A model saved by transformers, read and written by C++: no bit and no byte may differ."""
    check = "files of a model read and written by C++, bytes that differ"
    proof = Proof(WEIGHTS_SECTION, check, "those that transformers saved", tolerance=0)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in"), Path(folder, "out")
            build_model(GOLDEN_CASES["gqa_groups_2"], dtype).save_pretrained(source)
            output_of([str(copy_program), str(source), str(target)], ROOT)
            for name in (WEIGHTS_FILE, "config.json"):
                old, new = ((at / name).read_bytes() for at in (source, target))
                different = sum(map(operator.ne, old, new)) + abs(len(old) - len(new))
                proof.add(different, f"{dtype}: {name}", len(old))
    return proof


def prove_oracle(build_folder: Path) -> list[Proof]:
    """Weights through transformers and C++; the golden files by other means, and made anew."""
    proofs = [check_round_trip(build_folder / "tests/fuzzing/copy_weights"), check_oracle()]
    proofs += made_anew(list(PARTS), GOLDEN_FOLDER)
    for proof in proofs:
        say(f"{proof.check}: largest error {proof.largest_error:.2g}")
    return proofs


def environment(build_folder: Path) -> dict[str, str]:
    """What the proofs ran on."""
    # the programs' libtorch, which need not be this Python's torch
    cache = (build_folder / "CMakeCache.txt").read_text("utf-8")
    (folder,) = re.findall(r"^Torch_DIR:[A-Z]+=(.*)$", cache, re.MULTILINE)
    version = (Path(folder) / "TorchConfigVersion.cmake").read_text("utf-8")
    return {
        "date": now_text(),
        "commit": checkout_state(),
        # without AVX-512 no test is repeated on AVX2
        "processor": f"{processor_name()}, {torch.backends.cpu.get_cpu_capability()}",
        "libtorch": version.partition('PACKAGE_VERSION "')[2].partition('"')[0],
        "oracle": f"torch {torch.__version__}, transformers {transformers.__version__}",
    }


def prove(build_folder: Path, page: Path, without_faults: bool) -> int:
    """Writes the page and says in one line how it went."""
    # what forbids it is met before the proofs, which take long
    page.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tiny_llama_prove_") as folder:
        scratch = Path(folder)
        proofs, failed = prove_programs(build_folder, scratch)
        proofs += prove_oracle(build_folder)
        faults = {} if without_faults else find_faults(build_folder, scratch)
        ran_on = environment(build_folder)
    names = dict.fromkeys((*SECTIONS, *(proof.section for proof in proofs)))
    sections = {name: [proof for proof in proofs if proof.section == name] for name in names}
    failed += [f"nothing was proved about: {name}" for name, found in sections.items() if not found]
    claims = read_claims()
    failed += problems_of(claims, (ROOT / "README.md").read_text(encoding="utf-8"))
    about = {
        "proofs": proofs,
        "held": sum(proof.held for proof in proofs),
        "faults": faults,
        "found": sum(map(bool, faults.values())),
        "failed": failed,
        "sections": sections,
        "claims": claims,
        "environment": ran_on,
    }
    page.write_text(template(Path(__file__).with_name("proof.md.j2")).render(about), "utf-8")
    print(
        f"{about['held']} of {len(proofs)} proofs held, {about['found']} of {len(faults)} faults "
        f"found, {len(failed)} tests failed: {page}"
    )
    is_whole = about["held"] == len(proofs) and about["found"] == len(faults)
    return 0 if is_whole and not failed else 1


EPILOG = """\
Sets up what is missing and builds, then writes the table of what was compared with what, and how
well it held. Progress goes to standard error.

Exit status: 0 all held and every fault was found; 1 not; 2 bad option, the set-up failed, the build
is not complete, or the page cannot be written."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = script_parser("dev/prove", "Runs every proof and writes results/PROOF.md.", EPILOG)
    add = parser.add_argument
    add_build_folder(parser, "where the test programs are")
    add_out(parser, "default: results/PROOF.md", "FILE", default=RESULTS / "PROOF.md")
    slow = "leave the deliberate faults out, whose tests take some minutes to compile"
    add("--without-faults", action="store_true", help=slow)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse_options(arguments)
    # sums in one order, as the golden files were made
    torch.set_num_threads(1)
    try:
        return prove(options.build_folder, options.out, options.without_faults)
    except (RuntimeError, ValueError) as error:
        raise ToolError(str(error)) from error
