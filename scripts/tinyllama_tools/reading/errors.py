"""What ends a command that reads results with exit status 2."""

from __future__ import annotations


class BadInputError(Exception):
    """Bad input, or nothing to work on; the message names the value, the rule and what to do."""
