"""Options of scripts/peers: which cases they choose, and what is refused."""

import subprocess
from pathlib import Path

import pytest

from tinyllama_tools.data.programs import SuiteCase, SuiteError, SuiteProgram
from tinyllama_tools.peers.command import main, parse_options
from tinyllama_tools.peers.sides import Effort, step_flops


def listed_full_steps(program: Path) -> set[str]:
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    return {n for n in listed.stdout.split() if n.startswith("full_step/train/baseline/")}


def test_default_cases_are_the_default_grid_and_autocast(bench_program: Path) -> None:
    names = {case.name for case in parse_options([]).cases}
    grid = listed_full_steps(bench_program)
    assert {name for name in names if "/amp_" not in name} == grid
    test_points = {f"tiny/amp_bf16/batch:{b}/seq:{s}" for b in (8, 16) for s in (128, 256)}
    autocast = {*test_points, "small/amp_bf16/batch:8/seq:256"}
    assert names - grid == {f"full_step/train/baseline/{point}" for point in autocast}


def test_axes_choose_cases_and_the_smallest_comes_first() -> None:
    options = parse_options(["--sizes=tiny", "--dtypes=bf16,f32", "--batch=8,4", "--seq=64"])
    assert [(c.dtype, c.batch, c.seq) for c in options.cases] == [
        ("f32", 4, 64),
        ("f32", 8, 64),
        ("bf16", 4, 64),
        ("bf16", 8, 64),
    ]


def test_other_options() -> None:
    options = parse_options(
        ["--peers=sdpa", "--variant=qkv+sdpa", "--turns=3", "--steps=2", "--max-seconds-per-case=5"]
    )
    assert (options.forms, options.variants) == (("sdpa",), ("qkv+sdpa",))
    assert options.effort == Effort(3, 2, 5.0)
    assert parse_options(["--quick"]).cases == (SuiteCase("tiny", "f32", 4, 64),)


def test_size_without_a_grid_has_its_own_shape() -> None:
    (case,) = parse_options(["--sizes=medium", "--dtypes=f32"]).cases
    assert (case.batch, case.seq) == (16, 512)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes=huge"], "argument --sizes: size 'huge': must be one of tiny, small"),
        (["--dtypes=f16"], "argument --dtypes: dtype 'f16': must be one of f32, bf16, amp_bf16"),
        (
            ["--peers=jax"],
            "argument --peers: peer 'jax': must be one of eager, sdpa, compile_default",
        ),
        (["--batch=0"], "argument --batch: '0': must be a whole number of 1 or more"),
        (["--seq=1"], "--seq '1': must be at least 2"),
        (["--turns=two"], "argument --turns: 'two': must be a whole number"),
        (["--threads=-1"], "argument --threads: '-1': must be a whole number"),
        (["--variant=../x"], "argument --variant: '../x': must be a name"),
        (
            ["--max-seconds-per-case=inf"],
            "argument --max-seconds-per-case: 'inf': must be a positive",
        ),
        (["--publish=../x"], "argument --publish: '../x': must be letters"),
        (["--publish=here", "--tune"], "--publish: a smoke test or a choice of settings"),
    ],
)
def test_bad_option_is_named_with_what_is_allowed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"scripts/peers: error: {message}" in capsys.readouterr().err


def test_a_folder_is_no_file_for_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out=."]) == 2
    assert capsys.readouterr().err == "scripts/peers: '.': must be a file, not a folder\n"


def test_program_that_does_not_run_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SuiteError("tiny_llama_bench cannot be started: absent")

    monkeypatch.setattr(SuiteProgram, "run", refuse)
    assert main(["--quick"]) == 2
    assert "tiny_llama_bench cannot be started" in capsys.readouterr().err


def test_flops_are_those_of_our_program() -> None:
    # model_flops that tiny_llama_bench reports
    assert step_flops(SuiteCase("tiny", "f32", 8, 128)) == 17678991360
