"""What the steps of scripts/gpu_check conclude from what the programs wrote: docs/gpu_check.md has
the limits and why they are so. What was not seen is unknown, not passed."""

import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import listed, value_at
from tinyllama_tools.data.gpu_cards import VENDORS, Card
from tinyllama_tools.data.gpu_checks import Finding, State, is_within
from tinyllama_tools.data.machine import BYTES, FLOPS, MEMORY_BANDWIDTH
from tinyllama_tools.data.names import CaseName, StoredCase, StoredRun, parse_case_name
from tinyllama_tools.models.step_ratios import Ratios

PASSED, FAILED, UNKNOWN = State.PASSED, State.FAILED, State.UNKNOWN
SKIPPED, NOTED = State.SKIPPED, State.NOTED
PERCENT = 100.0
# of memory, and of clocks that time the same
MEMORY_PERCENT, CLOCK_PERCENT = 2.0, 5.0
# of a datasheet's peak
LEAST_PEAK, MOST_PEAK = 40.0, 100.0
LEAST_MFU, LEAST_GRAPH_SPEEDUP = 50.0, 4.0


def known(what: str, value: object) -> Finding:
    """A fact that a result has to name."""
    text = "" if value in (None, 0) else str(value).strip()
    is_known = bool(text) and text.lower() not in ("unknown", "0")
    return Finding(what, PASSED if is_known else UNKNOWN, text or None, limit="known")


def share(what: str, value: float | None, low: float, high: float, why: str = "") -> Finding:
    """A figure in percent between two limits. `why`: it has none."""
    limit = f"{low:g} to {high:g}" if low > -high else f"within {high:g}"
    why = why if value is None else ""
    return Finding(what, is_within(low, value, high), value, "%", limit, why)


def apart(what: str, one: float | None, other: float | None, most: float, why: str = "") -> Finding:
    """By how much one figure differs from another, in percent of that."""
    percent = None if one is None or not other else PERCENT * (one / other - 1)
    return share(what, percent, -most, most, why)


def not_measured(what: str, case: StoredCase | None) -> Finding | None:
    """Why a case has no figures; None where it was measured."""
    if case is None:
        return Finding(what, UNKNOWN, why="the program wrote nothing about it")
    if case.failed:
        return Finding(what, FAILED, why=case.failed)
    return Finding(what, UNKNOWN, why=case.skipped) if case.skipped else None


# ---- 1: libraries and device

GPU_LIBRARIES = re.compile(
    r"^\s*(lib(?:torch_hip|c10_hip|torch_cuda|c10_cuda|amdhip64|cudart|rccl|nccl|rocblas|hipblaslt|"
    r"cublas|cublasLt|MIOpen|cudnn)\.so\S*)",
    re.MULTILINE,
)
# of a card whose name the library's table lacks (ROCm/TheRock#4693), and where there is none
NO_NAMES = ("AMD Radeon Graphics", "unnamed GPU", "")


def libraries(linked: str) -> Iterator[Finding]:
    """`linked`: what ldd says of the program."""
    if "=>" not in linked:
        yield Finding("libraries", UNKNOWN, why="ldd does not name those of the program")
        return
    missing = re.findall(r"^\s*(\S+) => not found", linked, re.MULTILINE)
    yield Finding(
        "libraries that the loader does not find",
        FAILED if missing else PASSED,
        float(len(missing)),
        limit="0",
        why=listed(missing, 4),
    )
    found = list(dict.fromkeys(GPU_LIBRARIES.findall(linked)))
    has_torch = any(name.startswith(("libtorch_hip", "libtorch_cuda")) for name in found)
    why = "" if has_torch else "neither libtorch_hip nor libtorch_cuda is linked"
    what = "libtorch of a GPU"
    yield Finding(what, PASSED if has_torch else FAILED, ", ".join(found) or "none", why=why)


