"""tiny_llama_bench with the weights of a folder: of a model that is larger than what is measured,
one layer is read; folders that are no model, or whose values are none, are refused by file and
tensor, with exit status 2."""

import json
import math
import os
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_program import BASELINE, QUICK, Program

from built_programs import ON_CPU, Completed, Json, message_of, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
Q = "model.layers.0.self_attn.q_proj.weight"
SMALL: dict[str, Json] = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "rms_norm_eps": 1e-5,
}
# of Llama 2 and 3 70B, all but the layers divided by 16: 1.3 GB in float32
LARGE = SMALL | {
    "vocab_size": 32_000,
    "hidden_size": 512,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 1792,
}
BLOCK = [*ON_CPU, BASELINE, "--components=block", "--batch=2", "--seq=8"]


@pytest.fixture(scope="module")
def program(bench_program: Path) -> Program:
    return Program(bench_program)


class Tensor(NamedTuple):
    dtype: str
    shape: list[int]
    values: bytes | None = None
    """Of the first numbers; the others are zeros that take no room on the disk."""

    @property
    def size(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


def shapes(config: Mapping[str, Json]) -> dict[str, list[int]]:
    """Of LlamaForCausalLM's parameters."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    found = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    for layer in range(config["num_hidden_layers"]):
        of_layer = {
            "input_layernorm": [width],
            "self_attn.q_proj": [width, width],
            "self_attn.k_proj": [kv, width],
            "self_attn.v_proj": [kv, width],
            "self_attn.o_proj": [width, width],
            "post_attention_layernorm": [width],
            "mlp.gate_proj": [inner, width],
            "mlp.up_proj": [inner, width],
            "mlp.down_proj": [width, inner],
        }
        found |= {f"model.layers.{layer}.{name}.weight": of_layer[name] for name in of_layer}
    found["model.norm.weight"] = [width]
    found["lm_head.weight"] = [config["vocab_size"], width]
    return found


def write_file(file: Path, tensors: Mapping[str, Tensor]) -> dict[str, Json]:
    """Returns the header that it wrote."""
    header: dict[str, Json] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.size
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    write_header(file, header)
    data = file.stat().st_size
    with file.open("r+b") as out:
        out.truncate(data + end)
        for name, tensor in tensors.items():
            if tensor.values is not None:
                out.seek(data + header[name]["data_offsets"][0])
                out.write(tensor.values)
    return header


def write_header(file: Path, header: Mapping[str, Json]) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)


def write_model(
    folder: Path,
    config: Mapping[str, Json],
    tensors: Mapping[str, Tensor],
    file_of: Callable[[str], str] | None = None,
) -> Path:
    """In one file, or in those that `file_of` names."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if file_of is None:
        write_file(folder / SINGLE, tensors)
        return folder
    weight_map = {name: file_of(name) for name in tensors}
    for file in sorted(set(weight_map.values())):
        write_file(
            folder / file, {name: tensors[name] for name in tensors if weight_map[name] == file}
        )
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return folder


def drawn(dtype: str, shape: list[int], seed: str) -> Tensor:
    """In BF16 or F32: around 1 for a vector, around 0 for a matrix. A prime of numbers is drawn and
    repeated."""
    generator = random.Random(seed)
    mean = 1.0 if len(shape) == 1 else 0.0
    numbers = [struct.pack("<f", generator.gauss(mean, 0.1)) for _ in range(1009)]
    row = b"".join(number[4 - BYTES[dtype] :] for number in numbers)
    size = math.prod(shape) * BYTES[dtype]
    return Tensor(dtype, shape, (row * (size // len(row) + 1))[:size])


def small_tensors() -> dict[str, Tensor]:
    return {name: drawn("BF16", shape, name) for name, shape in shapes(SMALL).items()}


def shard(name: str) -> str:
    """A file a layer, as a name; what is of none comes first."""
    parts = name.split(".")
    number = int(parts[2]) + 2 if name.startswith("model.layers.") else 1
    return f"model-{number:05}.safetensors"


def bytes_read_of_children() -> int:
    """All that programs of this process have read which have ended; wherever it lay."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def last_words(completed: Completed) -> str:
    """The last line on standard error of a run that ended with exit status 2."""
    assert completed.returncode == 2, completed.stderr
    return completed.stderr.splitlines()[-1]


def test_one_block_of_a_large_model_reads_one_layer(program: Program, tmp_path: Path) -> None:
    if not os.access("/proc/self/io", os.R_OK):
        pytest.skip("the system does not say what was read")
    # what is not measured would be refused if it were read
    nan = struct.pack("<f", math.nan)
    of_layer = {name for name in shapes(LARGE) if name.startswith("model.layers.0.")}
    tensors = {
        name: drawn("F32", shape, name) if name in of_layer else Tensor("F32", shape, nan)
        for name, shape in shapes(LARGE).items()
    }
    folder = write_model(tmp_path / "model", LARGE, tensors, shard)
    whole = sum(tensor.size for tensor in tensors.values())
    wanted = sum(tensors[name].size for name in of_layer)
    assert whole > 2**30
    assert len(list(folder.glob("*.safetensors"))) == LARGE["num_hidden_layers"] + 1

    before = bytes_read_of_children()
    out = tmp_path / "out.json"
    completed = program.run(
        *QUICK, *BLOCK, f"--weights={folder}", "--dtypes=bf16", f"--benchmark_out={out}"
    )
    read = bytes_read_of_children() - before
    assert completed.returncode == 0, completed.stderr
    context = read_json(out)["context"]["weights"]
    assert context["n_layers"] == LARGE["num_hidden_layers"]
    assert context["fingerprint_sample"].startswith("16 pieces of 4096 bytes")
    sample = sum(min(tensor.size, 16 * 4096) for tensor in tensors.values())
    # of each of three passes the case, its reference, and the reference with new inputs
    assert read < 9.5 * wanted + sample + 20_000_000 < whole / 4, f"{read / wanted:.1f} layers"

    # The program does refuse it where it is read.
    other = program.run(
        *QUICK, *ON_CPU, BASELINE, f"--weights={folder}", "--components=embedding", "--dtypes=f32"
    )
    assert "model-00001.safetensors: tensor 'model.embed_tokens.weight' holds nan" in last_words(
        other
    )


def proves(program: Program, folder: Path) -> str:
    """Standard error of a run that proves a block with these weights."""
    completed = program.run(*BLOCK, f"--weights={folder}", "--dtypes=f32", "--verify=only")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stderr


def test_tensors_that_are_not_the_models_are_named_once(program: Program, tmp_path: Path) -> None:
    tensors = small_tensors()
    assert "not read" not in proves(program, write_model(tmp_path / "plain", SMALL, tensors))
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        tensors[name] = Tensor("F32", [2])
    for name, file_of in (("one", None), ("shards", shard)):
        folder = write_model(tmp_path / name, SMALL, tensors, file_of)
        notes = [line for line in proves(program, folder).splitlines() if "inv_freq" in line]
        assert notes == [
            f"tiny_llama_bench: note: {folder}: 2 tensors that the model does not have are not "
            "read: 'model.layers.0.self_attn.rotary_emb.inv_freq' is the first"
        ]


def test_a_ranks_share_is_proved_with_its_part_of_the_weights(
    program: Program, tmp_path: Path
) -> None:
    """Of two ranks, and of four, which is more than there are KV heads; also of a table and a head
    in one, and of those of the first and last stage of a pipeline."""
    tensors = small_tensors()
    folders = [write_model(tmp_path / "two", SMALL, tensors, shard)]
    del tensors["lm_head.weight"]
    config = SMALL | {"tie_word_embeddings": True}
    folders.append(write_model(tmp_path / "one", config, tensors, shard))
    choice = [*ON_CPU, BASELINE, "--dtypes=f32", "--batch=2", "--seq=8", "--verify=only"]
    for folder in folders:
        for ranks, stages, last in ((2, 1, "model"), (4, 1, "model"), (2, 2, "stage")):
            completed = program.run(
                *(*choice, f"--weights={folder}", f"--components=block,embedding,loss,{last}"),
                *(f"--tensor-parallel={ranks}", f"--pipeline-parallel={stages}"),
            )
            assert completed.returncode == 0, completed.stdout + completed.stderr
            verdicts = {line.split()[-1] for line in completed.stdout.splitlines()}
            assert verdicts == {"proved"}, completed.stdout


def cut_short(folder: Path) -> str:
    file = folder / shard("model.layers.1.")
    os.truncate(file, file.stat().st_size - 2)
    return f"{file}: tensor 'model.layers.1.mlp.down_proj.weight' | it was cut short"


def without_shard(folder: Path) -> str:
    file = folder / shard("model.layers.1.")
    file.unlink()
    return f"{file}: cannot be read: No such file or directory"


def long_header(folder: Path) -> str:
    file = folder / shard(Q)
    file.write_bytes(struct.pack("<Q", 100_000_001) + b"{")
    os.truncate(file, 200_000_000)
    return f"{file}: header of 100000001 bytes: must be at most 100000000"


def header_of_spaces(folder: Path) -> str:
    file = folder / shard(Q)
    file.write_bytes(struct.pack("<Q", 100_000_000) + b"{")
    os.truncate(file, 200_000_000)
    return f"{file}: header | is not valid JSON"


def overlap(folder: Path) -> str:
    file = folder / shard(Q)
    header = {
        Q: {"dtype": "BF16", "shape": [16, 16], "data_offsets": [0, 512]},
        "x": {"dtype": "BF16", "shape": [2], "data_offsets": [510, 514]},
    }
    write_header(file, header)
    os.truncate(file, file.stat().st_size + 514)
    return f"{file}: tensor 'x': begins at byte 510 of the data, before the end 512 of tensor '{Q}'"


def other_shape(folder: Path) -> str:
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = small_tensors() | {name: Tensor("BF16", [16, 24])}
    write_model(folder, SMALL, tensors, shard)
    return (
        f"{folder / INDEX} does not hold | tensor '{name}' of {shard(name)} has shape [16, 24]: "
        "must have [24, 16]"
    )


def missing(folder: Path) -> str:
    tensors = small_tensors()
    del tensors["model.norm.weight"]
    write_model(folder, SMALL, tensors, shard)
    return f"{folder / INDEX} does not hold | tensor 'model.norm.weight' of shape [16] is missing"


def quantised(folder: Path) -> str:
    file = folder / shard(Q)
    write_header(file, {Q: {"dtype": "I32", "shape": [16, 2], "data_offsets": [0, 128]}})
    os.truncate(file, file.stat().st_size + 128)
    return f"{file}: tensor '{Q}': dtype = \"I32\": must be F64, F32, F16, BF16 or I64"


def tied_to_another_shape(folder: Path) -> str:
    tensors = small_tensors() | {"lm_head.weight": Tensor("BF16", [51, 16])}
    write_model(folder, SMALL | {"tie_word_embeddings": True}, tensors, shard)
    return (
        f"{folder / INDEX} does not hold | tensor 'lm_head.weight' of {shard('lm_head.weight')} "
        "has shape [51, 16]: must have [50, 16], for it is tied to model.embed_tokens.weight"
    )


FOLDERS = [
    *(cut_short, without_shard, long_header, header_of_spaces, overlap, other_shape, missing),
    *(quantised, tied_to_another_shape),
]


@pytest.mark.parametrize("damage", FOLDERS, ids=lambda damage: damage.__name__)
def test_a_folder_that_is_no_model_is_refused(
    program: Program, tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    folder = write_model(tmp_path / "model", SMALL, small_tensors(), shard)
    proves(program, folder)
    expected = damage(folder)
    said = message_of(program.run(*BLOCK, f"--weights={folder}", "--dtypes=f32"))
    assert said.startswith("--weights: ")
    assert [part for part in expected.split(" | ") if part not in said] == []


def test_what_is_measured_has_finite_values(program: Program, tmp_path: Path) -> None:
    nan, infinite, place = b"\xc0\x7f", b"\x80\xff", 3 * 16 + 5
    proof = "--verify=only"
    for layer, value, shown, goal in (
        (0, nan, "nan", proof),
        (0, nan, "nan", QUICK[0]),
        (0, infinite, "-inf", proof),
        (1, nan, "", proof),
    ):
        tensors = small_tensors()
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        values = bytearray(tensors[name].values or b"")
        values[2 * place : 2 * place + 2] = value
        tensors[name] = tensors[name]._replace(values=bytes(values))
        folder = write_model(tmp_path / f"{layer}{shown}", SMALL, tensors, shard)
        completed = program.run(*BLOCK, f"--weights={folder}", "--dtypes=f32,bf16", goal)
        if not shown:  # of a layer that is not measured
            assert completed.returncode == 0, completed.stderr
            continue
        assert last_words(completed) == (
            f"tiny_llama_bench: --weights: {folder / shard(name)}: tensor '{name}' holds {shown} "
            "at [3, 5]: weights must be finite"
        )
