"""scripts/exercise: runs an exercise of the workshop and writes its worksheet.

Exit status: 0 complete; 1 a run failed or its loss was not finite; 2 bad option or files that
cannot be written; 130 interrupted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from tinyllama_tools.core.app import write_whole
from tinyllama_tools.data.profiles import BadProfileError
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.workshop.exercise_1 import run_exercise_1
from tinyllama_tools.workshop.exercise_2 import run_exercise_2
from tinyllama_tools.workshop.exercise_3 import run_exercise_3
from tinyllama_tools.workshop.rules import Sheet, say
from tinyllama_tools.workshop.runs import parse_options, program_arguments
from tinyllama_tools.workshop.worksheet import unanswered

FAILED, BAD = 1, 2


def run_exercise(options: Namespace, program: TrainingProgram) -> Sheet:
    """The exercise that the options name."""
    if options.number == 1:
        return run_exercise_1(options, program)
    if options.number == 2:
        return run_exercise_2(options, program)
    return run_exercise_3(options, program)


def write_sheet(sheet: Sheet, options: Namespace) -> int:
    """Writes the page and says where; a place left blank is a failure of this command.

    A page without any measurement replaces none that is there.
    """
    if not sheet.has_measurements and options.output.exists():
        say(f"nothing was measured: {options.output} is left as it was")
        return sheet.exit_status
    write_whole(options.output, sheet.page.rstrip() + "\n")
    left = unanswered(sheet.page)
    for place in left:
        say(f"error: {options.output}: not filled in: {place}")
    say(f"profiles: {options.profile_dir}")
    print(options.output)
    return sheet.exit_status or (1 if left else 0)


def main(arguments: Sequence[str], program: TrainingProgram | None = None) -> int:
    """The command. `program`: in the place of tiny_llama_train, for tests."""
    options = parse_options(arguments)
    runner = program or TrainingProgram(options.program, program_arguments(options))
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        return write_sheet(run_exercise(options, runner), options)
    except KeyboardInterrupt:
        say(f"interrupted: what was measured is in {options.profile_dir}")
        return 130
    except BadProfileError as error:
        # a loss that stops being finite early leaves nothing that a profile could be made of
        error.exit_status = FAILED
        raise
