"""Every matrix product of a training step, with its shape and how often the step runs it.

Counted as the layers of model/ count their cost: a multiply-add is 2 FLOPs, K and V at their
grouped-query width, scores in full, backward = 2 x forward (also for the first layer, whose
input's gradient the embedding needs), the LM head over all positions, and
no product for the embedding look-up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tinyllama_tools.reading.errors import BadInputError

DIMENSIONS = (
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "intermediate_dim",
    "vocab_size",
)
QKV, GATE_UP = "qkv", "gate_up"
SCORES, VALUES = "scores", "values"
LM_HEAD = "lm_head"
# model/loss.cpp, fused_loss_chunk: logits of a chunk, and the fewest tokens of one
CHUNK_LOGITS, FEWEST_TOKENS, TOKENS_STEP = 1 << 19, 256, 64
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"


@dataclass(frozen=True)
class Product:
    """[m, k] x [k, n], `batch` of them at once, `count` times a step. `component`: attention, ffn
    or loss. `role`: the layer and the direction, `q_proj weight gradient`."""

    component: str
    role: str
    count: int
    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Of all of them in a step."""
        return 2 * self.count * self.batch * self.m * self.n * self.k

    @property
    def layer(self) -> str:
        """The role without the direction."""
        return self.role.partition(" ")[0]

    @property
    def direction(self) -> str:
        """`forward`, or which gradient."""
        return self.role.partition(" ")[2]

    @property
    def shape(self) -> str:
        """`1024x256x512`; `32x256x128x64` is 32 of 256x128x64 at once."""
        one = f"{self.m}x{self.n}x{self.k}"
        return one if self.batch == 1 else f"{self.batch}x{one}"


def _checked(size: Mapping[str, int], batch: int, seq: int) -> dict[str, int]:
    found = {name: size.get(name) for name in DIMENSIONS} | {"batch": batch, "seq": seq}
    checked = {}
    for name, value in found.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInputError(
                f"{name} is {value!r}, must be a whole number of 1 or more; correct the size"
            )
        checked[name] = value
    for name, divisor in (("hidden_dim", "n_heads"), ("n_heads", "n_kv_heads")):
        if checked[name] % checked[divisor]:
            raise BadInputError(
                f"{name} {checked[name]} must be a multiple of {divisor} {checked[divisor]}; "
                "correct the size"
            )
    return checked


def _linear(component: str, layer: str, count: int, m: int, n: int, k: int) -> list[Product]:
    """out[m, n] = in[m, k] x weight[n, k]^T, the gradients of in [m, k] and of weight [n, k]."""
    return [
        Product(component, f"{layer} {FORWARD}", count, 1, m, n, k),
        Product(component, f"{layer} {INPUT_GRADIENT}", count, 1, m, k, n),
        Product(component, f"{layer} {WEIGHT_GRADIENT}", count, 1, n, k, m),
    ]


def _attention_core(layers: int, batch: int, queries: int, keys: int, width: int) -> list[Product]:
    """Of B x KV heads at once, the queries of a group stacked: [G S, hd] x [hd, S], and
    probabilities [G S, S] x [S, hd]."""

    def product(role: str, m: int, n: int, k: int) -> Product:
        return Product("attention", role, layers, batch, m, n, k)

    return [
        product(f"{SCORES} {FORWARD}", queries, keys, width),
        product(f"{SCORES} gradient of q", queries, width, keys),
        product(f"{SCORES} gradient of k", keys, width, queries),
        product(f"{VALUES} {FORWARD}", queries, width, keys),
        product(f"{VALUES} gradient of probabilities", queries, keys, width),
        product(f"{VALUES} gradient of v", keys, width, queries),
    ]


def step_products(
    size: Mapping[str, int], batch: int, seq: int, fused: Collection[str] = ()
) -> list[Product]:
    """Of forward and backward of the whole model; their `flops` add up to full_step's model_flops.

    `size`: as in fixtures/problem_sizes.json. `fused`: `qkv` makes one product of q, k and v,
    `gate_up` one of gate and up. BadInputError for a dimension that is missing or impossible.
    """
    dims = _checked(size, batch, seq)
    layers, heads, kv_heads = dims["n_layers"], dims["n_heads"], dims["n_kv_heads"]
    hidden, inner, tokens = dims["hidden_dim"], dims["intermediate_dim"], batch * seq
    width = hidden // heads
    kv_dim = width * kv_heads
    if QKV in fused:
        projections = {"qkv_proj": hidden + 2 * kv_dim}
    else:
        projections = {"q_proj": hidden, "k_proj": kv_dim, "v_proj": kv_dim}
    gates = (
        {"gate_up_proj": 2 * inner}
        if GATE_UP in fused
        else dict.fromkeys(("gate_proj", "up_proj"), inner)
    )
    products = []
    for layer, out in projections.items():
        products += _linear("attention", layer, layers, tokens, out, hidden)
    queries = seq * heads // kv_heads
    products += _attention_core(layers, batch * kv_heads, queries, seq, width)
    products += _linear("attention", "o_proj", layers, tokens, hidden, hidden)
    for layer, out in gates.items():
        products += _linear("ffn", layer, layers, tokens, out, hidden)
    products += _linear("ffn", "down_proj", layers, tokens, hidden, inner)
    products += _linear("loss", LM_HEAD, 1, tokens, dims["vocab_size"], hidden)
    return products


def chunk_of(head: Product, size: Mapping[str, int]) -> Product:
    """The LM head's product as fused_loss runs it: on so many tokens at a time. Its `count` stays,
    so its `flops` are those of one chunk."""
    vocab, hidden = size["vocab_size"], size["hidden_dim"]
    tokens = head.k if head.direction == WEIGHT_GRADIENT else head.m
    chunk = max(FEWEST_TOKENS, CHUNK_LOGITS // vocab // TOKENS_STEP * TOKENS_STEP)
    chunk = min(tokens, chunk)
    shapes = {
        FORWARD: (chunk, vocab, hidden),
        INPUT_GRADIENT: (chunk, hidden, vocab),
        WEIGHT_GRADIENT: (vocab, hidden, chunk),
    }
    m, n, k = shapes[head.direction]
    return replace(head, m=m, n=n, k=k)
