"""--plugin, with libraries as users build them (tests/plugins/, examples/plugin/): those that are
refused, operators that are wrong or harm the process, each with what is said of it, and good ones
in proofs, rows, a served comparison, trainings and ranks."""

import hashlib
import json
import re
import shlex
import shutil
import signal
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_program import JOURNAL, OUT, QUICK, Program, entries_by_case
from jsonschema import Draft202012Validator as Validator

import built_programs
from built_programs import (
    ON_CPU,
    PROJECT_ROOT,
    SMALL_OPTIONS,
    Completed,
    Json,
    built_program,
    environment,
    finish,
    give_up,
    message_of,
    read_journal,
    read_json,
    strict_json,
)
from tinyllama_tools.commands.ranks import free_port

MODEL = [*SMALL_OPTIONS, "--device=cpu", "--batch=2"]
SMALL = [*MODEL, "--threads=1", "--seq=8"]
NORM = "--components=rms_norm"
SLOTS = (
    *("rms_norm", "rms_norm_residual", "rotary", "causal_attention", "swiglu", "linear"),
    *("linear_cross_entropy", "adamw_step_"),
)
COPY = "+".join(f"copy::{slot}" for slot in SLOTS)
RMS_NORM = "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor"
# without what tells builds of it apart
LIBTORCH = version("torch").partition("+")[0]
# of the grid, and beside it the odd ones that plug-ins are proved at
LENGTHS = (128, 5, 33)


def library(name: str) -> str:
    """The option that loads a plug-in of the tests."""
    return f"--plugin={built_program(f'tests/plugins/lib{name}.so')}"


def norm_case(operator: str, seq: int = 8, which_pass: str = "forward") -> str:
    return f"rms_norm/{which_pass}/{operator}/custom/f32/batch:2/seq:{seq}"


def verdicts(completed: Completed) -> dict[str, str]:
    """Of --verify only: what was found, by the case's name."""
    lines = [re.split(r"\s{2,}", line) for line in completed.stdout.splitlines()]
    return {name: verdict for name, _, verdict in lines}


@pytest.fixture(scope="session")
def program(bench_program: Path) -> Program:
    return Program(bench_program)


@pytest.fixture(scope="session")
def operators() -> str:
    """The library with an operator for each fault, and with copies of the model's own."""
    return library("plugin_of_operators")


