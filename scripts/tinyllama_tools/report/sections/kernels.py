"""Kernel time by component, from files of the vendors' profilers."""

import re
from collections.abc import Sequence

from tinyllama_tools.core.app import shown_path
from tinyllama_tools.core.text import listed, seconds_text
from tinyllama_tools.data.kernel_profiles import PAGE, KernelProfile, KernelTime
from tinyllama_tools.report.document import Section
from tinyllama_tools.report.inputs import ReportInputs

OUTSIDE = "none of our components"
# as AMD's and NVIDIA's tools write it
UNNAMED = re.compile(r"(\(anonymous namespace\)|<unnamed>)::")


def _longest(kernels: Sequence[KernelTime]) -> str:
    """`gemm (12.3 ms), copy (1.2 ms) and 4 more`: without arguments, of a name its beginning."""
    texts = []
    for name, seconds in ((one.kernel, one.seconds) for one in kernels if one.kernel):
        plain = UNNAMED.sub("", name.removeprefix("void "))
        short = plain.partition("<")[0].partition("(")[0][:60].strip()
        texts.append(f"{short} ({seconds_text(seconds)})")
    return listed(texts, 3)


def _add(page: Section, profile: KernelProfile) -> None:
    rows = [
        {
            "component": component or OUTSIDE,
            "calls": sum(one.calls for one in kernels),
            "time": (seconds := sum(one.seconds for one in kernels)),
            "share": 100 * seconds / profile.seconds,
            "longest kernels": _longest(kernels),
        }
        for component, kernels in profile.by_component().items()
    ]
    path = shown_path(profile.path)
    page.table("kernel_components", rows, tool=profile.tool, file=path)
    if [row["component"] for row in rows] == [OUTSIDE]:
        why = f"no kernel was launched in a range; profile with --emit-ranges and as {PAGE} says"
        page.leave_out("kernel time by component", path, why)


def build(page: Section, inputs: ReportInputs) -> None:
    """A table for each file, one below the other."""
    for number, profile in enumerate(inputs.profiles, start=1):
        had = len(page.tables)
        _add(page, profile)
        if number > 1:
            page.number_tables(number, had)
