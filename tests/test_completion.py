"""Tab completion, as the shells ask for it: what is typed so far, and what is offered."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tinyllama_tools.commands.completion import script
from tinyllama_tools.core.subcommands import listed

# bash tells a function the words so far, the last of them unfinished
ASK = """
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_tiny_llama
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "tiny-llama"
    file.write_text(script("bash"), encoding="utf-8")
    return file


def offered(file: Path, typed: str) -> list[str]:
    """By the words of `typed`; what ends it is the beginning of the word in hand."""
    command = ["bash", "-c", f"source '{file}'\n{ASK}", "bash", *typed.split(" ")]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("tiny-llama b", "bench"),
        ("tiny-llama exercise ", "1 2 3 4 5 6 7 8"),
        ("tiny-llama study ve", "very_large"),
        ("tiny-llama study --gri", "--grid"),
        ("tiny-llama study --grid tiny --resu", "--resume"),
        ("tiny-llama bench --sizes ti", "tiny"),
        # bash takes --sizes=ti apart
        ("tiny-llama bench --sizes = ti", "tiny"),
        ("tiny-llama bench --dtypes = f32,b", "f32,bf16"),
        ("tiny-llama bench --ou", "--out"),
        ("tiny-llama compare hist", "history"),
        ("tiny-llama compare run --bud", "--budget"),
        ("tiny-llama compare history ", "add show changes page"),
        ("tiny-llama compare history page --ou", "--out"),
        ("tiny-llama report --format = h", "html"),
        ("tiny-llama report --out x.html --forma", "--format"),
        ("tiny-llama gpu_check --large", "--largest"),
        ("tiny-llama completion ", "bash zsh"),
        ("tiny-llama nonsense ", ""),
    ],
)
def test_what_bash_offers(bash_script: Path, typed: str, words: str) -> None:
    assert offered(bash_script, typed) == words.split()


def test_commands_files_and_folders(bash_script: Path) -> None:
    commands = [name for name in listed() if not name.startswith("dev/")]
    assert offered(bash_script, "tiny-llama ") == commands
    (bash_script.parent / "result.json").touch()
    (bash_script.parent / "results").mkdir()
    assert set(offered(bash_script, "tiny-llama report res")) == {"result.json", "results"}
    assert offered(bash_script, "tiny-llama bench --out res") == ["results"]


def test_the_training_programs_options_are_asked_for(
    bash_script: Path, train_program: Path
) -> None:
    assert train_program.is_file()
    assert offered(bash_script, "tiny-llama train --batch") == ["--batch-size"]
    assert "f32" in offered(bash_script, "tiny-llama train --dtype ")


# the parts of zsh's completion that the script uses, outside of an editor
ZSH = """
compadd() { print -r -- "${@[2,-1]}" }
compset() { }
_files() { }
fpath=($1 $fpath)
autoload -Uz _tiny-llama
for typed in b "compare r" "compare history page --o" "bench --sizes=t" "bench --sizes t"; do
  words=(tiny-llama ${=typed}) CURRENT=$#words
  _tiny-llama
done
"""


def test_what_zsh_offers(tmp_path: Path) -> None:
    text = script("zsh")
    assert text.startswith("#compdef tiny-llama\n")
    if not (zsh := shutil.which("zsh")):
        pytest.skip("there is no zsh here")
    (tmp_path / "_tiny-llama").write_text(text, encoding="utf-8")
    command = [zsh, "-fc", ZSH, "zsh", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    commands, below, options, *sizes = (line.split() for line in done.stdout.splitlines())
    assert {"bench", "report"} < set(commands) and {"run", "history"} < set(below)
    assert "--out" in options
    assert len(sizes) == 2 and all({"tiny", "small"} < set(found) for found in sizes)
