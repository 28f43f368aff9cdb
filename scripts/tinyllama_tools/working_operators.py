"""Rows of an operator table that work on values, and those that only dispatch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tinyllama_tools.core.app import Json

# Views, allocations, operators that only call others, and nodes of the autograd graph.
DISPATCH = re.compile(
    r"^(aten::)?(_unsafe_view|view|t|transpose|permute|as_strided|expand|reshape|_reshape_alias"
    r"|slice|select|narrow|squeeze|unsqueeze|detach|alias|empty|empty_like|empty_strided|zeros"
    r"|zeros_like|ones_like|zero_|to|_to_copy|clone|contiguous|resolve_conj|resolve_neg"
    r"|result_type|linear|matmul|softmax|log_softmax|embedding|embedding_backward"
    r"|cross_entropy_loss|nll_loss|nll_loss_nd|slice_backward)$"
    r"|^autograd::|^torch::autograd::|^\w+Backward\d*$"
)


def working_rows(table: Sequence[Json]) -> list[Json]:
    """On a GPU the rows with time of their own there; on a CPU those that do not only dispatch."""
    if any(row.get("device_self_seconds") is not None for row in table):
        return [row for row in table if (row.get("device_self_seconds") or 0) > 0]
    return [row for row in table if not DISPATCH.search(row["name"])]
