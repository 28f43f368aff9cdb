"""What cases cost before anybody runs them: the answer of `tiny_llama_bench --dry-run` in JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyllama_tools.reading.case_name import CaseName, parse_case_name
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_number import is_number, shown
from tinyllama_tools.suite_run import SuiteError, last_words

Json = dict[str, Any]
FLAGS = ("--dry-run", "--benchmark_format=json")
NUMBERS = (
    "parameters",
    "model_flops",
    "causal_flops",
    "hardware_flops",
    "elementwise_flops",
    "bytes",
    "predicted_memory_bytes",
)
# of a program that was built outside a checkout
UNKNOWN = "unknown"
ASK_AGAIN = "ask again: tiny_llama_bench --dry-run --benchmark_format=json"


@dataclass(frozen=True)
class CaseCost:
    """A case by the suite's formulas (model/cost.hpp); FLOPs and bytes are those of an iteration.

    `predicted_memory_bytes`: the most that is alive at once. `fits`: in the memory that was free
    when it was asked; `reason`: why not, empty where it does.
    """

    name: CaseName
    parameters: int
    model_flops: int
    causal_flops: int
    hardware_flops: int
    elementwise_flops: int
    bytes: int
    predicted_memory_bytes: int
    fits: bool = True
    reason: str = ""


@dataclass(frozen=True)
class DryRun:
    """The whole answer: what was free, who said so, and the cases in the program's order; `device`:
    as --describe-device describes it, `git_commit`: of the program, both empty where it does not
    say."""

    memory_budget_bytes: int
    memory_budget_source: str
    cases: tuple[CaseCost, ...]
    device: Mapping[str, Any] = field(default_factory=dict)
    git_commit: str = ""

    @property
    def device_name(self) -> str:
        """Empty where it is not known."""
        return str(self.device.get("name") or "")


def _whole(entry: Json, key: str, where: str) -> int:
    value = entry.get(key)
    if not is_number(value) or value < 0 or value != int(value):
        found = shown(value) if key in entry else "missing"
        raise BadInputError(f"{where}: {key} is {found}, must be a whole number; {ASK_AGAIN}")
    return int(value)


def _cost(entry: object, index: int) -> CaseCost:
    where = f"cases[{index}]"
    if not isinstance(entry, dict):
        raise BadInputError(f"{where} is {entry!r}, must be an object; {ASK_AGAIN}")
    text = entry.get("name")
    name = parse_case_name(text) if isinstance(text, str) else None
    if name is None:
        rule = "must be component/pass/variant/size/dtype/batch:B/seq:S"
        raise BadInputError(f"{where}: name is {text!r}, {rule}; {ASK_AGAIN}")
    fits, reason = entry.get("fits"), entry.get("reason", "")
    if not isinstance(fits, bool) or not isinstance(reason, str):
        raise BadInputError(
            f"{name}: fits is {fits!r} and reason {reason!r}, must be true or false, and a text; "
            f"{ASK_AGAIN}"
        )
    return CaseCost(name, *(_whole(entry, key, str(name)) for key in NUMBERS), fits, reason)


def _device(document: Json) -> Json:
    found = document.get("device", {})
    if not isinstance(found, dict):
        raise BadInputError(f"--dry-run: device is {found!r}, must be an object; {ASK_AGAIN}")
    return found


def _commit(document: Json) -> str:
    found = document.get("git_commit", UNKNOWN)
    if not isinstance(found, str):
        raise BadInputError(f"--dry-run: git_commit is {found!r}, must be a text; {ASK_AGAIN}")
    return "" if found == UNKNOWN else found


def read_dry_run(document: object) -> DryRun:
    """Of the program's JSON. BadInputError naming the case, the key and the value that is wrong."""
    if not isinstance(document, dict) or not isinstance(document.get("cases"), list):
        raise BadInputError(f"no list of 'cases' in the answer of --dry-run; {ASK_AGAIN}")
    return DryRun(
        _whole(document, "memory_budget_bytes", "--dry-run"),
        str(document.get("memory_budget_source", "")),
        tuple(_cost(entry, index) for index, entry in enumerate(document["cases"])),
        _device(document),
        _commit(document),
    )


def read_case_costs(document: object) -> list[CaseCost]:
    """The cases alone. BadInputError as read_dry_run."""
    return list(read_dry_run(document).cases)


def ask_json(program: Path, options: Sequence[str]) -> Json:
    """What the program answers as JSON; it only computes, and allocates nothing.

    SuiteError where it refuses the options, cannot be started, or says nonsense.
    """
    try:
        done = subprocess.run(
            [str(program), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise SuiteError(f"{program.name} cannot be started: {error}") from error
    if done.returncode != 0:
        words = last_words(done.stderr) or "it said nothing"
        raise SuiteError(words.splitlines()[-1])
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise SuiteError(f"{program.name} {options[0]}: {error}") from error


def ask_dry_run(program: Path, options: Sequence[str]) -> DryRun:
    """Of the cases that the axes in `options` name. SuiteError as ask_json, and where there is no
    case."""
    given = [option for option in options if option not in FLAGS]
    document = ask_json(program, [*FLAGS, *given])
    try:
        answer = read_dry_run(document)
    except BadInputError as error:
        raise SuiteError(f"{program.name} --dry-run: {error}") from error
    if not answer.cases:
        raise SuiteError(f"{program.name} --dry-run: no case in its answer")
    return answer


def ask_costs(program: Path, options: Sequence[str]) -> list[CaseCost]:
    """The cases alone. SuiteError as ask_dry_run."""
    return list(ask_dry_run(program, options).cases)
