"""One rank's share of a model, as tiny_llama_bench measures it: every component proved, what is
counted beside it, and what is refused."""

import json
from pathlib import Path

import pytest
from cli_program import BASELINE, COMPONENTS, QUICK, Program
from jsonschema import Draft202012Validator as Validator

from built_programs import ON_CPU, PROJECT_ROOT, Json, message_of, read_json

# 8 heads, 4 KV heads: with 8 ranks each KV head is on two
MODEL = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 6,
    "vocab_size": 30,
    "tie_word_embeddings": True,
}
CHOICE = ["--batch=2", "--seq=7", "--dtypes=f32,bf16,amp_bf16", *ON_CPU]


@pytest.fixture
def program(bench_program: Path) -> Program:
    return Program(bench_program)


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL), encoding="utf-8")
    return f"--config={file}"


@pytest.mark.parametrize("ranks", ["tensor-parallel=2", "tensor-parallel=8", "pipeline-parallel=2"])
def test_every_component_of_a_share_is_proved(program: Program, model: str, ranks: str) -> None:
    completed = program.run(model, *CHOICE, f"--{ranks}", "--verify=only", timeout=300)
    lines = completed.stdout.splitlines()
    unproved = [line for line in lines if not line.endswith("  proved")]
    assert all("fused_loss computes the LM head's gradients" in line for line in unproved), unproved
    assert completed.returncode == 0, completed.stderr
    found = dict.fromkeys(line.split("/")[0] for line in lines)
    is_stage = ranks.startswith("pipeline")
    absent = {"model", "full_step"} if is_stage else {"stage"}
    assert set(found) == {*COMPONENTS, "stage"} - absent
    suffix = "-pp2" if is_stage else "-tp" + ranks[-1]
    assert all(f"/custom{suffix}/" in line for line in lines)


def test_a_stage_has_no_loss_and_a_whole_model_is_no_stage(program: Program) -> None:
    """Named components are skipped with a reason."""
    named = ["--sizes=tiny", BASELINE, *ON_CPU, "--components=stage,full_step", "--dry-run"]
    whole = program.run(*named).stdout
    assert "no: a stage is of a pipeline: --pipeline-parallel N" in whole
    stage = program.run(*named, "--pipeline-parallel=2").stdout
    assert "no: a stage between others of a pipeline has neither embedding nor loss" in stage


def test_what_a_share_communicates_is_in_the_results(program: Program, tmp_path: Path) -> None:
    share = ["--sizes=tiny", "--tensor-parallel=2", "--pipeline-parallel=2", "--batch=1"]
    chosen = ["--seq=8", "--components=stage,optimizer", BASELINE, "--passes=forward,update"]
    out = tmp_path / "out.json"
    completed, result = program.measure(out, *share, *chosen, *ON_CPU)
    Validator(read_json(PROJECT_ROOT / "results/schema.json")).validate(result)
    rows: dict[str, Json] = {}
    for row in result["benchmarks"]:
        rows.setdefault(row["run_name"].split("/")[0], row)
    hidden_states = 8 * 256 * 4
    # Two layers with two all-reduces each, and the states of 8 tokens in and out.
    assert rows["stage"]["comm_calls"] == 2 * 2 + 2
    assert rows["stage"]["comm_bytes"] == 6 * hidden_states
    assert "comm_calls" not in rows["optimizer"]
    size = result["context"]["sizes"]["tiny-tp2-pp2"]
    assert (size["n_layers"], size["n_heads"], size["n_kv_heads"]) == (2, 4, 2)
    assert (size["vocab_size"], size["whole_vocab"], size["head_dim"]) == (500, 1000, 32)
    assert size["only_layers"] is True
    # A layer: two norms; Q and O, K and V of half the heads; half the feed-forward network.
    layer = 2 * 256 + 2 * 256 * 128 + 2 * 256 * 64 + 3 * 256 * 256
    assert rows["optimizer"]["parameters"] == rows["stage"]["parameters"] == 2 * layer
    assert completed.returncode == 0


def test_the_block_of_a_rank_of_eight_of_a_70b_model_fits(program: Program) -> None:
    """The whole step of one rank does not, and its communication is counted."""
    share = ["--sizes=llama-3.1-70b", "--tensor-parallel=8", "--components=block,full_step"]
    asked = ["--dry-run", "--benchmark_format=json", "--dtypes=bf16", BASELINE, *ON_CPU]
    limit = "--memory-limit=24GiB"
    document = json.loads(program.run(*share, *asked, limit).stdout)
    fits = {case["name"].split("/")[0]: case["fits"] for case in document["cases"]}
    assert fits == {"block": True, "full_step": False}
    step = document["cases"][-1]
    assert step["comm_calls"] == 80 * 4 + 1 + 3 + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tensor-parallel=3", "--tensor-parallel 3: must divide n_heads = 8, but 8 % 3 = 2"),
        ("--tensor-parallel=16", "must divide n_heads = 8"),
        ("--pipeline-parallel=5", "--pipeline-parallel 5: must be at most n_layers = 4 (size tiny"),
        ("--tensor-parallel=0", "--tensor-parallel"),
        ("--tensor-parallel=x", "--tensor-parallel"),
    ],
)
def test_a_share_that_is_none_is_refused(program: Program, options: str, message: str) -> None:
    refused = program.run(*QUICK, "--sizes=tiny", options, *ON_CPU)
    assert message in message_of(refused)
    assert refused.stdout == ""
