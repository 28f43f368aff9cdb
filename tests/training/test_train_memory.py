"""Profiling many steps keeps memory bounded: events go to disk."""

from __future__ import annotations

from pathlib import Path

from train_program import Program, read_summary, small

MEBIBYTE = 1 << 20


def test_profiling_many_steps_takes_hardly_more_memory(program: Program, tmp_path: Path) -> None:
    def peak(profiled: int) -> int:
        folder = tmp_path / str(profiled)
        options = [f"--profile-steps={profiled}", f"--profile-dir={folder}", "--log-interval=50"]
        found, completed = program.peak_memory(
            *small(num_steps=100), "--enable-pytorch-profiler", *options
        )
        assert completed.returncode == 0, completed.stderr
        assert read_summary(folder)["operators"]["steps"] == profiled + 1
        return found

    few, many = peak(5), peak(95)
    trace = (tmp_path / "95" / "trace_step_5_100.json").stat().st_size
    # the events of all steps would not fit into what is allowed
    assert trace > 60 * MEBIBYTE
    assert many < 1.15 * few + 60 * MEBIBYTE
