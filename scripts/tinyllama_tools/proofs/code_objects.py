"""What compilers made of the GPU kernels, beside the table of fixtures/gpu_code_objects.json: a
kernel that spills or needs scratch memory fails, and so does one that needs more registers, shared
memory (LDS) or instructions than the table says.

It reads objects or programs with the tools of their toolkit: llvm-readelf and llvm-objdump of ROCm,
cuobjdump of CUDA. It needs only the standard library, as run_tests does. Exit status: 0 as the
table says; 1 something grew; 2 bad input.
"""

import argparse
import functools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tinyllama_tools.core.installation import DATA

PEAKS = DATA / "fixtures/device_peaks.json"
RENEW = (
    "python3 -m tinyllama_tools.proofs.code_objects --objects FILE... --table {} --renew "
    "(in scripts/)"
)


class BadInputError(Exception):
    """The message names the file, the rule and what to do."""


# ---- what a kernel moves


class Passes(NamedTuple):
    """Of each pass over a row or tensor the types that one place loads ">" stores. T: the kernel's
    type, B: its branch's, C: the one that it computes in (float64's own, else float32). `memory`:
    those of them that reach memory; weights, tables of angles and what an earlier pass of the same
    row has loaded come from caches."""

    passes: tuple[str, ...]
    memory: str


KERNELS = {
    "rms_norm_row": Passes(("T>", "TT>T"), "TT"),
    "add_rms_norm_row": Passes(("TB>T", "TT>T"), "TBTT"),
    # the branch's gradient is another tensor where its type is another
    "rms_norm_input_gradient": Passes(("TTT>", "TTTT>TB"), "TTTT"),
    "rms_norm_weight_gradient": Passes(("TTC>",), "TT"),
    "sum_of_rows": Passes(("C>",), "C"),
    "rotary_token": Passes(("TTTT>TT",), "TTTT"),
    "swiglu_row": Passes(("TT>T",), "TTT"),
    "swiglu_gradient_row": Passes(("TTT>TT",), "TTTTT"),
    # the maximum, the sum of exponentials, the gradient
    "cross_entropy_row": Passes(("T>", "T>", "T>T"), "TT"),
    "adamw_tensors": Passes(("TTTT>TTT",), "TTTTTTT"),
}
BYTES = {"double": 8, "float": 4, "Bfloat16": 2, "Float16": 2}


# ---- how many instructions a card takes


class Card(NamedTuple):
    """A card of an architecture, by its name in fixtures/device_peaks.json. It issues
    `instructions` a lane for each FLOP of its peak of this kind."""

    device: str
    peak: str
    instructions: float


# Instructions of one lane that a card starts in a second, from peaks of its data sheet:
#   CDNA: a compute unit has 4 SIMDs of 16 lanes, so that a wave of 64 takes 4 cycles and 64 lanes a
#   cycle start (AMD, CDNA 3 white paper and "MI300" ISA guide). A float64 FMA, 2 FLOPs, is one
#   instruction at that full rate: half of the float64 vector peak, MI300X: 304 x 64 x 2.1 GHz.
#   Compute capability 9.0 and 10.0: a multiprocessor has 4 schedulers, each starts a warp of 32 a
#   cycle (CUDA C++ Programming Guide, Compute Capability 9.x), and 128 float32 lanes: half of the
#   float32 vector peak, H100: 132 x 4 x 32 x 1.98 GHz. 8.0 has as many schedulers and 64 lanes.
CARDS = {
    "gfx90a": Card("AMD Instinct MI250X (one GCD)", "f64_vector", 0.5),
    "gfx942": Card("AMD Instinct MI300X", "f64_vector", 0.5),
    "gfx950": Card("AMD Instinct MI355X", "f64_vector", 0.5),
    "sm_80": Card("NVIDIA A100 SXM4 80GB", "f32_vector", 1),
    "sm_90": Card("NVIDIA H100 SXM", "f32_vector", 0.5),
    "sm_100": Card("NVIDIA B200", "f32_vector", 0.5),
}


