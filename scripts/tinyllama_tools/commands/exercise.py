"""scripts/exercise: runs an exercise of the workshop and writes its worksheet, filled in."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.commands.profile_report import say
from tinyllama_tools.commands.worksheet import Sheet
from tinyllama_tools.core.app import INTERRUPTED, PROJECT, RESULTS, problem_sizes, write_whole
from tinyllama_tools.core.options import list_of, minutes, positive, script_parser
from tinyllama_tools.data.profiles import BadProfileError
from tinyllama_tools.data.programs import TrainingProgram

DIMENSIONS = (
    "hidden-dim",
    "n-layers",
    "n-heads",
    "n-kv-heads",
    "intermediate-dim",
    "vocab-size",
)
# A model that steps in a millisecond, to see that everything works.
QUICK_SIZES = (32, 2, 2, 1, 64, 50)
QUICK_BATCH, QUICK_SEQ = 4, 32
EPILOG = """\
Runs the commands of that exercise of the workshop and writes its worksheet with every blank, table,
tick box and question answered from what was measured, each with the number and rule that decided
it. Ctrl-C keeps the profiles written so far, and a page that says what is missing.

Exit status: 0 the worksheet is complete; 1 a run failed or its loss was not finite; 2 bad option,
the set-up failed, or files that cannot be written; 130 interrupted."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Options with `model` (options of the training program), `program` and `suite_program`.

    A bad one ends with status 2.
    """
    about = "The workshop's exercises: 1 baseline, 2 memory, 3 problem sizes."
    parser = script_parser("exercise", about, EPILOG)
    add = parser.add_argument
    add("number", type=int, choices=(1, 2, 3), metavar="1|2|3", help="which exercise")
    add("-o", "--output", type=Path, help="the worksheet (default: results/exercise_N.md)")
    add("--profile-dir", type=Path, help="the runs' files (default: beside it, exercise_N/)")
    sizes = list_of(tuple(problem_sizes()), "size")
    add("--size", type=sizes, default=("tiny",), help="default: tiny")
    add("--batch-size", type=positive, default=8, help="the worksheets' batch (default: 8)")
    add("--seq-len", type=positive, default=128, help="their sequence length (default: 128)")
    for name in DIMENSIONS:
        add(f"--{name}", type=positive, help="instead of the size's own")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--threads", type=positive, help="CPU threads (default: libtorch's own choice)")
    longest = "longest try of exercise 2's longest sequence and run of exercise 3 (default: 2)"
    add("--max-minutes", type=minutes, default=2.0, help=longest)
    add("--quick", action="store_true", help="smoke test: a model that steps in a millisecond")
    build = PROJECT / "build"
    add("--build-folder", type=Path, default=build, help="where the programs are (default: build)")
    options = parser.parse_args(arguments)

    if len(options.size) != 1:
        parser.error(f"--size '{','.join(options.size)}': must be one size")
    values = [getattr(options, name.replace("-", "_")) for name in DIMENSIONS]
    size: tuple[str, ...] = (f"--size={options.size[0]}",)
    if options.quick:
        values, size = list(QUICK_SIZES), ()
        options.batch_size, options.seq_len = QUICK_BATCH, QUICK_SEQ
    given = zip(DIMENSIONS, values, strict=True)
    options.model = (*size, *(f"--{name}={value}" for name, value in given if value))
    options.program = options.build_folder / "benchmarks/tiny_llama_train"
    options.suite_program = options.build_folder / "benchmarks/tiny_llama_bench"
    options.output = options.output or RESULTS / f"exercise_{options.number}.md"
    beside = options.output.parent / f"exercise_{options.number}"
    options.profile_dir = options.profile_dir or beside
    if options.batch_size % 2 or options.seq_len % 2:
        parser.error(
            f"--batch-size {options.batch_size} --seq-len {options.seq_len}: must be even, since "
            "exercise 2 also runs half of each"
        )
    return options


def program_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """What every run of the training program is given."""
    threads = (f"--threads={options.threads}",) if options.threads else ()
    return (f"--device={options.device}", *threads)


def write_sheet(sheet: Sheet, options: argparse.Namespace) -> None:
    """Writes the page and says where. One without any measurement replaces none that is there."""
    if not sheet.has_measurements and options.output.exists():
        say(f"nothing was measured: {options.output} is left as it was")
        return
    write_whole(options.output, sheet.page)
    say(f"profiles: {options.profile_dir}")
    print(options.output)


def main(arguments: Sequence[str], program: TrainingProgram | None = None) -> int:
    """The command. `program`: in the place of tiny_llama_train, for tests."""
    options = parse_options(arguments)
    runner = program or TrainingProgram(options.program, program_arguments(options))
    module = importlib.import_module(f"tinyllama_tools.commands.exercise_{options.number}")
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        sheet = module.run_exercise(options, runner)
        write_sheet(sheet, options)
        return sheet.exit_status
    except KeyboardInterrupt:
        say(f"interrupted: what was measured is in {options.profile_dir}")
        return INTERRUPTED
    except BadProfileError as error:
        # a loss that stops being finite early leaves nothing that a profile could be made of
        error.exit_status = 1
        raise
