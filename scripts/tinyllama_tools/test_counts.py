"""Counts of passed, failed and skipped tests from the XML reports of GoogleTest and pytest."""

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TestCounts:
    """How many tests passed, which failed, and which were skipped for what reason."""

    __test__ = False  # not a test class, whatever pytest makes of its name

    passed: int = 0
    failures: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()

    def __add__(self, other: "TestCounts") -> "TestCounts":
        return TestCounts(
            self.passed + other.passed, self.failures + other.failures, self.skips + other.skips
        )

    @property
    def total(self) -> int:
        return self.passed + len(self.failures) + len(self.skips)

    def with_failure(self, name: str) -> "TestCounts":
        """One more failure, of what is no test of its own (a crash, a missing program)."""
        return self + TestCounts(failures=(name,))

    def __str__(self) -> str:
        failed, skipped = len(self.failures), len(self.skips)
        return f"{self.passed} passed, {failed} failed, {skipped} skipped"


def count_case(case: ElementTree.Element) -> TestCounts:
    """One test case, under the name that reruns it with -k."""
    name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
    if case.find("failure") is not None or case.find("error") is not None:
        return TestCounts(failures=(name,))
    skipped = case.find("skipped")
    if skipped is not None:
        # GoogleTest's message begins with a line that holds the place in the source
        reason = (skipped.get("message") or "").strip().rpartition("\n")[2]
        return TestCounts(skips=(f"{name}: {reason or 'no reason given'}",))
    if case.get("status") == "notrun":
        return TestCounts(skips=(f"{name}: disabled",))
    if "-byte object" in (case.get("value_param") or ""):
        return TestCounts(
            failures=(f"{name}: its parameter prints as bytes, and needs a PrintTo()",)
        )
    return TestCounts(passed=1)


def read_report(path: Path) -> TestCounts:
    """Counts of one report. Raises OSError or ElementTree.ParseError where it is not whole.

    Each case is counted by itself: the sums in the attributes disagree about disabled ones.
    """
    return sum(
        (count_case(case) for case in ElementTree.parse(path).iter("testcase")), TestCounts()
    )
