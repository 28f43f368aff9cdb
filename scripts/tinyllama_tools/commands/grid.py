"""The grid of scripts/study --grid: rounds over batch x sequence x size, GEMMs, check and frontier.

Whatever ends it early keeps what was measured, in journals; --resume goes on from there.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tinyllama_tools.commands.grid_plan import (
    CHECK_SECONDS,
    CHECK_STEPS,
    NO_CHECK,
    PASSES,
    GridPlan,
)
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    bad_file,
    parse_json,
    problem_sizes,
    read_json,
    run_folder,
    without_folders,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.process import ProgramError, Progress, run_program
from tinyllama_tools.core.text import compact_json, duration
from tinyllama_tools.data.names import STEP, full_step
from tinyllama_tools.data.programs import (
    NUMBERS,
    CaseCost,
    SuiteError,
    SuiteProgram,
    ask_dry_run,
    ask_json,
    read_costs,
)
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.data.studies import (
    AXES,
    CHECK,
    COSTS,
    FRONTIER,
    FRONTIER_KIND,
    FRONTIER_SCHEMA_VERSION,
    KIND,
    PRODUCTS,
    SCHEMA_VERSION,
    STUDY,
    journal_of,
    journaled_names,
    round_file,
)

FAILED = 1
# What a later round takes beside the first, which proves every case before it times it. Small
# cases, which spend their time on preparation, measured 0.8; large ones gain more.
LATER_SHARE = 0.8


class GridError(ProgramError):
    """The program cannot go on with the grid; what it measured is kept."""


@dataclass
class GridStudy:
    """A grid's folder, its program, and how far it is, which is on disk whenever it changes.

    `command`: as typed. `round_seconds`: of each round that was begun, all its processes together.
    `left_out`: why there are fewer rounds than planned. `finished`: UTC time, or empty.
    """

    folder: Path
    plan: GridPlan
    command: str = "scripts/study"
    build_folder: str = "build"
    rounds_done: int = 0
    round_seconds: list[float] = field(default_factory=list)
    left_out: str = ""
    finished: str = ""

    @property
    def program(self) -> Path:
        """Of the suite."""
        build = Path(os.path.normpath(PROJECT / self.build_folder))
        return build / "benchmarks/tiny_llama_bench"

    def keep(self, **changes: Any) -> None:  # noqa: ANN401
        """In study.json. OSError where it cannot be written."""
        vars(self).update(changes)
        plan = asdict(self.plan)
        plan["dtypes"] = [plan.pop("dtype")]
        own = {name: value for name, value in vars(self).items() if name not in {"folder", "plan"}}
        own["round_seconds"] = [round(seconds, 3) for seconds in self.round_seconds]
        document = {"kind": KIND, "schema_version": SCHEMA_VERSION, "passes": PASSES}
        write_whole(self.folder / STUDY, compact_json(document | plan | own, ()))

    @classmethod
    def read(cls, folder: Path) -> GridStudy:
        """BadInputError naming the file and what is wrong where study.json is not one of a grid."""
        path = folder / STUDY
        # studies of before there was a check had none
        document = {"check_size": NO_CHECK} | read_json(path)[0]
        try:
            if (document["kind"], document["schema_version"]) != (KIND, SCHEMA_VERSION):
                raise ValueError(f"kind must be {KIND}, schema_version {SCHEMA_VERSION}")
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
            (values["dtype"],) = values["dtypes"]
            plan = GridPlan(**{f.name: values[f.name] for f in fields(GridPlan)})
            own = {f.name: document[f.name] for f in fields(cls) if f.name in document}
        except (KeyError, TypeError, ValueError) as error:
            remedy = "remove the folder, or name another with --results"
            raise bad_file(path, f"is no study of a grid: {error!r}", remedy) from error
        return cls(folder, plan, **own)


def begin_study(plan: GridPlan, build_folder: Path, results: Path, command: str) -> GridStudy:
    """Makes the folder. OSError where it cannot be made."""
    folder = run_folder(KIND, results)
    folder.mkdir(parents=True)
    used = os.path.relpath(build_folder.resolve(), PROJECT)
    study = GridStudy(folder, plan, without_folders(command), used)
    study.keep()
    return study


def unfinished_study(results: Path, build_folder: Path) -> GridStudy:
    """The newest grid that did not end, as it was begun, unless another build folder than the
    checkout's is given; BadInputError where there is none, or its study.json cannot be read."""
    for folder in sorted(results.glob(f"*_{KIND}"), reverse=True):
        study = GridStudy.read(folder) if (folder / STUDY).is_file() else None
        if study and not study.finished:
            if build_folder != PROJECT / "build":
                study.build_folder = os.path.relpath(build_folder.resolve(), PROJECT)
            return study
    raise BadInputError(
        f"--resume: {results} holds no grid that did not end; begin one: "
        "scripts/study --grid tiny small"
    )


