"""scripts/exercise: runs an exercise of the workshop and writes its worksheet, filled in."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import PROJECT, RESULTS, problem_sizes, write_whole
from tinyllama_tools.core.options import minutes, positive, script_parser
from tinyllama_tools.core.text import say
from tinyllama_tools.data.programs import TrainingProgram

EPILOG = """\
Runs the commands of that exercise of the workshop and writes its worksheet with every blank, table,
tick box and question answered from what was measured, each with the number and rule that decided
it. The runs' files go to a folder beside it, exercise_N/. Ctrl-C keeps those written so far, and a
page that says what is missing.

Exit status: 0 the worksheet is complete; 1 a run failed or its loss was not finite; 2 bad option,
the set-up failed, or files that cannot be written; 130 interrupted."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Options with `shared` (options of every run of the training program). A bad one ends with
    status 2."""
    about = "The workshop's exercises: 1 baseline, 2 memory, 3 problem sizes."
    parser = script_parser("exercise", about, EPILOG)
    add = parser.add_argument
    add("number", type=int, choices=(1, 2, 3), metavar="1|2|3", help="which exercise")
    add("-o", "--output", type=Path, help="the worksheet (default: results/exercise_N.md)")
    add("--size", choices=tuple(problem_sizes()), default="tiny", help="default: tiny")
    add("--batch-size", type=positive, default=8, help="the worksheets' batch (default: 8)")
    add("--seq-len", type=positive, default=128, help="their sequence length (default: 128)")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--threads", type=positive, help="CPU threads (default: libtorch's own choice)")
    add("--max-minutes", type=minutes, default=2.0, help="longest run of a size (default: 2)")
    build = PROJECT / "build"
    add("--build-folder", type=Path, default=build, help="where the programs are (default: build)")
    options = parser.parse_args(arguments)
    threads = (f"--threads={options.threads}",) if options.threads else ()
    options.shared = (f"--device={options.device}", *threads)
    options.output = options.output or RESULTS / f"exercise_{options.number}.md"
    options.profile_dir = options.output.parent / f"exercise_{options.number}"
    if options.batch_size % 2 or options.seq_len % 2:
        parser.error(
            f"--batch-size {options.batch_size} --seq-len {options.seq_len}: must be even, since "
            "exercise 2 also runs half of each"
        )
    return options


def main(arguments: Sequence[str], program: TrainingProgram | None = None) -> int:
    """The command. `program`: in the place of tiny_llama_train, for tests."""
    options = parse_options(arguments)
    built = options.build_folder / "benchmarks/tiny_llama_train"
    runner = program or TrainingProgram(built, options.shared)
    module = importlib.import_module(f"tinyllama_tools.commands.exercise_{options.number}")
    page, status = module.run_exercise(options, runner)
    if not page:
        say(f"nothing was measured: {options.output} is left as it was")
        return status
    write_whole(options.output, page)
    say(f"profiles: {options.profile_dir}")
    print(options.output)
    return status
