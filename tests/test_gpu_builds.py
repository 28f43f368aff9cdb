"""What `scripts/test --cuda-build` and `--rocm-build` do before they build, and how they look at
what was built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from built_programs import PROJECT_ROOT, write_program
from tinyllama_tools.proofs import run_tests
from tinyllama_tools.proofs.run_tests import run_program

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import ScriptCheckout

TARGETS = """\
http://mirror.example.org/debian-security/ bookworm-security main
http://mirror.example.org/debian/ bookworm contrib
http://mirror.example.org/debian/ bookworm main
"""


@pytest.mark.parametrize(
    ("given", "on_path", "found"),
    [
        ("7.2.53211-9999", "7.0.0", "rocm"),
        ("6.4.43484", "7.0.0", "stubs"),
        ("", "7.0.0", "stubs"),
        ("6.4.43484", "5.7.31921", None),
    ],
)
def test_a_rocm_of_this_machine_is_taken_if_it_is_of_the_version(
    checkout: ScriptCheckout, given: str, on_path: str, found: str | None
) -> None:
    folder = checkout.root / "rocm"
    if given:
        write_program(folder / "bin/hipcc", f"#!/bin/sh\necho 'HIP version: {given}'\n")
    checkout.stub("hipcc", f"echo 'HIP version: {on_path}'")
    result = checkout.run("find_own_rocm || echo none", ROCM_PATH=str(folder))
    wanted = {"rocm": folder, "stubs": checkout.stubs.parent, None: "none"}[found]
    assert result.stdout == f"{wanted}\n"


@pytest.mark.parametrize(
    ("user", "mounts", "targets", "said"),
    [
        (1000, 0, TARGETS, "or run this as root on a Debian"),
        (0, 1, TARGETS, "--cap-add SYS_ADMIN"),
        (0, 0, TARGETS.replace("bookworm main", "trixie main"), "apt knows no Debian mirror here"),
        (0, 0, TARGETS, None),
    ],
)
def test_a_chroot_is_made_from_this_machines_mirror_or_refused_in_a_line(
    checkout: ScriptCheckout, user: int, mounts: int, targets: str, said: str | None
) -> None:
    checkout.stub("id", f"echo {user}")
    checkout.stub("unshare", f"exit {mounts}")
    lists = checkout.root / "lists"  # a fresh machine has none
    lists.touch()
    checkout.stub("apt-get", f'[[ "$1" != update ]] || echo "{targets}" >"{lists}"; cat "{lists}"')
    with (checkout.root / "scripts/lib/rocm_build.sh").open("a") as file:
        file.write("own_release() { echo bookworm; }\n")
        file.write('make_rocm_root() { echo "$@" >> "$project_root/calls"; }\n')
    result = checkout.run("set_up_rocm_root")
    assert result.returncode == (2 if said else 0), result.stderr
    assert said is None or said in result.stderr
    assert checkout.calls() == ([] if said else ["http://mirror.example.org/debian/"])


def test_a_libtorch_for_cuda_is_refused(checkout: ScriptCheckout) -> None:
    torch = checkout.root / "torch"
    for name in ("share/cmake/Torch/TorchConfig.cmake", "lib/libtorch_cuda.so"):
        write_program(torch / name, "")
    with (checkout.root / "scripts/lib/packages.sh").open("a") as file:
        file.write("set_up_packages() { :; }\nset_up_library_sources() { :; }\n")
    code = "set_up_library_sources() { :; }; set_up_rocm_build"
    result = checkout.run(code, Torch_DIR=str(torch / "share/cmake/Torch"))
    assert result.returncode == 2 and "is one for CUDA: --rocm-build wants" in result.stderr


RANKS = "16ProcessGroupNCCL"
CUDA_KERNELS = "\n".join(f"a.1.sm_{number}.cubin" for number in (80, 90, 100))
KERNELS = "".join(f"\n# hipv4-amdgcn-amd-amdhsa--{gpu}" for gpu in ("gfx90a", "gfx942", "gfx950"))
# a text holds no code
NO_CODE = {"code objects"}
LACKS = NO_CODE | {"holds the kernels", "joins ranks"}


@pytest.mark.parametrize(
    ("platform", "code", "cuda", "failed"),
    [
        ("cuda", f"exit 0 # {RANKS}", CUDA_KERNELS, NO_CODE),
        ("cuda", "exit 127", CUDA_KERNELS.replace("100", "80"), LACKS | {"starts", "runs"}),
        ("rocm", f"exit 0 # {RANKS}{KERNELS}", "", NO_CODE),
        ("rocm", f"exit 0{KERNELS.replace('gfx950', 'gfx90a')}", "", LACKS),
    ],
)
def test_a_build_is_looked_at(
    tmp_path: Path, platform: str, code: str, cuda: str, failed: set[str]
) -> None:
    texts = {f"benchmarks/{name}": code for name in run_tests.PROGRAMS}
    tools_folder = "environment/lib/python3.11/site-packages/nvidia/cu13/bin"
    for name, text in {**texts, f"{tools_folder}/cuobjdump": f"echo '{cuda}'"}.items():
        write_program(tmp_path / name, f"#!/bin/sh\n{text}\n")
    look = {"cuda": run_tests.cuda_programs, "rocm": run_tests.rocm_programs}[platform]
    _device_test, *programs = look(tmp_path)
    assert len(programs) == 10
    outcomes = [run_program(program, tmp_path / "r.xml", 60) for program in programs]
    assert {o.program.name.partition(" ")[2] for o in outcomes if o.counts.failures} == failed
    assert "it holds no kernels of ours" in outcomes[-1].output


def test_both_are_jobs_of_the_workflow() -> None:
    text = (PROJECT_ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    for name in ("--cuda-build", "--rocm-build"):
        assert f"run: scripts/test {name}\n" in text
