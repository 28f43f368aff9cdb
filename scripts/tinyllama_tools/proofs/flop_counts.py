"""fixtures/golden/flops.json: FLOPs as torch's own counter counts them."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.proofs.golden_cases import DIMENSIONS
from tinyllama_tools.proofs.oracle import Size, head_dim_of, make_portable, new_model

# FLOPs of the model as torch's own counter counts them: FlopCounterMode looks at the shapes of the
# GEMMs that are really dispatched, forward and backward, on the meta device, where tensors have
# shapes and no values.
# n_heads, n_kv_heads: as many, grouped by 2, 4 and 8, a single one
HEADS = "1,1 2,2 2,1 4,4 4,2 4,1 8,8 8,4 8,2 8,1 16,4"
# Each is gone through in turn; the lengths share no divisor, so values do not pair up.
AXES = {
    "vocab_size": (31, 64, 77, 90, 101, 200, 257),
    "n_layers": (1, 2, 3),
    "intermediate_dim": (43, 64, 85, 129, 171),
    "batch": (1, 2, 3, 4),
    "seq": (2, 7, 16, 33, 64, 5, 31, 48, 17, 12, 63, 3, 20),
}


def small_sizes() -> dict[str, dict[str, int]]:
    """44 sizes by name, without features."""
    sizes = {}
    for i, (hidden_dim, heads) in enumerate(product((32, 64, 96, 128), HEADS.split())):
        n_heads, n_kv_heads = map(int, heads.split(","))
        size = {name: values[i % len(values)] for name, values in AXES.items()}
        size |= {"hidden_dim": hidden_dim, "n_heads": n_heads, "n_kv_heads": n_kv_heads}
        sizes[f"grid_{i:02d}"] = {name: size[name] for name in DIMENSIONS}
    return sizes


# What features change FLOPs, and what they must leave as it is: biases and norms are no matrix
# multiplications, and a tied table is multiplied by as an untied one.
_SMALL_HEADS = {"n_heads": 4, "n_kv_heads": 2}
_FEATURE_GRID: dict[str, dict[str, Any]] = {
    "head_dim": {**_SMALL_HEADS, "own_head_dim": 24, "model_type": "mistral"},
    "narrow_heads": {"n_heads": 5, "n_kv_heads": 1, "own_head_dim": 10, "hidden_dim": 77},
    "window": {**_SMALL_HEADS, "sliding_window": 4, "model_type": "mistral"},
    "window_of_1": {**_SMALL_HEADS, "sliding_window": 1, "seq": 7, "model_type": "mistral"},
    "window_of_all": {**_SMALL_HEADS, "sliding_window": 13, "model_type": "mistral"},
    "wide_window": {**_SMALL_HEADS, "sliding_window": 500, "model_type": "mistral"},
    "window_and_head_dim": {
        **{"n_heads": 3, "n_kv_heads": 3, "own_head_dim": 40, "seq": 31, "sliding_window": 17},
        **{"model_type": "qwen3", "qk_norm": True},
    },
    "tied": {**_SMALL_HEADS, "tied_embeddings": True},
    "qkv_bias": {**_SMALL_HEADS, "qkv_bias": True, "model_type": "qwen2"},
    "biases": {**_SMALL_HEADS, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "qk_norm": {**_SMALL_HEADS, "qk_norm": True, "model_type": "qwen3"},
}


def sizes_with_features() -> dict[str, dict[str, Any]]:
    """By name; dimensions and features."""
    plain = dict(zip(DIMENSIONS, (37, 64, 2, 4, 2, 43, 2, 13), strict=True))
    return {f"grid_{name}": plain | features for name, features in _FEATURE_GRID.items()}


Outputs = tuple[torch.Tensor, ...]
# FLOPs by component, then by pass.
Flops = dict[str, dict[str, int]]


def backward(outputs: Outputs) -> None:
    """The backward pass of all outputs at once, from gradients of ones."""
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


class ComponentCounter:
    """Counts one model's components at one shape."""

    def __init__(self, size: Size) -> None:
        self.size = size
        with torch.device("meta"):
            self.model = new_model(size)
        # as ours, and unlike the package's, it multiplies no angles in a forward
        rotary = make_portable(self.model, size["seq"]).model.rotary_emb
        shape = (size["batch"], size["seq"])
        self.tokens = torch.zeros(shape, dtype=torch.int64, device="meta")
        self.angles = rotary(self.hidden_states(), self.tokens)
        self.mask = torch.zeros((1, 1, size["seq"], size["seq"]), device="meta")

    def hidden_states(self, *shape: int) -> torch.Tensor:
        """A new input that requires gradients, [B, S, D] unless a shape is given."""
        shape = shape or (*self.tokens.shape, self.size["hidden_dim"])
        return torch.ones(shape, device="meta", requires_grad=True)

    def heads(self, kind: str) -> torch.Tensor:
        """Queries or keys, [B, heads, S, head_dim]."""
        batch, seq = self.tokens.shape
        return self.hidden_states(batch, self.size[kind], seq, head_dim_of(self.model.config))

    def run_model(self) -> Outputs:
        return (self.model(input_ids=self.tokens, labels=self.tokens).loss,)

    def components(self) -> dict[str, Callable[[], Outputs]]:
        """How each component is called; a call makes its inputs anew."""
        decoder = self.model.model
        layer = decoder.layers[0]
        rest = {"position_embeddings": self.angles, "attention_mask": self.mask}
        return {
            "embedding": lambda: (decoder.embed_tokens(self.tokens),),
            "rms_norm": lambda: (decoder.norm(self.hidden_states()),),
            "rotary": lambda: apply_rotary_pos_emb(
                self.heads("n_heads"), self.heads("n_kv_heads"), *self.angles
            ),
            "attention": lambda: (layer.self_attn(self.hidden_states(), **rest)[0],),
            "ffn": lambda: (layer.mlp(self.hidden_states()),),
            "block": lambda: (layer(self.hidden_states(), **rest),),
            "loss": lambda: (
                self.model.loss_function(
                    self.model.lm_head(self.hidden_states()), self.tokens, self.size["vocab_size"]
                ),
            ),
            "model": self.run_model,
        }

    def by_operator(self, work: Callable[[], object]) -> dict[str, int]:
        """FLOPs of one call by operator, e.g. aten.bmm."""
        with FlopCounterMode(display=False) as counter:
            work()
        counts = counter.get_flop_counts().get("Global", {})
        return {str(packet): count for packet, count in counts.items()}

    def counted(self, work: Callable[[], object]) -> int:
        """FLOPs of one call."""
        return sum(self.by_operator(work).values())

    def passes(self, call: Callable[[], Outputs]) -> dict[str, int]:
        forward = self.counted(call)
        return {"forward": forward, "backward": self.counted(lambda: backward(call())) - forward}

    def attention_scores(self) -> dict[str, int]:
        """FLOPs of queries times keys and of scores times values, and of those what the mask
        hides."""
        batched = self.by_operator(self.components()["attention"])["aten.bmm"]
        hidden, pairs = masked_pairs(self.model, self.size["seq"])
        masked, remainder = divmod(batched * hidden, pairs)
        if remainder:
            raise RuntimeError(f"{batched} FLOPs are not a multiple of {pairs} pairs")
        return {"forward": batched, "masked_forward": masked}

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        backward(self.run_model())
        optimizer.step()

    def count(self) -> Flops:
        """Every component and pass; fixtures/golden/README.md says what each figure is."""
        flops: Flops = {name: self.passes(call) for name, call in self.components().items()}
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False, fused=False)
        return flops | {
            "attention_scores": self.attention_scores(),
            "full_step": {"train": self.counted(lambda: self.step(optimizer))},
            "optimizer": {"update": self.counted(optimizer.step)},
        }


def masked_pairs(model: PreTrainedModel, seq: int) -> tuple[int, int]:
    """Pairs of a query and a key position that the model's mask hides, and all of them.

    Counted in the mask that the model itself makes, so that no formula of ours is involved. It is
    made on the CPU: on the meta device it would have no values.
    """
    windowed = getattr(model.config, "sliding_window", None) is not None
    make = create_sliding_window_causal_mask if windowed else create_causal_mask
    mask = make(
        config=model.config,
        input_embeds=torch.empty(1, seq, 1),
        attention_mask=None,
        cache_position=torch.arange(seq),
        past_key_values=None,
    )
    return int(torch.count_nonzero(mask)), mask.numel()


def flops_json() -> str:
    """The content of flops.json, one line a configuration."""
    sizes = small_sizes() | sizes_with_features() | problem_sizes()
    document = {
        "torch": torch.__version__.split("+")[0],
        "configurations": [
            {"name": name, **size, "flops": ComponentCounter(size).count()}
            for name, size in sizes.items()
        ],
    }
    return compact_json(document, expanded=("configurations",))
