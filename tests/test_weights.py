"""Weights go to and fro between transformers and the C++ reader without losing a bit."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from oracle_packages import require_oracle_packages

require_oracle_packages()

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from transformers import LlamaForCausalLM

from tinyllama_tools.proofs.oracle_checks import (
    DTYPES,
    WEIGHTS_FILE,
    check_round_trip,
    different_bits,
    small_model,
)

PROJECT_ROOT = Path(__file__).resolve().parents[1]
GOLDEN_FOLDERS = sorted(path.parent for path in PROJECT_ROOT.glob("fixtures/golden/*/config.json"))

Copy = Callable[[Path, Path], None]


def run(program: Path, *arguments: Path | str) -> subprocess.CompletedProcess[str]:
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def copy(copy_program: Path) -> Copy:
    """Reads a folder of weights in C++ and writes it again."""

    def copied(source: Path, target: Path) -> None:
        completed = run(copy_program, source, target)
        assert completed.returncode == 0, completed.stderr

    return copied


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert {name: different_bits(one[name], other[name]) for name in one} == dict.fromkeys(one, 0)


def test_round_trip_is_a_proof_that_holds(copy_program: Path) -> None:
    check = check_round_trip(copy_program)
    assert check.cases > 1000
    assert check.held, check


def test_one_bit_is_found() -> None:
    one = torch.ones(3)
    other = one.clone()
    other[1] = -1
    assert different_bits(one, other) == 1
    assert different_bits(torch.zeros(2), -torch.zeros(2)) == 2
    assert different_bits(one, one.double()) == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_transformers_saves_is_read_and_written_alike(
    copy: Copy, tmp_path: Path, dtype: str
) -> None:
    model = small_model(dtype)
    model.save_pretrained(tmp_path / "in")
    copy(tmp_path / "in", tmp_path / "out")
    assert_same_bits(dict(model.state_dict()), load_file(tmp_path / "out" / WEIGHTS_FILE))
    for name in (WEIGHTS_FILE, "config.json"):
        assert (tmp_path / "in" / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_cpp_writes_is_loaded_by_transformers(copy: Copy, tmp_path: Path, dtype: str) -> None:
    model = small_model(dtype)
    model.save_pretrained(tmp_path / "in")
    copy(tmp_path / "in", tmp_path / "out")
    loaded, report = LlamaForCausalLM.from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True
    )
    assert not any(report.values()), report
    assert loaded.dtype == model.dtype
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "rope_theta", "head_dim"):
        assert getattr(loaded.config, key) == getattr(model.config, key), key
    assert_same_bits(dict(model.state_dict()), dict(loaded.state_dict()))
    # not with the model itself: its rotary table was rounded with it
    original = LlamaForCausalLM.from_pretrained(tmp_path / "in", dtype="auto")
    tokens = torch.arange(10).view(2, 5)
    assert torch.equal(loaded(tokens).logits, original(tokens).logits)


def test_values_that_are_easily_lost_survive(copy: Copy, tmp_path: Path) -> None:
    model = small_model()
    model.save_pretrained(tmp_path / "in")
    tensors = load_file(tmp_path / "in" / WEIGHTS_FILE)
    # -0, the smallest denormal, infinity, a quiet and a signalling NaN with payloads
    odd = [-(2**31), 1, 0x7F800000, 0x7FC00123, 0x7F800001]
    tensors["model.norm.weight"][:5].view(torch.int32).copy_(torch.tensor(odd, dtype=torch.int32))
    save_file(tensors, tmp_path / "in" / WEIGHTS_FILE, metadata={"format": "pt"})
    copy(tmp_path / "in", tmp_path / "out")
    assert_same_bits(tensors, load_file(tmp_path / "out" / WEIGHTS_FILE))


def test_shards_are_read(copy: Copy, tmp_path: Path) -> None:
    model = small_model()
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    assert len(list((tmp_path / "in").glob("model-*.safetensors"))) > 2
    copy(tmp_path / "in", tmp_path / "out")
    assert_same_bits(dict(model.state_dict()), load_file(tmp_path / "out" / WEIGHTS_FILE))


@pytest.mark.parametrize("folder", GOLDEN_FOLDERS, ids=lambda folder: folder.name)
def test_golden_weights_are_written_alike(copy: Copy, tmp_path: Path, folder: Path) -> None:
    copy(folder, tmp_path / "out")
    written = (tmp_path / "out" / WEIGHTS_FILE).read_bytes()
    assert written == (folder / WEIGHTS_FILE).read_bytes()


def test_the_copy_may_replace_its_original(copy: Copy, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN_FOLDERS[0], tmp_path / "same")
    before = (tmp_path / "same" / WEIGHTS_FILE).read_bytes()
    copy(tmp_path / "same", tmp_path / "same")
    assert (tmp_path / "same" / WEIGHTS_FILE).read_bytes() == before
    assert not list((tmp_path / "same").glob("*.tmp"))


def header_of(text: str, data: int = 0) -> bytes:
    return len(text.encode()).to_bytes(8, "little") + text.encode() + bytes(data)


def entry(shape: str, begin: int, end: int, dtype: str = "F32") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}'


GOOD = save({"x": torch.ones(2, 3)}, {"format": "pt"})
BAD_FILES = {
    "empty": b"",
    "seven bytes": bytes(7),
    "cut in the header": GOOD[:40],
    "cut in the data": GOOD[:-1],
    "a byte too many": GOOD + b"\0",
    "a list": header_of("[]"),
    "no JSON": header_of("{x}"),
    "endless": (2**63).to_bytes(8, "little") + b"{}",
    "out of range": header_of(f'{{"x":{entry("[2]", 0, 8)}}}', 7),
    "backwards": header_of(f'{{"x":{entry("[0]", 8, 0)}}}', 8),
    "overlap": header_of(f'{{"x":{entry("[2]", 0, 8)},"y":{entry("[2]", 4, 12)}}}', 12),
    "hole": header_of(f'{{"x":{entry("[2]", 0, 8)},"y":{entry("[2]", 9, 17)}}}', 17),
    "another size": header_of(f'{{"x":{entry("[3]", 0, 8)}}}', 8),
    "overflow": header_of(f'{{"x":{entry("[4611686018427387904,4]", 0, 0)}}}'),
    "negative": header_of(f'{{"x":{entry("[-2]", 0, 8)}}}', 8),
    "unknown type": header_of(f'{{"x":{entry("[2]", 0, 8, "F33")}}}', 8),
    "metadata of numbers": header_of('{"__metadata__":{"a":1}}'),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_what_python_refuses_is_refused(copy_program: Path, tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "in"
    shutil.copytree(GOLDEN_FOLDERS[0], folder)
    (folder / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(SafetensorError):
        load_file(folder / WEIGHTS_FILE)
    completed = run(copy_program, folder, tmp_path / "out")
    assert completed.returncode == 2
    assert str(folder / WEIGHTS_FILE) in completed.stderr
    assert len(completed.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_other_models_are_refused(copy_program: Path, tmp_path: Path) -> None:
    model = small_model()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path / "tied")
    completed = run(copy_program, tmp_path / "tied", tmp_path / "out")
    assert completed.returncode == 2
    assert "tied/config.json: tie_word_embeddings = true: must be false" in completed.stderr
    config = json.loads((tmp_path / "tied" / "config.json").read_text(encoding="utf-8"))
    config["tie_word_embeddings"] = False
    (tmp_path / "tied" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    completed = run(copy_program, tmp_path / "tied", tmp_path / "out")
    assert completed.returncode == 2
    assert "tensor 'lm_head.weight' of shape [50, 32] is missing" in completed.stderr


def test_wrong_use_is_refused(copy_program: Path, tmp_path: Path) -> None:
    assert run(copy_program).returncode == 2
    completed = run(copy_program, tmp_path / "none", tmp_path / "out")
    assert completed.returncode == 2
    assert f"copy_weights: {tmp_path / 'none' / 'config.json'}: cannot be read" in completed.stderr
