"""Training steps as tiny_llama_bench --dry-run predicts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.study.size_predictions import Question, predict

REFUSAL = "predicted peak memory 54.13 GiB exceeds 21.39 GiB (free on the device)"


def case(
    name: str, parameters: int, flops: int, memory: int, reason: str = ""
) -> dict[str, object]:
    return {
        "name": name,
        "parameters": parameters,
        "model_flops": flops,
        "causal_flops": flops,
        "hardware_flops": flops,
        "elementwise_flops": 166107136,
        "bytes": 284166148,
        "predicted_memory_bytes": memory,
        "fits": not reason,
        "reason": reason,
    }


CASES = [
    case("full_step/train/baseline/tiny/f32/batch:8/seq:128", 2873600, 17678991360, 138215688),
    case("ffn/forward/baseline/tiny/f32/batch:8/seq:128", 393216, 805306368, 9437184),
    case("full_step/train/sdpa/large/f32/batch:8/seq:1024", 1300203520, 67 * 10**12, 1, REFUSAL),
]


def program(folder: Path, cases: list[dict[str, object]], status: int = 0) -> Path:
    """Answers with the cases, and writes down what it was asked."""
    document = {"memory_budget_bytes": 1, "memory_budget_source": "made up", "cases": cases}
    path = folder / "bench"
    path.write_text(
        f"#!/bin/sh\necho \"$@\" >{folder}/asked\ncat <<'END'\n{json.dumps(document)}\nEND\n"
        f"echo bad option >&2\nexit {status}\n"
    )
    path.chmod(0o755)
    return path


def test_reads_each_step(tmp_path: Path) -> None:
    tiny, large = predict(Question(("tiny", "large")), program(tmp_path, CASES))
    assert (tiny.size, tiny.variant, tiny.dtype) == ("tiny", "baseline", "f32")
    assert (tiny.batch, tiny.seq, tiny.parameters) == (8, 128, 2873600)
    assert (tiny.step_flops, tiny.step_bytes) == (17678991360, 284166148)
    assert tiny.peak_memory_bytes == 138215688
    assert tiny.fits
    assert (large.variant, large.fits, large.refusal) == ("sdpa", False, REFUSAL)


def test_asks_for_json_of_the_steps_alone(tmp_path: Path) -> None:
    predict(Question(("tiny",), seq=(64, 128), device="cpu"), program(tmp_path, CASES))
    asked = (tmp_path / "asked").read_text().split()
    assert {"--dry-run", "--benchmark_format=json", "--components=full_step"} <= set(asked)
    assert {"--sizes=tiny", "--seq=64,128", "--device=cpu"} <= set(asked)
    assert not [option for option in asked if option.startswith("--batch=")]


def test_a_refused_option_is_told_in_the_programs_words(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"^bad option$"):
        predict(Question(("tiny",)), program(tmp_path, [], 2))


def test_an_answer_without_steps_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no training step"):
        predict(Question(("tiny",)), program(tmp_path, CASES[1:2]))
