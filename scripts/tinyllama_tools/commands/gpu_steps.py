"""The steps of scripts/gpu_check: what each runs. gpu_judgements.py says what it concludes."""

import json
import math
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import NamedTuple

from tinyllama_tools.commands import gpu_judgements as judge
from tinyllama_tools.compare.sides import KeptProcess, ServedProgram
from tinyllama_tools.core.app import BadInputError, Json, command_text, problem_sizes, read_json
from tinyllama_tools.core.installation import is_prefix, program_path, python_path, typed
from tinyllama_tools.core.options import DTYPES
from tinyllama_tools.core.process import Ended, ProgramError, TimedOutError, run_program
from tinyllama_tools.data.gpu_cards import (
    PowerWatch,
    driver_node,
    find_card,
    powers,
    risen,
    vendor_of,
)
from tinyllama_tools.data.gpu_checks import Finding, State
from tinyllama_tools.data.names import SWITCHES, StoredCase, StoredRun, full_step, parse_case_name
from tinyllama_tools.data.profiles import read_profile
from tinyllama_tools.data.rank_results import read_scaling_run
from tinyllama_tools.data.results import read_rows
from tinyllama_tools.models.data_parallel import analyse
from tinyllama_tools.models.step_ratios import ratios_in

BENCH, TRAIN = "tiny_llama_bench", "tiny_llama_train"
DEVICE_TEST = "model/kernels/gpu/kernels_gpu_device_test"
SANITIZER = "compute-sanitizer"
# those that the model's cases are told apart by, and what graphs need beside them
ALL_SWITCHES = sorted({*frozenset().union(*SWITCHES.values()), "graph"})
VARIANTS = ("baseline", "fused", "optimized", *ALL_SWITCHES, "graph+library_adamw")
VARIANTS = (*VARIANTS, "graph+fused_adamw")
# a width that no vector of the kernels divides
ODD_SEQ, ODD_HIDDEN = 65, 130
ODD_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": ODD_HIDDEN,
    "intermediate_size": 2 * ODD_HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
ONCE = ("--benchmark_repetitions=1", "--verify=off")
SHORT_TRAINING = ("--batch-size=2", "--num-steps=6", "--deterministic")
# of one request of the clocks' step, and how many are made singly
ROW_SECONDS, SINGLY = 2.0, 10
FULLEST_PERCENT = 80.0


