"""Chapter 6 in exercise 3's worksheet: each answer follows from the sizes' measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from exercise_3_stand_in import answer, changed, made_up_findings, page, row, ticked
from study_stand_in import PlayedPredictor
from tinyllama_tools.commands.exercise_3 import Findings, forecasts
from tinyllama_tools.commands.exercise_3_rules import growth_exponent, saturation

GIB = 2**30
PEAK = "summary.peak_memory_bytes"
SPEED = "summary.samples_per_second"
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
BOUND = "flops.computational_intensity.memory_bound_vs_compute_bound"
SCORES = "memory.breakdown_at_peak.attention_scores"
CORE = "attention/core"
NAMES = ("tiny", "small", "medium")

Sizes = Mapping[str, Mapping[str, object]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return made_up_findings(tmp_path_factory.mktemp("exercise_3_sizes"))


def every(key: str, *values: object) -> Sizes:
    """One value a size."""
    return {name: {key: value} for name, value in zip(NAMES, values, strict=True)}


def ask(base: Findings, question: str, sizes: Sizes) -> str:
    return answer(page(changed(base, sizes=sizes)), question)


def parameters(base: Findings) -> list[float]:
    return [
        r.summary["model"]["total_parameters"] for r in base.study.results if r.summary is not None
    ]


def with_forecasts(base: Findings, free_bytes: float) -> str:
    found = forecasts(PlayedPredictor(free_bytes), "auto")
    return page(replace(base, study=replace(base.study, forecasts=found)))


def test_the_scaling_table_has_every_size_and_why_some_did_not_run(base: Findings) -> None:
    text = page(changed(base, sizes=every(PEAK, 100 << 20, 200 << 20, 300 << 20)))
    assert row(text, "tiny  ")[3] == "100.0"
    assert row(text, "medium ")[3] == "300.0"
    assert row(text, "large ")[2].startswith("not run: predicted peak memory")
    assert row(text, "very_large ")[1] == "10,691,284,992"


def test_throughput_against_size(base: Findings) -> None:
    question = "1. Does throughput decrease linearly with model size?"
    linear = every(SPEED, *(1e9 / p for p in parameters(base)))
    steep = every(SPEED, *(1e18 / p**2 for p in parameters(base)))
    assert ask(base, question, linear).startswith("Answer: Yes: it goes with parameters ^ -1.00")
    assert ask(base, question, steep).startswith("Answer: No: it goes with parameters ^ -2.00")
    again = "1. How does throughput scale with model size?"
    assert ask(base, again, linear).startswith("Answer: It goes with parameters ^ -1.00")
    assert ask(base, again, steep).startswith("Answer: It goes with parameters ^ -2.00")


def test_saturation(base: Findings) -> None:
    question = "1. At what size does GPU become saturated?"
    flops = [r.summary["model"]["flops_per_step"] for r in base.study.results if r.summary]

    def at_rates(*rates: float) -> Sizes:
        return every("step_seconds", *(f / r for f, r in zip(flops, rates, strict=True)))

    assert ask(base, question, at_rates(1e11, 1.05e11, 1.2e11)).startswith("Answer: At tiny:")
    assert ask(base, question, at_rates(1e11, 2e11, 2.1e11)).startswith("Answer: At small:")
    rising = ask(base, question, at_rates(1e11, 2e11, 4e11))
    assert rising.startswith("Answer: Not within the measured sizes: tiny 100 GFLOP/s")
    assert saturation([]) == (None, [])


def test_batch_and_throughput(base: Findings) -> None:
    question = "1. How does batch size affect throughput?"
    times = {"raises": 0.2428, "leaves": 0.4856, "lowers": 0.9}
    for word, seconds in times.items():
        text = page(changed(base, runs={"batch_16": {"step_seconds": seconds}}))
        assert f"A larger batch {word}" in answer(text, question)


def test_memory_against_parameters(base: Findings) -> None:
    question = "2. Is memory scaling proportional to parameter count?"
    flat = every(PEAK, 10**9, 10**9 + 1, 10**9 + 2)
    linear = every(PEAK, *(16 * p for p in parameters(base)))
    assert ask(base, question, linear).startswith("Answer: Yes: it goes with parameters ^ 1.00")
    assert ask(base, question, flat).startswith("Answer: No: it goes with parameters ^ 0.00")


@pytest.mark.parametrize(
    "question",
    [
        "2. Where does attention memory become significant?",
        "2. At what point does attention memory become significant?",
    ],
)
def test_attention_memory(base: Findings, question: str) -> None:
    peak = 1000 << 20
    sizes = {n: {"memory.peak_bytes": peak, SCORES: 1 << 20} for n in NAMES}
    assert ask(base, question, sizes).startswith("Answer: At no measured size:")
    sizes["small"] = sizes["small"] | {SCORES: 200 << 20}
    found = ask(base, question, sizes)
    assert found.startswith("Answer: At small:") and "small 20.0 %" in found
    # of tiny over S: at 64 the scores are below a tenth of the peak
    assert "at S = 128" in found


@pytest.mark.parametrize(
    "question", ["2. What's the memory overhead ratio?", "2. What is the memory overhead ratio"]
)
def test_overhead_ratio(base: Findings, question: str) -> None:
    bytes_of_tiny = 4 * parameters(base)[0]
    for times in (20, 31):
        found = ask(base, question, {"tiny": {PEAK: times * bytes_of_tiny}})
        assert f"tiny {times}x" in found


@pytest.mark.parametrize(
    "question",
    [
        "3. Which size achieves best GPU utilization?",
        "1. At what model size does GPU utilization peak?",
    ],
)
def test_best_utilization(base: Findings, question: str) -> None:
    assert ask(base, question, every(MFU, 50.0, 20.0, 30.0)).startswith("Answer: tiny: 50.0 % MFU")
    assert ask(base, question, every(MFU, 5.0, 20.0, 30.0)).startswith("Answer: medium: 30.0 %")


def test_intensity_and_bound(base: Findings) -> None:
    found = ask(base, "3. How does arithmetic intensity change?", every(INTENSITY, 1.5, 20, 300))
    assert found.startswith("Answer: tiny 1.5 FLOP/byte, small 20 FLOP/byte, medium 300 FLOP/byte")
    question = "3. Is the workload memory-bound or compute-bound?"
    bounds = ("memory-bound", "mixed", "compute-bound")
    assert "tiny memory-bound, small mixed, medium compute" in ask(
        base, question, every(BOUND, *bounds)
    )
    assert "tiny compute-bound, small mixed, medium memory" in ask(
        base, question, every(BOUND, *bounds[::-1])
    )


def test_transitions_are_held_against_the_text(base: Findings) -> None:
    sizes = {"tiny": {PEAK: 10 << 20}, "small": {PEAK: 70 << 20}}
    line = next(x for x in page(changed(base, sizes=sizes)).split("\n") if "| memory  " in x)
    assert "7x" in line and "in the range" in line
    sizes["small"] = {PEAK: 300 << 20}
    line = next(x for x in page(changed(base, sizes=sizes)).split("\n") if "| memory  " in x)
    assert "30x" in line and "above the range" in line


def test_profiles_across_sizes(base: Findings) -> None:
    key = "operators.matrix_product_percent"
    lines = page(changed(base, sizes={"small": {key: 12.3}})).split("\n")
    start = lines.index("### Profiles across sizes")
    small = next(x for x in lines[start:] if x.startswith("| small"))
    assert "12.3 %" in small


def test_attention_or_ffn(base: Findings) -> None:
    question = "1. Which component (attention vs FFN) dominates compute time?"
    assert "tiny attention (" in ask(base, question, {"tiny": {"components": {CORE: 80.0}}})
    assert "tiny FFN (" in ask(base, question, {"tiny": {"components": {CORE: 0.0}}})


def test_memory_over_the_sequence(base: Findings) -> None:
    question = "2. How does memory scale with sequence length?"
    assert answer(page(base), question).startswith("Answer: Quadratic at the long end")
    f = base.study.forecasts
    linear = tuple(replace(p, peak_memory_bytes=1e6 * p.seq) for p in f.sequences)
    study = replace(base.study, forecasts=replace(f, sequences=linear))
    found = answer(page(replace(base, study=study)), question)
    assert found.startswith("Answer: Linear or less at the long end: S ^ 1.00")


def test_flash_attention_helps_where_the_core_is_largest(base: Findings) -> None:
    question = "3. Which model size would benefit most from Flash Attention?"
    for name in NAMES:
        sizes = {name: {"components": {CORE: 70.0}}}
        assert ask(base, question, sizes).startswith(f"Answer: {name}: scores, softmax and values")


def test_most_and_least_memory_bound(base: Findings) -> None:
    question = "3. Which size is most memory-bound vs compute-bound?"
    up = ask(base, question, every(INTENSITY, 1.0, 10.0, 100.0))
    assert "Most memory-bound: tiny" in up and "most compute-bound: medium" in up
    down = ask(base, question, every(INTENSITY, 100.0, 10.0, 1.0))
    assert "Most memory-bound: medium" in down and "most compute-bound: tiny" in down


def test_batch_for_medium(base: Findings) -> None:
    question = "3. What batch size would you recommend for medium model?"
    gains = changed(base, runs={"batch_16": {"step_seconds": 0.2}})
    assert answer(page(gains), question).startswith("Answer: 32: batch 32 is the largest")
    assert "measured with tiny at 128 tokens" in answer(page(gains), question)
    none = changed(base, runs={"batch_16": {"step_seconds": 0.4856}})
    assert answer(page(none), question).startswith("Answer: 16: batch 32 is the largest")
    assert answer(with_forecasts(base, 8 * GIB), question).startswith("Answer: 4: batch 4")
    assert answer(with_forecasts(base, GIB), question).startswith("Answer: None: medium does not")


def test_largest_model(base: Findings) -> None:
    question = "4. What's the largest model you can train on your GPU?"
    small = answer(with_forecasts(base, 2 * GIB), question)
    assert small.startswith("Answer: small (20,890,112 parameters")
    huge = answer(with_forecasts(base, 1000 * GIB), question)
    assert huge.startswith("Answer: very_large (10,691,284,992 parameters")
    assert answer(with_forecasts(base, 1), question).startswith("Answer: none as configured")


def test_improving_medium(base: Findings) -> None:
    question = "4. How would you improve throughput for the medium model?"
    for name in (CORE, "optimizer"):
        found = ask(base, question, {"medium": {"components": {name: 80.0}}})
        assert found.startswith(f"Answer: Attack {name} first: 80.0 % of medium")
    results = tuple(r for r in base.study.results if r.size != "medium")
    without = replace(base, study=replace(base.study, results=results))
    assert "of small (medium was not run)" in answer(page(without), question)


def test_size_for_a_workshop(base: Findings) -> None:
    question = "4. What's the optimal problem size for this workshop?"
    assert ask(base, question, every("step_seconds", 0.1, 1.0, 5.0)).startswith("Answer: Medium:")
    assert ask(base, question, every("step_seconds", 0.1, 9.0, 50.0)).startswith("Answer: Tiny:")
    assert ask(base, question, every("step_seconds", 10.0, 90.0, 99.0)).startswith("Answer: None:")


def test_criteria(base: Findings) -> None:
    label = "At least 2 problem sizes tested"
    assert ticked(page(base), label)
    assert ticked(page(base), "Ready to compare with optimized versions")
    tiny = tuple(r for r in base.study.results if r.size == "tiny")
    alone = page(replace(base, study=replace(base.study, results=tiny)))
    assert not ticked(alone, label)
    assert not ticked(alone, "Scaling patterns documented")
    assert not ticked(alone, "Performance characteristics understood")
    no_profile = changed(base, sizes={name: {"operators": None} for name in NAMES})
    assert not ticked(page(no_profile), "Optimization priorities identified")


def test_the_texts_figures_are_corrected(base: Findings) -> None:
    text = page(base)
    assert "D_ff / D is tiny 2.00, small 2.16, medium 3.38, large 5.44, very_large 7.84" in text
    assert "medium 16:8" in text


@pytest.mark.parametrize(
    ("x", "y", "slope"),
    [([1, 2, 4], [3, 6, 12], 1), ([1, 2, 4], [1, 4, 16], 2), ([2, 2], [1, 5], None)],
)
def test_growth_exponent(x: list[float], y: list[float], slope: float | None) -> None:
    found = growth_exponent(x, y)
    assert found == (None if slope is None else pytest.approx(slope))


def test_folders_are_named(base: Findings) -> None:
    assert "Folders, below that of the profiles: `performance_results_tiny_" in page(base)
