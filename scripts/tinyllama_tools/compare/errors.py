"""What ends a comparison with exit status 2."""

from __future__ import annotations


class CompareError(Exception):
    """Bad input, or nothing comparable; the message names the value, the rule and what to do."""