def device(context: Json, card: Card | None, vendor: str, node: str) -> Iterator[Finding]:
    """`card`, `vendor`: by the system, and its PCI vendor, empty where that is not shown; `node`:
    the driver's."""
    about, settings = context["device"], context["settings"]
    name, datasheet = about["name"].strip(), value_at(context, "peaks.datasheet.device")
    # its architecture and compute units may tell the datasheet all the same
    is_known = name not in NO_NAMES or bool(datasheet)
    why = "" if is_known else "the runtime has no name for it"
    yield Finding("name", PASSED if is_known else UNKNOWN, name or None, why=why)
    for key in ("architecture", "runtime_version", "driver_version"):
        yield known(key.replace("_", " "), about.get(key))
    yield Finding("memory", PASSED, about["memory_bytes"] / 2**30, "GiB")
    yield known("driver's device node", node)
    yield known("UUID", settings.get("gpu.uuid"))
    backend = about["backend"]
    if card is None:
        why = "the system has no card with this UUID"
        yield Finding("PCI address", UNKNOWN, why=why)
    else:
        # in a container only the vendor's own tools may show it
        is_right = vendor in ("", VENDORS[backend])
        why = "" if is_right else f"its PCI vendor is {vendor}"
        limit = f"of vendor {VENDORS[backend]}"
        yield Finding("PCI address", PASSED if is_right else FAILED, card.pci, "", limit, why)
    said = [settings.get(f"gpu.{kind}_partition", "") for kind in ("compute", "memory")]
    partition = " ".join(filter(None, said)) or (card.partition if card else "")
    yield Finding("partition", NOTED, partition or "the driver names none")
    why = "" if datasheet else "fixtures/device_peaks.json does not have this device"
    yield Finding("datasheet", PASSED if datasheet else UNKNOWN, datasheet, why=why)
    for key, value in settings.items():
        if key.startswith("gpu.") and key not in ("gpu.uuid",):
            yield Finding(key, NOTED, str(value))
    yield Finding("libtorch", NOTED, str(context["torch_version"]))


# ---- 2: our kernels


def device_tests(report: Json) -> Iterator[Finding]:
    """`report`: GoogleTest's JSON. A skipped test has shown nothing, and fails."""
    tests = [test for suite in report.get("testsuites", ()) for test in suite["testsuite"]]
    failed = [one["name"] for one in tests if one.get("failures")]
    unrun = [t for t in tests if t.get("result") == "SKIPPED" or t.get("status") == "NOTRUN"]
    why = {message_of(test) for test in unrun}
    yield Finding("tests", PASSED if tests else UNKNOWN, float(len(tests)), limit="1 or more")
    state = FAILED if failed else PASSED
    yield Finding("tests that failed", state, float(len(failed)), limit="0", why=listed(failed, 4))
    state = FAILED if unrun else PASSED
    words = listed(sorted(filter(None, why)), 2)
    yield Finding("tests that were skipped", state, float(len(unrun)), limit="0", why=words)


def message_of(test: Json) -> str:
    """The last line of why a test was skipped."""
    said = [one.get("message", "") for one in test.get("skipped", ())]
    return said[0].strip().splitlines()[-1] if said and said[0].strip() else "skipped"


def sanitizer(said: str) -> Finding:
    """`said`: all that compute-sanitizer printed."""
    what = "errors that compute-sanitizer found"
    if found := re.search(r"ERROR SUMMARY: (\d+) error", said):
        count = int(found[1])
        first = re.search(r"^=+ ((?!ERROR SUMMARY|COMPUTE).*\w.*)$", said, re.MULTILINE)
        why = first[1] if count and first else ""
        return Finding(what, FAILED if count else PASSED, float(count), limit="0", why=why)
    # such as `Device not supported` on a virtual machine
    line = next((one for one in said.splitlines() if one.startswith("=====")), "it said nothing")
    return Finding(what, UNKNOWN, why=line.strip("= ") or "it gave no summary")


# ---- 3: proofs

LINE = re.compile(r"(\S+)\s+\S+ of \S+ allowed\s+(proved|FAILED: .*|skipped: .*)")
# reasons that no build and no card would remove
RULES = re.compile(
    r"our kernel is for CPUs|for CPUs without units|changes nothing in|"
    r"it needs fused_adamw or library_adamw|the loss scaling of amp_f16 looks"
)
# a variant by its switches, and a dtype
Kind = tuple[frozenset[str], str]