@dataclass(frozen=True)
class Usage:
    """What one kernel needs. `instructions`: vector instructions of one lane in all passes for one
    pack of elements, every instruction of a loop once, whichever branch it is in; of AMD those that
    the vector unit executes, others having units of their own; of CUDA all, which share the
    schedulers. `moved_bytes` of that pack reach memory. Both 0: the loops were not recognised."""

    registers: int
    shared_bytes: int
    scratch_bytes: int
    spills: int
    instructions: int = 0
    moved_bytes: int = 0

    def share(self, architecture: str) -> float | None:
        """The static bound: the share of the peak bandwidth that the kernel could at most reach on
        the architecture's card, if nothing but starting instructions took time. Above 1 memory is
        the limit. Instructions that take longer, such as exponentials and reciprocals, lower it.
        """
        card = CARDS.get(architecture)
        if card is None or not self.instructions:
            return None
        peaks = next(d for d in device_peaks() if d["device"] == card.device)
        rate = peaks["flops"][card.peak] * card.instructions
        return rate / self.instructions * self.moved_bytes / peaks["memory_bandwidth"]


@functools.cache
def device_peaks() -> list[dict[str, Any]]:
    return json.loads(PEAKS.read_text("utf-8"))["devices"]


# ---- loops of a disassembly


class Instruction(NamedTuple):
    """`target`: where a branch goes. `falls`: whether the next instruction may follow."""

    address: int
    name: str
    target: int | None
    falls: bool
    loads: int = 0
    stores: int = 0