@pytest.fixture(scope="session")
def stable() -> str:
    """One over libtorch's stable ABI, with a backward beside its operator."""
    if tuple(map(int, LIBTORCH.split(".")[:2])) < (2, 10):
        pytest.skip(f"libtorch {LIBTORCH} registers no operators over its stable ABI: 2.10 does")
    return library("plugin_over_stable_abi")


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of examples/plugin, built as its README says."""
    if not (shutil.which("cmake") and any(map(shutil.which, ("c++", "g++", "clang++")))):
        give_up("no cmake or no C++ compiler")
    build = tmp_path_factory.mktemp("example")
    cache = (PROJECT_ROOT / "build/CMakeCache.txt").read_text(encoding="utf-8")
    # the very libtorch that the programs were built with
    found = re.search(r"^Torch_DIR:\w+=(.+)/Torch$", cache, re.MULTILINE)
    assert found, "build/CMakeCache.txt has no Torch_DIR"
    source = PROJECT_ROOT / "examples/plugin"
    for command in (
        ["cmake", "-S", str(source), "-B", str(build), f"-DCMAKE_PREFIX_PATH={found[1]}"],
        ["cmake", "--build", str(build)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "libmy_ops.so"


# ---- refused before anything is run: exit status 2 and one line


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", ["is no shared library (a file of type ELF)"]),
        ("cut", ["cannot be loaded: "]),
        ("nowhere", ["cannot be read: No such file or directory"]),
        (
            "plugin_of_another_version",
            [
                "undefined symbol: _ZN2at27function_of_another_versionEi",
                f"this program has libtorch {LIBTORCH}, and the library",
            ],
        ),
        ("plugin_without_operator", ["registers no operator"]),
        ("plugin_that_replaces_a_kernel", ["changes the kernels of aten::silu"]),
        ("plugin_of_fast_math", ["changes the processor's mode of floating point"]),
        (
            "plugin_with_another_kernel",
            [
                "cannot register its operators: ",
                "expected schema: stranger::rms_norm(Tensor x, Tensor weight, float eps)",
                "inferred schema: (Tensor _0) -> Tensor",
            ],
        ),
        (
            "plugin_without_slot",
            ["registers stranger::layer_norm, which fill no slot", f"it: {', '.join(SLOTS)}"],
        ),
    ],
)
def test_a_file_that_is_no_plugin_is_refused(
    program: Program, train_program: Path, tmp_path: Path, name: str, expected: list[str]
) -> None:
    file = tmp_path / f"lib{name}.so"
    if name.startswith("plugin_"):
        file = Path(library(name).partition("=")[2])
    elif name == "text":
        file.write_text("TORCH_LIBRARY(my, library) {}\n")
    elif name == "cut":
        whole = Path(library("plugin_without_operator").partition("=")[2]).read_bytes()
        file.write_bytes(whole[:100])
    for refusing in (program, built_programs.Program(train_program)):
        message = message_of(refusing.run(f"--plugin={file}"))
        assert message.startswith(f"--plugin: plug-in {file}: ")
        assert [part for part in expected if part not in message] == []


# a variant, and what the message has to say, with | between
REFUSED = f"""\
other_schema::rms_norm  other_schema::rms_norm(Tensor x, Tensor weight) -> Tensor | {RMS_NORM}
other_backward::rms_norm  its argument 'rstd' of type Tensor | gradient, x, weight, eps, output
other_backward::rms_norm  {RMS_NORM}
forward_only::rms_norm  has no gradients | forward_only::rms_norm_backward
absent::rms_norm  is not registered | --plugin
right::layer_norm  fills no slot | rms_norm, rms_norm_residual, rotary
right::rms_norm+copy::rms_norm  both fill rms_norm
fused_norm+copy::rms_norm  fused_norm and copy::rms_norm exclude each other
plugin  both fill rms_norm
"""


@pytest.mark.parametrize("line", REFUSED.splitlines())
def test_an_operator_that_cannot_fill_a_slot_is_refused(
    program: Program, operators: str, line: str
) -> None:
    variant, _, parts = line.partition("  ")
    message = message_of(program.run(operators, f"--variants={variant}", *SMALL))
    assert message.startswith("--variants: ")
    assert [part for part in parts.split(" | ") if part not in message] == []


def test_the_set_of_all_operators_needs_a_plugin(program: Program) -> None:
    message = message_of(program.run("--variants=baseline,optimized+plugin", *SMALL))
    assert "variant 'optimized+plugin'" in message and "--plugin FILE, and none" in message


# ---- wrong, or harmful to what runs beside: a failure of the case, and all others run

CHANGED = "the work changed what other cases depend on: "
# an operator, and what is said of forward and of forward_backward at every length but where noted
FAULTS = {
    # which of its tensors is named is a matter of tolerances
    "zeros": ("wrong result: output", "wrong result: "),
    "cached": ("with new inputs at the same addresses: wrong result", ""),
    "odd": ("wrong result: output", "wrong result: output"),
    "cut": ("no gradient would reach hidden_states", "'gradient of hidden_states' was not comp"),
    "other_shape": ("result 'output' is Float [", ""),
    "other_type": ("result 'output' is Double [2, ",) * 2,
    "throws": ("this kernel wants rows of 12 and got 32",) * 2,
    "throws_number": ("something was thrown that is no std::exception",) * 2,
    "hoards": ("out of memory: CPU memory: no room for",) * 2,
    "sets_threads": (CHANGED + "threads: 2, now 1",) * 2,
    "stops_recording": (CHANGED + "autograd records: true, now false",) * 2,
    "sets_type": (CHANGED + "default type: Float, now Double",) * 2,
    "draws": (CHANGED + "state of the default random generator",) * 2,
}


@pytest.fixture(scope="session")
def proof_of_faults(program: Program, operators: str) -> Completed:
    """All of them in one process, and a right one and the baseline last. With two threads, so that
    an operator that asks for one changes something."""
    names = [f"{name}::rms_norm" for name in [*FAULTS, "no_cpu", "right"]]
    variants = f"--variants={','.join(names)},baseline"
    passes = "--passes=forward,forward_backward"
    choice = [*MODEL, "--threads=2", variants, NORM, passes, "--memory-limit=300MiB"]
    return program.run(operators, *choice, "--verify=only")


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_operator_fails(proof_of_faults: Completed, name: str) -> None:
    """Without --seq odd lengths are proved too."""
    assert proof_of_faults.returncode == 1, proof_of_faults.stderr
    found = verdicts(proof_of_faults)
    for which_pass, fault in zip(("forward", "forward_backward"), FAULTS[name], strict=True):
        for seq in LENGTHS:
            verdict = found[norm_case(f"{name}::rms_norm", seq, which_pass)]
            if name == "odd" and seq % 2 == 0:
                assert verdict == "proved"
            else:
                assert verdict.startswith("FAILED: ") and fault in verdict


def test_others_are_proved_beside_wrong_ones(proof_of_faults: Completed) -> None:
    found = verdicts(proof_of_faults)
    for seq in LENGTHS:
        for which_pass in ("forward", "forward_backward"):
            for operator in ("baseline", "right::rms_norm"):
                assert found[norm_case(operator, seq, which_pass)] == "proved"
            absent = found[norm_case("no_cpu::rms_norm", seq, which_pass)]
            assert absent == "skipped: no_cpu::rms_norm: has no CPU kernel"


def test_an_operator_that_ends_the_process_is_named(program: Program, operators: str) -> None:
    choice = ["--variants=exits::rms_norm,baseline", *SMALL, NORM, "--passes=forward"]
    completed = program.run(operators, *choice, "--verify=only")
    assert completed.returncode == 1
    assert norm_case("exits::rms_norm") in completed.stderr


def test_an_operator_without_a_kernel_for_the_device_is_no_failure(
    program: Program, operators: str
) -> None:
    choice = ["--variants=no_cpu::rms_norm", *SMALL, NORM, "--verify=only"]
    assert program.run(operators, *choice).returncode == 0


# ---- crashes and hangs end the process


def advised(completed: Completed, case: str) -> list[str]:
    """The options that the message about the case names, with which the run can be continued."""
    (line,) = [text for text in completed.stderr.splitlines() if text.startswith(f"{case}: ")]
    _, words = re.split(r"leave (?:this one|this case) out with ", line)
    return shlex.split(words)


@pytest.mark.parametrize("fault", ["crashes", "hangs"])
def test_what_ends_the_process_is_named_and_the_rest_can_be_run(
    program: Program, operators: str, tmp_path: Path, fault: str
) -> None:
    bad, before, after = (norm_case(f"{name}::rms_norm") for name in (fault, "right", "copy"))
    variants = f"--variants=right::rms_norm,{fault}::rms_norm,copy::rms_norm"
    choice = [operators, variants, *SMALL, NORM, "--passes=forward", "--hang-limit=2", *QUICK]
    out, journal = tmp_path / OUT, tmp_path / JOURNAL
    written = [f"--benchmark_out={out}", f"--journal={journal}"]
    completed = program.run(*choice, *written)
    options = advised(completed, bad)
    ended = [before] if fault == "crashes" else [before, bad]
    assert [line["case"] for line in read_journal(journal)[1:]] == ended
    if fault == "crashes":
        assert completed.returncode == -signal.SIGSEGV
        assert "ended the process, in the code of a plug-in or because of it" in completed.stderr
    else:
        assert completed.returncode == 1
        reason = "has not ended after 2 s (--hang-limit)"
        assert reason in completed.stderr
        rows = entries_by_case(read_json(out))
        assert list(rows) == ended
        assert rows[bad][0]["error_message"] == reason
    assert options[:3] == ["--resume", "--journal", str(journal)]
    resumed = program.run(*choice, written[0], *options)
    assert resumed.returncode == 0, resumed.stderr
    assert re.findall(r"^\[\d+/\d+\] (\S+)", resumed.stderr, re.MULTILINE) == [after]
    assert list(entries_by_case(read_json(out))) == [before, after]


@pytest.mark.parametrize("fault", ["crashes", "hangs"])
def test_what_ends_a_proof_is_named_behind_what_was_proved(
    program: Program, operators: str, fault: str
) -> None:
    variants = f"--variants=right::rms_norm,{fault}::rms_norm"
    choice = [operators, variants, *SMALL, NORM, "--passes=forward", "--hang-limit=2"]
    completed = program.run(*choice, "--verify=only")
    assert completed.returncode == (-signal.SIGSEGV if fault == "crashes" else 1)
    assert verdicts(completed) == {norm_case("right::rms_norm"): "proved"}
    (pattern,) = advised(completed, norm_case(f"{fault}::rms_norm"))
    rest = program.run(*choice, "--verify=only", pattern)
    assert (rest.returncode, list(verdicts(rest).values())) == (0, ["proved"])


# ---- good ones


def test_copies_of_all_operations_are_proved_in_every_component(
    program: Program, operators: str
) -> None:
    """Also where a block's activations are computed again, and under autocast."""
    variants = f"--variants={COPY},checkpoint+{COPY}"
    choice = [variants, *SMALL, "--dtypes=f32,bf16,amp_bf16", "--verify=only"]
    completed = program.run(operators, *choice)
    assert completed.returncode == 0, completed.stderr
    found = verdicts(completed)
    assert set(found.values()) == {"proved"}
    assert {name.split("/")[0] for name in found} == {
        *("rms_norm", "rotary", "attention", "ffn", "block", "loss", "model", "optimizer"),
        "full_step",
    }
    # all passes of a component, in each type and both variants
    assert len([name for name in found if name.startswith("rms_norm/")]) == 3 * 3 * 2