def _kind(case: CaseName) -> Kind:
    return frozenset(case.variant.split("+")), case.dtype


def proofs(text: str, variants: Sequence[str], dtypes: Sequence[str], at: str) -> Iterator[Finding]:
    """`text`: what --verify only printed; `at`: the shape."""
    lines = [found.groups() for found in map(LINE.fullmatch, text.splitlines()) if found]
    cases = [(case, how) for name, how in lines if (case := parse_case_name(name))]
    proved = {_kind(case) for case, how in cases if how == "proved"}
    number = sum(how == "proved" for _, how in cases)
    what = f"cases proved, {at}"
    yield Finding(what, PASSED if number else UNKNOWN, float(number), limit="1 or more")
    failed: dict[str, list[str]] = {}
    for case, how in cases:
        if how.startswith("FAILED: "):
            failed.setdefault(how.removeprefix("FAILED: "), []).append(str(case))
    number = sum(map(len, failed.values()))
    reasons = [f"{listed(names, 2)}: {reason}" for reason, names in failed.items()]
    why = "; ".join(reasons[:3]) + f"; and {len(reasons) - 3} more reasons" * (len(reasons) > 3)
    state = FAILED if failed else PASSED
    yield Finding(f"cases that failed, {at}", state, float(number), limit="0", why=why)
    # by reasons, what has no proof in any component
    without: dict[tuple[str, ...], list[str]] = {}
    for variant in variants:
        for dtype in dtypes:
            kind = frozenset(variant.split("+")), dtype
            if kind in proved:
                continue
            said = [how for case, how in cases if _kind(case) == kind and how != "proved"]
            skips = [how.removeprefix("skipped: ") for how in said if how.startswith("skipped")]
            if len(skips) == len(said):
                reasons = tuple(dict.fromkeys(skips)) or ("no case of it was there",)
                without.setdefault(reasons, []).append(f"{variant} {dtype}")
    for reasons, kinds in without.items():
        state = SKIPPED if all(map(RULES.search, reasons)) else UNKNOWN
        what = f"not proved, {at}: {listed(kinds, 6)}"
        yield Finding(what, state, float(len(kinds)), "variants and dtypes", "0", reasons[-1])


# ---- 4: graphs


def losses(what: str, eager: Sequence[Sequence[float]], graph: Sequence[float]) -> Finding:
    """The losses of a graph against those of two eager runs. Where these agree to the bit, so must
    the graph; else it may be as far away as they are."""

    def difference(one: Sequence[float], other: Sequence[float]) -> float:
        pairs = zip(one, other, strict=True)
        return max((abs(a - b) / max(abs(b), 1e-30) for a, b in pairs), default=0.0)

    if not graph or {len(one) for one in eager} != {len(graph)}:
        return Finding(what, UNKNOWN, why="the runs did not make the same number of steps")
    most, found = difference(*eager), difference(graph, eager[0])
    state = PASSED if found <= most else FAILED
    return Finding(what, state, found, "of the loss, most", f"{most:.3g}, as of two eager runs")


def same_work(what: str, eager: StoredCase | None, graph: StoredCase | None) -> Iterator[Finding]:
    """Kernels and memory of a graph against those of the same step without."""
    for name, case in (("eager", eager), ("graph", graph)):
        if reason := not_measured(f"{what}, {name}", case):
            yield reason
            return
    kernels = [case.counters.get("kernels") for case in (eager, graph)]
    if None in kernels:
        why = "the profiler saw no kernels, or not all: the row's label says why"
        yield Finding(f"{what}: kernels", UNKNOWN, why=why)
    else:
        state = PASSED if kernels[0] == kernels[1] else FAILED
        limit = f"{kernels[0]:g}, as eager"
        yield Finding(f"{what}: kernels", state, kernels[1], limit=limit)
    memory = [case.counters.get("peak_memory_MiB") for case in (graph, eager)]
    yield apart(f"{what}: peak memory against eager", *memory, MEMORY_PERCENT)