@dataclass
class Session:
    """What the steps share. `sizes`: from small to large, those that are compared with peers;
    `largest`: the size whose block has to be bound by the device. Files of the programs go to
    `folder`. `begin()` starts a step's time."""

    device: str
    backend: str
    build: Path
    folder: Path
    sizes: Sequence[str]
    largest: str
    commands: list[str] = field(default_factory=list)
    limit: float = math.inf
    _start: float = 0.0

    def begin(self, limit: float) -> None:
        """Of a step, which may take so many seconds."""
        self.commands, self.limit, self._start = [], limit, monotonic()

    @property
    def spent(self) -> float:
        """Seconds of the step so far."""
        return monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds that the step has left; TimedOutError where it has none."""
        if (left := self.limit - self.spent) > 0:
            return left
        raise TimedOutError(self._late("between two programs"))

    def _late(self, where: str) -> str:
        return f"the step did not end within {self.limit:g} s and was ended {where}"

    def run(
        self,
        command: Sequence[str | Path],
        *,
        ok: Sequence[int] = (0,),
        as_one: bool = False,
        environment: Mapping[str, str] | None = None,
        shown: Sequence[str] = (),
    ) -> Ended:
        """As run_program(), within the time that is left; `shown`: what a reader types for it."""
        words = [str(word) for word in command]
        self.commands.append(command_text(shown or words))
        more = {"ok": ok, "as_one": as_one, "environment": environment, "limit_s": self.left}
        try:
            done = run_program(words, ProgramError, **more)
        except TimedOutError as error:
            name = self.commands[-1].split()[0]
            raise TimedOutError(f"{self._late(f'in {name}')}; {error}") from error
        if done.is_interrupted:
            raise KeyboardInterrupt
        return done

    def ask(self, *options: str, ok: Sequence[int] = (0,)) -> str:
        """What tiny_llama_bench prints on this device."""
        command = [program_path(self.build, BENCH), f"--device={self.device}", *options]
        return self.run(command, ok=ok).output

    def bench(self, name: str, *options: str) -> StoredRun:
        """A result of tiny_llama_bench, kept as `name`.json; cases may fail."""
        out = self.folder / f"{name}.json"
        out.unlink(missing_ok=True)
        self.ask(*ONCE, *options, f"--benchmark_out={out}", ok=(0, 1))
        return read_rows(self.read(out), out)

    def step(self, name: str, size: str, variants: Sequence[str], *options: str) -> StoredRun:
        """Training steps in bf16."""
        axes = ("--components=full_step", f"--variants={','.join(variants)}", f"--sizes={size}")
        return self.bench(name, *axes, "--dtypes=bf16", *options)

    def train(self, name: str, *options: str) -> Json:
        """The summary of a run of tiny_llama_train, whose files are kept in `name`/."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        command = [program_path(self.build, TRAIN), f"--device={self.device}", *options]
        # 1: a loss that is not finite, which the summary shows
        self.run([*command, f"--output-dir={folder}"], ok=(0, 1))
        return read_profile(folder)

    def tool(self, name: str, *options: str, ok: Sequence[int]) -> Ended:
        """Another command of scripts/."""
        command = [sys.executable, "-m", "tinyllama_tools", name, *options]
        environment = {"PYTHONPATH": python_path()}
        shown = [*typed(name).split(), *options]
        return self.run(command, ok=ok, environment=environment, shown=shown)

    def read(self, path: Path) -> Json:
        """What a program wrote into this file; ProgramError where it did not."""
        if not path.is_file():
            raise ProgramError(f"{path.name}: the program ended without writing it")
        return read_json(path)[0]

    def own_switches(self, size: str, dtype: str) -> str:
        """What `optimized` stands for here."""
        axes = (f"--sizes={size}", f"--dtypes={dtype}", "--components=full_step")
        more = ("--variants=optimized", "--find-limit=batch", "--benchmark_format=json")
        (found,) = json.loads(self.ask(*axes, *more))["limits"]
        return found["switches"]

    def graph_of(self, size: str, dtype: str, *, by_library: bool = False) -> tuple[str, str]:
        """The switches of `optimized` that a graph can have, and the same with it. `by_library`:
        with libtorch's AdamW, which counts its steps on the device in any case; ours does so in a
        graph alone, by eleven kernels more."""
        switches = self.own_switches(size, dtype).split("+")
        if by_library or not {"fused_adamw", "library_adamw"} & set(switches):
            switches = [*(name for name in switches if not name.endswith("adamw")), "library_adamw"]
        return "+".join(switches), "+".join([*switches, "graph"])


def case_of(run: StoredRun, variant: str, dtype: str = "bf16") -> StoredCase | None:
    """The case of this variant, however its switches are ordered."""
    wanted = (frozenset(variant.split("+")), dtype)
    for name, case in run.cases.items():
        found = parse_case_name(name)
        if found and (frozenset(found.variant.split("+")), found.dtype) == wanted:
            return case
    return None


def check_device(session: Session) -> Iterator[Finding]:
    # 1: no program of this machine's loader
    linked = session.run(["ldd", program_path(session.build, BENCH)], ok=(0, 1)).output
    yield from judge.libraries(linked)
    axes = ("--components=rms_norm", "--passes=forward", "--variants=baseline")
    size = f"--sizes={session.sizes[0]}"
    run = session.bench("device", *axes, size, "--benchmark_min_time=1x")
    uuid = run.context["settings"].get("gpu.uuid", "")
    card = find_card(session.backend, uuid)
    vendor = vendor_of(card) if card else ""
    yield from judge.device(run.context, card, vendor, driver_node(session.backend))