def test_a_plugin_alone_is_proved_where_it_changes_something(program: Program, stable: str) -> None:
    """And over libtorch's stable ABI: what is listed and what is proved without --variants."""
    names = program.names(stable, *SMALL)
    cases = {tuple(name.split("/")[:3]) for name in names if not name.startswith("peak/")}
    assert {component for component, _, _ in cases} == {"rms_norm", "block", "model", "full_step"}
    operator = "stable::rms_norm"
    assert {variant for *_, variant in cases} == {
        *("baseline", "optimized", operator, f"optimized+{operator}")
    }
    proved = program.run(
        stable, *MODEL, "--threads=1", "--components=rms_norm,full_step", "--verify=only"
    )
    assert proved.returncode == 0, proved.stderr
    found = verdicts(proved)
    assert set(found.values()) == {"proved"}
    assert {name.split("/")[2] for name in found} == {operator, f"optimized+{operator}"}
    assert {name.split("/seq:")[1] for name in found} == {str(seq) for seq in LENGTHS}


def test_the_set_stands_for_the_operators_of_all_plugins(
    program: Program, example: Path, stable: str
) -> None:
    variants = "--variants=plugin,optimized+plugin,checkpoint+plugin"
    names = program.names(f"--plugin={example}", variants, *SMALL, "--components=block")
    assert {name.split("/")[2] for name in names} == {
        *("my::rms_norm", "optimized+my::rms_norm", "checkpoint+my::rms_norm")
    }
    message = message_of(program.run(f"--plugin={example}", stable, "--variants=plugin", *SMALL))
    assert "my::rms_norm and stable::rms_norm both fill rms_norm" in message


