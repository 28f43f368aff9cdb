"""Confirming a prediction by tries: the order of values, and what each ending of a process says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from frontier_stand_in import GIB, MIB, PlayedAsker

from tinyllama_tools.frontier.axis import BY_BATCH, BY_SEQ, Line
from tinyllama_tools.frontier.bracket import LARGEST
from tinyllama_tools.frontier.confirmation import Confirmation, Try, confirm
from tinyllama_tools.frontier.points import apart_percent
from tinyllama_tools.frontier.tries import MortalProgram, Trial
from tinyllama_tools.suite_run import CaseRun, SuiteError, SuiteResult

LINE = Line("tiny", "baseline", "f32", 128)


@dataclass
class Machine:
    """Runs values up to `largest`; `stops_at`: the value that shows nothing."""

    largest: int
    stops_at: int | None = None
    tried: list[int] = field(default_factory=list)

    def __call__(self, value: int) -> Try:
        self.tried.append(value)
        if value == self.stops_at:
            return Try(value, None, "took more than 9 s (--max-seconds)")
        return Try(value, True) if value <= self.largest else Try(value, False, "out of memory")


def test_an_exact_prediction_takes_two_tries() -> None:
    machine = Machine(12)
    assert confirm(12, machine).largest == 12
    assert machine.tried == [12, 13]


@pytest.mark.parametrize("largest", [0, 1, 2, 11, 13, 17, 40, 100, 1000])
@pytest.mark.parametrize("predicted", [0, 1, 12, 90])
def test_the_largest_is_found_wherever_it_was_predicted(predicted: int, largest: int) -> None:
    machine = Machine(largest)
    assert confirm(predicted, machine).largest == largest
    assert len(machine.tried) == len(set(machine.tried)) <= 18
    assert min(machine.tried) >= 1


@pytest.mark.parametrize("predicted", [0, 2, 9])
def test_nothing_below_the_smallest_is_tried(predicted: int) -> None:
    machine = Machine(1)
    assert confirm(predicted, machine, smallest=2).largest == 0
    assert min(machine.tried) == 2
    assert confirm(predicted, Machine(2), smallest=2).largest == 2


def test_it_ends_where_the_program_takes_no_more() -> None:
    assert confirm(LARGEST - 3, Machine(2 * LARGEST)).largest == LARGEST


def test_a_try_without_an_answer_ends_it_and_is_named() -> None:
    found = confirm(12, Machine(40, stops_at=17))
    assert found.largest is None
    assert found.text(BY_SEQ) == (
        "not confirmed: batch 17: took more than 9 s (--max-seconds); batch 13 ran"
    )
    nothing = confirm(12, Machine(40, stops_at=12))
    assert nothing.text(BY_BATCH) == (
        "not confirmed: sequence 12: took more than 9 s (--max-seconds)"
    )


def test_predicted_and_confirmed_stand_side_by_side() -> None:
    assert confirm(12, Machine(12)).text(BY_SEQ) == "12, as predicted (batch 13: out of memory)"
    assert confirm(12, Machine(10)).text(BY_SEQ) == "10, predicted 12 (batch 11: out of memory)"
    assert confirm(3, Machine(0)).text(BY_SEQ) == "0, predicted 3 (batch 1: out of memory)"
    assert Confirmation(9, LARGEST, (Try(9, True),)).text(BY_SEQ) == f"{LARGEST}, predicted 9"
    assert apart_percent(12, 10) == pytest.approx(20)
    assert apart_percent(9, 12) == pytest.approx(-25)
    assert apart_percent(0, 0) == 0
    assert apart_percent(3, 0) is None
    assert apart_percent(3, None) is None


class Played(MortalProgram):
    """Ends as it is told to: a status with an error, or a case."""

    ending: Callable[[], SuiteResult]

    def run(self, *_: object, **__: object) -> SuiteResult:
        return self.ending()


def run_once(ending: Callable[[], SuiteResult], status: int | None = 0, free: int = 4 * GIB) -> Try:
    program = Played(program=Path("tiny_llama_bench"))
    program.ending, program.last_status = ending, status
    return Trial(program, PlayedAsker(free), 2 * GIB, 9).attempt(BY_SEQ, LINE, 12)


def case(peak_bytes: float = GIB, **more: str) -> Callable[[], SuiteResult]:
    seconds = () if more else (0.1,)
    counters = {} if more else {"peak_memory_MiB": peak_bytes / MIB}
    return lambda: SuiteResult({}, (CaseRun("case", seconds, counters, **more),))


def raising(words: str, cause: BaseException | None = None) -> Callable[[], SuiteResult]:
    def fail() -> SuiteResult:
        raise SuiteError(words) from cause

    return fail


def test_a_step_that_ran_fits() -> None:
    assert run_once(case()) == Try(12, True, "", GIB)


def test_a_failed_allocation_does_not_fit() -> None:
    words = "out of memory: CPU memory: no room for 12 bytes"
    assert run_once(case(failed=words)) == Try(12, False, "out of memory")
    # before there was any case
    assert run_once(raising("ended with 1: CUDA out of memory"), 1).fits is False


def test_a_step_above_the_limit_does_not_fit() -> None:
    found = run_once(case(2 * GIB + MIB))
    assert found == Try(12, False, "needed 2049.0 MiB", 2 * GIB + MIB)


NO_ROOM = "ended with -6: terminate called after throwing an instance of 'std::bad_alloc'"


@pytest.mark.parametrize(
    ("status", "words", "name"), [(-9, "ended", "SIGKILL"), (-6, NO_ROOM, "SIGABRT")]
)
def test_a_process_killed_for_want_of_memory_is_an_answer(
    status: int, words: str, name: str
) -> None:
    assert run_once(raising(words), status) == Try(12, False, f"killed by {name}")


@pytest.mark.parametrize(
    ("status", "name"),
    [(-6, "SIGABRT"), (-11, "SIGSEGV"), (-15, "SIGTERM"), (-2, "SIGINT"), (-99, "signal 99")],
)
def test_any_other_death_shows_nothing_and_keeps_its_words(status: int, name: str) -> None:
    found = run_once(raising("ended with a bug"), status)
    assert found == Try(12, None, f"killed by {name}: ended with a bug")


def test_a_step_without_its_peak_shows_nothing() -> None:
    ran = run_once(lambda: SuiteResult({}, (CaseRun("case", (0.1,), {}),)))
    assert ran == Try(12, None, "it ran, but its peak_memory_MiB was not measured")


def test_other_endings_show_nothing() -> None:
    skipped = "3 iterations need at least 99.0 s"
    assert run_once(case(skipped=skipped)) == Try(12, None, skipped)
    assert run_once(case(failed="wrong result")) == Try(12, None, "wrong result")
    assert run_once(raising("ended with 3: what?"), 3) == Try(12, None, "ended with 3: what?")
    late = raising("was killed", subprocess.TimeoutExpired("x", 9))
    assert run_once(late, None) == Try(12, None, "took more than 9 s (--max-seconds)")


@pytest.mark.parametrize("status", [2, None])
def test_what_would_end_every_try_is_an_error(status: int | None) -> None:
    with pytest.raises(SuiteError, match="--variants"):
        run_once(raising("--variants 'x'"), status)


def test_no_try_is_made_where_too_little_is_free_by_now() -> None:
    found = run_once(case(), free=2 * GIB)
    assert found.fits is None
    assert found.why == "only 2.00 GiB are free by now, too few for a try at the limit"
