"""Which gradients travel together, for sizes that nobody has run.

The same rule as benchmarks/distributed/gradient_reducer.cpp: parameters in the reverse of their
order in the model, cut where the next one would make a bucket larger than asked for; the first
bucket holds 1 MiB at most, and a larger parameter has a bucket of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

MIB = 2**20
FIRST_BUCKET_BYTES = MIB
# of a gradient, which has its parameter's type (docs of --dtypes)
BYTES = {"f32": 4, "amp_bf16": 4, "amp_f16": 4, "bf16": 2, "f16": 2}


def _layer(of: Mapping[str, int]) -> Iterator[int]:
    """Norm, Q, K, V, O, norm, gate, up, down, as model/block.cpp names them."""
    hidden, inner = of["hidden_dim"], of["intermediate_dim"]
    key_value = hidden // of["n_heads"] * of["n_kv_heads"]
    yield from (hidden, hidden * hidden, hidden * key_value, hidden * key_value, hidden * hidden)
    yield from (hidden, hidden * inner, hidden * inner, hidden * inner)


def parameter_counts(of: Mapping[str, int]) -> list[int]:
    """Numbers in each parameter of a problem size, in the order of the model: embedding, layers,
    final norm, LM head."""
    table = of["vocab_size"] * of["hidden_dim"]
    layers = [count for _ in range(of["n_layers"]) for count in _layer(of)]
    return [table, *layers, of["hidden_dim"], table]


def plan_buckets(sizes: list[int], bucket_bytes: float) -> list[int]:
    """Bytes of each bucket in the order in which a backward fills them. `sizes`: bytes of each
    gradient in the order of the model."""
    buckets: list[int] = []
    for size in reversed(sizes):
        is_first = len(buckets) <= 1
        limit = min(FIRST_BUCKET_BYTES, bucket_bytes) if is_first else bucket_bytes
        if buckets and buckets[-1] + size <= limit:
            buckets[-1] += size
        else:
            buckets.append(size)
    return buckets


def buckets_of(of: Mapping[str, int], dtype: str, bucket_bytes: float) -> list[int]:
    """Of a problem size in a dtype; the last one is only ready when the backward ends."""
    return plan_buckets([BYTES[dtype] * count for count in parameter_counts(of)], bucket_bytes)