def fills_memory(case: StoredCase | None, memory_bytes: float, wanted: float) -> Iterator[Finding]:
    """A step with a graph at this share of the memory, in percent."""
    what = f"graph at {wanted:g} % of the memory"
    if reason := not_measured(what, case):
        # what does not fit must fit
        yield replace(reason, state=FAILED) if case and case.skipped else reason
        return
    peak = case.counters.get("peak_memory_MiB")
    percent = None if peak is None else PERCENT * peak * 2**20 / memory_bytes
    # of whole samples, the next of which would be too large
    yield share(what, percent, wanted / 2, wanted)


# ---- 5: clocks


def clocks(
    singly: Sequence[float], in_a_row: Sequence[float], wall_seconds: float, case: StoredCase | None
) -> Iterator[Finding]:
    """`singly`: seconds of steps that were each waited for; `in_a_row`: of those between two waits,
    which took so much of the wall clock; `case`: of the same step, with what the profiler saw."""
    of_row = statistics.median(in_a_row)
    most = CLOCK_PERCENT
    what = f"one step against {len(in_a_row)} in a row"
    yield apart(what, statistics.median(singly), of_row, most)
    yield apart("events against wall time", sum(in_a_row), wall_seconds, most)
    what = "profiler against events"
    if reason := not_measured(what, case):
        yield reason
        return
    why = "the profiler saw no kernels, or not all: the row's label says why"
    milliseconds = case.counters.get("device_ms")
    yield apart(what, milliseconds and 1e-3 * milliseconds, case.seconds, most, why)


# of the timer, whose samples are as long at least (benchmarks/harness/timing.cpp)
SHORTEST_SAMPLE_US = 50.0


def event_pair(context: Json) -> Finding:
    """The cost of two events with nothing between them, which the program measures at its start.
    How much of it is in a sample with work is not known."""
    what = "two events with nothing between them"
    cost = value_at(context, "timer.empty_pair_us")
    if cost is None:
        return Finding(what, UNKNOWN, why="the result does not say what the timer costs")
    most = SHORTEST_SAMPLE_US * CLOCK_PERCENT / PERCENT
    limit = f"0 to {most:g}"
    if cost > most:
        of = PERCENT * cost / SHORTEST_SAMPLE_US
        why = f"{cost:.3g} us are up to {of:.0f} % of the shortest samples"
        return Finding(what, UNKNOWN, cost, "us", limit, why)
    return Finding(what, is_within(0, cost, most), cost, "us", limit)


# ---- 6: peaks


def peaks(context: Json, dtype: str) -> Iterator[Finding]:
    """GEMM and bandwidth, in percent of the datasheet's."""
    named = {
        f"{dtype} GEMM": (f"{dtype}.{FLOPS}", f"{FLOPS}.{dtype}"),
        "triad beyond all caches": (f"{MEMORY_BANDWIDTH}.{BYTES}", f"memory_{BYTES}"),
    }
    for what, (measured, datasheet) in named.items():
        rate = value_at(context, f"peaks.measured.{measured}")
        most = value_at(context, f"peaks.datasheet.{datasheet}")
        why = "it was not measured" if rate is None else "no datasheet of this device is known"
        percent = PERCENT * rate / most if rate and most else None
        yield share(f"{what}, of the datasheet's", percent, LEAST_PEAK, MOST_PEAK, why)


def attention(run: StoredRun) -> Iterator[Finding]:
    """What computed each case's attention, by its label."""
    for name, case in run.cases.items():
        what = f"attention of {name}"
        if reason := not_measured(what, case):
            yield reason
            continue
        found = re.search(r"\battention: ([^;]+)", case.label)
        if found is None:
            yield Finding(what, UNKNOWN, why="the row's label does not say what computed it")
        else:
            state = FAILED if found[1].strip() == "math" else PASSED
            yield Finding(what, state, found[1].strip(), limit="not math")


# ---- 7: what bounds a step


