"""scripts/dev/golden: writes the golden files, what the transformers package answers, or checks
them.
fixtures/golden/README.md says what each holds."""

import argparse
import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tinyllama_tools.core.app import bad_file, problem_sizes, read_json
from tinyllama_tools.core.installation import DATA
from tinyllama_tools.core.options import script_parser
from tinyllama_tools.core.text import compact_json, say
from tinyllama_tools.proofs.flop_counts import flops_json
from tinyllama_tools.proofs.golden_cases import GOLDEN_CASES
from tinyllama_tools.proofs.oracle import (
    ORACLE_SECTION,
    Float64Mode,
    Proof,
    Size,
    Tensors,
    build_model,
    cast_parameters,
    make_portable,
)

GOLDEN_FOLDER = DATA / "fixtures/golden"
WEIGHTS_FILE = "model.safetensors"
INPUTS_FILE = "inputs.safetensors"
F64_FILE = "expected_f64.safetensors"
F32_FILE = "expected_f32.safetensors"
CURVES_FILE = "training_tiny.json"
# Relative to the largest magnitude of a tensor. Another processor adds up in another order: some
# hundred roundings of 1.1e-16, and of 6e-8 in float32. Weights and inputs are drawn, not computed.
TOLERANCES = {F64_FILE: 1e-12, F32_FILE: 1e-5}

SEED = 42
NORM_STD = 0.25
BIAS_STD = 0.25
# Scores then have a standard deviation of about 2: attention is far from uniform, not saturated.
QUERY_KEY_GAIN = 1.5
ADAMW: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
# of the small models
STEPS, WEIGHT_DECAY = 5, 0.1


def read_tensors(path: Path) -> Tensors:
    """BadInputError where the file is cut short, or is no safetensors file."""
    try:
        return load_file(path)
    except SafetensorError as error:
        what, remedy = f"cannot be read: {error}", "write it anew: scripts/dev/golden"
        raise bad_file(path, what, remedy) from error


def exact(values: torch.Tensor) -> torch.Tensor:
    """The values rounded to what float16 and bfloat16 both hold: one file serves every type."""
    return values.to(torch.float16).to(torch.bfloat16)


def draw_case(size: Size) -> tuple[Tensors, Tensors]:
    """Weights in bfloat16 by parameter name, then inputs, from one generator of the fixed seed.

    Norm weights are away from 1 and biases from 0, so that a layer without them cannot pass. Drawn
    in float64, which torch does without vectorised functions: the same values on every processor.
    Inputs:
    `tokens` [B, S] int64; at S = 1, where no token has a next one and so no loss, also
    `logits_gradient` [B, S, V] float64, the objective then being sum(logits * logits_gradient).
    """
    generator = torch.Generator().manual_seed(SEED)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = {}
    for name, parameter in build_model(size).named_parameters():
        values = drawn(*parameter.shape)
        if name.endswith(".bias"):
            values = BIAS_STD * values
        elif parameter.dim() == 1:
            values = 1.0 + NORM_STD * values
        elif "embed_tokens" not in name:
            # 1 / sqrt(fan in) keeps activations near 1
            gain = QUERY_KEY_GAIN if "q_proj" in name or "k_proj" in name else 1.0
            values = values * (gain / math.sqrt(parameter.shape[1]))
        weights[name] = exact(values)
    shape = (size["batch"], size["seq"])
    inputs = {"tokens": torch.randint(0, size["vocab_size"], shape, generator=generator)}
    if "padding_token" in size and size["padding_token"] not in inputs["tokens"]:
        raise ValueError("the padding token must occur: else its row has no gradient to leave out")
    if size["seq"] == 1:
        gradient = exact(drawn(*shape, size["vocab_size"]))
        inputs["logits_gradient"] = gradient.to(torch.float64)
    return weights, inputs


def loaded_model(size: Size, weights: Tensors, dtype: torch.dtype) -> PreTrainedModel:
    """The oracle in this type, which holds these weights exactly."""
    model = build_model(size, dtype)
    loaded = model.load_state_dict(weights, strict=False)
    # of tied weights the LM head's are the embedding's
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    if loaded.unexpected_keys or set(loaded.missing_keys) != tied:
        raise RuntimeError(f"weights and model differ: {loaded}")
    return model


