"""The table of GPU kernels: what is counted in recorded forms of listings, what makes the check
fail and with which words, and that no kernel of the repository's table is bound by instructions."""

import json
import re
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from built_programs import PROJECT_ROOT, write_program
from tinyllama_tools.proofs import code_objects

KERNEL = "swiglu_row<8, Float16>"
NAMESPACE = "_ZN9tinyllama7kernels10gpu_device"
SYMBOL = f"{NAMESPACE}10swiglu_rowILi8ENS0_7Float16EEEvNS0_10SwigluRowsIT0_EE"
# of a library, not ours
OTHER = "_Z5otherv"
TABLE = PROJECT_ROOT / "fixtures/gpu_code_objects.json"

AMD_NOTES = """\
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .name:           a
        .offset:         0
    .group_segment_fixed_size: {lds}
    .name:           {symbol}
    .private_segment_fixed_size: {scratch}
    .sgpr_count:     40
    .sgpr_spill_count: 0
    .vgpr_count:     {registers}
    .vgpr_spill_count: {spills}
"""
# One pack a turn, then what is left one by one. As compilers write it, a loop may be entered in its
# middle, and what is behind its last branch may be a part of it.
AMD_LISTING = """\
{address:016x} <{symbol}>:
    v_mov_b32_e32 v1, 0                    // 000000000100: 7E020280
    s_branch 2                             // 000000000104: BF820002 <swiglu+0x10>
    v_add_u32_e32 v1, v1, v2               // 000000000108: 68020501
    s_cbranch_scc1 9                       // 00000000010C: BF850009 <swiglu+0x34>
    global_load_dwordx4 v[12:15], v[2:3], off                  // 000000000110: DC5C9FF8 0C7F0002
    global_load_dwordx4 v[16:19], v[8:9], off offset:-8        // 000000000118: DC5C9FF8 0C7F0002
    s_waitcnt vmcnt(0)                     // 000000000120: BF8C0F70
    {packed_math}                          // 000000000124: 7E1E110A
    global_store_dwordx4 v[6:7], v[16:19], off                 // 000000000128: DC7C8000 007F1006
    s_branch 65525                         // 000000000130: BF82FFF5 <swiglu+0x8>
    v_mov_b32_e32 v1, 0                    // 000000000134: 7E020280
    global_load_ushort v7, v[2:3], off     // 000000000138: DC488000 077F0002
    global_load_ushort v8, v[4:5], off     // 000000000140: DC488000 077F0002
    v_exp_f32_e32 v7, v7                   // 000000000148: 7E0E4107
    global_store_short v[6:7], v8, off     // 00000000014C: DC688000 007F0806
    s_cbranch_execnz 65528                 // 000000000154: BF89FFF8 <swiglu+0x38>
    s_endpgm                               // 000000000158: BF810000
"""
CUDA_USAGE = """\
arch = sm_90
Resource usage:
 Common:
  GLOBAL:0
 Function {symbol}:
  REG:{registers} STACK:{scratch} SHARED:{lds} LOCAL:0 CONSTANT[0]:600 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
# two packs a turn, then one, then what is left
CUDA_LISTING = """\
    code for sm_90
        Function : {symbol}
        /*0000*/                   S2R R17, SR_TID.X ;                  /* 0x0000000000117919 */
        /*0010*/              @!P0 BRA 0x80 ;                           /* 0x0000000000117919 */
        /*0020*/                   LDG.E.128 R12, desc[UR8][R12.64] ;   /* 0x0000000000117919 */
        /*0030*/                   LDG.E.128.CONSTANT R8, [R8.64+0x10] ;/* 0x0000000000117919 */
        /*0040*/                   {packed_math} ;                      /* 0x0000000000117919 */
        /*0050*/                   STG.E.128 desc[UR8][R8.64], R4 ;     /* 0x0000000000117919 */
        /*0060*/               @P1 BRA 0x20 ;                           /* 0x0000000000117919 */
        /*0070*/                   {spill} ;                            /* 0x0000000000117919 */
        /*0080*/                   LDG.E.128 R12, desc[UR8][R12.64] ;   /* 0x0000000000117919 */
        /*0090*/                   LDG.E.128 R8, desc[UR8][R8.64] ;     /* 0x0000000000117919 */
        /*00a0*/                   LDG.E.128 R12, desc[UR8][R12.64] ;   /* 0x0000000000117919 */
        /*00b0*/                   LDG.E.128 R8, desc[UR8][R8.64] ;     /* 0x0000000000117919 */
        /*00c0*/                   STG.E.128 desc[UR8][R8.64], R4 ;     /* 0x0000000000117919 */
        /*00d0*/                   STG.E.128 desc[UR8][R8.64+0x10], R4 ;/* 0x0000000000117919 */
        /*00e0*/                   UISETP.NE.U32.AND UP0, UPT, UR4, URZ ;/* 0x000000000011791 */
        /*00f0*/                   BRA.U UP0, 0x80 ;                    /* 0x0000000000117919 */
        /*0100*/                   LDG.E.U16 R8, desc[UR8][R8.64] ;     /* 0x0000000000117919 */
        /*0110*/                   STG.E.U16 desc[UR8][R8.64], R4 ;     /* 0x0000000000117919 */
        /*0120*/               @P1 BRA 0x100 ;                          /* 0x0000000000117919 */
        /*0130*/                   EXIT ;                               /* 0x000000000000794d */
        /*0140*/                   BRA 0x140;                           /* 0xfffffffc00fc7947 */
