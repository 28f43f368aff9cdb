"""What the workshop's text says about each optimisation: the columns that are not measured.

From reference/exercise_3_bottlenecks.md (bottleneck assessment, roadmap of version 2, priority
order), reference/workshop_walkthrough.md 5.5 (memory) and the quick wins of
reference/profiling_summary_component_benchmark.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Roadmap:
    """A switch in the workshop's words. `effort` and `expected` are empty where it says nothing."""

    switch: str
    what: str
    category: str
    effort: str = ""
    expected: str = ""

    @property
    def is_low_effort(self) -> bool | None:
        """Low-Medium counts as low; None where the workshop names no effort."""
        if not self.effort:
            return None
        return self.effort in {"Very low", "Low", "Low-Medium"}


KERNEL_FUSION = "Kernel Fusion (phase 1)"
# The order is that of a variant's name.
ROADMAP = (
    Roadmap("qkv", "one projection for Q, K, V", "QKV Projections", "Low-Medium", "1.2-1.5x"),
    Roadmap("gate_up", "one projection for gate and up", "SwiGLU Gate/Up", "Low", "1.1-1.3x"),
    Roadmap("fused_swiglu", "SiLU x up in one pass", "SwiGLU Gate/Up", "Low", "1.1-1.3x"),
    Roadmap("sdpa", "library attention", "Attention Computation", "Medium", "1.3-2.0x"),
    Roadmap(
        "fused_attention",
        "our own causal attention in tiles",
        "Softmax Operations",
        "Medium-High",
        "1.2-1.8x",
    ),
    Roadmap("fused_norm", "RMSNorm and residual in one pass", KERNEL_FUSION, "", "1.4-1.8x"),
    Roadmap("fused_rotary", "rotary embedding in one pass", KERNEL_FUSION, "", "1.4-1.8x"),
    Roadmap(
        "fused_loss",
        "LM head and loss by chunks of tokens",
        "Memory Fragmentation",
        "Medium",
        "1.1-1.4x",
    ),
    Roadmap("foreach_adamw", "AdamW over lists of tensors", "Fused optimizer", "Low", "1.1-1.2x"),
    Roadmap("fused_adamw", "AdamW in one pass", "Fused optimizer", "Low", "1.1-1.2x"),
    Roadmap(
        "checkpoint",
        "a block's activations computed again",
        "Gradient Checkpointing",
        "",
        "20-30 % slower, activations / 2-4",
    ),
    Roadmap("onednn", "float32 GEMMs through oneDNN (CPU)", "Library (not in the workshop)"),
    Roadmap("wide_gemm", "narrow products in float32 (CPU)", "Library (not in the workshop)"),
    Roadmap(
        "graph",
        "the whole step captured and replayed (GPU)",
        "Kernel Launch Overhead",
        "Medium-High",
        "1.5-3.0x",
    ),
    Roadmap("layout", "weights in the products' layout", "Memory Layout (phase 3)", "", "1.1-1.3x"),
)
SWITCHES = tuple(entry.switch for entry in ROADMAP)
BY_SWITCH = {entry.switch: entry for entry in ROADMAP}

# The workshop's version 2 and what its roadmap promises in all.
EXPECTED_OF_SETS = {
    "fused": "1.5-2.0x (version 2)",
    "optimized": "2.0-3.0x (optimistic target)",
}
COMPILE = Roadmap("torch.compile", "automatic fusion", "Torch Compile", "Very low", "variable")
MIXED_PRECISION = "1.1-1.3x (phase 3), memory / 2"
BATCH_SCALING = "1.2-1.5x from a larger batch"

# Step 3 of its memory exercise: sequence and batch of each line.
MEMORY_EXERCISE = ((64, 8), (128, 8), (256, 8), (512, 4))
# Gate of version 2: throughput improved by more than 30 %.
THROUGHPUT_GATE = 1.3


def expected_of(row: str) -> str:
    """The workshop's promise for a row; empty where it makes none."""
    if row in BY_SWITCH:
        return BY_SWITCH[row].expected
    return EXPECTED_OF_SETS.get(row, "")
