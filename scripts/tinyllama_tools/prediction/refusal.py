"""Why rates or a prediction cannot be had."""

from __future__ import annotations


class RatesRefusedError(ValueError):
    """What was measured does not support it; the message names what is missing and what to do."""
