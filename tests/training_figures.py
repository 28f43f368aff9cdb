"""The made-up machine that tests/fake_training.py plays: its times follow from FLOPs and bytes.

Nothing here was measured. A change of batch, sequence, size or variant changes every figure as it
would on a machine with one speed, one bandwidth and one cost of a launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from tinyllama_tools.core.app import problem_sizes

FLOPS_PER_SECOND = 100e9
BYTES_PER_SECOND = 20e9
SECONDS_PER_LAUNCH = 20e-6
PEAK_FLOPS = 250e9
PEAK_BANDWIDTH = 40e9
FIRST_STEP = 3.0
OPERATOR_PROFILER, MEMORY_PROFILER = 1.10, 1.05
# What a variant does to a component's time.
VARIANT_TIME = {
    "qkv": {"attention/qkv_proj": 0.6},
    "gate_up": {"ffn/gate_up_proj": 0.75},
    "sdpa": {"attention/core": 0.5},
    "fused_adamw": {"optimizer": 0.4},
}
SETS = {
    "baseline": (),
    "fused": ("qkv", "gate_up", "sdpa"),
    "optimized": ("qkv", "gate_up", "sdpa", "fused_adamw"),
}
PRODUCTS = (
    "attention/qkv_proj",
    "attention/o_proj",
    "ffn/gate_up_proj",
    "ffn/down_proj",
    "loss/lm_head",
)


@dataclass(frozen=True)
class Part:
    """Work of one step in one component, forward; backward is twice that but for the optimizer."""

    flops: float
    bytes: float
    launches: int
    parameters: int = 0


@dataclass(frozen=True)
class Figures:
    """What a step of a configuration costs on the made-up machine."""

    batch: int = 8
    seq: int = 128
    size: str = "tiny"
    variant: str = "baseline"
    dimensions: dict[str, int] = field(default_factory=dict)

    @cached_property
    def dims(self) -> dict[str, int]:
        """Of the model."""
        return problem_sizes().get(self.size, problem_sizes()["tiny"]) | self.dimensions

    @cached_property
    def parameters(self) -> int:
        """Of the model; tiny has 2,873,600."""
        dims = self.dims
        return sum(p.parameters for p in self.parts.values()) + dims["hidden_dim"] * (
            2 * dims["n_layers"] + 1
        )

    @cached_property
    def parts(self) -> dict[str, Part]:
        """By component path."""
        dims, tokens = self.dims, self.batch * self.seq
        d, layers = dims["hidden_dim"], dims["n_layers"]
        kv = d // dims["n_heads"] * dims["n_kv_heads"]
        wide, vocab = dims["intermediate_dim"], dims["vocab_size"]
        scores = 4 * self.batch * dims["n_heads"] * self.seq**2

        def product(rows: int, columns: int, count: int, repeats: int) -> Part:
            moved = 4 * (tokens * (rows + columns) + rows * columns)
            return Part(
                2 * tokens * rows * columns * repeats,
                moved * repeats,
                count * repeats,
                rows * columns * repeats,
            )

        def elementwise(width: float, count: int) -> Part:
            return Part(0, 4 * tokens * width * layers, count * layers)

        return {
            "embedding": Part(0, 8 * tokens * d, 1, vocab * d),
            "rms_norm": elementwise(6 * d, 10),
            "attention/qkv_proj": product(d, d + 2 * kv, 3, layers),
            "attention/rotary": elementwise(4 * (d + kv), 16),
            "attention/core": Part(
                4 * tokens * self.seq * d * layers,
                (5 * scores + 16 * tokens * d) * layers,
                7 * layers,
            ),
            "attention/o_proj": product(d, d, 1, layers),
            "ffn/gate_up_proj": product(d, 2 * wide, 2, layers),
            "ffn/swiglu": elementwise(5 * wide, 2),
            "ffn/down_proj": product(wide, d, 1, layers),
            "loss/lm_head": product(d, vocab, 1, 1),
            "loss/cross_entropy": Part(0, 12 * tokens * vocab, 4),
            "residual": elementwise(3 * d, 2),
        }

    @cached_property
    def seconds(self) -> dict[str, tuple[float, float]]:
        """Forward and backward of each component in a step; the optimizer's under forward."""
        times = {}
        for name, part in self.parts.items():
            work = part.flops / FLOPS_PER_SECOND + part.bytes / BYTES_PER_SECOND
            forward = (work + part.launches * SECONDS_PER_LAUNCH) * self._factor(name)
            times[name] = (forward, 2 * forward)
        launches = 6 * SECONDS_PER_LAUNCH * (9 * self.dims["n_layers"] + 3)
        update = 28 * self.parameters / BYTES_PER_SECOND + launches
        times["optimizer"] = (update * self._factor("optimizer"), 0.0)
        return times

    @cached_property
    def launches(self) -> int:
        """Operators of a step."""
        model = sum(3 * part.launches for part in self.parts.values())
        return model + 6 * (9 * self.dims["n_layers"] + 3)

    @cached_property
    def flops(self) -> float:
        """Of a step: backward is twice the forward."""
        return sum(3 * part.flops for part in self.parts.values())

    @cached_property
    def bytes(self) -> float:
        """Of a step."""
        return sum(3 * part.bytes for part in self.parts.values()) + 28 * self.parameters

    @cached_property
    def step_seconds(self) -> float:
        """Without a profiler, data loading and the rest included."""
        return sum(f + b for f, b in self.seconds.values()) + self.data_loading + self.other

    data_loading: float = 2e-4
    other: float = 3e-4

    @cached_property
    def activation_bytes(self) -> dict[str, int]:
        """Alive at the end of the forward, by component."""
        return {name: int(0.5 * part.bytes) for name, part in self.parts.items()}

    @cached_property
    def peak_bytes(self) -> int:
        """Parameters, gradients and two moments, and what the forward keeps."""
        return 16 * self.parameters + sum(self.activation_bytes.values())

    def _factor(self, name: str) -> float:
        switches = SETS.get(self.variant, tuple(self.variant.split("+")))
        factor = 1.0
        for switch in switches:
            factor *= VARIANT_TIME.get(switch, {}).get(name, 1.0)
        return factor
