"""A fake `tiny_llama_bench --figures-of-merit`: its options, its output, made-up numbers.

FAKE in the environment says how it behaves, for all or as `tiny/baseline=fails,...`: fails,
skips, part (one of the cases skipped), interrupted, crashes (no last line), lost_figure,
not_a_number, miscounts; without it all is measured.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
from itertools import product
from pathlib import Path

SIZES = json.loads(Path(__file__, "../../../fixtures/problem_sizes.json").resolve().read_text())
PASSES = {"full_step": ["train"], "optimizer": ["update"]}
LAYER_PASSES = ["forward", "backward", "forward_backward"]
# options of the program itself: a step of a few milliseconds, measured once
QUICK_STEP = ["--batch=2", "--seq=16", "--threads=1", "--benchmark_min_time=1x"]
QUICK_STEP += ["--benchmark_repetitions=1"]
# a case's, in the program's order; so many tokens that they are written with an exponent
FIGURES = (
    "time {seconds:.6g} s|samples_per_second {samples:.6g} samples/s|"
    "tokens_per_second {tokens:.6g} tokens/s|TFLOPS 0.241826 TFLOP/s|MFU_percent 64.5247 %|"
    "peak_percent 64.5247 %|roof_percent 64.5247 %|peak_memory 97.5664 MiB"
)
OF_GEMMS = {"TFLOPS", "MFU_percent", "peak_percent"}
WITHOUT_GEMMS = {"embedding", "rms_norm", "rotary", "optimizer"}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--device", choices=["auto", "cpu", "hip", "cuda"], default="auto")
    lists = {"components": ["full_step"], "passes": [], "sizes": ["tiny"], "dtypes": ["f32"]}
    lists |= {"variants": ["baseline", "optimized"], "batch": [], "seq": []}
    for name, default in lists.items():
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=default)
    parser.add_argument("--threads", type=int)
    for name in ("--journal", "--benchmark_out"):
        parser.add_argument(name, type=Path)
    for name in ("--resume", "--figures-of-merit"):
        parser.add_argument(name, action="store_true")
    return parser.parse_args(arguments)


def cases_of(options: argparse.Namespace) -> list[str]:
    return [
        f"{component}/{name}/{variant}/{size}/{dtype}/batch:{batch}/seq:{seq}"
        for component, size, dtype, variant in product(
            options.components, options.sizes, options.dtypes, options.variants
        )
        for name in PASSES.get(component, LAYER_PASSES)
        if not options.passes or name in options.passes
        for batch in options.batch or [SIZES[size]["batch"]]
        for seq in options.seq or [SIZES[size]["seq"]]
    ]


def figure_lines(case: str, behaviour: str) -> list[str]:
    """The lines of a case, with numbers of six digits."""
    seconds = 0.0706086 if "/optimized/" in case else 0.0928359
    text = FIGURES.format(seconds=seconds, samples=8 / seconds, tokens=102400 / seconds)
    if behaviour == "not_a_number":
        text = text.replace("0.241826", "nan")
    lost = {"samples_per_second"} if behaviour == "lost_figure" else set()
    lost |= OF_GEMMS if case.split("/")[0] in WITHOUT_GEMMS else set()
    figures = [figure.partition(" ") for figure in text.split("|")]
    return [f"FOM {case}/{name} = {value}" for name, _, value in figures if name not in lost]


def main() -> int:
    options, asked = parse(sys.argv[1:]), os.environ.get("FAKE", "")
    by_case = dict(entry.split("=") for entry in asked.split(",") if "=" in entry)
    behaviour = by_case.get(f"{options.sizes[0]}/{options.variants[0]}", "" if by_case else asked)
    if "FAKE_LOCK" in os.environ:
        # two measurements at once would disturb each other: the second ends with an error
        lock = os.open(os.environ["FAKE_LOCK"], os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    cases = cases_of(options)
    for file in filter(None, (options.benchmark_out, options.journal)):
        file.write_text("{}\n", encoding="utf-8")
    if behaviour == "skips":
        lines = "\n".join(f"  {case}: needs 80 GiB, 12 GiB are free" for case in cases)
        print(f"skipped\n{lines}\n\nNOTHING MEASURED: {len(cases)} cases skipped")
        return 0
    if behaviour == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour in {"fails", "part"}:
        del cases[-1]
    for case in cases:
        print("\n".join(figure_lines(case, behaviour)))
    if behaviour == "fails":
        print(f"FAILED: 1 of {len(cases) + 1} cases failed")
        return 1
    beside = ", 1 skipped" if behaviour == "part" else ""
    print(f"SUCCESS: {len(cases) + (behaviour == 'miscounts')} cases measured{beside}")
    # a success line does not excuse a status
    return 130 if behaviour == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())
