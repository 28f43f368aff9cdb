"""Bad options: one line that names the option, the value and the rule, and exit status 2."""

import time

import pytest
from cli_program import RUN, SMALL, SMALL_MODEL, Program, message_of

NUMBERS = "write numbers as 8 or 4,8,16"
ONE_OF = "must be one of "

# options; what the message has to say
BAD_OPTIONS = {
    "unknown option": ("--frobnicate", "--frobnicate", "known options: "),
    "stray word": ("frobnicate", "frobnicate", "known options: "),
    "unknown component": ("--components=ffn,nose", "--components 'nose'", ONE_OF + "embedding"),
    "empty component": ("--components=ffn,", "--components 'ffn,'", "empty name"),
    "option without value": ("--components", "--components", "required"),
    "unknown pass": ("--passes=sideways", "'sideways'", ONE_OF + "forward, backward"),
    "unknown variant": ("--variants=magic", "'magic'", "must be baseline, fused, optimized"),
    "unknown switch": ("--variants=qkv+magic", "'qkv+magic'", "joined by '+': qkv, gate_up"),
    "switches that exclude": ("--variants=sdpa+fused_attention", "sdpa", "exclude each other"),
    "set of no fixed switches": ("--variants=optimized+qkv", "optimized", "stands alone"),
    "unknown size": ("--sizes=tiny,huge", "--sizes 'huge'", ONE_OF + "tiny, small"),
    "custom without dimensions": ("--sizes=custom", "--sizes 'custom'", "needs --hidden-dim"),
    "unknown dtype": ("--dtypes=f8", "--dtypes 'f8'", ONE_OF + "f32, bf16"),
    "internal dtype": ("--dtypes=f64", "--dtypes 'f64'", ONE_OF + "f32, bf16"),
    "batch of zero": ("--batch=0", "--batch '0'", "not at least 1"),
    "negative batch": ("--batch=-4", "--batch '-4'", "not at least 1"),
    "hole in a list": ("--batch=4,,8", "--batch '4,,8'", NUMBERS),
    "list of words": ("--seq=long", "--seq 'long'", NUMBERS),
    "fraction": ("--seq=1.5", "--seq '1.5'", NUMBERS),
    "number beyond 64 bits": ("--seq=99999999999999999999", "--seq '9999", NUMBERS),
    "range backwards": ("--seq=64:32:*2", "--seq '64:32:*2'", "the last value is below the first"),
    "factor of one": ("--seq=64:128:*1", "--seq '64:128:*1'", "at least 2"),
    "unknown step": ("--seq=64:128:/2", "--seq '64:128:/2'", NUMBERS),
    "range without step": ("--seq=64:128", "--seq '64:128'", NUMBERS),
    "endless range": ("--seq=1:999999:+1", "--seq '1:999999:+1'", "more than 1000 values"),
    "sequence beyond the largest": ("--seq=9999999", "seq = 9999999", "must be between 1 and"),
    "unknown unit": ("--memory-limit=8Gigs", "--memory-limit '8Gigs'", "8GiB, 512MiB"),
    "negative memory": ("--memory-limit=-1GiB", "--memory-limit '-1GiB'", "at least 1 byte"),
    "empty memory": ("--memory-limit=", "--memory-limit", ""),
    "zero threads": ("--threads=0", "--threads 0", "must be between 1 and"),
    "threads in words": ("--threads=two", "--threads", "two"),
    "seed in words": ("--seed=lucky", "--seed", "lucky"),
    "negative seed": ("--seed=-1", "--seed", "-1"),
    "unknown verify": ("--verify=later", "--verify 'later'", ONE_OF + "before, only, off"),
    "no seconds": ("--max-seconds-per-case=0", "--max-seconds-per-case 0", "must be positive"),
    "nan seconds": ("--max-seconds-per-case=nan", "--max-seconds-per-case nan", "must be positive"),
    "resume of nothing": ("--resume", "--resume", "needs --journal FILE"),
    "unclosed regex": ("--benchmark_filter=(", "--benchmark_filter '('", "regular expression"),
    "unclosed bracket": ("--benchmark_filter=[a", "--benchmark_filter '[a'", "regular expression"),
    "bad negative regex": ("--benchmark_filter=-(", "--benchmark_filter '-('", "regular expr"),
    "filter without value": ("--benchmark_filter", "--benchmark_filter", "=VALUE"),
    "filter that keeps nothing": ("--benchmark_filter=zzz", "--benchmark_filter 'zzz'", "no case"),
    "csv on stdout": ("--benchmark_format=csv", "--benchmark_format 'csv'", "console or json"),
    "csv in the file": ("--benchmark_out_format=csv", "--benchmark_out_format 'csv'", "be json"),
    "result file without name": ("--benchmark_out=", "--benchmark_out", "=VALUE"),
}