def planned_names(program: Path, options: Sequence[str]) -> list[str]:
    """What --list names; SuiteError with the program's own words where it refuses the options."""
    names, refusal = SuiteProgram(program=program).list_cases(options)
    if refusal:
        raise SuiteError(refusal)
    return names


# ---- one run of the program

# what it says of a case on standard error: "[3/96] attention/...  1.27 ms"
CASE_LINE = re.compile(r"\[\d+/\d+\] (?P<name>\S+)  (?P<outcome>.*)")
# what Google Benchmark appends to the name that --list prints
OWN_SUFFIXES = re.compile(r"(/iterations:\d+)?(/repeats:\d+)?(/manual_time)?$")


def journal_options(result: Path, like: Path, verify: str) -> list[str]:
    """--journal, and --resume where there is something to continue.

    A new journal begins with the header of the journal `like`, without its peaks: the program then
    refuses to go on where commit, device, libtorch, threads or seed are others than they were.
    """
    journal = journal_of(result)
    options = [f"--journal={journal}"]
    if not journal.is_file() or b"\n" not in journal.read_bytes():
        # one without a whole header was killed before its first case
        journal.unlink(missing_ok=True)
        if not like.is_file():
            return options
        first = parse_json(like.read_text(encoding="utf-8").partition("\n")[0])
        first["header"].pop("peaks", None)
        first["header"]["verify"] = verify
        journal.write_text(json.dumps(first) + "\n", encoding="utf-8")
    return [*options, "--resume"]


def case_of(entry: Json) -> str:
    """The name that --list prints for the case of a row."""
    return OWN_SUFFIXES.sub("", entry["run_name"])


def outcomes(result: Path) -> tuple[int, int, int]:
    """How many cases of a file were measured, left out with a reason, and failed."""
    found = read_result_set([result])
    failed = sum(case.is_failure for case in found.left_out)
    return len(found.cases), len(found.left_out) - failed, failed


def run_journaled(
    study: GridStudy,
    options: Sequence[str],
    result: Path,
    names: Sequence[str],
    title: str,
    number: int = 0,
) -> list[Json]:
    """Runs the program to its end, from where its journal is: the rows that it wrote. `names`: of
    all cases that have to be there. `number`: of the round, where it is one.

    Raises KeyboardInterrupt where we were interrupted, and its journal has what it had; GridError
    where there is no whole result.
    """
    progress, rounds = Progress(), study.plan.rounds if number else 1
    kept = len(set(names) & set(journaled_names(journal_of(result))))
    progress.begin(rounds * len(names), max(0, number - 1) * len(names) + kept, title)
    progress.line(f"{title}: {len(names) - kept} cases")

    def hear(line: str) -> None:
        """A finished case counts, a failed one is told at once."""
        found = CASE_LINE.fullmatch(line)
        if found and found["outcome"].startswith("FAILED: "):
            progress.line(f"{found['name']}: {found['outcome']}")
        if found:
            progress.step(f"{found['name']}  {found['outcome']}")

    verify = "before" if number == 1 else "off"
    journal = journal_options(result, journal_of(round_file(study.folder, 1)), verify)
    command = [str(study.program), *options, *journal, f"--benchmark_out={result}"]
    try:
        # 1: cases that failed, which are results
        done = run_program(command, GridError, ok=(0, 1), hear=hear)
    except GridError as error:
        raise GridError(f"{title}: {error}", error.exit_status) from error
    finally:
        progress.end()
    rows = read_json(result)[0]["benchmarks"] if result.is_file() else []
    missing = set(names) - set(map(case_of, rows))
    if missing:
        # it could not write its journal, say
        what = f"{result.name} lacks {len(missing)} of {len(names)} cases"
        raise GridError(f"{what}; last words of {study.program.name}: {done.words}")
    if done.is_interrupted:
        raise KeyboardInterrupt
    return rows


# ---- the files of a grid, in the order in which they are made


def costs_of(study: GridStudy) -> list[CaseCost]:
    """What costs.json says, which is written where it is not there yet: of every case of the grid,
    of every problem size at its own batch and sequence, and of the shapes that might check
    predictions.

    SuiteError where the program does not tell them, BadInputError where the file is no longer good.
    """
    path = study.folder / COSTS
    if not path.is_file():
        answers = [ask_dry_run(study.program, options)[0] for options in study.plan.priced()]
        keys = ("name", *NUMBERS, "fits", "reason")
        cases = [{key: case.get(key, "") for key in keys} for of in answers for case in of["cases"]]
        head = ("device", "git_commit", "memory_budget_bytes", "memory_budget_source")
        document = {key: answers[0].get(key, "") for key in head}
        document["cases"] = list({case["name"]: case for case in cases}.values())
        write_whole(path, json.dumps(document, indent=1) + "\n")
    return read_costs(path)


