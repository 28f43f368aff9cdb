"""One peer process: times training steps of LlamaForCausalLM and prints their seconds as JSON.

Same choices as our baseline: eager attention, no fused layers, AdamW in a plain loop, gradients set
to none before each step outside the timed region, tokens drawn from the same vocabulary.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from tinyllama_tools.oracle import build_model

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def time_steps(size: dict[str, int], dtype: str, batch: int, seq: int, steps: int) -> list[float]:
    """Seconds of each step after the first, which warms up."""
    model = build_model(size, DTYPES[dtype])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=False)
    tokens = torch.randint(0, size["vocab_size"], (batch, seq))
    seconds = []
    for _ in range(steps + 1):
        optimizer.zero_grad(set_to_none=True)
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def main() -> None:
    """Reads one case from the command line and prints a list of seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", help="dimensions as JSON")
    parser.add_argument("dtype", choices=sorted(DTYPES))
    parser.add_argument("batch", type=int)
    parser.add_argument("seq", type=int)
    parser.add_argument("steps", type=int)
    arguments = parser.parse_args()
    size = json.loads(arguments.size)
    print(
        json.dumps(
            time_steps(size, arguments.dtype, arguments.batch, arguments.seq, arguments.steps)
        )
    )


if __name__ == "__main__":
    main()