def host_bound(what: str, case: StoredCase | None, expected: bool) -> Finding:
    """Whether kernels ran for less than nine tenths of a step."""
    if reason := not_measured(what, case):
        return reason
    found = case.counters.get("host_bound")
    if found is None:
        why = "the profiler saw no kernels, or not all: the row's label says why"
        return Finding(what, UNKNOWN, why=why)
    busy = case.counters.get("device_ms")
    of_step = PERCENT * 1e-3 * busy / case.seconds if busy is not None else None
    state = PASSED if bool(found) is expected else FAILED
    return Finding(what, state, of_step, "% of the step in kernels", f"host_bound {int(expected)}")


# ---- 8: memory


def memory(what: str, case: StoredCase | None) -> Finding:
    """The measured peak against the predicted one."""
    if reason := not_measured(what, case):
        return reason
    both = [case.counters.get(f"{kind}_memory_MiB") for kind in ("peak", "predicted")]
    return apart(what, *both, MEMORY_PERCENT, "the row lacks its peak or its prediction")


def limits(document: Json) -> Iterator[Finding]:
    """What --find-limit --confirm tried: the largest fits, and one more does not."""
    for one in document.get("limits", ()):
        axis = document.get("searched", "batch")
        of = f"{one['size']} {one['dtype']} {one['switches']}: {axis}"
        if one.get("skip_reason"):
            yield Finding(of, UNKNOWN, why=one["skip_reason"])
            continue
        for key, number, expected in (
            ("tried", one["largest"], True),
            ("tried_beyond", one["largest"] + 1, False),
        ):
            what = f"{of} {number} {'fits' if expected else 'does not fit'}"
            tried = one.get(key)
            if tried is None:
                yield Finding(what, UNKNOWN, why="it was not tried")
                continue
            is_right = tried["fits"] is expected
            why = tried.get("failure") or ("it fits" if tried["fits"] else "it does not fit")
            peak = (tried.get("peak_bytes") or 0) / 2**20 or None
            state = PASSED if is_right else FAILED
            yield Finding(what, state, peak, "MiB", why="" if is_right else why)


# ---- 9: power


def power(
    case: StoredCase | None,
    settings: Mapping[str, str],
    card: Card | None,
    rises: Mapping[str, float],
    under_load: Mapping[str, Sequence[float]],
) -> Iterator[Finding]:
    """`rises`: watts of each card above those at rest; `under_load`: its readings, by the system
    and apart from the program's."""
    if reason := not_measured("step whose power is read", case):
        yield reason
        return
    watts, joules = (case.counters.get(key) for key in ("power_W", "joules_per_token"))
    why = "the program read no power"
    state = is_within(1e-9, watts, float("inf"))
    yield Finding("power by the program", state, watts, "W", "above 0", "" if watts else why)
    state = is_within(1e-12, joules, float("inf"))
    value = None if joules is None else 1e6 * joules
    yield Finding("energy by the program", state, value, "uJ a token", "above 0")
    limit = re.match(r"[\d.]+", settings.get("gpu.power_limit_W", ""))
    if watts and limit:
        # a limit holds over a time of the card's own
        yield share("power, of its limit", PERCENT * watts / float(limit[0]), 0, 105)
    if of := settings.get("gpu.power_of"):
        yield Finding("power is that of", NOTED, of)
    what = "card whose power rose most"
    if card is None or not rises:
        why = (
            "the system knows no card with its UUID" if card is None else "no card tells its power"
        )
        yield Finding(what, UNKNOWN, why=why)
        return
    top = max(rises, key=lambda one: rises[one])
    is_right = top == card.pci and rises[top] > 0
    text = f"{top} by {rises[top]:.0f} W"
    yield Finding(what, PASSED if is_right else FAILED, text, limit=card.pci)
    own = under_load.get(card.pci, ())
    what = "power by the program against the system's readings"
    if watts is None or not own:
        yield Finding(what, UNKNOWN, why="one of both is not known")
    else:
        limit = f"{min(own):.0f} to {max(own):.0f}"
        yield Finding(what, is_within(min(own), watts, max(own)), watts, "W", limit)


# ---- 11: speed

