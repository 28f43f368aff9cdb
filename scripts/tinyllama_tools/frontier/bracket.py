"""The search for the largest value of an integer axis that is accepted.

Acceptance must hold up to some value and not beyond it: a batch or a sequence fits into memory, or
does not. What is asked about next is each user's own choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# What tiny_llama_bench takes at most, as batch or as sequence.
LARGEST = 2**20
VALUES_A_QUESTION = 16


@dataclass(frozen=True)
class Bracket:
    """The answer lies between: `accepted` is (or may be taken as) accepted, `refused` is not.

    At first `accepted` is one less than the smallest value, and `refused` one more than the
    largest, neither of which was asked about.
    """

    accepted: int = 0
    refused: int = LARGEST + 1

    @property
    def is_closed(self) -> bool:
        """Whether `accepted` is the answer."""
        return self.refused - self.accepted <= 1

    def contains(self, value: int) -> bool:
        """Whether an answer about it would narrow the bracket."""
        return self.accepted < value < self.refused

    def narrowed(self, answers: Mapping[int, bool]) -> Bracket:
        """With answers by value. What lies beyond the smallest refused value does not count."""
        accepted, refused = self.accepted, self.refused
        for value in sorted(answers):
            if not answers[value]:
                refused = min(refused, value)
                break
            accepted = max(accepted, value)
        return Bracket(accepted, refused)


def between(accepted: int, refused: int, most: int = VALUES_A_QUESTION) -> list[int]:
    """Up to `most` values that divide the open range; empty where it is empty."""
    width = refused - accepted
    parts = min(most + 1, width)
    return sorted({accepted + width * i // parts for i in range(1, parts)} - {accepted, refused})
