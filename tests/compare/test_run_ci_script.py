"""scripts/ci_compare.sh in a folder that an earlier run left."""

from __future__ import annotations

from pathlib import Path

from test_ci_workflow import Checkout


def test_a_recording_of_an_earlier_run_is_not_in_the_way(tmp_path: Path) -> None:
    """`compare run` would refuse to write over it."""
    checkout = Checkout(tmp_path / "a checkout")
    body = """test ! -e results/ci_compare/blocks.jsonl || exit 2
echo "{}" > results/ci_compare/blocks.jsonl"""
    assert checkout.run(body).returncode == 0
    assert (checkout.root / "results/ci_compare/blocks.jsonl").exists()
    assert checkout.run(body).returncode == 0