def check_kernels(session: Session) -> Iterator[Finding]:
    report = session.folder / "kernels.json"
    report.unlink(missing_ok=True)
    command = [session.build / DEVICE_TEST, f"--gtest_output=json:{report}"]
    if not command[0].is_file():
        why = "it is not built; build its target: kernels_gpu_device_test"
        if is_prefix(session.build):
            why = "a prefix has no tests; name the build folder of a checkout: --build-folder"
        yield Finding(str(DEVICE_TEST), State.UNKNOWN, why=why)
        return
    # 1: a test failed
    said = session.run(command, ok=(0, 1), as_one=True).words
    if not report.is_file():
        raise ProgramError(f"{command[0].name} ended without its report; it last said: {said}")
    yield from judge.device_tests(session.read(report))
    if shutil.which(SANITIZER) is None or session.backend != "cuda":
        what = "a checker of memory accesses"
        tool = "it is NVIDIA's" if session.backend != "cuda" else "it is not on PATH"
        # AMD's is a compiler's option (-fsanitize=address with xnack): another build
        yield Finding(what, State.SKIPPED, why=f"{SANITIZER} cannot be used: {tool}")
        return
    checked = [SANITIZER, "--tool=memcheck", command[0]]
    done = session.run(checked, ok=range(256), as_one=True)
    yield judge.sanitizer(done.output)


def check_proofs(session: Session) -> Iterator[Finding]:
    size = session.sizes[0]
    model = session.folder / "hidden_130"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(ODD_MODEL), encoding="utf-8")
    own = problem_sizes()[size]["seq"]
    shapes = {
        f"{size}, sequence {own}": (f"--sizes={size}",),
        f"{size}, sequence {ODD_SEQ}": (f"--sizes={size}", f"--seq={ODD_SEQ}"),
        f"hidden {ODD_HIDDEN}": (f"--config={model}", f"--seq={ODD_SEQ}"),
    }
    # a forward or backward alone is a part of these
    passes = "--passes=forward_backward,update,train"
    axes = (f"--variants={','.join(VARIANTS)}", f"--dtypes={','.join(DTYPES)}", "--batch=2", passes)
    for at, options in shapes.items():
        text = session.ask("--verify=only", *axes, *options, ok=(0, 1))
        yield from judge.proofs(text, VARIANTS, DTYPES, at)


def check_graphs(session: Session) -> Iterator[Finding]:
    size, dtypes = session.sizes[0], ("f32", "bf16")
    forms = {dtype: session.graph_of(size, dtype, by_library=True) for dtype in dtypes}
    for dtype, (eager, graph) in forms.items():
        usual = (f"--size={size}", f"--dtype={dtype}", *SHORT_TRAINING)
        runs = []
        for number, variant in enumerate((eager, eager, graph)):
            summary = session.train(f"graph_{dtype}_{number}", *usual, f"--variant={variant}")
            runs.append([step["loss"] for step in summary["steps"]])
        yield judge.losses(f"{dtype}: losses of a graph", runs[:2], runs[2])
    variants = dict.fromkeys(variant for pair in forms.values() for variant in pair)
    axes = (f"--sizes={size}", f"--dtypes={','.join(dtypes)}", f"--variants={','.join(variants)}")
    run = session.bench("graph", "--components=full_step", *axes, "--benchmark_min_time=3x")
    for dtype, pair in forms.items():
        yield from judge.same_work(dtype, *(case_of(run, one, dtype) for one in pair))
    yield from _fullest_graph(session)


def _fullest_graph(session: Session) -> Iterator[Finding]:
    """One case at 80 % of the memory."""
    size = session.sizes[-1]
    _, graph = session.graph_of(size, "bf16")
    axes = ("--components=full_step", f"--variants={graph}", f"--sizes={size}", "--dtypes=bf16")
    total = json.loads(session.ask("--describe-device"))["device"]["memory_bytes"]
    most = f"--memory-limit={int(FULLEST_PERCENT / 100 * total)}"
    asked = (*axes, "--find-limit=batch", most, "--benchmark_format=json")
    (found,) = json.loads(session.ask(*asked))["limits"]
    what = f"graph at {FULLEST_PERCENT:g} % of the memory"
    if not found["largest"]:
        yield Finding(what, State.UNKNOWN, why=found["skip_reason"] or "not one sample fits")
        return
    batch = (f"--batch={found['largest']}", "--admit=all", "--max-seconds-per-case=30")
    run = session.bench("graph_fullest", *axes, *batch, "--benchmark_min_time=1x")
    yield from judge.fills_memory(case_of(run, graph), total, FULLEST_PERCENT)


