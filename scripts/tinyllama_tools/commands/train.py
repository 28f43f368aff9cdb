"""tiny-llama train: the training program, which has its own options and help."""

from collections.abc import Sequence

from tinyllama_tools.core.installation import BUILD
from tinyllama_tools.core.process import become, program_in

PROGRAM = "tiny_llama_train"


def parse_options(arguments: Sequence[str]) -> None:
    """Nothing: the program says what is wrong."""


def main(arguments: Sequence[str]) -> int:
    """Ends this process; the program's exit status is its own."""
    become(program_in(BUILD, PROGRAM), arguments)
