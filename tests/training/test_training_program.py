"""tiny_llama_train, run as a user would: its options and bad input, the files of a run and their
schema, figures, and how it ends."""

import hashlib
import re
import signal
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator as Validator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_tb_profiler import io
from torch_tb_profiler.profiler import RunLoader

import built_programs
from built_programs import (
    ON_CPU,
    PROJECT_ROOT,
    SMALL_MODEL,
    Completed,
    FinishedRun,
    Json,
    built_program,
    finish,
    message_of,
    read_json,
    wait_until,
)
from tinyllama_tools.data.profiles import read_profile

SUMMARY = "performance_summary.json"
SMALL_BATCH = {"--batch-size": "2", "--seq-len": "8"}
STEP_LINE = re.compile(
    r"Step (?P<step>\d+)/(?P<steps>\d+): Loss = (?P<loss>\S+), Time = (?P<time>[\d.]+) seconds, "
    r"Memory = (?P<memory>\d+) MB(?P<profiling> \[PROFILING\])?"
)


def small(**changes: str | int | Path) -> list[str]:
    """Options of the small model; the program refuses an option that is given twice."""
    named = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return [*ON_CPU, *[f"{k}={v}" for k, v in (SMALL_MODEL | SMALL_BATCH | named).items()]]


class Program(built_programs.Program):
    """The built tiny_llama_train."""

    def trained(self, folder: Path, *arguments: str | Path) -> Json:
        """The summary of a run that must go well."""
        completed = self.run(*arguments, f"--output-dir={folder}")
        assert completed.returncode == 0, completed.stderr
        return read_json(folder / SUMMARY)