def loops_of(code: Sequence[Instruction]) -> list[list[Instruction]]:
    """The strongly connected parts: instructions that reach each other, in the order of their
    addresses. A loop in a loop would be one with it; no kernel of ours has that."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    after: list[list[int]] = []
    for i, instruction in enumerate(code):
        following = [i + 1] if instruction.falls and i + 1 < len(code) else []
        if instruction.target in index:
            following.append(index[instruction.target])
        after.append(following)
    before: list[list[int]] = [[] for _ in code]
    for i, following in enumerate(after):
        for j in following:
            before[j].append(i)
    loops, seen = [], set()
    for i in range(len(code)):
        if i not in seen:
            part = _reached(i, after) & _reached(i, before)
            seen |= part
            if part:
                loops.append([code[j] for j in sorted(part)])
    return loops


def _reached(start: int, edges: Sequence[Sequence[int]]) -> set[int]:
    """From `start`, which is itself among them only if it is in a loop."""
    found: set[int] = set()
    rest = [*edges[start]]
    while rest:
        i = rest.pop()
        if i not in found:
            found.add(i)
            rest += edges[i]
    return found


def pack_of(name: str) -> tuple[Passes, int, dict[str, int]] | None:
    """Of rms_norm_row<8, Float16> its passes, elements at once and bytes of each type."""
    found = re.fullmatch(r"(\w+)<(?:(\d+), )?(\w+)(?:, (\w+))?>", name)
    if not found or found[1] not in KERNELS or found[3] not in BYTES:
        return None
    element = BYTES[found[3]]
    branch = BYTES[found[4]] if found[4] else element
    sizes = {"T": element, "B": branch, "C": max(element, BYTES["float"])}
    return KERNELS[found[1]], int(found[2] or 1), sizes


def passes_of(
    name: str, code: Sequence[Instruction], counts: Callable[[str], bool]
) -> tuple[int, int]:
    """Instructions and bytes of a pack over all passes of the kernel; (0, 0) where its loops are
    not those passes.

    A compiler may run several packs in a turn and keep another loop for the last few: the loop of
    most packs counts.
    """
    pack = pack_of(name)
    if pack is None:
        return 0, 0
    kernel, lanes, sizes = pack
    loops = []
    for loop in loops_of(code):
        loads, stores = (sum(i.loads for i in loop), sum(i.stores for i in loop))
        widest = max(max(i.loads, i.stores) for i in loop)
        if widest:
            loops.append((widest, loads, stores, sum(counts(i.name) for i in loop)))
    # what is left over of a row, one by one, has narrower accesses
    widest = max((loop[0] for loop in loops), default=0)
    loops = [loop[1:] for loop in loops if loop[0] == widest]
    total = 0.0
    wanted = [
        tuple(lanes * sum(sizes[letter] for letter in part) for part in one.split(">"))
        for one in kernel.passes
    ]
    for loaded, stored in dict.fromkeys(wanted):
        # packs a turn, instructions a pack
        found = [
            (loads // loaded, instructions * loaded / loads)
            for loads, stores, instructions in loops
            if loads and loads % loaded == 0 and stores * loaded == stored * loads
        ]
        chosen = _without_remainders(found)
        if len(chosen) != wanted.count((loaded, stored)):
            return 0, 0
        total += sum(chosen)
    memory = kernel.memory
    if "input_gradient" in name and sizes["B"] != sizes["T"]:
        memory += "B"
    return round(total), lanes * sum(sizes[letter] for letter in memory)


def _without_remainders(loops: Sequence[tuple[int, float]]) -> list[float]:
    """Instructions a pack of the loops, but those loops of one pack whose longer form is there."""
    single = sorted(cost for packs, cost in loops if packs == 1)
    several = sorted(cost for packs, cost in loops if packs > 1)
    for cost in several:
        twin = next((other for other in single if other >= cost), None)
        if twin is not None:
            single.remove(twin)
    return single + several


# ---- reading objects


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:].strip()
        raise BadInputError(f"{command[0]} {command[-1]}: {said}")
    return done.stdout


@functools.cache
def tool(name: str) -> str:
    """From the toolkits and the packages beside this Python before PATH, whose LLVM may be too old
    to know the architectures."""
    roots = [os.environ.get(v, "") for v in ("ROCM_PATH", "CUDA_HOME")] + ["/opt/rocm"]
    folders = [Path(root, part) for root in roots if root for part in ("llvm/bin", "bin")]
    folders += Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/bin")
    versions = {int(p.parent.name[5:]): p for p in Path("/usr/lib").glob("llvm-[0-9]*/bin")}
    folders += [versions[number] for number in sorted(versions, reverse=True)]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        raise BadInputError(
            f"{name} was not found in ROCM_PATH, CUDA_HOME, beside {sys.executable} or in PATH: "
            "ROCm's LLVM has llvm-readelf and llvm-objdump, the package nvidia-cuda-cuobjdump "
            "has cuobjdump"
        )
    return found


def short_names(mangled: Sequence[str]) -> dict[str, str]:
    """Of our kernels: rms_norm_row<8, Float16> for each symbol."""
    demangled = subprocess.run(
        [tool("c++filt")], input="\n".join(mangled), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = {}
    for symbol, name in zip(mangled, demangled, strict=True):
        if "tinyllama::kernels::gpu_device::" in name:
            name = re.sub(r"\w+::|\(anonymous namespace\)::|^void ", "", name)
            names[symbol] = name.partition("(")[0]
    return names


Kernels = dict[str, Usage]


class Architecture(NamedTuple):
    compiler: str
    kernels: Kernels


BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"


def amd_code_objects(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Architecture and code object of each entry of a file's offload bundles: after the magic the
    number of entries, then of each its offset, its size and its name, all numbers of 64 bits
    (Clang's documentation, ClangOffloadBundler)."""
    start = content.find(BUNDLE)
    while start >= 0:
        place = start + len(BUNDLE)
        (entries,) = struct.unpack_from("<Q", content, place)
        place += 8
        for _ in range(entries):
            offset, size, length = struct.unpack_from("<QQQ", content, place)
            place += 24
            name = content[place : place + length].decode()
            place += length
            if "amdgcn" in name and size:
                code = content[start + offset : start + offset + size]
                yield name.rpartition("--")[2].partition(":")[0], code
        start = content.find(BUNDLE, place)