def forward(model: PreTrainedModel, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, S, V] and the objective, a scalar."""
    if "logits_gradient" not in inputs:
        output = model(input_ids=inputs["tokens"], labels=inputs["tokens"])
        return output.logits, output.loss
    logits = model(input_ids=inputs["tokens"]).logits
    return logits, (logits * inputs["logits_gradient"].to(logits.dtype)).sum()


def evaluate(model: PreTrainedModel, inputs: Tensors) -> Tensors:
    """`logits`, `loss` and `gradient.<parameter>`; the gradients stay in the parameters."""
    model.zero_grad(set_to_none=True)
    logits, objective = forward(model, inputs)
    objective.backward()
    found = {"logits": logits.detach(), "loss": objective.detach()}
    gradients = {f"gradient.{n}": p.grad.clone() for n, p in model.named_parameters()}
    return found | gradients


def write_case(name: str, golden: Path) -> None:
    """The five files of one case."""
    size, folder = GOLDEN_CASES[name], golden / name
    weights, inputs = draw_case(size)
    model = cast_parameters(loaded_model(size, weights, torch.float32), torch.bfloat16)
    model.save_pretrained(folder)
    # sampling defaults, which a proof has no use for
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file(inputs, folder / INPUTS_FILE)
    # the package's float32, untouched; and all in float64, rotary tables as ours
    f32 = evaluate(loaded_model(size, weights, torch.float32), inputs)
    model = make_portable(loaded_model(size, weights, torch.float64), size["seq"])
    options = ADAMW | {"weight_decay": WEIGHT_DECAY}
    with Float64Mode():
        f64 = evaluate(model, inputs)
        optimizer = torch.optim.AdamW(model.parameters(), **options, foreach=False)
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            forward(model, inputs)[1].backward()
            optimizer.step()
    f64 |= {f"after_{STEPS}_steps.{name}": p.detach() for name, p in model.named_parameters()}
    for file, tensors in ((F32_FILE, f32), (F64_FILE, f64)):
        # safetensors stores nothing else
        save_file({n: tensor.contiguous() for n, tensor in tensors.items()}, folder / file)


def check_oracle(folder: Path = GOLDEN_FOLDER) -> Proof:
    """Compares the golden float64 values with the untouched package in float64, which narrows to
    float32 in places. What is put around it may change its roundings, not its formulas."""
    against = "the untouched package, whose norms, softmax, loss and angles are float32"
    proof = Proof(ORACLE_SECTION, "float64 oracle", against, tolerance=2e-6)
    for case, size in GOLDEN_CASES.items():
        weights, inputs, golden = (
            read_tensors(folder / case / file) for file in (WEIGHTS_FILE, INPUTS_FILE, F64_FILE)
        )
        found = evaluate(loaded_model(size, weights, torch.float64), inputs)
        # the loss is float32
        found = {name: tensor.to(torch.float64) for name, tensor in found.items()}
        proof.add_tensors(case, {name: golden[name] for name in found}, found)
    return proof


# Loss curves of the model learning one fixed batch, from our own initial weights. Weights and
# tokens are drawn as model/parameters.cpp draws them: same torch, same generator, same order, so
# both sides start from the same bits and the curves may be compared step by step.
CURVES_SIZE = "tiny"
CURVES_BATCH, CURVES_SEQ = 2, 16
# kInitialStd of model/parameters.hpp
INITIAL_STD = 0.02


@dataclass(frozen=True)
class Curve:
    """How one dtype trains. `parameters`: their type, and that of gradients and moments.
    `autocast`: the type of matrix multiplications, where it is another one. `tolerance`: of each
    loss, relative. `micro_batches`: what the loss is divided by before its backward; stored losses
    are undivided."""

    steps: int
    parameters: torch.dtype
    tolerance: float
    autocast: torch.dtype | None = None
    micro_batches: int = 1


# Differences seen between the instruction sets AVX2 and SSE: 4e-14, 8e-6 (at step 187), 8e-3,
# 1.5e-2, 2e-3, 2e-3; between an AMD processor with AVX2 and an Intel one with AVX-512, whose BLAS
# adds up in another order: 5e-14, 4e-5 (at step 13, where the loss falls fastest). Weights are
# drawn in float64, alike on every processor, so another weights_checksum is a failure and no reason
# for wider tolerances.
CURVES: dict[str, Curve] = {
    "f64": Curve(50, torch.float64, 1e-12),
    "f32": Curve(200, torch.float32, 1e-4),
    "bf16": Curve(50, torch.bfloat16, 3e-2),
    "amp_bf16": Curve(50, torch.float32, 3e-2, torch.bfloat16),
    "amp_f16": Curve(50, torch.float32, 1e-2, torch.float16),
    # tiny's own gradients survive in float16 as they are; of this loss they do so only if scaled
    "amp_f16_of_4096": Curve(50, torch.float32, 1e-2, torch.float16, micro_batches=4096),
}


def tiny_start() -> tuple[PreTrainedModel, torch.Tensor]:
    """Where every curve starts: the float32 model with TensorInitializer's weights, and tokens
    [batch, seq] int64. parameters() gives the matrices in the order in which TinyLlama draws them,
    in float64; norms are ones."""
    generator = torch.Generator().manual_seed(SEED)
    size = problem_sizes()[CURVES_SIZE]
    model = build_model(size)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.fill_(1.0)
            continue
        drawn = torch.empty(parameter.shape, dtype=torch.float64)
        parameter.data.copy_(exact(drawn.normal_(0.0, INITIAL_STD, generator=generator)))
    tokens = torch.empty((CURVES_BATCH, CURVES_SEQ), dtype=torch.int64)
    return model, tokens.random_(0, size["vocab_size"], generator=generator)


def weights_checksum(model: PreTrainedModel) -> int:
    """The same number where two sides start from the same weights: the sum over all matrices of (i
    + 1) x the bits of weight i as bfloat16, read as int16."""
    matrices = [p.detach().flatten() for p in model.parameters() if p.dim() == 2]
    bits = torch.cat(matrices).to(torch.bfloat16).view(torch.int16).to(torch.int64)
    return int((bits * torch.arange(1, bits.numel() + 1)).sum())


def losses(curve: Curve, steps: int) -> list[float]:
    """The loss before each of the first updates, in nats a token."""
    model, tokens = tiny_start()
    cast_parameters(model, curve.parameters)
    mode: AbstractContextManager[object] = contextlib.nullcontext()
    if curve.parameters is torch.float64:
        make_portable(model, CURVES_SEQ)
        mode = Float64Mode()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW, foreach=False, fused=False)
    # one that is not enabled passes everything through
    scaler = torch.amp.GradScaler("cpu", enabled=curve.autocast is torch.float16)
    found = []
    with mode:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", curve.autocast, enabled=curve.autocast is not None):
                loss = model(input_ids=tokens, labels=tokens).loss
            scaler.scale(loss / curve.micro_batches).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append(loss.item())
    return found


def curves_json() -> str:
    """The content of training_tiny.json, one line a curve."""
    model, tokens = tiny_start()
    curves = {}
    for name, curve in CURVES.items():
        digits = 15 if curve.parameters is torch.float64 else 9
        curves[name] = [float(f"{loss:.{digits}g}") for loss in losses(curve, curve.steps)]
    document = {
        "size": CURVES_SIZE,
        "seed": SEED,
        "batch": CURVES_BATCH,
        "seq": CURVES_SEQ,
        "adamw": ADAMW,
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "weights_checksum": weights_checksum(model),
        "tokens": tokens.tolist(),
        "losses": curves,
    }
    return compact_json(document, expanded=("losses",))


VERSIONS = {"transformers_version", "torch", "transformers"}


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Every value of a JSON document with its place, such as `losses.f64.7`, without the versions
    of the packages that wrote it."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{place}.{key}" if place else str(key))
    elif place not in VERSIONS:
        yield place, value


def compare(names: Iterable[str], stored: Path, made: Path) -> list[Proof]:
    """A proof for each kind of file, and for each curve. A file that only one side has fails."""
    proofs: dict[str, Proof] = {}

    def proof(name: str, tolerance: float = 0.0) -> Proof:
        new = Proof(ORACLE_SECTION, f"golden {name}", "the same made anew", tolerance)
        return proofs.setdefault(name, new)

    for name in names:
        pattern = f"{name}/*" if name in GOLDEN_CASES else f"{name}.json"
        files = {path.relative_to(top) for top in (stored, made) for path in top.glob(pattern)}
        for file in sorted(files):
            old, new = stored / file, made / file
            if not old.is_file() or not new.is_file():
                lacks = "is absent" if new.is_file() else "is not one of the golden files"
                proof(file.name).add(math.inf, f"{file} {lacks}")
            elif file.suffix == ".json":
                found, wanted = (dict(leaves(read_json(p)[0])) for p in (old, new))
                for place in sorted({*found, *wanted}):
                    a, b = wanted.get(place), found.get(place)
                    same, error = proof(file.name), 0.0 if a == b else math.inf
                    if place.startswith("losses.") and a and b:
                        curve = place.split(".")[1]
                        same = proof(f"losses of {curve}", CURVES[curve].tolerance)
                        error = abs(b / a - 1)
                    same.add(error, f"{file}: {place}")
            else:
                tensors = proof(file.name, TOLERANCES.get(file.name, 0.0))
                tensors.add_tensors(str(file), read_tensors(new), read_tensors(old))
    return list(proofs.values())


# What there is to write, into the golden folder.
PARTS: dict[str, Callable[[Path], object]] = {
    **{name: partial(write_case, name) for name in GOLDEN_CASES},
    "flops": lambda folder: (folder / "flops.json").write_text(flops_json(), "utf-8"),
    "training_tiny": lambda folder: (folder / CURVES_FILE).write_text(curves_json(), "utf-8"),
}


def write(names: Sequence[str], folder: Path) -> None:
    """Makes or replaces the named parts."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names, start=1):
        say(f"-- {name} ({i} of {len(names)})")
        started = time.monotonic()
        PARTS[name](folder)
        say(f"   {time.monotonic() - started:.0f} s")