clock = time.monotonic


def run_rounds(study: GridStudy, names: Sequence[str]) -> None:
    """All rounds that are not done yet.

    A round that was begun is always ended; later ones are left out where the budget is spent.
    Raises what run_journaled does.
    """
    plan, say = study.plan, Progress().line
    for number in range(study.rounds_done + 1, plan.rounds + 1):
        spent = study.round_seconds
        if number > 1 and number > len(spent):
            expected = spent[-1] * (LATER_SHARE if number == 2 else 1.0)
            left = max(0.0, 60 * plan.minutes - sum(spent))
            if expected > left:
                text = (
                    f"rounds from {number} on are left out: another {duration(expected)} would "
                    f"exceed --grid-minutes {plan.minutes:g}, of which {duration(left)} are left"
                )
                study.keep(left_out=text)
                say(text)
                break
        spent = [*spent, *[0.0] * (number - len(spent))]
        result, title = round_file(study.folder, number), f"round {number}/{plan.rounds}"
        started = clock()
        try:
            run_journaled(study, plan.round(number), result, names, title, number)
        finally:
            spent[number - 1] += clock() - started
            study.keep(round_seconds=spent)
        study.keep(rounds_done=number)
        measured, left_out, failed = outcomes(result)
        what = f"{measured} measured, {left_out} left out, {failed} failed"
        say(f"{title}: {what}, in {duration(spent[number - 1])}")


def write_products(study: GridStudy) -> None:
    """products.json: what each GEMM of a step reaches; of a row that two processes measured, the
    first one's. Raises what run_journaled does."""
    path = study.folder / PRODUCTS
    if path.is_file():
        return
    rows: list[Json] = []
    parts = []
    for which, options in study.plan.products().items():
        part = study.folder / f"{path.stem}_{which}.json"
        known = set(map(case_of, rows))
        names = planned_names(study.program, options)
        found = run_journaled(study, options, part, names, "GEMMs")
        rows += [row for row in found if case_of(row) not in known]
        parts.append(part)
    document = {"context": read_json(parts[0])[0]["context"], "benchmarks": rows}
    write_whole(path, json.dumps(document, indent=1) + "\n")
    for part in parts:
        part.unlink()
        journal_of(part).unlink()


def _attained_rate(study: GridStudy, costs: Sequence[CaseCost]) -> float | None:
    """FLOP/s of the largest training step of the first round; None where it has none."""
    flops = {cost.name: cost.model_flops for cost in costs}
    steps = [
        (flops[case.name], flops[case.name] / case.median_seconds)
        for case in read_result_set([round_file(study.folder, 1)]).cases.values()
        if case.name.is_training_step and case.name.variant == study.plan.checked_variant
    ]
    return max(steps, default=(0, None))[1]


def choose_step(
    plan: GridPlan, costs: Sequence[CaseCost], rate: float | None
) -> tuple[CaseCost | None, str]:
    """The largest shape of the size that is checked that fits and is expected to take CHECK_SECONDS
    at most; or None and why."""
    if rate is None:
        return None, "no training step was measured to estimate it by"
    known, of = {cost.name: cost for cost in costs}, plan.checked_variant
    names = [full_step(plan.check_size, plan.dtype, *shape, of) for shape in plan.check_shapes]
    why = f"its costs at {plan.check_size} are not known"
    for step in (known[name] for name in names if name in known):
        seconds = (CHECK_STEPS + 1) * step.model_flops / rate
        if step.fits and seconds <= CHECK_SECONDS:
            return step, ""
        why = step.reason or f"{CHECK_STEPS + 1} steps would take {duration(seconds)}"
        why += f" at batch {step.name.batch} and sequence {step.name.seq}"
    return None, why


def write_check(study: GridStudy, costs: Sequence[CaseCost]) -> None:
    """check.json: a few training steps of a size bigger than the grid's, by which predictions are
    checked, since no rate is calibrated on them. Where no step can be afforded, that is said.
    Raises what run_journaled does."""
    plan, path, say = study.plan, study.folder / CHECK, Progress().line
    if (path.is_file() and not journal_of(path).is_file()) or not plan.is_checked:
        return
    step, why = choose_step(plan, costs, _attained_rate(study, costs))
    if step is None:
        say(f"{CHECK} is left out: {why}")
        return
    title = f"check at {plan.check_size}"
    names = [str(step.name)]
    rows = run_journaled(study, plan.check(step), path, names, title)
    journal_of(path).unlink()
    for row in rows:
        if why_not := row.get("skip_message") or row.get("error_message"):
            say(f"{CHECK} has no step: {why_not}")