# bytes of a lane by the last part of AMD's loads and stores
AMD_BYTES = {"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2} | {
    f"dword{suffix}": size for suffix, size in (("", 4), ("x2", 8), ("x3", 12), ("x4", 16))
}


def amd_instruction(line: str) -> Instruction | None:
    found = re.match(r"\s+(\S+)(?:\s+(\S+).*?)?\s*// ([0-9A-F]+): ", line)
    if found is None:
        return None
    name, operand, address = found[1], found[2], int(found[3], 16)
    target = None
    if name.startswith(("s_cbranch", "s_branch")) and operand.isdigit():
        # in words of 4 bytes from the next instruction, 16 bits with a sign
        target = address + 4 + 4 * ((int(operand) ^ 0x8000) - 0x8000)
    kind, _, access = name.partition("_")
    access, _, what = access.partition("_")
    is_access = kind in ("global", "flat") and access in ("load", "store")
    size = AMD_BYTES[what.partition("_")[0]] if is_access else 0
    loads = size if access == "load" else 0
    falls = name not in ("s_branch", "s_endpgm")
    return Instruction(address, name, target, falls, loads, size - loads)


def read_amd(code: bytes) -> Architecture:
    with tempfile.TemporaryDirectory(prefix="tiny_llama_code_objects_") as folder:
        file = Path(folder, "code_object")
        file.write_bytes(code)
        notes = run(tool("llvm-readelf"), "--notes", file)
        comment = run(tool("llvm-readelf"), "-p", ".comment", file)
        listing = run(tool("llvm-objdump"), "-d", file)
    functions: dict[str, list[Instruction]] = {}
    for line in listing.splitlines():
        head = re.match(r"[0-9a-f]+ <(.+)>:$", line)
        if head:
            current = functions.setdefault(head[1], [])
        elif instruction := amd_instruction(line):
            current.append(instruction)
    usages = {}
    # one entry a kernel begins with this key of code object metadata (LLVM, AMDGPUUsage)
    for entry in re.split(r"\n  - \.a", notes)[1:]:
        value = dict(re.findall(r"\n    \.(\w+): +(\S+)", entry))
        spills = int(value["vgpr_spill_count"]) + int(value["sgpr_spill_count"])
        usages[value["name"]] = Usage(
            registers=int(value["vgpr_count"]),
            shared_bytes=int(value["group_segment_fixed_size"]),
            scratch_bytes=int(value["private_segment_fixed_size"]),
            spills=spills,
        )
    compiler = re.search(r"\w*clang version [\w.]+", comment)
    return with_loops(
        compiler[0] if compiler else "unknown", usages, functions, lambda n: n.startswith("v_")
    )


def cuda_instruction(line: str) -> Instruction | None:
    found = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", line)
    if found is None:
        return None
    address, condition, name, operands = int(found[1], 16), found[2], found[3], found[4]
    kind, *modifiers = name.split(".")
    targets = re.findall(r"\b0x[0-9a-f]+\b", operands) if kind == "BRA" else []
    size = 0
    if kind in ("LDG", "STG"):
        widths = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
        size = next((widths[m] for m in modifiers if m in widths), 4)
    loads = size if kind == "LDG" else 0
    # a uniform branch carries its condition as an operand
    always = condition is None and not re.match(r"!?U?P\d", operands)
    falls = not (always and kind in ("BRA", "EXIT", "RET"))
    target = int(targets[-1], 16) if targets else None
    return Instruction(address, name, target, falls, loads, size - loads)


