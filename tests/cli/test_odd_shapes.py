"""Odd shapes of published families' models: every component, pass and switch is proved over a
seeded sample of them, or skipped for a reason that holds at that shape."""

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_program import COMPONENTS, ON_CPU, Program

# The lengths share no divisor: within 140 shapes every value meets every other one.
SEQUENCES = (1, 2, 3, 13, 7, 31, 17)
# None: hidden_size / num_attention_heads, with what divides it
HEAD_DIMS = (40, 80, 96, 256, None)
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
HEADS = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4), (9, 3))
ODD_VOCABULARY, SMALL_VOCABULARIES = 32_003, (11, 13, 17, 31)
# all sequences, head dimensions and families; the rest is for --long
QUICK, ALL = 7, 40
# of the one with the odd vocabulary, which takes longest: all that it changes
WITH_VOCABULARY = ("embedding", "loss")
VOCABULARY_AT = 4


@dataclass(frozen=True)
class Shape:
    config: dict[str, Any]
    seq: int
    components: tuple[str, ...]

    @property
    def window(self) -> int | None:
        return self.config.get("sliding_window")


def drawn_shape(index: int) -> Shape:
    """A family's config.json: sequence, head_dim and family in turn, features by a seed."""
    draw = random.Random(index)
    seq, head_dim = SEQUENCES[index % len(SEQUENCES)], HEAD_DIMS[index % len(HEAD_DIMS)]
    family = FAMILIES[index % len(FAMILIES)]
    heads, kv_heads = draw.choice(HEADS if head_dim != 256 else HEADS[:4])
    has_odd_vocabulary = index % 11 == VOCABULARY_AT
    hidden = draw.choice((33, 48, 65)) if head_dim else heads * draw.choice((2, 4, 6, 10))
    vocabulary = ODD_VOCABULARY if has_odd_vocabulary else draw.choice(SMALL_VOCABULARIES)
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        # With two, full_step's new inputs leave some families (biases, norms of q and k) gradients
        # of k that nearly cancel: the gate takes their rounding for an error.
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        # qwen3's is 128 where it is left out
        "head_dim": head_dim or hidden // heads,
        "intermediate_size": draw.choice((5, 13, 19)),
        "rms_norm_eps": draw.choice((1e-5, 1e-6)),
        "rope_theta": draw.choice((10000.0, 500000.0, 1e6)),
        "tie_word_embeddings": draw.random() < 0.5,
        "pad_token_id": draw.choice((None, draw.randrange(vocabulary))),
        "rope_scaling": draw.choice((None, linear_scaling(draw), llama3_scaling(draw))),
    }
    if family in ("llama", "qwen3"):
        config["attention_bias"] = draw.random() < 0.5
    if family == "llama":
        config["mlp_bias"] = draw.random() < 0.5
    windows = (seq + 3, max(1, seq // 2), seq, 1)
    window = windows[index // len(FAMILIES) % len(windows)]
    if family == "mistral":
        config["sliding_window"] = window
    elif family != "llama" and draw.random() < 0.5:
        config |= {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    few = has_odd_vocabulary and index < QUICK
    return Shape(config, seq, WITH_VOCABULARY if few else tuple(COMPONENTS))


def linear_scaling(draw: random.Random) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": draw.choice((2.0, 4.0))}


def llama3_scaling(draw: random.Random) -> dict[str, Any]:
    factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    original = {"original_max_position_embeddings": draw.choice((16, 64))}
    return {"rope_type": "llama3", **factors, **original}


LINE = re.compile(
    r"(?P<component>\w+)/(?P<pass_>\w+)/(?P<variant>\w+)/[^/]+/(?P<dtype>\w+)/\S+\s+"
    r"\S+ of \S+ allowed  (?P<verdict>.+)"
)


def expected_reason(row: re.Match[str], seq: int) -> str:
    """Why the case cannot be run at any shape, or at this one; empty where it must be proved."""
    component, pass_, variant = row["component"], row["pass_"], row["variant"]
    if variant == "graph":
        return "graph: only a GPU captures its work; this is a CPU"
    if variant == "wide_gemm" and row["dtype"] == "f32":
        return "wide_gemm: f32 is not narrower than float32"
    has_loss = component in ("loss", "full_step") or (component == "model" and pass_ != "forward")
    if seq == 1 and has_loss:
        return "seq = 1: the next-token loss needs at least 2 tokens a sample"
    one_pass = component in ("loss", "model") and pass_ == "backward"
    if one_pass and variant in ("fused_loss", "optimized"):
        return "fused_loss computes the LM head's gradients in the forward: time forward_backward"
    return ""


def unproved(lines: Iterable[str], seq: int) -> list[str]:
    """The lines of --verify only that say neither that the case is proved nor why it has to be
    skipped."""
    wrong = []
    for line in lines:
        row = LINE.fullmatch(line)
        reason = expected_reason(row, seq) if row else ""
        if not row or row["verdict"] != (f"skipped: {reason}" if reason else "proved"):
            wrong.append(line)
    return wrong


@pytest.fixture(scope="session")
def variants(bench_program: Path) -> str:
    """The baseline, every switch and the chosen set, as the program names them."""
    refused = Program(bench_program).run("--variants=none", "--list").stderr
    found = re.search(r"switches joined by '\+': ([\w, ]+);", refused)
    assert found, refused
    switches = found[1].split(", ")
    assert len(switches) > 12
    return ",".join(["baseline", *switches, "optimized"])


def long(index: int) -> Any:  # noqa: ANN401
    return pytest.param(index, marks=pytest.mark.long)


@pytest.mark.parametrize("index", [*range(QUICK), *map(long, range(QUICK, ALL))])
def test_every_component_pass_and_switch_is_proved(
    bench_program: Path, variants: str, tmp_path: Path, index: int
) -> None:
    shape = drawn_shape(index)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(shape.config, indent=2))
    # norms of q and k answer in another type than v under autocast
    dtypes = "f32,bf16,amp_bf16" if shape.config["model_type"] == "qwen3" else "f32,bf16"
    choice = [f"--config={config}", f"--variants={variants}", f"--dtypes={dtypes}", "--batch=1"]
    # components that are named bring switches that change nothing in them
    others = "|".join(name for name in COMPONENTS if name not in shape.components)
    choice += [f"--seq={shape.seq}", *ON_CPU, *([f"--exclude=^({others})/"] if others else [])]
    program = Program(bench_program)
    # on a busy machine a case may be predicted to take long
    only = ["--verify=only", "--max-seconds-per-case=1000"]
    completed = program.run(*choice, *only, timeout=1200)
    lines = completed.stdout.splitlines()
    assert unproved(lines, shape.seq) == [], shape.config
    assert completed.returncode == 0, completed.stderr
    names = [name for name in program.names(*choice) if not name.startswith("peak/")]
    assert [line.split()[0] for line in lines] == names
    assert {name.split("/")[0] for name in names} == set(shape.components)
    if not others:
        assert {name.split("/")[2] for name in names} == set(variants.split(","))


def test_the_sample_holds_what_it_is_for() -> None:
    shapes = [drawn_shape(index) for index in range(ALL)]
    assert {shape.seq for shape in shapes[:QUICK]} == set(SEQUENCES)
    quick = [shape.config for shape in shapes[:QUICK]]
    assert {c["head_dim"] for c in quick} > set(HEAD_DIMS) - {None}
    assert {c["model_type"] for c in quick} == set(FAMILIES)
    assert ODD_VOCABULARY in {c["vocab_size"] for c in quick}
    configs = [shape.config for shape in shapes]
    for key in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
        assert {c[key] for c in configs if key in c} == {True, False}, key
    assert {(c["rope_scaling"] or {}).get("rope_type") for c in configs} == {
        None,
        "linear",
        "llama3",
    }
    assert {c["pad_token_id"] is None for c in configs} == {True, False}
    windows = {(s.window > s.seq) - (s.window < s.seq) for s in shapes if s.window}
    assert windows == {-1, 0, 1}
    heads = {(c["num_attention_heads"], c["num_key_value_heads"]) for c in configs}
    assert len(heads) >= 7 and any(a > b > 1 for a, b in heads)
    odd = [c for c, s in zip(configs, shapes, strict=True) if c["vocab_size"] == ODD_VOCABULARY]
    assert len(odd) >= 3 and sum(s.components == tuple(COMPONENTS) for s in shapes) == ALL - 1


def test_what_is_not_proved_and_a_reason_that_does_not_hold_are_found() -> None:
    case = "loss/forward/baseline/custom/f32/batch:1/seq:7   0.00e+00 of 0.00e+00 allowed  "
    no_loss = "skipped: seq = 1: the next-token loss needs at least 2 tokens a sample"
    assert unproved([case + "proved"], 7) == []
    assert unproved([case + no_loss], 1) == []
    for line, seq in (
        (case + no_loss, 7),
        (case + "proved", 1),
        (case + "NOT PROVED", 7),
        ("?", 7),
    ):
        assert unproved([line], seq) == [line]
