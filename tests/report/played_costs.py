"""What cases of a made-up machine cost: the formulas of a LLaMA, and bytes and memory made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tinyllama_tools.core.app import problem_sizes

ELEMENT = 4
PASSES: Mapping[str, tuple[str, ...]] = {
    "embedding": ("forward_backward",),
    "rms_norm": ("forward_backward",),
    "rotary": ("forward_backward",),
    "attention": ("forward_backward",),
    "ffn": ("forward_backward",),
    "block": ("forward_backward",),
    "loss": ("forward_backward",),
    "model": ("forward_loss", "forward_backward"),
    "optimizer": ("update",),
    "full_step": ("train",),
}
OPERATORS = {"full_step": 900.0, "model": 800.0, "block": 200.0, "optimizer": 40.0}


@dataclass(frozen=True)
class Costs:
    """Of one iteration; `memory`: bytes of the peak."""

    parameters: int
    model_flops: int
    elementwise_flops: int
    bytes: int
    memory: int
    operators: float

    def __add__(self, other: Costs) -> Costs:
        return self.plus(other, 1)

    def plus(self, other: Costs, count: int) -> Costs:
        """With `count` of the other; the peak is the larger one's and a part of the others'."""
        return Costs(
            self.parameters + count * other.parameters,
            self.model_flops + count * other.model_flops,
            self.elementwise_flops + count * other.elementwise_flops,
            self.bytes + count * other.bytes,
            self.memory + count * other.memory,
            self.operators + count * other.operators,
        )


class PlayedSize:
    """One problem size at one batch and sequence."""

    def __init__(self, size: str, batch: int, seq: int) -> None:
        of = problem_sizes()[size]
        self.batch, self.seq, self.tokens = batch, seq, batch * seq
        self.hidden, self.layers, self.heads = of["hidden_dim"], of["n_layers"], of["n_heads"]
        self.inner, self.vocab = of["intermediate_dim"], of["vocab_size"]
        self.kv_dim = self.hidden // self.heads * of["n_kv_heads"]

    def _made(self, parameters: int, flops: int, elementwise: int, moved: int) -> Costs:
        """Forward and backward: three times the forward's products."""
        moved = ELEMENT * (moved + 3 * parameters)
        memory = ELEMENT * 4 * parameters + moved // 2 + 2048 * self.batch
        return Costs(parameters, 3 * flops, elementwise, moved, memory, 20.0)

    def part(self, component: str) -> Costs:
        """Of what a step consists of, forward and backward."""
        t, d, f, v = self.tokens, self.hidden, self.inner, self.vocab
        scores = self.batch * self.heads * self.seq * self.seq
        if component == "embedding":
            return self._made(v * d, 0, t * d, 3 * t * d)
        if component == "rms_norm":
            return self._made(d, 0, 8 * t * d, 6 * t * d)
        if component == "rotary":
            return self._made(0, 0, 12 * t * d, 4 * t * d)
        if component == "attention":
            weights = 2 * d * d + 2 * d * self.kv_dim
            flops = 2 * t * weights + 4 * scores * (d // self.heads)
            return self._made(weights, flops, 16 * scores + t * d, 12 * t * d + 6 * scores)
        if component == "ffn":
            return self._made(3 * d * f, 6 * t * d * f, 20 * t * f, 8 * t * f + 6 * t * d)
        assert component == "loss", component
        return self._made(d * v, 2 * t * d * v, 10 * t * v, 4 * t * v + 3 * t * d)

    def parameters(self) -> int:
        """Of the model."""
        return self.model().parameters

    def model(self) -> Costs:
        """Embedding, all layers, final norm, LM head and loss."""
        residuals = Costs(0, 0, 2 * self.tokens * self.hidden, 0, 0, 2.0)
        whole = self.part("embedding").plus(self.part("attention"), self.layers)
        whole = whole.plus(self.part("ffn"), self.layers)
        whole = whole.plus(self.part("rms_norm"), 2 * self.layers + 1) + self.part("loss")
        return whole.plus(residuals, self.layers)

    def case(self, component: str, pass_name: str) -> Costs:
        """Of any case of the suite."""
        if component == "block":
            norms = self.part("rms_norm").plus(self.part("rms_norm"), 1)
            return self.part("attention") + self.part("ffn") + norms
        if component == "model":
            whole = self.model()
            flops = whole.model_flops // (3 if pass_name == "forward_loss" else 1)
            return Costs(
                whole.parameters, flops, whole.elementwise_flops, whole.bytes, whole.memory, 800.0
            )
        if component == "optimizer":
            count = self.parameters()
            return Costs(count, 0, 12 * count, 28 * count, 16 * count, 40.0)
        if component == "full_step":
            whole = self.model() + self.case("optimizer", "update")
            return replace(whole, parameters=self.parameters())
        return self.part(component)