EAGER, COMPILED = "peer:eager", "peer:compile_max_autotune"


def _side(run: StoredRun, point: CaseName, variant: str) -> StoredCase | None:
    wanted = frozenset(variant.split("+"))
    for name, case in run.cases.items():
        found = parse_case_name(name)
        at_point = found and replace(found, variant="") == replace(point, variant="")
        if at_point and frozenset(found.variant.split("+")) == wanted:
            return case
    return None


def _ahead(
    what: str, ratios: Ratios, peer: str, names: Collection[CaseName], least: float
) -> Finding:
    """Whether the fastest of these cases is so many times as fast as a peer."""
    found = {case: ratios[peer, case] for case in names if (peer, case) in ratios}
    if not found:
        return Finding(what, UNKNOWN, why="no ratio: one of both sides was not measured")
    case = max(found, key=lambda one: found[one].median)
    ratio = found[case]
    unit, limit = f"times as fast by {case.variant}", f"{least:g} or more, its interval too"
    low = ratio.interval and ratio.interval.low
    state, why = PASSED, ""
    if ratio.median < least:
        state = FAILED
    elif not low or low < least:
        reaches = f"reaches {low:.3g}" if low else "is not known"
        state, why = UNKNOWN, f"{ratio.median:.3g} {unit}; its interval {reaches}"
    return Finding(what, state, ratio.median, unit, limit, why)


def targets(
    run: StoredRun, ratios: Ratios, point: CaseName, graph: str, with_mfu: bool, with_graph: bool
) -> Iterator[Finding]:
    """What a step at this point has to reach. `graph`: the variant; `with_mfu`: a size that has to
    use half of the card; `with_graph`: one that has to gain by it."""
    sides = {name: _side(run, point, name) for name in ("optimized", graph)}
    for variant in ("baseline", "fused", *sides):
        case = _side(run, point, variant)
        if reason := not_measured(f"step of {variant}", case):
            yield reason
            continue
        yield Finding(f"step of {variant}", NOTED, 1e3 * case.seconds, "ms")
        yield memory(f"{variant}: measured against predicted peak memory", case)
    for peer in (EAGER, COMPILED):
        case = _side(run, point, peer)
        reason = not_measured(f"step of {peer}", case)
        yield reason or Finding(f"step of {peer}", NOTED, 1e3 * case.seconds, "ms")
    wanted = {frozenset(name.split("+")): name for name in sides}
    cases = {
        wanted[kind]: case
        for _, case in ratios
        if (kind := frozenset(case.variant.split("+"))) in wanted
        and replace(case, variant="") == replace(point, variant="")
    }
    what = "optimized or graph against torch.compile max-autotune"
    yield _ahead(what, ratios, COMPILED, cases.values(), 1.0)
    if with_graph:
        own = [cases[graph]] if graph in cases else []
        yield _ahead("graph against eager", ratios, EAGER, own, LEAST_GRAPH_SPEEDUP)
    if with_mfu:
        mfu = [case.counters.get("MFU_percent") for case in sides.values() if case]
        best = max((one for one in mfu if one is not None), default=None)
        why = "no row of optimized or graph has one"
        state = UNKNOWN if best is None else PASSED if best >= LEAST_MFU else FAILED
        limit = f"{LEAST_MFU:g} or more"
        yield Finding(
            "MFU, best of optimized and graph", state, best, "%", limit, "" if best else why
        )


# ---- 10: two ranks


def ranks(points: Sequence[object], failures: Sequence[object]) -> Iterator[Finding]:
    """Of a data-parallel run of one and two ranks."""
    state = FAILED if failures else PASSED
    why = "; ".join(one.words for one in failures)
    yield Finding("numbers of ranks that failed", state, float(len(failures)), limit="0", why=why)
    two = [point for point in points if point.ranks == 2]
    yield Finding(
        "steps of two ranks", PASSED if two else UNKNOWN, float(len(two)), limit="1 or more"
    )
    for point in two:
        if point.efficiency is not None:
            what = f"efficiency, {point.mode}"
            yield Finding(what, NOTED, point.efficiency.median, "%")