def read_cuda(file: Path) -> dict[str, Architecture]:
    cuobjdump = tool("cuobjdump")
    spilled: dict[tuple[str, str], int] = {}
    functions: dict[str, dict[str, list[Instruction]]] = {}
    architecture = ""
    for line in run(cuobjdump, "-sass", file).splitlines():
        if head := re.match(r"\s+code for (\w+)", line):
            architecture = head[1]
        elif head := re.match(r"\s+Function : (\S+)", line):
            current = functions.setdefault(architecture, {}).setdefault(head[1], [])
            key = (architecture, head[1])
        elif instruction := cuda_instruction(line):
            current.append(instruction)
            if re.match(r"(LDL|STL)\b", instruction.name):
                spilled[key] = spilled.get(key, 0) + 1
    usages: dict[str, dict[str, Usage]] = {}
    for line in run(cuobjdump, "--dump-resource-usage", file).splitlines():
        if head := re.match(r"arch = (\w+)", line):
            architecture = head[1]
        elif head := re.match(r"\s*Function (\S+):$", line):
            name = head[1]
        elif "REG:" in line:
            value = {key: int(number) for key, number in re.findall(r"([A-Z]+):(\d+)", line)}
            usages.setdefault(architecture, {})[name] = Usage(
                registers=value["REG"],
                shared_bytes=value["SHARED"],
                scratch_bytes=value["STACK"] + value["LOCAL"],
                spills=spilled.get((architecture, name), 0),
            )
    said = re.search(rb"Cuda compilation tools, release [^\0]*?V([\d.]+)", file.read_bytes())
    compiler = f"nvcc {said[1].decode()}" if said else "unknown"
    return {
        name: with_loops(compiler, usages[name], functions.get(name, {}), lambda _: True)
        for name in usages
    }


def with_loops(
    compiler: str,
    usages: dict[str, Usage],
    functions: dict[str, list[Instruction]],
    counts: Callable[[str], bool],
) -> Architecture:
    kernels = {}
    for symbol, name in short_names(list(usages)).items():
        instructions, moved = passes_of(name, functions.get(symbol, []), counts)
        kernels[name] = replace(usages[symbol], instructions=instructions, moved_bytes=moved)
    return Architecture(compiler, kernels)