def test_the_operator_of_the_example_is_proved(program: Program, example: Path) -> None:
    dtypes, components = "--dtypes=f32,bf16,f16,amp_bf16", "--components=rms_norm,block,full_step"
    completed = program.run(f"--plugin={example}", *SMALL, dtypes, components, "--verify=only")
    assert completed.returncode == 0, completed.stderr
    found = verdicts(completed)
    assert set(found.values()) == {"proved"}
    assert {tuple(name.split("/")[:2]) for name in found} >= {
        *(("rms_norm", "forward"), ("rms_norm", "backward"), ("full_step", "train"))
    }


class MeasuredRun(NamedTuple):
    """Of the example's operator and of one that has no Meta kernel."""

    result: Json
    cases: dict[str, list[Json]]
    files: list[Path]
    stdout: str
    folder: Path


@pytest.fixture(scope="session")
def measured(
    program: Program, operators: str, example: Path, tmp_path_factory: pytest.TempPathFactory
) -> MeasuredRun:
    folder = tmp_path_factory.mktemp("measured")
    variants = "--variants=right::rms_norm,my::rms_norm,optimized+my::rms_norm"
    choice = [f"--plugin={example}", operators, variants, *SMALL, NORM]
    kept = [f"--journal={folder / JOURNAL}", f"--trace={folder}"]
    completed, result = program.measure(folder / OUT, *choice, *kept)
    files = [example, Path(operators.partition("=")[2])]
    return MeasuredRun(result, entries_by_case(result), files, completed.stdout, folder)


