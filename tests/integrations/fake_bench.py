"""A fake `tiny_llama_bench --figures-of-merit` with made-up numbers."""

import argparse
import fcntl
import os
import signal
import sys
from itertools import product
from pathlib import Path

PASSES = {"full_step": "train", "optimizer": "update"}
# a case's, in the program's order; so many tokens that they are written with an exponent
FIGURES = (
    "time {seconds:.6g} s|samples_per_second {samples:.6g} samples/s|"
    "tokens_per_second {tokens:.6g} tokens/s|TFLOPS 0.241826 TFLOP/s|MFU_percent 64.5247 %|"
    "peak_percent 64.5247 %|roof_percent 64.5247 %|peak_memory 97.5664 MiB"
)
OF_GEMMS = {"TFLOPS", "MFU_percent", "peak_percent"}
WITHOUT_GEMMS = {"embedding", "rms_norm", "rotary", "optimizer"}


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
    """FAKE in the environment says how it behaves, for all or as `tiny/baseline=fails,...`: fails,
    skips, interrupted, crashes (no last line), lost_figure, not_a_number, miscounts; without it all
    is measured. Options that change nothing here are not looked at."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    lists = {"components": "full_step", "sizes": "tiny", "variants": "baseline,optimized"}
    for name, default in (lists | {"dtypes": "f32"}).items():
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--benchmark_out", type=Path)
    options, _ = parser.parse_known_args()
    asked = os.environ.get("FAKE", "")
    by_case = dict(entry.split("=") for entry in asked.split(",") if "=" in entry)
    behaviour = by_case.get(f"{options.sizes}/{options.variants}", "" if by_case else asked)
    if "FAKE_LOCK" in os.environ:
        # two measurements at once would disturb each other: the second ends with an error
        lock = os.open(os.environ["FAKE_LOCK"], os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    axes = (options.components, options.variants, options.sizes, options.dtypes)
    cases = [
        f"{component}/{PASSES.get(component, 'forward_backward')}/{'/'.join(of)}/batch:8/seq:128"
        for component, *of in product(*(axis.split(",") for axis in axes))
    ]
    for file in filter(None, (options.benchmark_out, options.journal)):
        file.write_text("{}\n", encoding="utf-8")
    if behaviour == "skips":
        lines = "\n".join(f"  {case}: needs 80 GiB, 12 GiB are free" for case in cases)
        print(f"skipped\n{lines}\n\nNOTHING MEASURED: {len(cases)} cases skipped")
        return 0
    if behaviour == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "fails":
        print(f"FAILED: 1 of {len(cases)} cases failed")
        return 1
    for case in cases:
        print("\n".join(figure_lines(case, behaviour)))
    print(f"SUCCESS: {len(cases) + (behaviour == 'miscounts')} cases measured")
    # a success line does not excuse a status
    return 130 if behaviour == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())