def check_clocks(session: Session) -> Iterator[Finding]:
    size = session.sizes[-1]
    own = problem_sizes()[size]
    name = str(full_step(size, "bf16", own["batch"], own["seq"]))
    axes = ("--components=full_step", "--variants=baseline", f"--sizes={size}", "--dtypes=bf16")
    arguments = (f"--device={session.device}", *axes)
    program = ServedProgram(BENCH, program_path(session.build, BENCH), arguments)
    session.commands.append(command_text([str(program.program), *arguments, "--serve"]))
    kept = KeptProcess(program, session.left, random.Random(0))
    try:
        process = kept.ready()
        process.ask_to_open(name)
        seconds = process.opened(name)["seconds"]
        # a request of less than a step is one step
        singly = [process.time(name, seconds / 1e3)[0] for _ in range(SINGLY)]
        before = perf_counter()
        in_a_row = process.time(name, max(ROW_SECONDS, 10 * seconds))
        wall = perf_counter() - before
    finally:
        kept.end()
    run = session.step("clocks", size, ["baseline"], "--benchmark_min_time=10x")
    yield judge.event_pair(run.context)
    yield from judge.clocks(singly, in_a_row, wall, case_of(run, "baseline"))


def check_peaks(session: Session) -> Iterator[Finding]:
    axes = ("--components=peak,attention", "--passes=forward_backward", "--variants=optimized")
    sizes = f"--sizes={','.join(session.sizes)}"
    run = session.bench("peaks", *axes, sizes, "--dtypes=bf16", "--benchmark_min_time=3x")
    yield from judge.peaks(run.context, "bf16")
    yield from judge.attention(run)


def check_host(session: Session) -> Iterator[Finding]:
    first, largest = session.sizes[0], session.largest
    run = session.step("host_step", first, ["baseline"], "--benchmark_min_time=3x")
    what = f"step of {first} is bound by the host"
    yield judge.host_bound(what, case_of(run, "baseline"), True)
    # a whole step of very_large needs 197 GiB
    axes = ("--components=block", "--passes=forward_backward", "--variants=baseline")
    of = (f"--sizes={largest}", "--dtypes=bf16", "--benchmark_min_time=3x")
    run = session.bench("host_block", *axes, *of)
    what = f"block of {largest} is not bound by the host"
    yield judge.host_bound(what, case_of(run, "baseline"), False)


def check_memory(session: Session) -> Iterator[Finding]:
    small, large = session.sizes[0], session.sizes[-1]
    sizes, variants = ",".join(dict.fromkeys((small, large))), "baseline,optimized,checkpoint"
    axes = (f"--sizes={sizes}", f"--variants={variants}", "--dtypes=f32,bf16")
    run = session.bench("memory", "--components=full_step", *axes, "--benchmark_min_time=1x")
    for name, case in run.cases.items():
        yield judge.memory(f"{name}: measured against predicted peak", case)
    axes = ("--components=full_step", f"--sizes={large}", "--variants=baseline", "--dtypes=bf16")
    asked = ("--find-limit=batch", "--confirm", "--benchmark_format=json")
    yield from judge.limits(json.loads(session.ask(*axes, *asked, ok=(0, 1))))


def check_power(session: Session) -> Iterator[Finding]:
    at_rest = powers(session.backend)
    size = session.sizes[-1]
    with PowerWatch(session.backend) as watch:
        run = session.step("power", size, ["baseline"], "--benchmark_min_time=3s")
    settings = run.context["settings"]
    card = find_card(session.backend, settings.get("gpu.uuid", ""))
    under_load = watch.by_card
    case = case_of(run, "baseline")
    yield from judge.power(case, settings, card, risen(at_rest, under_load), under_load)


