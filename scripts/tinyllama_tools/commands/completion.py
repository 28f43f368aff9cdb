"""tiny-llama completion bash|zsh: prints what a shell completes commands, options and values by. It
is made of the parsers themselves and, for the programs, of their help."""

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn
from unittest.mock import patch

from tinyllama_tools.__main__ import AbsentPackages
from tinyllama_tools.commands import bench, train
from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.core.installation import BUILD, VERSION, program_path
from tinyllama_tools.core.options import DTYPES, script_parser
from tinyllama_tools.core.subcommands import COMMANDS, listed
from tinyllama_tools.data.names import BASELINE, OPTIMIZED, SWITCHES

SHELLS = ("bash", "zsh")
EPILOG = """\
cmake --install puts both where the shells look. Without that, in ~/.bashrc:
  source <(tiny-llama completion bash)

Exit status: 0, or 2 for a bad option."""

# kinds of values, in the words that the shells' parts below know
ONE, LIST, FILE, FOLDER, ANY = "one", "list", "file", "folder", "any"
COMPONENTS = (
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step", "peak"),
)
PASSES = ("forward", "backward", "forward_backward", "forward_loss", "update", "train")
VARIANTS = (BASELINE, "fused", OPTIMIZED, *sorted(frozenset().union(*SWITCHES.values())))
DEVICES = ("auto", "cpu", "cuda", "hip")
# The programs' help has no choices that a program could read.
VALUES: dict[str, tuple[str, Sequence[str]]] = {
    "--components": (LIST, COMPONENTS),
    "--passes": (LIST, PASSES),
    "--variants": (LIST, VARIANTS),
    "--variant": (ONE, VARIANTS),
    "--sizes": (LIST, tuple(problem_sizes())),
    "--size": (ONE, tuple(problem_sizes())),
    "--dtypes": (LIST, DTYPES),
    "--dtype": (ONE, DTYPES),
    "--device": (ONE, DEVICES),
    "--verify": (ONE, ("before", "only", "off")),
    "--admit": (ONE, ("fitting", "all")),
    "--find-limit": (ONE, ("batch", "seq")),
    **{
        f"--{name}": (FILE, ()) for name in ("plugin", "journal", "problem-sizes", "data", "replay")
    },
    **{
        f"--{name}": (FOLDER, ())
        for name in ("trace", "execution-trace", "weights", "config", "output-dir")
    },
}


class Words(NamedTuple):
    """Of a command: its options, with the values of those that take one; and what stands without an
    option."""

    options: dict[str, tuple[str, Sequence[str]] | None]
    others: tuple[str, Sequence[str]] = (FILE, ())


class _FoundError(Exception):
    """Carries the parser of a command, at the moment when it would read the arguments."""


