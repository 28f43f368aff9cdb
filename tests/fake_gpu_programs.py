"""Fakes of the programs that scripts/gpu_check starts, on a card where all is well.

Run as a program it reads what to do from told.json of its build folder, see GOOD; imported, it
makes such build folders.
"""

import copy
import itertools
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

Json = dict
UUID, PCI = "GPU-0123456789abcdef", "0000:c1:00.0"
DEVICE = {
    **{"name": "AMD Instinct MI300X", "architecture": "gfx942", "backend": "hip"},
    **{"memory_bytes": 2**30, "multiprocessors": 304, "last_level_cache_bytes": 2**28},
    **{"runtime_version": "HIP 7.2.1", "driver_version": "7.2.1"},
}
PEAKS = {
    "measured": {
        "bf16": {"flops_per_second": 0.7e15, "source": "made up"},
        "memory_bandwidth": {"bytes_per_second": 4e12, "source": "made up"},
        "bandwidth_curve": [{"bytes": 2**31, "bytes_per_second": 4e12, "source": "made up"}],
    },
    "datasheet": {
        "device": "AMD Instinct MI300X",
        "flops_per_second": {"bf16": 1.3e15},
        "memory_bytes_per_second": 5.3e12,
    },
}
CONTEXT = {
    **{"schema_version": 4, "date": "2026-11-30T00:00:00+00:00", "host_name": "host_0123abcd"},
    **{"git_commit": "0123456789" * 4, "git_dirty": False, "torch_version": "2.13.0", "threads": 1},
    "settings": {"gpu.uuid": UUID, "gpu.power_limit_W": "750", "gpu.compute_partition": "SPX"},
    **{"device": DEVICE, "peaks": PEAKS, "timer": {"empty_pair_us": 1.0}},
}
COUNTERS = {
    **{"kernels": 500.0, "device_ms": 9.9, "host_bound": 0.0, "samples_per_second": 800.0},
    **{"peak_memory_MiB": 100.0, "predicted_memory_MiB": 100.0, "power_W": 600.0},
    **{"joules_per_token": 1e-4, "label": "attention: flash; BLAS: hipblaslt"},
}
COSTS = (
    *("parameters", "model_flops", "causal_flops", "hardware_flops", "elementwise_flops"),
    *("bytes", "predicted_memory_bytes"),
)
# its keys, and of a row, of a proof, or of arguments by any part of a name:
# `proofs`: in place of `proved`. `rows`: in place of COUNTERS. `limit`, `tried`: of --find-limit.
# `steps`: seconds of each that is served, of which events see so much (`seen`). `losses`: of the
# variants with this part. `tests`: of GoogleTest. `hang`, `crash`: of the program whose arguments
# have this. `power`: file and watts of a card while a step is measured. `devices`: how many there
# are. `skip`: why a case is not opened. `ranks`: status of each of two; `ranks_files`: where their
# results come from.
GOOD: Json = {
    **{"device": DEVICE, "context": CONTEXT, "steps": 0.01, "seen": 1.0},
    **{"devices": 1, "ranks": 0},
    "proofs": {
        "tiled_gemm": "skipped: tiled_gemm: our kernel is for CPUs; a GPU has the library's",
        "/graph/hidden/bf16/": "skipped: graph: it needs fused_adamw or library_adamw",
    },
    "rows": {
        "/tiny/": {"host_bound": 1.0, "device_ms": 3.0},
        "/batch:57/": {"peak_memory_MiB": 790.0},
    },
    "limit": {"switches": "qkv+sdpa+foreach_adamw", "largest": 57, "skip_reason": ""},
    "tried": [{"fits": True, "peak_bytes": 10**9}, {"fits": False, "peak_bytes": 10**9}],
    "losses": {"": [7.0, 6.5, 6.25]},
    "tests": {"AdamW": "COMPLETED", "CrossEntropy": "COMPLETED"},
    **{"hang": "", "crash": "", "skip": "", "power": [], "ranks_files": ""},
}
PROGRAMS = {
    "benchmarks/tiny_llama_bench": "bench",
    "benchmarks/tiny_llama_train": "train",
    "benchmarks/tiny_llama_scaling": "ranks",
    "model/kernels/gpu/kernels_gpu_device_test": "test",
}


def make_programs(build: Path, **told: object) -> Path:
    """A build folder whose programs behave so from now on."""
    build.mkdir(parents=True, exist_ok=True)
    (build / "told.json").write_text(json.dumps(copy.deepcopy(GOOD) | told))
    python = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(Path(__file__).resolve()))}"
    for path, kind in PROGRAMS.items():
        program = build / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {python} {kind} {shlex.quote(str(build))} "$@"\n')
        program.chmod(0o755)
    return build


def starts(build: Path) -> list[str]:
    """Kind and arguments of every process so far."""
    path = build / "starts"
    return path.read_text().splitlines() if path.exists() else []