def check_ranks(session: Session) -> Iterator[Finding]:
    second = [
        program_path(session.build, BENCH),
        f"--device={session.backend}:1",
        "--describe-device",
    ]
    done = session.run(second, ok=(0, 2))
    if done.status:
        is_alone = "no such device" in done.words
        state = State.SKIPPED if is_alone else State.UNKNOWN
        why = "there is one device" if is_alone else done.words
        yield Finding("a second device", state, why=why)
        return
    folder = session.folder / "ranks"
    shutil.rmtree(folder, ignore_errors=True)
    places = (f"--build-folder={session.build}", f"--out={folder}", "--oversubscribe")
    own = (f"--device={session.backend}", f"--size={session.sizes[0]}", "--dtype=bf16")
    quick = ("--rounds=3", "--min-time=0.2")
    done = session.tool("scaling", "--processes=1,2", *places, "--", *own, *quick, ok=(0, 1))
    try:
        results, failures = read_scaling_run(folder)
    except BadInputError as error:
        raise ProgramError(f"no number of ranks has a result: {done.words}") from error
    yield from judge.ranks(analyse(results).points, failures)


# the sizes whose steps have to use half of the card, and to gain by a graph (issue of the targets)
WITH_MFU, WITH_GRAPH = ("medium", "large"), ("tiny",)


def check_speed(size: str) -> Callable[[Session], Iterator[Finding]]:
    """Of the step that compares this size with its peers."""

    def check(session: Session) -> Iterator[Finding]:
        _, graph = session.graph_of(size, "bf16")
        folder = session.folder / f"peers_{size}"
        shutil.rmtree(folder, ignore_errors=True)
        own = problem_sizes()[size]
        point = full_step(size, "bf16", own["batch"], own["seq"])
        # programs start, and code is compiled, before anything is timed
        budget = max(10, int(0.8 * session.left))
        options = (
            f"--device={session.device}",
            f"--build-folder={session.build}",
            f"--sizes={size}",
            "--dtypes=bf16",
            f"--batch={own['batch']}",
            f"--seq={own['seq']}",
            "--peers=eager,compile_max_autotune",
            f"--variants=baseline,fused,optimized,{graph}",
            f"--budget={budget}s",
            "--looks=1",
            f"--out={folder}",
        )
        # 1: a side failed; 2: too little time for verdicts
        session.tool("peers", *options, ok=(0, 1, 2))
        document = session.read(folder / "peers.json")
        run = read_rows(document, folder / "peers.json")
        wants = (size in WITH_MFU, size in WITH_GRAPH)
        yield from judge.targets(run, ratios_in(document, "peers"), point, graph, *wants)

    return check


class Step(NamedTuple):
    """`limit`: seconds after which it is ended. `settings`: what decides what it does."""

    name: str
    title: str
    limit: float
    settings: Json
    check: Callable[[Session], Iterator[Finding]]


def steps_of(session: Session) -> list[Step]:
    """All, in their order."""
    first, last, largest = session.sizes[0], session.sizes[-1], session.largest
    found = [
        Step("device", "libraries, device, driver, partition, PCI", 60, {}, check_device),
        Step("kernels", "our kernels against the CPU's", 180, {}, check_kernels),
        Step("proofs", "every variant and dtype proved", 300, {}, check_proofs),
        Step("graphs", "graphs: losses, kernels, memory", 180, {"last": last}, check_graphs),
        Step("clocks", "clocks agree", 90, {"last": last}, check_clocks),
        Step("peaks", "GEMM, triad and attention", 120, {"sizes": session.sizes}, check_peaks),
        Step("host", "what bounds a step", 90, {"largest": largest}, check_host),
        Step("memory", "memory as predicted", 180, {"last": last}, check_memory),
        Step("power", "power and energy of this card", 60, {"last": last}, check_power),
        Step("ranks", "two ranks on two devices", 120, {}, check_ranks),
    ]
    found = [
        s._replace(settings={**s.settings, "device": session.device, "first": first}) for s in found
    ]
    for size in session.sizes:
        title = f"{size} beside eager and torch.compile"
        settings = {"device": session.device, "size": size}
        found.append(Step(f"speed_{size}", title, 300, settings, check_speed(size)))
    return found