def test_results_name_the_plugins_and_are_of_the_schema(measured: MeasuredRun) -> None:
    """Rows without a prediction too."""
    errors = Validator(read_json(PROJECT_ROOT / "results/schema.json")).iter_errors(measured.result)
    assert [error.message[:200] for error in errors] == []
    found = {plugin["file"]: plugin for plugin in measured.result["context"]["plugins"]}
    assert list(found) == [file.name for file in measured.files]
    for file in measured.files:
        assert found[file.name]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert found["libmy_ops.so"]["operators"] == ["my::rms_norm"]
    assert {f"copy::{slot}" for slot in SLOTS} <= {*found[measured.files[1].name]["operators"]}


def test_memory_is_measured_where_there_is_no_meta_kernel(measured: MeasuredRun) -> None:
    reason = "right::rms_norm has no Meta kernel: memory was measured, not predicted"
    for name, (row, *_) in measured.cases.items():
        assert row["peak_memory_MiB"] > 0
        assert ("predicted_memory_MiB" in row) == ("my::" in name)
        assert (reason in row["label"]) == ("right::" in name)


@pytest.mark.parametrize("which_pass", ["forward", "backward", "forward_backward"])
def test_memory_of_the_example_is_as_predicted(measured: MeasuredRun, which_pass: str) -> None:
    for name in ("my::rms_norm", "optimized+my::rms_norm"):
        row, *_ = measured.cases[norm_case(name, which_pass=which_pass)]
        assert row["predicted_memory_MiB"] == row["peak_memory_MiB"]


def test_a_label_spells_out_what_stands_beside_the_operator(measured: MeasuredRun) -> None:
    name = "optimized+my::rms_norm"
    label = measured.cases[norm_case(name)][0]["label"]
    switches = re.search(rf"{re.escape(name)} = (\S+)", label)
    assert switches
    beside = switches[1].rstrip(";").split("+")
    assert beside[-1] == "my::rms_norm"
    assert {"fused_swiglu", "fused_adamw"} <= {*beside} and "fused_norm" not in beside


def test_a_table_does_not_take_an_operator_for_the_baseline(measured: MeasuredRun) -> None:
    assert "= baseline" not in measured.stdout


def test_a_trace_shows_the_operator_and_its_backward(measured: MeasuredRun) -> None:
    name = norm_case("my::rms_norm", which_pass="forward_backward")
    trace = read_json(
        measured.folder / (name.replace("::", "--").replace("/", ".").replace(":", "-") + ".json")
    )
    events = {event.get("name") for event in trace["traceEvents"]}
    assert {"my::rms_norm", "my::rms_norm_backward"} <= events


def test_a_run_is_not_continued_with_another_library(
    measured: MeasuredRun, program: Program, operators: str, tmp_path: Path
) -> None:
    """Of the same name and operators, and without it."""
    other = shutil.copy(measured.files[0], tmp_path)
    with Path(other).open("ab") as file:
        file.write(b"another build")
    variants = "--variants=my::rms_norm,right::rms_norm"
    resume = [*QUICK, f"--journal={measured.folder / JOURNAL}", "--resume"]
    for plugins, expected in (
        ([f"--plugin={other}", operators], "was written with plugins/0/sha256 = "),
        ([operators], "was written with plugins"),
    ):
        chosen = variants if len(plugins) > 1 else "--variants=right::rms_norm"
        message = message_of(program.run(*plugins, chosen, *SMALL, NORM, *resume))
        assert expected in message and "must not be mixed" in message


def test_a_plugin_is_served(program: Program, operators: str) -> None:
    good, bad = norm_case("copy::rms_norm"), norm_case("throws::rms_norm")
    variants = "--variants=copy::rms_norm,throws::rms_norm"
    requests = [
        {"do": "open", "case": good, "verify": True, "meter": True},
        {"do": "time", "case": good, "seconds": 0.001},
        {"do": "close", "case": good},
        {"do": "open", "case": bad, "verify": True},
    ]
    options = [operators, variants, *SMALL, NORM, "--passes=forward"]
    process = program.start("--serve", *options, stdin=subprocess.PIPE)
    assert process.stdin
    process.stdin.writelines(f"{json.dumps(request)}\n" for request in requests)
    done = finish(process)
    assert done.returncode == 0, done.stderr
    greeting, opened, timed, closed, failed = map(strict_json, done.stdout.splitlines())
    assert greeting["cases"] == [good, bad]
    assert [plugin["file"] for plugin in greeting["context"]["plugins"]] == [
        "libplugin_of_operators.so"
    ]
    assert opened["max_rel_error"] < 1e-5 and opened["counters"]["peak_memory_MiB"] > 0
    assert timed["seconds"] and closed == {"closed": good}
    assert failed == {"failed": "this kernel wants rows of 12 and got 32"}