def read_object(file: Path) -> dict[str, Architecture]:
    """By architecture what is in an object or a program."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInputError(f"--objects {file}: {error.strerror}") from None
    found = {name: read_amd(code) for name, code in amd_code_objects(content)}
    if b".nv_fatbin" in content or b".nv.info" in content:
        found |= read_cuda(file)
    found = {name: one for name, one in found.items() if one.kernels}
    if not found:
        raise BadInputError(
            f"--objects {file}: it holds no kernels of ours for GPUs; give an object or a program "
            "of a build for ROCm or CUDA, made without --offload-compress"
        )
    return found


# ---- the table

MEASURES = ("registers", "shared_bytes", "instructions")
WORDS = {
    "registers": "registers of a thread",
    "shared_bytes": "bytes of shared memory (LDS) a block",
    "instructions": "vector instructions a pack of elements",
}


def problems(name: str, found: Architecture, table: dict[str, Any], file: Path) -> Iterator[str]:
    """One text for everything that is not as the table says."""
    renew = f"If that is wanted, renew the table: {RENEW.format(file)}"
    for kernel, usage in sorted(found.kernels.items()):
        for value, what in (
            (usage.scratch_bytes, "bytes of scratch memory a thread"),
            (usage.spills, "spills of registers"),
        ):
            if value:
                yield f"{kernel}, {name}: {value} {what}; none is allowed"
    if name not in table:
        yield f"{name} is not in {file}, whose architectures are {', '.join(table)}. {renew}"
        return
    known, compiler = table[name]["kernels"], table[name]["compiler"]
    other = (
        f" (the table's are of {compiler}, these of {found.compiler})"
        if compiler != found.compiler
        else ""
    )
    for kernel in sorted(found.kernels.keys() | known.keys()):
        if kernel not in known:
            yield f"{kernel}, {name}: is not in {file}. {renew}"
        elif kernel not in found.kernels:
            yield f"{kernel}, {name}: is in {file}, but not in the objects. {renew}"
        else:
            for measure in MEASURES:
                now, then = getattr(found.kernels[kernel], measure), known[kernel][measure]
                if measure == "instructions" and then and not now:
                    yield f"{kernel}, {name}: its loops are not recognised any more. {renew}"
                elif now > then:
                    yield (
                        f"{kernel}, {name}: {now} {WORDS[measure]}, {then} in {file}{other}. "
                        f"{renew}"
                    )


def table_text(architectures: dict[str, Any]) -> str:
    """JSON with a line a kernel."""
    described = {
        "description": (
            "Of each kernel what compilers made of it: registers of a thread, bytes of shared "
            "memory (LDS) of a block, vector instructions in its loops for one pack of elements "
            "(0: not recognised) and bytes of that pack that reach memory. No kernel spills or "
            "needs scratch memory. Written by tinyllama_tools.proofs.code_objects --renew."
        )
    }
    lines = [json.dumps(described, indent=2)[:-2] + ',\n  "architectures": {']
    for name, one in sorted(architectures.items()):
        lines.append(f'    "{name}": {{')
        lines.append(f'      "compiler": {json.dumps(one["compiler"])},')
        lines.append('      "kernels": {')
        rows = [
            f"        {json.dumps(kernel)}: {json.dumps(row)}"
            for kernel, row in sorted(one["kernels"].items())
        ]
        lines.append(",\n".join(rows) + "\n      }\n    },")
    lines[-1] = lines[-1].removesuffix(",")
    return "\n".join([*lines, "  }", "}"]) + "\n"


def as_rows(found: Architecture) -> dict[str, Any]:
    rows = {
        kernel: {measure: getattr(usage, measure) for measure in (*MEASURES, "moved_bytes")}
        for kernel, usage in found.kernels.items()
    }
    return {"compiler": found.compiler, "kernels": rows}


def show(found: dict[str, Architecture]) -> None:
    """Kernels that move packs, with their static bound."""
    print(f"{'kernel':48}{'architecture':14}{'registers':>9}{'LDS':>7}{'instr.':>7}{'bytes':>6}")
    for name, one in sorted(found.items()):
        card = CARDS.get(name)
        for kernel, usage in sorted(one.kernels.items()):
            share = usage.share(name)
            bound = f"  {share:7.0%} of {card.device}" if share and card else ""
            print(
                f"{kernel:48}{name:14}{usage.registers:9}{usage.shared_bytes:7}"
                f"{usage.instructions:7}{usage.moved_bytes:6}{bound}"
            )


def read_table(file: Path, may_lack: bool) -> dict[str, Any]:
    if may_lack and not file.exists():
        return {}
    try:
        return json.loads(file.read_text("utf-8"))["architectures"]
    except OSError as error:
        raise BadInputError(f"--table {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(
            f"--table {file}: no table of code objects ({error}); --renew writes one anew after "
            "the file is removed"
        ) from None


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="code_objects", description=__doc__)
    parser.add_argument("--objects", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--table", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--renew", action="store_true", help="write what the objects hold into the table"
    )
    return parser.parse_args(arguments)


def check(options: argparse.Namespace) -> int:
    found: dict[str, Architecture] = {}
    for file in options.objects:
        found |= read_object(file)
    table = read_table(options.table, may_lack=options.renew)
    show(found)
    if options.renew:
        table |= {name: as_rows(one) for name, one in found.items()}
        options.table.write_text(table_text(table), "utf-8")
    wrong = [
        text for name in sorted(found) for text in problems(name, found[name], table, options.table)
    ]
    for text in wrong:
        print(f"failed: {text}")
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    try:
        return check(parse_options(arguments))
    except BadInputError as error:
        print(f"code_objects: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
