# Ramble's own way: its language comes from one star import.
# ruff: noqa: F403, F405
"""Ramble application of tiny_llama_bench: the training step of a LLaMA, and its components."""

from ramble.appkit import *

SIZES = ["tiny", "small", "medium", "large", "very_large"]
DTYPES = ["f32", "bf16", "f16", "amp_bf16", "amp_f16"]
PARTS = "embedding,rms_norm,rotary,attention,ffn,block,loss,optimizer"
# components, and further options
WORKLOADS = {
    "step": ("full_step", ""),
    "components": (PARTS, "--passes forward_backward,update"),
}
# name, default, description, suggested values
VARIABLES = [
    ("program", "tiny_llama_bench", "Installed: on PATH. Or the path of another one", None),
    ("device", "auto", "hip or cuda refuse to run without a GPU", ["auto", "hip", "cuda", "cpu"]),
    ("model_size", "tiny", "With its own batch and sequence", SIZES),
    ("model_variant", "optimized", "Or switches joined by +", ["baseline", "optimized", "fused"]),
    ("model_dtype", "f32", "amp_* is mixed precision", DTYPES),
]
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

    The program is installed beforehand, or built in a checkout: `scripts/bench --setup-only`.
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

    for _name, _default, _description, _values in VARIABLES:
        workload_variable(_name, _default, _description, values=_values, workloads=list(WORKLOADS))
    for _name, (_components, _options) in WORKLOADS.items():
        workload(_name, executables=["measure"])
        workload_variable("components", _components, "What is measured", workloads=[_name])
        workload_variable("options", _options, "E.g. --batch 16 --threads 64", workloads=[_name])

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
        match=r"SUCCESS: [1-9][0-9]* cases? measured(, [0-9]+ skipped)?$",
        file="{log_file}",
    )
