"""What scripts/peers asks of every peer, that its losses are those of an eager model, and the peers
that need packages of their own: without these packages, and without a network."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import tools
from test_ablation_and_peers import FAKE_PEER, SIZE
from tinyllama_tools.commands import peers
from tinyllama_tools.commands.peers import PeerSide
from tinyllama_tools.compare.sides import CaseFailedError, CaseSkippedError
from tinyllama_tools.core.installation import python_path
from tinyllama_tools.data.names import full_step

CASE = full_step("tiny", "f32", 2, 8)
# What the peer does wrong, and its eager model does not.
PLANT = """
from tinyllama_tools.commands import peer_process
begin = peer_process.TorchStep.__init__
def faulty(self, model, tokens, form, is_autocast):
    wrong = form is not peer_process.EAGER
    begin(self, model, tokens, form, is_autocast)
    FAULT
peer_process.TorchStep.__init__ = faulty
peer_process.main()
"""
FAULTS = {
    "": "pass",
    "another batch": "self._tokens = tokens.flip(1) if wrong else tokens",
    "a learning rate": "self._optimizer.param_groups[0]['lr'] *= 1 + 0.01 * wrong",
    # the second loss alone
    "no number": "self._optimizer.param_groups[0]['lr'] *= float('nan') if wrong else 1",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_peer_whose_losses_differ_has_no_time(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.require_oracle_packages()
    command = (sys.executable, "-c", PLANT.replace("FAULT", FAULTS[fault]))
    monkeypatch.setattr(peers, "PEER", command)
    monkeypatch.setattr(peers, "problem_sizes", lambda: {"tiny": SIZE})
    side = PeerSide("eager", "cpu", 1, 60.0)
    try:
        if fault:
            with pytest.raises(CaseFailedError, match="wrong result: the first losses"):
                side.get_ready(CASE)
            return
        assert side.get_ready(CASE) > 0
        assert side.settings["loss_errors"]["f32"] <= 1e-6
        assert re.fullmatch(r"none|v\d\S+, \w+\S*", side.settings["onednn"])
    finally:
        side.close()


def test_a_peer_knows_its_processors_though_torch_pins_it() -> None:
    """They are those of threads that are not torch's: JAX's, and compilers'."""
    tools.require_oracle_packages()
    code = "from tinyllama_tools.commands import peer_process as p; print(*p.PROCESSORS)"
    environment = {**os.environ, "OMP_PROC_BIND": "true", "PYTHONPATH": python_path()}
    command = (sys.executable, "-c", code)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert {*map(int, ended.stdout.split())} == os.sched_getaffinity(0)


# A Python with torch 2.13, whose index has jax alone; a process that is told a folder with `broken`
# does not start.
PYTHON = """#!/bin/sh
case "$*" in
*importlib.metadata*) echo cpython-311 2 13 ;;
*"pip install"*--target*jax*)
  echo "$*" >>"$0.log"
  while [ "$1" != --target ]; do shift; done
  mkdir "$2" ;;
*"pip install"*) echo "$*" >>"$0.log"; echo "ERROR: No matching distribution found" >&2; exit 1 ;;
*) exec PYTHON "$@" ;;
esac
"""


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One of whose pip calls a log tells; the user's cache is empty."""
    python = tmp_path / "python"
    python.write_text(PYTHON.replace("PYTHON", sys.executable))
    python.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told = FAKE_PEER.replace('("MALLOC_TRIM_THRESHOLD_"', '("PYTHONPATH", "MALLOC_TRIM_THRESHOLD_"')
    monkeypatch.setattr(peers, "PEER", (str(python), "-c", told))
    return python


def test_packages_are_installed_once_and_only_their_peer_sees_them(
    python: Path, tmp_path: Path
) -> None:
    paths = []
    for name in ("jax", "jax", "eager"):
        side = PeerSide(name, "cpu", 1, 60.0)
        assert side.get_ready(full_step("tiny", "f32", 8, 128)) == 0.1 + 0.1 * (name == "eager")
        paths.append(side.settings["environment"]["PYTHONPATH"].split(":")[0])
        side.close()
    (folder,) = (tmp_path / "cache/tiny_llama/peers").iterdir()
    assert paths[:2] == [str(folder)] * 2 and paths[2] != str(folder)
    (call,) = Path(f"{python}.log").read_text().splitlines()
    assert call.endswith(" jax==0.10.2")


def test_a_peer_that_cannot_be_installed_or_loaded_is_skipped_with_the_reason(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = PeerSide("zentorch", "cpu", 1, 60.0)
    for _ in range(2):
        with pytest.raises(CaseSkippedError, match="zentorch: ERROR: No matching distribution"):
            side.get_ready(CASE)
    # not once more for each case
    (call,) = Path(f"{python}.log").read_text().splitlines()
    assert call.endswith(" zentorch==2.13.*")
    dies = "import sys; sys.exit('ImportError: another processor')"
    monkeypatch.setattr(peers, "PEER", (str(python), "-c", dies))
    side = PeerSide("jax", "cpu", 1, 60.0)
    with pytest.raises(CaseSkippedError, match=r"jax: .*ImportError: another processor"):
        side.get_ready(CASE)


@pytest.fixture
def jax_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module with numpy for JAX, which has the same functions but no derivatives."""
    nn = SimpleNamespace(
        silu=lambda x: x / (1 + np.exp(-x)),
        logsumexp=lambda x, axis: np.log(np.exp(x).sum(axis)),
        softmax=lambda x, axis: np.exp(x) / np.exp(x).sum(axis, keepdims=True),
    )

    def einsum(*given: object, preferred_element_type: type) -> np.ndarray:
        return np.einsum(*given).astype(preferred_element_type)

    numpy = SimpleNamespace(**{**vars(np), "einsum": einsum})
    fake = {"numpy": numpy, "nn": nn, "lax": SimpleNamespace(rsqrt=lambda x: 1 / np.sqrt(x))}
    jax = ModuleType("jax")
    vars(jax).update(fake, Array=np.ndarray)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", numpy)
    name = "tinyllama_tools.commands.jax_step"
    yield importlib.import_module(name)
    del sys.modules[name]


def test_the_jax_step_has_the_formulas_of_the_model_and_of_adamw(
    request: pytest.FixtureRequest,
) -> None:
    tools.require_oracle_packages()
    import torch

    from tinyllama_tools.proofs.oracle import build_model, rotary_tables

    jax_step = request.getfixturevalue("jax_step")
    model = build_model(SIZE | {"n_layers": 2})
    # weights that let attention and norms show
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    tokens = torch.randint(0, SIZE["vocab_size"], (2, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=jax_step.RATE)
    weights = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    moments = {name: (0 * weight, 0 * weight) for name, weight in weights.items()}
    rotary = tuple(table.numpy() for table in rotary_tables(model.config, 8))
    for count in (1, 2):
        optimizer.zero_grad()
        right = model(input_ids=tokens, labels=tokens).loss
        right.backward()
        found = jax_step.loss_of(weights, tokens.numpy(), rotary, model.config, False)
        assert found == pytest.approx(right.item(), rel=1e-5)
        optimizer.step()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad.numpy()
            step = (weights[name], moments[name], gradient, np.float32(count))
            weights[name], moments[name] = jax_step.updated(*step)
            assert np.abs(weights[name] - parameter.detach().numpy()).max() < 1e-6