def made_anew(names: Sequence[str], folder: Path) -> list[Proof]:
    """Makes the named parts elsewhere and compares."""
    with tempfile.TemporaryDirectory(prefix="tiny_llama_golden_") as made:
        write(names, Path(made))
        return compare(names, folder, Path(made))


def check(names: Sequence[str], folder: Path) -> int:
    """Says how each kind of file and each curve held; the exit status."""
    proofs = made_anew(names, folder)
    for proof in proofs:
        worst = f" ({proof.worst})" if proof.worst else ""
        print(
            f"{'ok' if proof.held else 'FAILED':7}{proof.check}: {proof.comparisons} comparisons, "
            f"largest error {proof.largest_error:.3g}, allowed {proof.tolerance:g}{worst}"
        )
    failed = sum(not proof.held for proof in proofs)
    print(f"{len(proofs) - failed} kinds of files and curves hold, {failed} do not")
    return 1 if failed else 0


EPILOG = """\
Sets up the oracle (torch, and the group oracle of pyproject.toml). fixtures/golden/README.md says
what each file holds. Progress goes to standard error.

Exit status: 0 written, or all the same; 1 some file differs by more than rounding; 2 bad option,
the set-up failed, or a file cannot be read or written."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    about = "Writes the golden files, what the transformers package answers, or checks them."
    parser = script_parser("dev/golden", about, EPILOG)
    names = f"these parts only: {', '.join(PARTS)} (default: all)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    check = "make them anew elsewhere and compare, instead of writing"
    parser.add_argument("--check", action="store_true", help=check)
    folder = "another golden folder than fixtures/golden"
    parser.add_argument("--folder", type=Path, default=GOLDEN_FOLDER, help=folder)
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in PARTS:
            parser.error(f"'{name}': must be one of {', '.join(PARTS)}")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse_options(arguments)
    names = options.names or list(PARTS)
    # sums in one order, whatever the machine's number of processors
    torch.set_num_threads(1)
    if options.check:
        return check(names, options.folder)
    write(names, options.folder)
    print(f"{', '.join(names)}: written to {options.folder}")
    return 0