def trained(train_program: Path, operators: str, folder: Path, variant: str) -> Completed:
    size = ["--batch-size=2", "--seq-len=8", "--num-steps=5", "--learning-rate=0.01"]
    chosen = [operators, f"--variant={variant}", f"--output-dir={folder}"]
    return built_programs.Program(train_program).run(*SMALL_OPTIONS, *ON_CPU, *size, *chosen)


@pytest.mark.parametrize("variant", ["copy::swiglu", COPY])
def test_a_training_with_a_plugin_has_the_losses_of_the_baseline(
    train_program: Path, operators: str, tmp_path: Path, variant: str
) -> None:
    losses: dict[str, list[float]] = {}
    for name in ("baseline", variant):
        completed = trained(train_program, operators, tmp_path, name)
        assert completed.returncode == 0, completed.stderr
        summary = read_json(tmp_path / "performance_summary.json")
        assert summary["configuration"]["variant"] == name
        losses[name] = [step["loss"] for step in summary["steps"]]
    assert losses[variant] == pytest.approx(losses["baseline"], rel=1e-5)
    assert len(losses[variant]) == 5 and losses[variant][-1] < losses[variant][0] - 0.1


def test_a_training_ends_with_what_a_plugin_throws(
    train_program: Path, operators: str, tmp_path: Path
) -> None:
    completed = trained(train_program, operators, tmp_path, "throws::rms_norm")
    assert completed.returncode in {1, 2}
    (line,) = completed.stderr.splitlines()
    assert line.startswith("tiny_llama_train: ") and "wants rows of 12 and got 32" in line


@pytest.mark.parametrize("variant", ["copy::swiglu", COPY])
def test_ranks_step_with_a_plugin_and_name_it(operators: str, tmp_path: Path, variant: str) -> None:
    """One rank; what a training says of its plug-ins: tests/training."""
    scaling, out = Program(built_program("benchmarks/tiny_llama_scaling")), tmp_path / OUT
    size = [*SMALL_OPTIONS, *ON_CPU, "--batch=2", "--seq=8"]
    few = ["--components=full_step", "--rounds=2", "--min-time=0.01"]
    chosen = [operators, f"--variant={variant}", f"--benchmark_out={out}"]
    completed = scaling.run(*size, *few, *chosen)
    assert completed.returncode == 0, completed.stderr
    assert "proved: gradients within" in completed.stderr
    result, file = read_json(out), Path(operators.partition("=")[2])
    names = {row["run_name"] for row in result["benchmarks"]}
    assert names and all(name.startswith(f"full_step/train/{variant}/custom/") for name in names)
    found = {plugin["file"]: plugin["sha256"] for plugin in result["context"].get("plugins", [])}
    assert found == {file.name: hashlib.sha256(file.read_bytes()).hexdigest()}


def test_ranks_refuse_to_step_with_different_libraries(example: Path, tmp_path: Path) -> None:
    scaling = Program(built_program("benchmarks/tiny_llama_scaling"))
    other = shutil.copy(example, tmp_path)
    with Path(other).open("ab") as file:
        file.write(b"another build")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        scaling.start(
            *(f"--plugin={plugin}", "--variant=my::rms_norm", *SMALL_OPTIONS, *ON_CPU),
            *("--batch=2", "--seq=8", "--components=full_step", "--rounds=2", "--min-time=0.01"),
            env=environment(**place, RANK=str(rank), LOCAL_RANK=str(rank)),
        )
        for rank, plugin in enumerate((example, other))
    ]
    for completed in map(finish, ranks):
        assert "must be the same on all ranks" in message_of(completed)
        for plugin in (example, other):
            assert hashlib.sha256(Path(plugin).read_bytes()).hexdigest() in completed.stderr
