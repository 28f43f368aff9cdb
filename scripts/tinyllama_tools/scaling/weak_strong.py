"""Weak scaling: a batch for each rank. Strong scaling: one batch for all ranks together."""

from __future__ import annotations

WEAK, STRONG = "weak", "strong"
