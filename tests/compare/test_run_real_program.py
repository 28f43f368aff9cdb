"""`compare run` with the built program on both sides."""

from __future__ import annotations

import json
from pathlib import Path

from compare_run import run


def test_the_built_program_is_as_fast_as_itself(bench_program: Path, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    small = {"vocab_size": 50, "hidden_dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
    small |= {"intermediate_dim": 48, "batch": 2, "seq": 8}
    sizes.write_text(json.dumps({"tiny": small}))
    more = [f"--problem-sizes={sizes}", "--slice=1ms", "--components=ffn", "--threads=1"]
    more += ["--passes=forward_backward", "--device=cpu", "--alpha=0.4", "--looks=1"]
    more += ["--margin=0.5"]
    status, cases = run(bench_program, bench_program, tmp_path / "out", *more, quick=False)
    assert status == 0
    ((name, case),) = cases.items()
    assert name == "ffn/forward_backward/baseline/tiny/f32/batch:2/seq:8"
    assert case["outcome"] == "same"
    assert {c["name"] for c in case["counters"]} > {"operators", "allocations", "model_flops"}
    assert not any(c["worse"] for c in case["counters"] if c["exact"])
