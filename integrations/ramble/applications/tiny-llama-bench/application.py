# Ramble's own way: its language comes from one star import.
# ruff: noqa: F403, F405
"""Ramble application of tiny_llama_bench: the training step of a LLaMA, and its components."""

from ramble.appkit import *

WORKLOADS = ["step", "components"]
FIGURES = [
    ("time", "s", FomType.TIME),
    ("samples_per_second", "samples/s", FomType.THROUGHPUT),
    ("tokens_per_second", "tokens/s", FomType.THROUGHPUT),
    ("TFLOPS", "TFLOP/s", FomType.THROUGHPUT),
    ("MFU_percent", "%", FomType.THROUGHPUT),
    ("peak_percent", "%", FomType.THROUGHPUT),
    ("roof_percent", "%", FomType.THROUGHPUT),
    ("peak_memory", "MiB", FomType.MEASURE),
]


class TinyLlamaBench(ExecutableApplication):
    """Component and scaling benchmark of LLaMA training: rates, share of the peak, memory.

    The program is built beforehand: `scripts/bench --setup-only` in its checkout.
    """

    name = "tiny-llama-bench"

    tags("benchmark-app", "machine-learning", "llm", "gpu", "cpu")

    # One process. use_mpi puts mpi_command before it: srun on a cluster, which gives it the GPU.
    executable(
        "measure",
        "{program} --device {device} --components {components} --sizes {model_size}"
        " --variants {model_variant} --dtypes {model_dtype} {options} --figures-of-merit"
        " --benchmark_out={experiment_run_dir}/results.json",
        use_mpi=True,
    )

    workload("step", executables=["measure"])
    workload("components", executables=["measure"])

    workload_variable(
        "program",
        default="tiny_llama_bench",
        description="The program: build/benchmarks/tiny_llama_bench in its checkout",
        workloads=WORKLOADS,
    )
    workload_variable(
        "device",
        default="auto",
        description="auto takes the best device present; hip or cuda refuse to run without a GPU",
        values=["auto", "hip", "cuda", "cpu"],
        workloads=WORKLOADS,
    )
    workload_variable(
        "model_size",
        default="tiny",
        description="Problem size, with its own batch and sequence",
        values=["tiny", "small", "medium", "large", "very_large"],
        workloads=WORKLOADS,
    )
    workload_variable(
        "model_variant",
        default="optimized",
        description="baseline, optimized, fused, or switches joined by +",
        values=["baseline", "optimized", "fused"],
        workloads=WORKLOADS,
    )
    workload_variable(
        "model_dtype",
        default="f32",
        description="Type of parameters and products; amp_* is mixed precision",
        values=["f32", "bf16", "f16", "amp_bf16", "amp_f16"],
        workloads=WORKLOADS,
    )
    workload_variable(
        "components",
        default="full_step",
        description="What is measured",
        workloads=["step"],
    )
    workload_variable(
        "components",
        default="embedding,rms_norm,rotary,attention,ffn,block,loss,optimizer",
        description="What is measured",
        workloads=["components"],
    )
    workload_variable(
        "options",
        default="",
        description="Further options, for instance --batch 16 --seq 256 --threads 64",
        workloads=["step"],
    )
    workload_variable(
        "options",
        default="--passes forward_backward,update",
        description="Further options, for instance --batch 16 --seq 256 --threads 64",
        workloads=["components"],
    )

    # FOM <component>/<pass>/<variant>/<size>/<dtype>/batch:<B>/seq:<S>/<figure> = <value> <unit>
    # Ramble matches from the start of a line. A case is a context, its figures stand in it.
    figure_of_merit_context(
        "case",
        regex=r"FOM (?P<component>[^/ ]+)/(?P<pass_name>[^/ ]+)/(?P<variant>[^/ ]+)"
        r"/(?P<size>[^/ ]+)/(?P<dtype>[^/ ]+)/batch:(?P<batch>[0-9]+)/seq:(?P<seq>[0-9]+)"
        r"/[^/ ]+ = ",
        output_format="{component}/{pass_name}/{variant}/{size}/{dtype}/batch:{batch}/seq:{seq}",
    )
    for figure, unit, fom_type in FIGURES:
        figure_of_merit(
            figure,
            fom_regex=rf"FOM [^ ]+/{figure} = (?P<value>[-+.0-9eE]+) {unit}$",
            group_name="value",
            units=unit,
            contexts=["case"],
            fom_type=fom_type,
        )

    success_criteria(
        "all-measured",
        mode="string",
        match=r"SUCCESS: [1-9][0-9]* (cases? measured(, [0-9]+ skipped)?|figures)$",
        file="{log_file}",
    )