def step_lines(stdout: str) -> list[re.Match[str]]:
    """Every line of a step; fails on one that has another form."""
    lines = [line for line in stdout.splitlines() if line.startswith("Step ")]
    found = [STEP_LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    return [match for match in found if match]


def losses(summary: Json) -> list[float]:
    return [step["loss"] for step in summary["steps"]]


def files_below(folder: Path) -> set[str]:
    """Names of all files, hidden ones included, relative to the folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def whole_summary(folder: Path) -> Json:
    """Fails unless what it lists is there, nothing is half written, and all JSON can be parsed."""
    summary, there = read_json(folder / SUMMARY), files_below(folder)
    assert set(summary["files"]) <= there
    assert not [name for name in there if ".tmp" in name or Path(name).name.startswith(".")]
    for name in there:
        if name.endswith(".json"):
            read_json(folder / name)
    return summary


@pytest.fixture(scope="session")
def program(train_program: Path) -> Program:
    return Program(train_program)


@pytest.fixture(scope="session")
def validator() -> Validator:
    """Of performance_summary.json."""
    return Validator(read_json(PROJECT_ROOT / "results/training_schema.json"))


def finished(program: Program, folder: Path, *options: str) -> FinishedRun:
    completed = program.run(*small(num_steps=12), *options, f"--profile-dir={folder}")
    assert completed.returncode == 0, completed.stderr
    return FinishedRun(completed, folder, whole_summary(folder))


@pytest.fixture(scope="session")
def profiled_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """With the operator profiler and the memory profiler."""
    options = ["--enable-pytorch-profiler", "--profile-memory", "--profile-operators"]
    return finished(program, tmp_path_factory.mktemp("profiled"), *options, "--profile-stacks")


@pytest.fixture(scope="session")
def flops_run(program: Program, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """With the FLOPS profiler; measuring the peaks takes seconds."""
    return finished(program, tmp_path_factory.mktemp("flops"), "--enable-deepspeed-flops")


# ---- options, bad input and the set-up check

# What a run's configuration says of an option that differs from every default.
RECORDED: dict[str, str | int] = {
    **{"batch_size": 3, "seq_len": 10, "num_steps": 4, "gradient_accumulation_steps": 2},
    **{"dtype": "bf16", "variant": "qkv+sdpa", "seed": 7, "hidden_dim": 48, "n_layers": 3},
    **{"n_heads": 6, "n_kv_heads": 3, "intermediate_dim": 20, "vocab_size": 77},
}


def test_the_configuration_records_what_was_asked_for(program: Program, tmp_path: Path) -> None:
    options = small(**RECORDED, learning_rate="0.002", eval_interval=2, eval_iters=3)
    summary = program.trained(tmp_path, *options)
    expected = RECORDED | {"size": "custom", "deterministic": False, "data": "synthetic"}
    expected |= {"learning_rate": 0.002, "switches": "qkv+sdpa"}
    assert {name: summary["configuration"][name] for name in expected} == expected
    assert summary["context"]["threads"] == 1


def test_a_plug_in_is_in_the_context(
    program: Program, validator: Validator, tmp_path: Path
) -> None:
    library = built_program("tests/plugins/libplugin_of_operators.so")
    options = small(plugin=library, variant="copy::rms_norm", num_steps=2)
    summary = program.trained(tmp_path, *options)
    (known,) = summary["context"]["plugins"]
    assert (known["file"], "copy::rms_norm" in known["operators"]) == (library.name, True)
    assert known["sha256"] == hashlib.sha256(library.read_bytes()).hexdigest()
    assert list(validator.iter_errors(summary)) == []
    asked = {"variant": "copy::rms_norm", "switches": "copy::rms_norm"}
    assert summary["configuration"] | asked == summary["configuration"]


# An option of each part of the program that refuses, with the test's folder in place of {}, and how
# the message begins; more in train_options_test.cpp and token_data_test.cpp.
REFUSED = """\
--nonsense                       '--nonsense': is no option; known options: --help, --batch-size
--variant=graph                  --variant 'graph'
--device=tpu                     device "tpu": unknown kind of device
--batch-size=9223372036854775807 batch = 9223372036854775807: must be between
--data={}/empty                  --data: {}/empty: is empty (0 bytes); name a file with text in it
--weights={}/w                   --weights: {}/w: there is no such folder: name a folder with
--output-dir={}/empty/below      --output-dir '{}/empty/below': must be a folder that can be written
--save-weights={}/empty/below    --save-weights '{}/empty/below': must be a folder that can be
"""


@pytest.mark.parametrize("line", REFUSED.splitlines())
def test_what_is_refused_leaves_nothing(program: Program, tmp_path: Path, line: str) -> None:
    (tmp_path / "empty").touch()
    option, message = line.replace("{}", str(tmp_path)).split(maxsplit=1)
    name = option.partition("=")[0]
    model = ON_CPU if name == "--weights" else small(num_steps=1)
    kept = [text for text in model if text.partition("=")[0] != name]
    completed = program.run(*kept, option, cwd=tmp_path)
    assert message_of(completed).startswith(message)
    assert "Step 1/" not in completed.stdout
    assert files_below(tmp_path) == {"empty"} and (tmp_path / "empty").stat().st_size == 0


def test_too_much_memory_is_refused_before_it_is_taken(program: Program, tmp_path: Path) -> None:
    idle, _ = program.peak_memory("--help")
    profilers = ["--enable-pytorch-profiler", f"--profile-dir={tmp_path}"]
    peak, completed = program.peak_memory(*small(hidden_dim=65536), *profilers)
    pattern = r"--batch-size 2 --seq-len 8: .* needs [\d.]+ \wiB of memory, and [\d.]+ \wiB is"
    assert re.match(pattern, message_of(completed))
    assert completed.stdout == ""
    assert peak < idle + (100 << 20)
    assert files_below(tmp_path) == set()


CHECKS = ["device", "libtorch", "memory", "GPU runtime", "threads", "output", "variant"]
LINE = re.compile(r"(?P<status>ok|warning|failed) +(?P<what>[A-Za-z ]+): (?P<detail>.+)")


def checks(completed: Completed) -> dict[str, tuple[str, str]]:
    """Status and detail of each line; fails on one that has another form."""
    lines = [LINE.fullmatch(line) for line in completed.stdout.splitlines()]
    assert all(lines), completed.stdout
    found = {m["what"]: (m["status"], m["detail"]) for m in lines if m}
    return {re.sub("^(HIP|CUDA) runtime", "GPU runtime", name): of for name, of in found.items()}


@pytest.mark.parametrize(
    ("options", "details"),
    [
        ("--device=cuda:99", {"device": 'device "cuda:99": no such device (allowed: auto, cpu'}),
        ("--device=cpu --variant=graph --output-dir=new", {"variant": "only a GPU"}),
        (
            "--device=cpu --hidden-dim=65536 --output-dir=file",
            {"memory": "needs about 791.", "output": "name another folder with --output-dir"},
        ),
    ],
)
def test_what_cannot_run_fails_its_line_of_the_setup(
    program: Program, tmp_path: Path, options: str, details: dict[str, str]
) -> None:
    (tmp_path / "file").write_text("mine")
    completed = program.run("--validate-setup", *options.split(), cwd=tmp_path)
    assert completed.returncode == 1
    found = checks(completed)
    # a variant is of a device
    assert list(found) == CHECKS[: -1 if "device" in details else None]
    failed = {name: detail for name, (status, detail) in found.items() if status == "failed"}
    assert failed.keys() == details.keys()
    assert [name for name, detail in details.items() if detail not in failed[name]] == []
    # what it made to try, it removed
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


EARLIER = {"trace_step_5_10.json": '{"traceEvents": []}\n', "notes.txt": "of an earlier run\n"}


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system in memory of this size; only root may mount it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


# a disk that holds the start of what the profiler writes, but not all
@pytest.mark.parametrize(
    ("profiler", "disk"),
    [("--enable-pytorch-profiler", "600k"), ("--profile-memory", "64k")],
    indirect=["disk"],
)
def test_a_disk_that_runs_full_leaves_whole_files(
    program: Program, disk: Path, tmp_path: Path, profiler: str
) -> None:
    for name, text in EARLIER.items():
        (disk / name).write_text(text, encoding="utf-8")
    output = tmp_path / "output"
    options = small(num_steps=12, profile_steps=6, profile_dir=disk, output_dir=output)
    completed = program.run(*options, profiler)
    message = message_of(completed)
    assert str(disk) in message
    assert "No space left on device" in message or "is the disk full?" in message
    assert "Performance Summary:" in completed.stdout
    summary = whole_summary(disk)
    # what could not be written is neither there nor listed
    assert files_below(disk) == set(summary["files"]) | set(EARLIER)
    assert {name: (disk / name).read_text(encoding="utf-8") for name in EARLIER} == EARLIER
    assert not Path(message.split(": ")[0]).exists()
    # one full disk keeps no other folder empty
    assert whole_summary(output)["steps"] == summary["steps"]


# ---- files, and their schema

FLOPS_FILES = ["flops_profile", "computational_intensity", "roofline_data"]


def test_profilers_leave_their_files_and_all_are_like_the_schema(
    program: Program,
    validator: Validator,
    profiled_run: FinishedRun,
    flops_run: FinishedRun,
    tmp_path: Path,
) -> None:
    there = files_below(profiled_run.folder)
    patterns = [
        *(r"performance_summary\.json", r"memory_timeline\.json", r"trace_step_5_10\.json"),
        *(r"tiny_llama_train\.\d+\.pt\.trace\.json", r"events\.out\.tfevents\.\d+\..+"),
    ]
    assert sorted(profiled_run.result["files"]) == sorted(there)
    matching = [sum(bool(re.fullmatch(p, name)) for name in there) for p in patterns]
    assert matching == [1] * len(there)
    flops = {name: flops_run.folder / f"flops_analysis/{name}.json" for name in FLOPS_FILES}
    of_flops = {str(file.relative_to(flops_run.folder)) for file in flops.values()} | {SUMMARY}
    assert files_below(flops_run.folder) == of_flops == set(flops_run.result["files"])
    files = flops | {"memory_timeline": profiled_run.folder / "memory_timeline.json"}
    for name, file in files.items():
        document = read_json(file)
        assert flops_run.result["flops"].get(name, document) == document
        part = {"$ref": f"#/$defs/{name}", "$defs": validator.schema["$defs"]}
        assert list(Validator(part).iter_errors(document)) == [], name
    # a plain run leaves none
    assert program.run(*small(num_steps=1), cwd=tmp_path).returncode == 0
    assert files_below(tmp_path) == set()
    shortest = program.trained(tmp_path, *small(num_steps=1))
    for summary in (profiled_run.result, flops_run.result, shortest):
        assert list(validator.iter_errors(summary)) == []
    # and the scripts can read it
    assert read_profile(profiled_run.folder) == profiled_run.result
    profiled, other = profiled_run.result, flops_run.result
    assert profiled["flops"] is other["operators"] is other["memory"] is None
    for word, argument in zip(profiled["command"], profiled_run.completed.args, strict=True):
        # without folders that are the reader's own
        assert argument.endswith(word.rpartition("=")[2])
        assert not word.startswith("/") and "=/" not in word
    assert re.fullmatch(r"20\d\d(-\d\d){2}T\d\d(:\d\d){2}Z", profiled["started"])


@pytest.mark.long
def test_profiling_many_steps_takes_hardly_more_memory(program: Program, tmp_path: Path) -> None:
    peaks = []
    for steps in (5, 95):
        options = small(num_steps=100, log_interval=50, profile_steps=steps, profile_dir=tmp_path)
        peak, completed = program.peak_memory(*options, "--enable-pytorch-profiler")
        assert completed.returncode == 0, completed.stderr
        peaks.append(peak)
    # the events of all steps would not fit into what is allowed
    assert (tmp_path / "trace_step_5_100.json").stat().st_size > (60 << 20)
    assert peaks[1] < 1.15 * peaks[0] + (60 << 20)


def test_tensorboard_shows_the_curves_and_the_trace(
    profiled_run: FinishedRun, tmp_path: Path
) -> None:
    folder, steps = profiled_run.folder, profiled_run.result["steps"]
    events = EventAccumulator(str(folder))
    events.Reload()
    for tag, values in {
        "loss": [step["loss"] for step in steps],
        "step_time_seconds": [step["time_seconds"] for step in steps],
        "samples_per_second": [2 / step["time_seconds"] for step in steps],
        "peak_memory_MiB": [step["peak_memory_bytes"] / 2**20 for step in steps],
    }.items():
        curve = events.Scalars(tag)
        assert [event.step for event in curve] == list(range(1, 13))
        # the file holds float32
        assert [event.value for event in curve] == pytest.approx(values, rel=1e-6), tag
    (trace,) = folder.glob("*.pt.trace.json")
    assert trace.read_bytes() == (folder / "trace_step_5_10.json").read_bytes()
    # by the loader that TensorBoard runs
    (shown,) = RunLoader("run", str(folder), io.Cache(str(tmp_path))).load().profiles.values()
    views = {view.display_name for view in shown.views}
    assert {"Overview", "Operator", "Trace", "Memory"} <= views
    assert [row[0] for row in shown.overview["steps"]["rows"]] == [str(n) for n in range(5, 11)]
    theirs = {row["name"]: row["calls"] for row in shown.operation_table_by_name["data"]}
    # a row for each shape of the inputs
    rows = [row for row in profiled_run.result["operators"]["table"] if row["name"] == "aten::mm"]
    assert theirs["aten::mm"] == sum(row["calls"] for row in rows) > 0


# ---- times, FLOPs, losses

FAST = {"learning_rate": "0.01"}
COMPUTING = ("forward", "backward", "optimizer")
PHASES = ["data_loading", *COMPUTING, "evaluation", "other"]


def close(expected: Json) -> Json:
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.fixture(scope="module")
def evaluated(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """A run with every phase, and micro-batches."""
    options = small(num_steps=6, gradient_accumulation_steps=3, eval_interval=2, eval_iters=2)
    return program.trained(tmp_path_factory.mktemp("evaluated"), *options)


def test_steps_averages_and_rates(evaluated: Json, profiled_run: FinishedRun) -> None:
    for summary in (evaluated, profiled_run.result):
        means, asked, steps = summary["summary"], summary["configuration"], summary["steps"]
        for step in steps:
            assert sum(step[f"{phase}_seconds"] for phase in PHASES) == close(step["time_seconds"])
            assert min(step[f"{phase}_seconds"] for phase in COMPUTING) > 0
        first, *others = steps
        # the first step is in no average
        assert means["first_step_seconds"] == first["time_seconds"]
        assert (means["steps_completed"], means["steps_averaged"]) == (len(steps), len(others))
        times = [step["time_seconds"] for step in others]
        for name, of in (("average", "mean"), ("median", "median"), ("stddev", "stdev")):
            assert means[f"{name}_step_seconds"] == close(getattr(statistics, of)(times))
        assert list(means["breakdown"]) == PHASES
        for phase, share in means["breakdown"].items():
            seconds = statistics.mean(step[f"{phase}_seconds"] for step in others)
            percent = 100 * seconds / means["average_step_seconds"]
            assert share == close({"seconds": seconds, "percent": percent})
        # all micro-batches count
        samples = asked["batch_size"] * asked["gradient_accumulation_steps"]
        rate = samples / means["median_step_seconds"]
        assert means["samples_per_second"] == close(rate)
        assert means["tokens_per_second"] == close(rate * asked["seq_len"])
        assert means["peak_memory_bytes"] == max(step["peak_memory_bytes"] for step in steps)
        assert means["final_loss"] == steps[-1]["loss"]
    flops = [summary["model"]["flops_per_step"] for summary in (evaluated, profiled_run.result)]
    assert flops[0] == 3 * flops[1]
    for step in evaluated["steps"]:
        assert (step["evaluation_seconds"] > 0) == (step["step"] % 2 == 0)
        assert (step["evaluation_loss"] is not None) == (step["step"] % 2 == 0)
    # memory_analysis_test.cpp has it to the byte
    memory, steps = profiled_run.result["memory"], profiled_run.result["steps"][1:4]
    assert memory["peak_bytes"] == max(step["peak_memory_bytes"] for step in steps)
    assert sum(memory["breakdown_at_peak"].values()) == memory["peak_bytes"]


def test_flops_utilization_and_bandwidth(flops_run: FinishedRun) -> None:
    """flops_analysis_test.cpp has the parts of a step, what bounds them and their roofline."""
    summary = flops_run.result
    flops, model = summary["flops"], summary["model"]
    profile, intensity = flops["flops_profile"], flops["computational_intensity"]
    counts, found = profile["flops_analysis"], profile["efficiency_metrics"]
    assert counts["avg_flops_per_step"] == counts["model_flops"] == model["flops_per_step"]
    per_parameter = model["flops_per_step"] / model["total_parameters"]
    assert counts["flops_per_parameter"] == close(per_parameter)
    assert profile["step"] == 10
    assert [step["step"] for step in summary["steps"] if step["profiled"]] == [10]
    # rates are those of the median plain step
    plain = [step for step in summary["steps"][1:] if not step["profiled"]]
    seconds = statistics.median(step["time_seconds"] for step in plain)
    rate = model["flops_per_step"] / seconds
    assert profile["performance_metrics"]["flops_per_sec"] == close(rate)
    assert profile["performance_metrics"]["throughput_samples_per_sec"] == close(2 / seconds)
    assert found["mfu_percent"] == close(100 * rate / found["device_peak_flops"])
    used = 1e-9 * model["bytes_per_step"] / seconds
    device = intensity["device_memory_bandwidth_gb_per_sec"]
    assert intensity["memory_bandwidth_used_gb_per_sec"] == close(used)
    assert intensity["memory_bandwidth_utilization_percent"] == close(100 * used / device)
    per_byte = model["flops_per_step"] / model["bytes_per_step"]
    assert intensity["arithmetic_intensity_flops_per_byte"] == close(per_byte)


def test_text_is_learned_and_evaluated(program: Program, tmp_path: Path) -> None:
    text = tmp_path / "fox.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 500, encoding="utf-8")
    options = small(num_steps=90, data=text, eval_interval=30, eval_iters=2, **FAST)
    completed = program.run(*options, "--log-interval=30", f"--output-dir={tmp_path}")
    assert completed.returncode == 0, completed.stderr
    summary = read_json(tmp_path / SUMMARY)
    assert summary["configuration"]["data"] == "fox.txt"
    assert sum(losses(summary)[-5:]) < 0.6 * sum(losses(summary)[:5])
    evaluated = {s["step"]: s["evaluation_loss"] for s in summary["steps"] if s["evaluation_loss"]}
    assert list(evaluated) == [30, 60, 90]
    assert evaluated[90] < evaluated[30]
    said = re.findall(r"^Evaluation after step (\d+): Loss = ([\d.]+)$", completed.stdout, re.M)
    assert said == [(str(step), f"{loss:.4f}") for step, loss in evaluated.items()]
    assert [line["step"] for line in step_lines(completed.stdout)] == ["1", "30", "60", "90"]
    # with next to no learning the loss varies with what was read alone
    still = program.trained(tmp_path, *small(num_steps=6, data=text, learning_rate="1e-30"))
    assert len(set(losses(still))) == 6


def test_a_seed_decides_every_bit(program: Program, tmp_path: Path) -> None:
    def run(seed: int) -> Json:
        options = [o for o in small(num_steps=3, seed=seed) if not o.startswith("--threads")]
        return program.trained(tmp_path, *options, "--threads=2", "--deterministic")

    first = run(42)
    assert first["configuration"]["deterministic"] is True
    assert first["context"]["settings"]["deterministic_algorithms"] == "true"
    assert losses(run(42)) == losses(first)
    assert not set(losses(run(43))) & set(losses(first))


def test_a_run_goes_on_from_saved_weights(program: Program, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    # one step of seven sees the loss of the weights that six steps made
    whole = losses(program.trained(tmp_path, *small(num_steps=7, **FAST)))
    part = program.trained(tmp_path, *small(num_steps=6, save_weights=weights, **FAST))
    assert losses(part) == whole[:6]
    batch = [f"{name}={value}" for name, value in SMALL_BATCH.items()]
    options = [*ON_CPU, *batch, "--num-steps=1", f"--weights={weights}"]
    continued = program.trained(tmp_path, *options)
    assert continued["model"] == part["model"]
    assert losses(continued) == pytest.approx(whole[6:], rel=1e-6)
    assert whole == sorted(whole, reverse=True)


# ---- how a run ends, and what it says

ENDLESS = 1_000_000
RULE = "=" * 42


def test_a_loss_that_is_not_finite_ends_the_run(
    program: Program, validator: Validator, tmp_path: Path
) -> None:
    options = small(num_steps=5000, learning_rate="1e30", output_dir=tmp_path)
    # between shown steps too
    completed = program.run(*options, "--log-interval=1000")
    assert completed.returncode == 1
    (line,) = completed.stderr.splitlines()
    found = re.match(r"tiny_llama_train: step (\d+): the loss is (nan|inf): training stopped", line)
    assert found is not None, line
    assert "lower --learning-rate 1e+30" in line
    step = int(found[1])
    assert int(step_lines(completed.stdout)[-1]["step"]) == step
    assert "Performance Summary:" in completed.stdout
    summary = whole_summary(tmp_path)
    assert list(validator.iter_errors(summary)) == []
    assert len(summary["steps"]) == summary["summary"]["steps_completed"] == step
    assert [s["step"] for s in summary["steps"] if s["loss"] is None] == [step]
    assert summary["summary"]["final_loss"] is None
    assert summary["summary"]["interrupted"] is False


def test_an_interrupt_before_the_first_step_leaves_earlier_files(
    program: Program, tmp_path: Path
) -> None:
    earlier, log = tmp_path / "performance_summary.json", tmp_path / "log"
    earlier.write_text("an earlier run's")
    with log.open("w") as stdout:
        # whose model takes seconds to make
        process = program.start(
            *ON_CPU, "--size=medium", "--batch-size=1", f"--output-dir={tmp_path}", stdout=stdout
        )
    wait_until(lambda: "Initializing model" in log.read_text() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    completed = finish(process)
    assert (completed.returncode, completed.stderr) == (130, "")
    assert "Step 1/" not in log.read_text() and earlier.read_text() == "an earlier run's"


def test_an_interrupted_run_keeps_its_steps_and_what_its_profilers_recorded(
    program: Program, validator: Validator, tmp_path: Path
) -> None:
    folder, log = tmp_path / "profiles", tmp_path / "log"
    profilers = ["--enable-pytorch-profiler", f"--profile-steps={ENDLESS}", "--profile-memory"]
    with log.open("w") as stdout:
        options = small(num_steps=ENDLESS, profile_dir=folder)
        process = program.start(*options, *profilers, stdout=stdout)
    wait_until(lambda: "\nStep 7/" in log.read_text() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    completed = finish(process)
    assert (completed.returncode, completed.stderr) == (130, "")
    said, summary = log.read_text(), whole_summary(folder)
    assert "Performance Summary:" in said
    assert list(validator.iter_errors(summary)) == []
    assert files_below(folder) == set(summary["files"])
    assert summary["summary"]["interrupted"] is True
    last = summary["summary"]["steps_completed"]
    assert last == len(step_lines(said)) < ENDLESS
    assert summary["operators"]["last_step"] == last == summary["operators"]["steps"] + 4
    trace = read_json(folder / f"trace_step_5_{last}.json")
    assert f"ProfilerStep#{last}" in {event["name"] for event in trace["traceEvents"]}
    assert summary["memory"]["last_step"] == 4


def test_lines_are_those_of_the_summary(profiled_run: FinishedRun) -> None:
    said, summary = profiled_run.completed.stdout, profiled_run.result
    lines, steps, means = step_lines(said), summary["steps"], summary["summary"]
    assert f"\n  Total Parameters: {summary['model']['total_parameters']:,}\n" in said
    assert [int(line["step"]) for line in lines] == list(range(1, 13))
    for line, step in zip(lines, steps, strict=True):
        assert line["steps"] == "12"
        assert float(line["loss"]) == pytest.approx(step["loss"], abs=1e-4)
        assert float(line["time"]) == pytest.approx(step["time_seconds"], abs=1e-4)
        assert int(line["memory"]) == round(step["peak_memory_bytes"] / 2**20)
    assert "\nMemory Profiling enabled: Steps 2-4\n" in said
    marked = [int(line["step"]) for line in lines if line["profiling"]]
    assert marked == [s["step"] for s in steps if s["profiled"]] == list(range(2, 11))
    _, text = said.split(f"\n{RULE}\nPerformance Summary:\n{RULE}\n")
    # the workshop's loops search for the second, the third and the peak
    speed = f"{means['samples_per_second']:.1f} samples/sec"
    wanted = [
        f"Average time per step: {means['average_step_seconds']:.4f} seconds "
        f"(first step, not in any average: {means['first_step_seconds']:.4f} seconds)",
        f"Training speed: {speed}",
        f"Throughput: {speed}",
        f"Peak memory usage: {means['peak_memory_bytes'] / 2**20:.0f} MB",
        f"Avg time per forward: {means['average_forward_seconds']:.4f} seconds",
        f"Overhead: operator profiler {means['operator_profiling_overhead_percent']:+.1f} % of a "
        f"step, memory profiler {means['memory_profiling_overhead_percent']:+.1f} % of a step",
    ]
    said_lines = text.splitlines()
    assert all(any(x.startswith(line) for x in said_lines) for line in wanted)