"""


class Listings(NamedTuple):
    """Texts in place of a compiler's work; a test changes one value of them."""

    notes: str
    listing: str
    values: dict[str, str]


AMD = Listings(AMD_NOTES, AMD_LISTING, {"packed_math": "v_exp_f32_e32 v7, v7"})
CUDA = Listings(CUDA_USAGE, CUDA_LISTING, {"packed_math": "FADD R3, R3, 1", "spill": "MOV R1, R2"})
USUAL = {"symbol": SYMBOL, "registers": 32, "lds": 64, "scratch": 0, "spills": 0, "address": 256}


class Toolkit:
    """Programs that print the listings instead of reading the object, and an object."""

    def __init__(self, folder: Path, kind: Listings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.kind = folder, kind
        monkeypatch.setenv("ROCM_PATH", str(folder))
        monkeypatch.setenv("CUDA_HOME", str(folder))
        code_objects.tool.cache_clear()
        show = '#!/bin/sh\ncase "$1" in {} esac\n'
        files = {
            "llvm-readelf": f"--notes) cat {folder}/notes;; *) echo clang version 99.1;;",
            "llvm-objdump": f"*) cat {folder}/listing;;",
            "cuobjdump": f"-sass) cat {folder}/listing;; *) cat {folder}/notes;;",
        }
        for name, cases in files.items():
            write_program(folder / "bin" / name, show.format(cases))
        name = b"hipv4-amdgcn-amd-amdhsa--gfx942:xnack-"
        head = code_objects.BUNDLE + struct.pack("<QQQQ", 1, 96, 4, len(name)) + name
        self.object = folder / "kernels.o"
        self.object.write_bytes(
            b"ELF" + head.ljust(96, b"\0") + b"code"
            if kind is AMD
            else b"ELF.nv_fatbin\0Cuda compilation tools, release 99.0, V99.0.7\0"
        )
        self.table = folder / "table.json"
        self.compile()

    def compile(self, **changed: object) -> None:
        values = USUAL | self.kind.values | changed
        (self.folder / "notes").write_text(self.kind.notes.format_map(values))
        (self.folder / "listing").write_text(self.kind.listing.format_map(values))

    def check(self, *more: str) -> int:
        return code_objects.main(["--objects", str(self.object), "--table", str(self.table), *more])


@pytest.fixture(params=[AMD, CUDA], ids=["amd", "cuda"])
def toolkit(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Toolkit:
    return Toolkit(tmp_path, request.param, monkeypatch)


def test_loops_registers_and_compilers_are_read(toolkit: Toolkit) -> None:
    assert toolkit.check("--renew") == 0
    read = json.loads(toolkit.table.read_text())["architectures"]
    # AMD: two of the vector unit; CUDA: eight of two packs, all of them
    name, compiler, instructions = (
        ("gfx942", "clang version 99.1", 2) if toolkit.kind is AMD else ("sm_90", "nvcc 99.0.7", 4)
    )
    row = {"registers": 32, "shared_bytes": 64, "instructions": instructions, "moved_bytes": 48}
    assert read == {name: {"compiler": compiler, "kernels": {KERNEL: row}}}
    assert toolkit.check() == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"registers": 33}, "33 registers of a thread, 32 in"),
        ({"lds": 96}, r"96 bytes of shared memory \(LDS\) a block, 64 in"),
        ({"scratch": 16}, "16 bytes of scratch memory a thread; none is allowed"),
        ({"symbol": SYMBOL.replace("Li8", "Li1")}, f"{KERNEL}, .* not in the objects"),
    ],
)
def test_what_grows_is_named(
    toolkit: Toolkit, capsys: pytest.CaptureFixture[str], changed: dict[str, object], said: str
) -> None:
    assert toolkit.check("--renew") == 0
    toolkit.compile(**changed)
    capsys.readouterr()
    assert toolkit.check() == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed")]
    assert re.search(said, "\n".join(failed)), failed
    architecture = "gfx942" if toolkit.kind is AMD else "sm_90"
    assert all(architecture in line for line in failed)
    if "none is allowed" in said:
        # which --renew does not take either
        assert toolkit.check("--renew") == 1
    else:
        assert all(f"--table {toolkit.table} --renew" in line for line in failed)
        assert toolkit.check("--renew") == toolkit.check() == 0


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        (AMD, {"packed_math": "v_exp_f32 v7, v7 // 126: 7E1E\n\tv_nop"}, "3 vector instr.*, 2 in"),
        # what comes in place of a wide access may keep the sum of bytes, but not the form of a pass
        (AMD, {"packed_math": "global_load_ubyte v1, v[2:3], off"}, "not recognised any more"),
        (AMD, {"spills": 2}, "2 spills of registers; none is allowed"),
        (CUDA, {"spill": "STL [R1], R8"}, "1 spills of registers; none is allowed"),
    ],
)
def test_instructions_and_spills(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: Listings,
    changed: dict[str, object],
    said: str,
) -> None:
    toolkit = Toolkit(tmp_path, kind, monkeypatch)
    assert toolkit.check("--renew") == 0
    toolkit.compile(**changed)
    assert toolkit.check() == 1
    assert re.search(f"failed: {re.escape(KERNEL)}, .*{said}", capsys.readouterr().out)