BAD_MODELS = {
    "heads that do not divide": (["--hidden-dim=30"], "n_heads = 8", "must divide hidden_dim = 30"),
    "kv heads that do not divide": (["--n-kv-heads=3"], "n_kv_heads = 3", "must divide n_heads"),
    "odd head": (["--hidden-dim=24"], "hidden_dim / n_heads = 24 / 8", "must be even"),
    "no layers": (["--n-layers=0"], "n_layers = 0", "must be between 1 and"),
    "negative width": (["--hidden-dim=-64"], "hidden_dim = -64", "must be between 1 and"),
    "negative vocabulary": (["--vocab-size=-1"], "vocab_size = -1", "must be between 1 and"),
    "huge width": (["--intermediate-dim=9999999999"], "intermediate_dim = 9999999999", "between"),
    "model in words": (["--n-heads=many"], "--n-heads", "many"),
    "too many FLOPs": (["--hidden-dim=1048576", "--n-layers=1048576"], "n_layers = 1", "4e18"),
}

BAD_DEVICES = {
    "cuda": "no such device",
    "hip": "no such device",
    "cuda:1": "no such device",
    "cuda:x": "not a device number",
    "hip:-1": "not a device number",
    "tpu": "unknown kind of device",
    "cpu:1": "only a GPU has a number",
}

# flags that Google Benchmark knows or does not know, with values that it cannot use
BAD_BENCHMARK_FLAGS = [
    "--benchmark_frobnicate=1",
    "--benchmark_frobnicate",
    "--benchmark_repetitions=three",
    "--benchmark_repetitions=-1",
    "--benchmark_repetitions=0",
    "--benchmark_min_time=soon",
    "--benchmark_min_time=0x",
    "--benchmark_min_time=-1x",
    "--benchmark_min_time=-1s",
    "--benchmark_time_unit=years",
    "--benchmark_context=no_equals_sign",
]


@pytest.mark.parametrize("case", BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_bad_option_is_refused(program: Program, case: tuple[str, ...]) -> None:
    argument, *parts = case
    message = message_of(program.run("--list", argument))
    for part in parts:
        assert part in message


@pytest.mark.parametrize("case", BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_bad_custom_model_is_refused(program: Program, case: tuple[list[str], str, str]) -> None:
    arguments, *parts = case
    message = message_of(program.run(*arguments, "--list"))
    for part in parts:
        assert part in message


@pytest.mark.parametrize("device", BAD_DEVICES)
@pytest.mark.parametrize("mode", ["--describe-device", "--dry-run"])
def test_absent_device_is_refused(program: Program, device: str, mode: str) -> None:
    best = program.run("--describe-device").stdout
    if device in {"cuda", "hip", "cuda:1"} and '"backend":"cpu"' not in best:
        pytest.skip("there is a GPU here")
    message = message_of(program.run(*SMALL, f"--device={device}", mode))
    for part in ("device", f'"{device}"', BAD_DEVICES[device], "allowed: auto, cpu, cuda"):
        assert part in message


def test_absent_device_is_refused_before_anything_is_measured(program: Program) -> None:
    completed = program.run(*SMALL, "--device=cpu:7")
    message_of(completed)
    assert completed.stdout == ""
    assert "measured peak" not in completed.stderr


@pytest.mark.parametrize("flag", BAD_BENCHMARK_FLAGS)
def test_bad_benchmark_flag_is_refused(program: Program, flag: str) -> None:
    choice = ["--components=embedding", "--passes=forward"]
    started = time.monotonic()
    completed = program.run(*SMALL, *RUN, *choice, flag, timeout=30)
    message = message_of(completed)
    assert flag.split("=")[0] in message
    assert flag.partition("=")[2] in message
    assert "measured peak" not in completed.stderr, f"after {time.monotonic() - started:.1f} s"


@pytest.mark.parametrize("mode", ["--list", "--dry-run"])
def test_bad_benchmark_flag_is_refused_where_nothing_runs(program: Program, mode: str) -> None:
    message = message_of(program.run(*SMALL, *RUN, "--benchmark_frobnicate=1", mode))
    assert "--benchmark_frobnicate=1" in message


@pytest.mark.parametrize("file", ["--journal=j.jsonl", "--benchmark_out=r.json"])
def test_proof_alone_has_no_results_to_write(program: Program, file: str) -> None:
    message = message_of(program.run(*SMALL, *RUN, "--verify=only", file))
    assert "--verify only: times nothing" in message


def test_options_given_twice_are_refused(program: Program) -> None:
    message = message_of(program.run(*SMALL_MODEL, "--n-heads=2", "--list"))
    assert "--n-heads" in message
