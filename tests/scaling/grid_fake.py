"""A fake tiny_llama_bench as scripts/study --grid drives it: names, costs, runs with a journal,
products. What is unusual about it is told in told.json beside it."""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]
# without site-packages, so that it starts at once; what it needs is here
PROGRAM = f"""\
#!{sys.executable} -SE
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})
from grid_fake import main
sys.exit(main(__file__, sys.argv[1:]))
"""
HELD = 3
SHAPES = {"tiny": (8, 128), "small": (8, 256), "medium": (16, 512), "large": (8, 1024)}
PASSES = {"ffn": "forward_backward", "rms_norm": "forward_backward", "full_step": "train"}
COSTS = (
    *("parameters", "model_flops", "causal_flops", "hardware_flops", "elementwise_flops"),
    *("bytes", "predicted_memory_bytes"),
)
LIMIT = {"size": "tiny", "variant": "baseline", "dtype": "f32", "batch": 2, "seq": 128}
LIMIT |= {"largest": 6, "predicted_memory_bytes": 1000, "skip_reason": ""}
# to --dry-run and --find-limit
ANSWER: Json = {"device": {"name": "card"}, "git_commit": "0123abcd", "limits": [LIMIT]}
for of in ("budget", "limit"):
    ANSWER |= {f"memory_{of}_bytes": 2**30, f"memory_{of}_source": "free on the device"}


def tell(folder: Path, **told: object) -> None:
    """Puts the program into the build folder, where it is not there, and tells it anew:

    `hold_in`: a part of a result's name, whose run waits in its fourth case until it is asked to
    end; `fail`, `skip`: parts of names; `crash_at`: dies there; `stale_at`: ends with 1 there,
    without a result; `refuse`: says so and ends with 2.
    """
    program = folder / "build/benchmarks/tiny_llama_bench"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    program.with_name("told.json").write_text(json.dumps(told))


def measuring_calls(folder: Path) -> list[list[str]]:
    """The options of every process so far that measured."""
    path = folder / "build/benchmarks/calls"
    calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [call for call in calls if value(call, "benchmark_out")]


def value(options: list[str], name: str, default: str = "") -> str:
    """Of --name=value."""
    found = [word.partition("=")[2] for word in options if word.startswith(f"--{name}=")]
    return found[-1] if found else default


def _names(options: list[str]) -> list[str]:
    """In the order of the options."""
    axes = [value(options, key).split(",") for key in ("sizes", "batch", "seq")]
    kind = f"{value(options, 'variants')}/{{}}/{value(options, 'dtypes')}"
    if value(options, "components") == "peak":
        return [f"peak/gemm/f32/{SHAPES[size][0]}x256x256" for size in axes[0]]
    found = []
    for component in value(options, "components", ",".join(PASSES)).split(","):
        for size, batch, seq in itertools.product(*axes):
            own = SHAPES.get(size, (8, 2048))
            name = f"{component}/{PASSES[component]}/{kind.format(size)}"
            found.append(f"{name}/batch:{batch or own[0]}/seq:{seq or own[1]}")
    return found


def _row(name: str, told: Json) -> tuple[Json, str]:
    """Of a case, and what the program says of it."""
    full = name + ("/iterations:1/manual_time" if name.startswith("peak/") else "/manual_time")
    row: Json = {"name": full, "run_name": full, "run_type": "iteration"}
    row |= {"real_time": 1.0, "time_unit": "ms", "TFLOPS": 0.1}
    if told.get("fail", "-") in name:
        return row | {"error_occurred": True, "error_message": "wrong"}, "FAILED: wrong"
    if told.get("skip", "-") in name:
        return row | {"skipped": True, "skip_message": "too large"}, "skipped: too large"
    return row, "1 ms"


def _journaled(journal: Path, context: Json) -> dict[str, Json]:
    """The rows in it; SystemExit with 2 where it cannot be continued. Begun anew where it has no
    whole header."""
    if not journal.exists():
        sys.exit(2)
    text = journal.read_text()
    if "\n" not in text:
        journal.write_text(json.dumps({"header": context}) + "\n")
        return {}
    # what follows the last newline was cut short
    journal.write_text(text.rpartition("\n")[0] + "\n")
    first, *lines = map(json.loads, journal.read_text().splitlines())
    if first["header"] != context:
        sys.exit(2)
    return {line["case"]: line["entries"][0] for line in lines}


def _measure(options: list[str], told: Json) -> int:
    """A measuring process, from its journal to its result; the exit status."""
    out, journal = Path(value(options, "benchmark_out")), Path(value(options, "journal"))
    asked: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    context = {"settings": {}, "schema_version": 4, "verify": value(options, "verify")}
    context |= {"sizes": sorted(value(options, "sizes").split(","))}
    rows = _journaled(journal, context)
    names, parent = _names(options), os.getppid()
    todo = [name for name in names if name not in rows]
    for index, name in enumerate(todo):
        if asked:
            break
        if told.get("crash_at", "-") in name:
            signal.raise_signal(signal.SIGKILL)
        if told.get("stale_at", "-") in name:
            print("journal: cannot be written: No space left", file=sys.stderr)
            return 1
        while index == HELD and told.get("hold_in", "-") in out.name and not asked:
            time.sleep(0.005)
            if os.getppid() != parent:
                # the real one dies where it next says something that nobody hears
                os._exit(1)
        rows[name], said = _row(name, told)
        with journal.open("a") as stream:
            stream.write(json.dumps({"case": name, "entries": [rows[name]]}) + "\n")
        print(f"[{index + 1}/{len(todo)}] {name}  {said}", file=sys.stderr, flush=True)
    found = [rows[name] for name in names if name in rows]
    out.write_text(json.dumps({"context": context, "benchmarks": found}))
    return 130 if len(found) < len(names) else int(any("error_occurred" in row for row in found))


def main(program: str, options: list[str]) -> int:
    """Plays one process."""
    here = Path(program).parent
    with (here / "calls").open("a") as stream:
        stream.write(json.dumps(options) + "\n")
    told = json.loads((here / "told.json").read_text())
    if told.get("refuse"):
        print(told["refuse"], file=sys.stderr)
        return 2
    if "--list" in options:
        print("\n".join(_names(options)))
    elif "--dry-run" in options:
        cost = dict.fromkeys(COSTS, 1000) | {"fits": True, "reason": ""}
        print(json.dumps(ANSWER | {"cases": [{"name": name} | cost for name in _names(options)]}))
    elif value(options, "find-limit"):
        print(json.dumps(ANSWER))
    else:
        return _measure(options, told)
    return 0