def test_bad_input_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toolkit = Toolkit(tmp_path, AMD, monkeypatch)
    table = toolkit.table
    for file, content, said in (
        (table, None, f"--table {table}: No such file"),
        (table, "[]", f"--table {table}: no table of code objects"),
        (toolkit.object, "ELF", "it holds no kernels of ours for GPUs"),
        (toolkit.object, None, f"--objects {toolkit.object}: No such file"),
    ):
        file.unlink(missing_ok=True)
        if content:
            file.write_text(content)
        assert toolkit.check() == 2
        assert said in capsys.readouterr().err


# ---- the repository's table

PACKED = {"rms_norm_row", "rms_norm_input_gradient", "add_rms_norm_row", "rotary_token"}
PACKED |= {"swiglu_row", "swiglu_gradient_row", "cross_entropy_row", "adamw_tensors"}


def test_no_kernel_of_the_table_is_bound_by_instructions() -> None:
    """float64 apart, which few cards compute fast."""
    table = json.loads(TABLE.read_text())["architectures"]
    assert set(table) == set(code_objects.CARDS)
    for architecture, one in table.items():
        packed = {k: row for k, row in one["kernels"].items() if re.search("<[48], ", k)}
        assert {kernel.partition("<")[0] for kernel in packed} == PACKED
        for kernel, row in packed.items():
            usage = code_objects.Usage(scratch_bytes=0, spills=0, **row)
            share = usage.share(architecture)
            assert share and share > 1, f"{kernel}, {architecture}: {share}"


def test_the_bound_is_that_of_a_calculation_by_hand() -> None:
    """474 instructions for 8 elements of float16, read and written, as before the hardware's
    conversions: MI300X has 304 compute units of 64 lanes, 2.1 GHz and 5.3 TB/s."""
    usage = code_objects.Usage(0, 0, 0, 0, instructions=474, moved_bytes=32)
    expected = 304 * 64 * 2.1e9 / 474 * 32 / 5.3e12
    assert usage.share("gfx942") == pytest.approx(expected, rel=0.001)
    assert usage.share("gfx942") == pytest.approx(0.52, abs=0.005)
    h100 = code_objects.Usage(0, 0, 0, 0, instructions=639, moved_bytes=32).share("sm_90")
    assert h100 == pytest.approx(132 * 4 * 32 * 1.98e9 / 639 * 32 / 3.35e12, rel=0.001)
    assert usage.share("gfx1100") is None