def parser_of(module: ModuleType) -> argparse.ArgumentParser:
    """That which a command reads its options by."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _FoundError(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            module.parse_options([])
        except _FoundError as found:
            return found.args[0]
    raise AssertionError(f"{module} has no parser")


def values_of(action: argparse.Action) -> tuple[str, Sequence[str]] | None:
    """What may follow an option, or stand without one; None after a flag."""
    if action.nargs == 0:
        return None
    name = max(action.option_strings, key=len, default="")
    allowed = getattr(action.type, "allowed", None)
    if action.choices or allowed:
        found = (LIST if allowed else ONE, tuple(map(str, allowed or action.choices)))
    elif action.metavar == "DIR" or "folder" in name:
        found = (FOLDER, ())
    elif action.type is Path:
        found = (FILE, ())
    else:
        found = VALUES.get(name, (ANY, ()))
    return found


def words_of(parser: argparse.ArgumentParser) -> Words:
    """Of the parser of a command, or of a sub-command."""
    options, others = {}, (ANY, ())
    for action in parser._actions:
        # the table has sub-commands as commands
        if not (action.option_strings or isinstance(action, argparse._SubParsersAction)):
            others = values_of(action) or others
        for name in action.option_strings:
            options[name] = values_of(action)
    return Words(options, others)


def words_of_program(name: str, own: Iterable[str] = ()) -> Words:
    """Of a program, by its help; `own`: options that are known also where it cannot be asked."""
    options = dict.fromkeys(own)
    program = program_path(BUILD, name)
    if os.access(program, os.X_OK):
        command = [program, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.findall(r"^ {2}(?:-h,)?(--[a-z][a-z-]*)( [A-Z]+)?", done.stdout, re.MULTILINE)
        options |= {option: (ANY, ()) if takes else None for option, takes in found}
    options |= {name: value for name, value in VALUES.items() if name in options}
    return Words(options, (ANY, ()))


def all_words() -> dict[str, Words]:
    """By the words that a user types first. No package is needed, since nothing is run."""
    if AbsentPackages not in sys.meta_path:
        sys.meta_path.append(AbsentPackages)
    grid = importlib.import_module("tinyllama_tools.commands.grid")
    # the options of these are the programs'
    suite = words_of_program(bench.PROGRAM, bench.OPTIONS)
    ours = {"--quick": None, "--out": (FOLDER, ()), "-o": (FOLDER, ())}
    found = {"bench": Words(ours | suite.options), "train": words_of_program(train.PROGRAM)}
    for name in COMMANDS:
        if name not in found and not name.startswith("dev/"):
            parser = parser_of(importlib.import_module(f"tinyllama_tools.{COMMANDS[name].module}"))
            found[name] = words_of(parser)
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    for word, below in action.choices.items():
                        found[f"{name} {word}"] = words_of(below)
    # another command, which --grid chooses
    found["study"].options.update(words_of(parser_of(grid)).options)
    return {name: _with_common(words) for name, words in found.items()}


def _with_common(words: Words) -> Words:
    return words._replace(options=words.options | {"--help": None, "--version": None})


def table(words: dict[str, Words]) -> str:
    """The shell function that answers, the same in both shells: `_tiny_llama_words KEY` prints the
    words that may come next in a command, `_tiny_llama_words KEY OPTION` what may follow an option,
    each after its kind."""
    first = [name for name in listed() if not name.startswith("dev/")]
    lines = [f'    "") echo {ONE} {" ".join(first)} --help --version ;;']
    for name, found in words.items():
        for option, values in found.options.items():
            if values:
                lines.append(f"    {shlex.quote(f'{name} {option}')}) echo {_text(values)} ;;")
        below = [word.rpartition(" ")[2] for word in words if word.rpartition(" ")[0] == name]
        kind, others = found.others
        others = [*below, *others]
        lines.append(f"    {shlex.quote(name)}) echo {_text((kind, others))} {_listed(found)} ;;")
    body = "\n".join(lines)
    return f'_tiny_llama_words() {{\n  case "$*" in\n{body}\n  esac\n}}\n'


def _text(values: tuple[str, Sequence[str]]) -> str:
    kind, words = values
    return " ".join([kind, *words])


def _listed(found: Words) -> str:
    return " ".join(sorted(found.options))


KEY = """\
# the command among the words: of one, two or three of them
_tiny_llama_key() {
  local key="" word
  for word in "$@"; do
    case "$word" in -*) break ;; esac
    [ -n "$(_tiny_llama_words "${key:+$key }$word")" ] || break
    key="${key:+$key }$word"
  done
  printf '%s' "$key"
}
"""
BASH = """\
_tiny_llama() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="" key kind words begun="" option
  ((COMP_CWORD > 0)) && before="${COMP_WORDS[COMP_CWORD - 1]}"
  # bash takes --option=value apart into three words
  if [[ "$word" == "=" ]]; then
    word=""
  elif [[ "$before" == "=" ]]; then
    before="${COMP_WORDS[COMP_CWORD - 2]}"
  fi
  key="$(_tiny_llama_key "${COMP_WORDS[@]:1:COMP_CWORD - 1}")"
  [[ -n "$key" ]] || ((COMP_CWORD == 1)) || return 0
  option="$(_tiny_llama_words "$key $before")"
  if [[ "$before" != -* || -z "$option" ]]; then option="$(_tiny_llama_words $key)"; fi
  kind="${option%% *}" words="${option#"$kind"}"
  # options where one is begun, which stand last
  if [[ "$word" != -* ]]; then words="${words%% -*}"; fi
  if [[ "$kind" == list && "$word" == *,* ]]; then begun="${word%,*}," word="${word##*,}"; fi
  mapfile -t COMPREPLY < <(compgen -P "$begun" -W "$words" -- "$word")
  if [[ "$kind" == file || "$kind" == folder ]] && [[ "$word" != -* ]]; then
    local files=-f
    if [[ "$kind" == folder ]]; then files=-d; fi
    compopt -o filenames
    local found
    while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen "$files" -- "$word")
  fi
}
complete -F _tiny_llama tiny-llama
"""
ZSH = """\
_tiny_llama() {
  local word="${words[CURRENT]}" before="${words[CURRENT - 1]}" key found kind
  if [[ "$word" == --*=* ]]; then
    before="${word%%=*}"
    compset -P '*='
  fi
  key="$(_tiny_llama_key "${(@)words[2,CURRENT - 1]}")"
  [[ -n "$key" ]] || ((CURRENT == 2)) || return 1
  found="$(_tiny_llama_words "$key $before")"
  if [[ "$before" != -* || -z "$found" ]]; then found="$(_tiny_llama_words ${=key})"; fi
  kind="${found%% *}"
  [[ "$kind" == list ]] && compset -P '*,'
  found="${found#"$kind"}"
  # options where one is begun, which stand last
  [[ "$word" == -* ]] || found="${found%% -*}"
  compadd -- ${=found}
  case "$kind" in
    file) _files ;;
    folder) _files -/ ;;
  esac
}
if [[ "${funcstack[1]}" == _tiny-llama ]]; then
  _tiny_llama "$@"
else
  compdef _tiny_llama tiny-llama
fi
"""


def script(shell: str) -> str:
    """What the shell reads."""
    made = f"# made by `tiny-llama completion {shell}`, version {VERSION}\n"
    head = f"#compdef tiny-llama\n{made}" if shell == "zsh" else made
    return f"{head}{table(all_words())}{KEY}{ZSH if shell == 'zsh' else BASH}"


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """A bad option ends the command with status 2."""
    about = "Prints what a shell completes commands, options and values by."
    parser = script_parser("completion", about, EPILOG)
    parser.add_argument("shell", choices=SHELLS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = parse_options(arguments)
    sys.stdout.write(script(options.shell))
    return 0