FRONTIER_CASES = {"variants": ("baseline", "optimized"), "dtypes": ("f32", "bf16")}
FRONTIER_GIVEN = {"seq": (128, 256, 512, 1024, 2048), "batch": (1, 2, 4, 8, 16)}
# what the program searches at most
LARGEST = 2**20


def predict_frontier(folder: Path, program: Path, device: str = "auto") -> Path:
    """Writes what fits of all sizes into the memory that is free now, over sequences and over
    batches, to the folder's frontier.json, as the program's --find-limit answers. Nothing of it is
    tried.

    Raises SuiteError where the program cannot be asked, OSError where the file cannot be written.
    """
    by_key: dict[str, list[Json]] = {}
    answer: Json = {}
    for axis in AXES.values():
        lists = {"components": (STEP,), "sizes": tuple(problem_sizes()), **FRONTIER_CASES}
        lists[axis.given] = FRONTIER_GIVEN[axis.given]
        asked = [f"--{name}={','.join(map(str, values))}" for name, values in lists.items()]
        how = (f"--find-limit={axis.searched}", f"--device={device}", "--benchmark_format=json")
        answer = ask_json(program, [*how, *asked])
        by_key[axis.key] = [
            {
                **{key: row[key] for key in ("size", "variant", "dtype", axis.given)},
                axis.largest_key: row["largest"],
                "predicted_bytes": row["predicted_memory_bytes"],
                "limit_bytes": answer["memory_limit_bytes"],
                "remark": ""
                if row["predicted_memory_bytes_beyond"] > 0 or row["largest"] == 0
                else f"no larger one than {LARGEST} is searched for",
            }
            for row in answer["limits"]
            if not row["skip_reason"]
        ]
    document = {
        "kind": FRONTIER_KIND,
        "schema_version": FRONTIER_SCHEMA_VERSION,
        "device": str(answer["device"].get("name") or ""),
        "git_commit": answer["git_commit"],
        "date": _now(),
        "command": "scripts/study",
        "by": ",".join(AXES),
        "limit_bytes": answer["memory_limit_bytes"],
        "limit_source": answer["memory_limit_source"],
        "overhead": {"source": "none is added: the memory of tensors is predicted to the byte"},
        **by_key,
    }
    path = folder / FRONTIER
    write_whole(path, json.dumps(document, indent=1) + "\n")
    return path


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


# ---- the whole of it


def complain(text: str) -> None:
    """To standard error."""
    print(f"scripts/study: {text}", file=sys.stderr, flush=True)


def resuming(study: GridStudy) -> str:
    """The command that goes on with it."""
    results = study.folder.parent
    place = "" if results.resolve() == RESULTS.resolve() else f" --results {results}"
    return f"scripts/study --resume{place}"


def _make(study: GridStudy, say: Callable[[str], None]) -> int:
    names = planned_names(study.program, study.plan.grid())
    costs = costs_of(study)
    say(f"{study.plan.in_words(len(names))}\nOutput Directory: {shown(study.folder)}")
    run_rounds(study, names)
    write_products(study)
    write_check(study, costs)
    if not (study.folder / FRONTIER).is_file():
        Progress().line("predicting the largest batch of every sequence")
        try:
            predict_frontier(study.folder, study.program, study.plan.device)
        except SuiteError as error:
            # not finished: --resume tries it again
            complain(f"{FRONTIER} is left out: {error}; {resuming(study)} tries again")
            return FAILED
    files = [round_file(study.folder, n + 1) for n in range(study.rounds_done)]
    files += [path for name in (PRODUCTS, CHECK) if (path := study.folder / name).is_file()]
    has_failures = any(outcomes(path)[2] for path in files)
    study.keep(finished=_now())
    return FAILED if has_failures else 0


def run_study(study: GridStudy, say: Callable[[str], None]) -> int:
    """Measures what the study lacks; the exit status of scripts/study.

    Whatever ends it early keeps what was measured and says how to go on. OSError where a file
    cannot be written.
    """
    rounds, where = f"{study.plan.rounds} rounds", shown(study.folder)
    try:
        status = _make(study, say)
    except KeyboardInterrupt:
        done = f"{study.rounds_done} of {rounds} are done"
        complain(f"interrupted: {done}, and nothing is lost; {resuming(study)} continues")
        return INTERRUPTED
    except ProgramError as error:
        complain(str(error))
        condition = "with the build, commit and machine that it was begun with"
        complain(f"what was measured is in {where}; {resuming(study)} continues, {condition}")
        return error.exit_status
    files = [f"  {shown(path)}" for path in sorted(study.folder.glob("*.json"))]
    took = duration(sum(study.round_seconds))
    lines = [f"Grid: {study.rounds_done} of {rounds} in {took}; their files are in {where}:"]
    lines += [*files, *filter(None, [study.left_out]), "scripts/report makes the page of it."]
    say("\n".join(lines))
    return status