class Fake:
    def __init__(self, build: Path, arguments: list[str]) -> None:
        pairs = [word.partition("=") for word in arguments]
        self.options = {name[2:]: value for name, _, value in pairs}
        self.told: Json = json.loads((build / "told.json").read_text())
        told = self.told["hang"]
        if told and told in " ".join(arguments):
            # with a child, and heeds nobody who asks
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.fork()
            time.sleep(600)
        if self.told["crash"] and self.told["crash"] in " ".join(arguments):
            sys.exit("a GPU's memory access fault")

    def values(self, name: str, usual: str) -> list[str]:
        return self.options.get(name, usual).split(",")

    def cases(self) -> list[str]:
        """Their names, and that of each peak's row."""
        components = self.values("components", "full_step")
        size = "hidden" if "config" in self.options else self.options.get("sizes", "tiny")
        axes = (self.values("variants", "baseline"), size.split(","), self.values("dtypes", "f32"))
        shape = f"batch:{self.options.get('batch', 8)}/seq:{self.options.get('seq', 128)}"
        passes = {"full_step": "train", "rms_norm": "forward"}
        return [
            f"{component}/{passes.get(component, 'forward_backward')}/{'/'.join(axis)}/{shape}"
            for component in components
            if component != "peak"
            for axis in itertools.product(*axes)
        ]

    def told_of(self, what: str, name: str) -> list:
        return [value for part, value in self.told[what].items() if part in name]

    def row(self, name: str) -> Json:
        component, pass_name, variant, size, dtype, batch, seq = name.split("/")
        axes = {"component": component, "pass": pass_name, "variant": variant, "size": size}
        axes |= {"dtype": dtype, "batch": int(batch[6:]), "seq": int(seq[4:])}
        row = {"name": name, "run_name": name, "run_type": "iteration", "repetition_index": 0}
        row |= {"real_time": 10.0, "cpu_time": 10.0, "time_unit": "ms", **axes, **COUNTERS}
        for more in self.told_of("rows", name):
            row |= more
        return {key: value for key, value in row.items() if value is not None}

    def serve(self) -> None:
        """Steps of a told time, until the end of the input."""
        print(json.dumps({"turns": 1, "cases": [], "context": {}}), flush=True)
        seconds = self.told["steps"]
        for line in sys.stdin:
            asked = json.loads(line)
            steps = max(1, round(asked.get("seconds", 0) / seconds))
            answer = {"opened": asked["case"], "seconds": seconds}
            if self.told["skip"]:
                answer = {"skipped": self.told["skip"]}
            if asked["do"] == "time":
                answer = {"seconds": [seconds * self.told["seen"]] * steps}
            print(json.dumps(answer), flush=True)

    def bench(self) -> int:
        told, options = self.told, self.options
        if told["devices"] <= int(options.get("device", "").partition(":")[2] or 0):
            print(
                f'tiny_llama_bench: device "{options["device"]}": no such device', file=sys.stderr
            )
            return 2
        if "describe-device" in options:
            print(json.dumps({"device": told["device"]}))
        elif "dry-run" in options:
            cases = [dict.fromkeys(COSTS, 1) | {"name": n, "fits": True} for n in self.cases()]
            commit = told["context"]["git_commit"]
            print(json.dumps({"git_commit": commit, "memory_budget_bytes": 1, "cases": cases}))
        elif "find-limit" in options:
            axes = {"size": options["sizes"], "dtype": options["dtypes"]}
            limit = told["limit"] | axes
            if "confirm" in options:
                limit |= dict(zip(("tried", "tried_beyond"), told["tried"], strict=True))
            print(json.dumps({"searched": "batch", "limits": [limit]}))
        elif options.get("verify") == "only":
            for name in self.cases():
                how = [*self.told_of("proofs", name), "proved"][0]
                print(f"{name}    1.0e-03 of 2.0e-02 allowed  {how}")
        elif "serve" in options:
            self.serve()
        else:
            if told["power"]:
                file, watts = told["power"]
                at_rest = Path(file).read_text()
                Path(file).write_text(f"{watts * 10**6}\n")
                time.sleep(0.5 * (options["benchmark_min_time"] == "3s"))
                Path(file).write_text(at_rest)
            rows = [self.row(name) for name in self.cases()]
            document = {"context": told["context"], "benchmarks": rows}
            Path(options["benchmark_out"]).write_text(json.dumps(document))
        return 0

    def train(self) -> int:
        summary = json.loads(Path(__file__).with_name("training_summary.json").read_text())
        losses = self.told_of("losses", self.options["variant"])[-1]
        step = summary["steps"][0]
        summary["steps"] = [step | {"step": i + 1, "loss": x} for i, x in enumerate(losses)]
        folder = Path(self.options["output-dir"])
        folder.mkdir()
        (folder / "performance_summary.json").write_text(json.dumps(summary))
        return 0

    def ranks(self) -> int:
        if os.environ["WORLD_SIZE"] == "2" and self.told["ranks"]:
            return self.told["ranks"]
        if os.environ["RANK"] == "0":
            file = Path(self.told["ranks_files"]) / f"ranks_{os.environ['WORLD_SIZE']}.json"
            Path(self.options["benchmark_out"]).write_text(file.read_text())
        return 0

    def test(self) -> int:
        tests = []
        for name, result in self.told["tests"].items():
            test = {"name": name, "status": "RUN", "result": "COMPLETED"}
            if result == "FAILED":
                test["failures"] = [{"failure": "norm differs"}]
            elif result == "SKIPPED":
                test |= {"result": result, "skipped": [{"message": "file:19\nno GPU is here\n"}]}
            tests.append(test)
        report = {"testsuites": [{"name": "GpuDevice", "testsuite": tests}]}
        Path(self.options["gtest_output"].removeprefix("json:")).write_text(json.dumps(report))
        return int("FAILED" in self.told["tests"].values())


if __name__ == "__main__":
    kind, folder, *rest = sys.argv[1:]
    with (Path(folder) / "starts").open("a") as starts_file:
        starts_file.write(f"{kind} {' '.join(rest)}\n")
    sys.exit(getattr(Fake(Path(folder), rest), kind)())
