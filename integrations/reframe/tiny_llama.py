"""ReFrame tests of tiny_llama_bench: the training step, and the components that it consists of.

    reframe -C integrations/reframe/settings_local.py -c integrations/reframe/tiny_llama.py \
        -n 'TinyLlamaStep%size=tiny.*%dtype=f32' -r

A test is one size, variant and dtype. Its figures are the FOM lines of the program, each under the
name <component>/<pass>/<figure>. ../README.md says what can be set.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, run_after, run_before, sanity_function, variable
from reframe.core.exceptions import SanityError

# FOM <component>/<pass>/<variant>/<size>/<dtype>/batch:<B>/seq:<S>/<figure> = <value> <unit>
FIGURE = re.compile(
    r"^FOM (?P<part>[^/ ]+/[^/ ]+)/(?P<rest>\S+)/(?P<figure>[^/ ]+)"
    r" = (?P<value>\S+) (?P<unit>\S+)$",
    re.MULTILINE,
)
# a finite one
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]\d\d)?")
# how the run ended
ENDED = re.compile(
    r"^(?:SUCCESS: (?P<cases>[1-9]\d*) cases? measured(?:, \d+ skipped)?"
    r"|FAILED: .*|(?P<nothing>NOTHING MEASURED: .*))$",
    re.MULTILINE,
)
# the cases that were not measured, a line each: its name, then the reason
SKIPPED = re.compile(r"^skipped\n  \S+: (?P<reason>.*)$", re.MULTILINE)


def demand(holds: object, otherwise: str) -> None:
    """The test fails with these words unless it holds."""
    if not holds:
        raise SanityError(otherwise)


class TinyLlama(rfm.RunOnlyRegressionTest):
    """What both tests share: options of the program, the device, and how its output is read."""

    # the installed program, on PATH there (-S modules=...), or the path of another one
    program = variable(str, value="tiny_llama_bench")
    # auto: hip or cuda where the partition's settings name a GPU, else cpu on a cluster's node
    device = variable(str, value="auto")
    # further options of tiny_llama_bench, e.g. "--batch 16 --seq 256"
    options = variable(str, value="")

    size = parameter(["tiny", "small", "medium", "large", "very_large"])
    variant = parameter(["baseline", "optimized"])
    dtype = parameter(["f32", "bf16"])

    # set by the two tests below
    components = variable(str)
    figures_of_every_case = ("time", "samples_per_second", "tokens_per_second", "peak_memory")
    # <component>/<pass>/<figure>: value and unit
    read_figures = variable(dict, value={}, loggable=False)

    valid_systems = ["*"]  # noqa: RUF012 - ReFrame's own way of saying it
    valid_prog_environs = ["*"]  # noqa: RUF012
    reference = {"$ref": "references.yaml"}  # noqa: RUF012
    sourcesdir = None
    num_tasks = 1
    num_tasks_per_node = 1
    # --cpus-per-task then counts cores
    use_multithreading = False
    time_limit = "30m"
    keep_files = ["results.json"]  # noqa: RUF012

    @run_after("init")
    def tag_what_is_quick(self) -> None:
        if self.size == "tiny" and self.dtype == "f32":
            self.tags |= {"quick"}

    @run_after("setup")
    def take_what_the_partition_has(self) -> None:
        """One GPU with its share of the cores, or a node by itself with all its cores."""
        partition = self.current_partition
        gpus = partition.select_devices("gpu")
        if gpus:
            self.num_gpus_per_node = 1
            if self.device == "auto":
                self.device = "hip" if gpus[0].arch.startswith("gfx") else "cuda"
        else:
            self.exclusive_access = True
        # a local job keeps the processors that this process may use, and the best device present
        if partition.scheduler.is_local:
            return
        if self.device == "auto":
            self.device = "cpu"
        cores = partition.processor.num_cores
        if cores:
            self.num_cpus_per_task = cores // (gpus[0].num_devices if gpus else 1)

    @run_before("run")
    def give_the_command(self) -> None:
        self.executable = shlex.quote(self.program)
        self.executable_opts = [
            f"--device={self.device}",
            f"--components={self.components}",
            f"--sizes={self.size}",
            f"--variants={self.variant}",
            f"--dtypes={self.dtype}",
            "--figures-of-merit",
            "--benchmark_out=results.json",
        ]
        if self.num_cpus_per_task:
            self.executable_opts.append(f"--threads={self.num_cpus_per_task}")
        if self.options:
            self.executable_opts.append(self.options)

    @sanity_function
    def every_case_was_measured(self) -> bool:
        """The success line, a status of 0, and every figure that each case must have."""
        text = Path(self.stagedir, sn.evaluate(self.stdout)).read_text(encoding="utf-8")
        ended = ENDED.search(text)
        demand(ended, "no line 'SUCCESS: <n> ...' in the output")
        if ended["nothing"]:
            skipped = SKIPPED.search(text)
            self.skip(skipped["reason"] if skipped else ended["nothing"])
        demand(ended["cases"], ended.group())
        # some schedulers do not tell
        demand(self.job.exitcode in (0, None), f"exit status {self.job.exitcode}")
        cases: dict[str, set[str]] = {}
        for found in FIGURE.finditer(text):
            part, figure, value = found["part"], found["figure"], found["value"]
            # without the axes that a test fixes: ReFrame's own separator is the colon
            name = f"{part}/{figure}"
            two = f"{name} of two cases: one batch, one seq a test"
            demand(name not in self.read_figures, two)
            demand(NUMBER.fullmatch(value), f"not a number: {found.group()}")
            self.read_figures[name] = (float(value), found["unit"])
            cases.setdefault(f"{part}/{found['rest']}", set()).add(figure)
        of = f"figures of {len(cases)} cases, not of {ended['cases']}"
        demand(len(cases) == int(ended["cases"]), of)
        for case, figures in cases.items():
            for figure in self.figures_of_every_case:
                demand(figure in figures, f"no line 'FOM {case}/{figure}'")
        return True

    def referenced_figures(self) -> set[str]:
        """Those of references.yaml for this test on this partition."""
        try:
            return set(self.reference[self])
        except (AttributeError, KeyError):  # none, or given in a class of one's own
            return set()

    @run_before("performance")
    def report_figures(self) -> None:
        # ReFrame itself only warns of a figure that it cannot find
        for name in self.referenced_figures() - set(self.read_figures):
            raise SanityError(f"{name} has a reference and was not measured")
        for name, (value, unit) in self.read_figures.items():
            self.perf_variables[name] = sn.make_performance_function(sn.defer(value), unit)


@rfm.simple_test
class TinyLlamaStep(TinyLlama):
    """One full training step."""

    descr = "training step of a LLaMA"
    components = "full_step"
    figures_of_every_case = (*TinyLlama.figures_of_every_case, "TFLOPS")


@rfm.simple_test
class TinyLlamaComponents(TinyLlama):
    """Each component of the step by itself."""

    descr = "components of a LLaMA's training step"
    components = "embedding,rms_norm,rotary,attention,ffn,block,loss,optimizer"
    options = "--passes forward_backward,update"
