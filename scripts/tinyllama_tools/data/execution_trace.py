"""Execution traces of libtorch's observer (the JSON of MLCommons Chakra), read and checked: their
operators, the FLOPs of their GEMMs and attention, their collectives."""

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from tinyllama_tools.core.app import bad_file, read_json

TRACE_AGAIN = "trace again, or name another file"
# which this reader, and Chakra's own, has seen: 1.1.1-chakra.0.0.4 is of libtorch 2.9 to 2.13
SCHEMAS = re.compile(r"1\.[01]\.\d+-chakra\.\d+\.\d+\.\d+")
SUFFIX = ".et.json"
COLLECTIVE = "record_param_comms"
# where the two factors of a GEMM are among its inputs
GEMMS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
TILED_GEMM = "tinyllama::gemm"  # a [m, k] and b [n, k]
LIBRARY_ATTENTION = re.compile(r"aten::_scaled_dot_product_(flash|efficient|cudnn)_attention\w*")
OWN_ATTENTION = re.compile(r"tinyllama::causal_attention(_backward)?")
QUERY_TILE = 32  # of tinyllama::causal_attention
MULTIPLIES = re.compile(r"::\w*(mm|matmul|linear|conv|gemm|einsum|dot|attention)")
# whose GEMMs have nodes of their own
CALLS_OTHERS = {
    *("aten::linear", "aten::matmul", "aten::scaled_dot_product_attention"),
    *("aten::_fused_sdp_choice", "aten::_scaled_dot_product_attention_math"),
}
# what the library's attention calls
INSIDE_ATTENTION = (
    "aten::_flash_attention",
    "aten::_efficient_attention",
    "aten::_cudnn_attention",
)


class Node(NamedTuple):
    """An operator, or what a trace has beside operators. `shapes`, `types`, `values`: of its
    inputs."""

    id: int
    name: str
    parent: int
    shapes: list[Any]
    types: list[str]
    values: list[Any]
    attributes: dict[str, Any]


# bytes of an element, by c10's name of its type
ELEMENT_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1}


class Collective(NamedTuple):
    """`elements`: of the message that each rank has; `ranks`: of the group, from `first_rank` on
    with `stride` between them."""

    name: str
    dtype: str
    elements: int
    ranks: int
    first_rank: int
    stride: int

    @property
    def bytes(self) -> int:
        return self.elements * ELEMENT_BYTES[self.dtype]


class Trace(NamedTuple):
    file: Path
    schema: str
    nodes: dict[int, Node]

    def ancestors(self, node: Node) -> Iterator[Node]:
        while node.parent in self.nodes and node.parent != node.id:
            node = self.nodes[node.parent]
            yield node


class FlopCount(NamedTuple):
    """`uncounted`: names of operators that may multiply matrices, and how is not known."""

    gemms: int
    attention: int
    uncounted: list[str]

    @property
    def total(self) -> int:
        return self.gemms + self.attention


def read_trace(file: Path) -> Trace:
    """BadInputError that names the file and what is wrong with it."""
    found, _ = read_json(file)
    if "schema" not in found or not isinstance(found.get("nodes"), list):
        what = 'is no execution trace, which has "schema" and a list of "nodes"'
        raise bad_file(file, what, "a Chrome trace, of --trace, is another thing")
    schema = found["schema"]
    if not isinstance(schema, str) or not SCHEMAS.fullmatch(schema):
        what = f"is of schema {schema!r}, and must be of 1.0.x or 1.1.x-chakra"
        raise bad_file(file, what, "trace with libtorch 2.9 to 2.13")
    nodes: dict[int, Node] = {}
    for place, entry in enumerate(found["nodes"]):
        try:
            node = _node(entry)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"nodes[{place}]: {type(error).__name__}: {error}"
            raise bad_file(file, what, TRACE_AGAIN) from None
        if node.id in nodes:
            raise bad_file(file, f"nodes[{place}]: id {node.id} is there twice", TRACE_AGAIN)
        nodes[node.id] = node
    for node in nodes.values():
        if node.parent not in nodes:
            what = f"node {node.id} ({node.name}): its ctrl_deps {node.parent} is no node"
            raise bad_file(file, what, TRACE_AGAIN)
    if not nodes:
        raise bad_file(file, "has no nodes", TRACE_AGAIN)
    return Trace(file, schema, nodes)


def _node(entry: Any) -> Node:  # noqa: ANN401
    inputs = entry["inputs"]
    node = Node(
        id=entry["id"],
        name=entry["name"],
        parent=entry["ctrl_deps"],
        shapes=inputs["shapes"],
        types=inputs["types"],
        values=inputs["values"],
        attributes={attr["name"]: attr["value"] for attr in entry["attrs"]},
    )
    if not (isinstance(node.id, int) and isinstance(node.parent, int)):
        raise ValueError("id and ctrl_deps must be integers")
    if not len(node.shapes) == len(node.types) == len(node.values):
        raise ValueError("inputs need as many shapes as types and values")
    if not isinstance(node.name, str):
        raise TypeError("name must be a text")
    return node


def count_flops(trace: Trace) -> FlopCount:
    """Of every GEMM and attention kernel, by the shapes of its inputs: a multiply-add is 2. Masked
    scores of a causal kernel of the library do not count, as in `hardware_flops`."""
    gemms = attention = 0
    uncounted = set()
    for node in trace.nodes.values():
        if not _is_counted(node.name):
            calls = node.name in CALLS_OTHERS or node.name.startswith(INSIDE_ATTENTION)
            if MULTIPLIES.search(node.name) and not calls:
                uncounted.add(node.name)
            continue
        # autocast casts the operands of an operator and calls it again
        if any(_is_counted(above.name) for above in trace.ancestors(node)):
            continue
        try:
            if node.name in GEMMS or node.name == TILED_GEMM:
                gemms += _gemm_flops(node)
            else:
                attention += _attention_flops(node)
        except (IndexError, TypeError, ValueError, KeyError) as error:
            what = f"node {node.id} ({node.name}): inputs of shapes {node.shapes} give no FLOPs"
            raise bad_file(trace.file, f"{what}: {error}", TRACE_AGAIN) from None
    return FlopCount(gemms, attention, sorted(uncounted))


def file_name(case_name: str) -> str:
    """What tiny_llama_bench calls the trace of this case."""
    plain = re.sub(r"[^A-Za-z0-9._+-]", "-", case_name.replace("/", "."))
    return f"{plain}{SUFFIX}"


def _is_counted(name: str) -> bool:
    return (
        name in GEMMS
        or name == TILED_GEMM
        or LIBRARY_ATTENTION.fullmatch(name) is not None
        or OWN_ATTENTION.fullmatch(name) is not None
    )


def _gemm_flops(node: Node) -> int:
    first = GEMMS.get(node.name, 0)
    a, b = node.shapes[first : first + 2]
    if len(a) < 2 or len(a) != len(b) or a[-1] != (b[-1] if node.name == TILED_GEMM else b[-2]):
        raise ValueError("the factors do not fit together")
    return 2 * prod(a) * (b[-2] if node.name == TILED_GEMM else b[-1])


def _attention_flops(node: Node) -> int:
    # q k^T and probabilities x v; backward the four of their gradients, and the scores once more
    gemms = 5 if node.name.endswith("_backward") else 2
    if OWN_ATTENTION.fullmatch(node.name):
        batch, seq, heads, head_dim = node.shapes[0]
        return gemms * 2 * batch * heads * head_dim * _tiled_scores(seq, node.values[4])
    names = _argument_names(node)
    batch, heads, seq, head_dim = node.shapes[names.index("query")]
    keys = node.shapes[names.index("key")][2]
    is_causal = node.values[names.index("is_causal")]
    if is_causal and seq != keys:
        raise ValueError("causal, and not as many queries as keys")
    scores = seq * (seq + 1) // 2 if is_causal else seq * keys
    return gemms * 2 * batch * heads * head_dim * scores


def _argument_names(node: Node) -> list[str]:
    """Of the schema: 'aten::f(Tensor query, bool is_causal=False, *, float? scale=None) -> ...'."""
    arguments = node.attributes["op_schema"].partition("(")[2].partition(") -> ")[0]
    return [part.split("=")[0].split()[-1] for part in arguments.split(", ") if part.strip() != "*"]


def _tiled_scores(seq: int, window: int) -> int:
    scores = 0
    for first in range(0, seq, QUERY_TILE):
        rows = min(QUERY_TILE, seq - first)
        scores += rows * (first + rows - max(0, first + 1 - window))
    return scores


def collectives(trace: Trace) -> list[Collective]:
    """In the order in which they start. BadInputError where one does not say what it is of."""
    found = []
    for node in sorted(trace.nodes.values(), key=lambda node: node.id):
        if node.name != COLLECTIVE:
            continue
        attr = node.attributes
        try:
            ELEMENT_BYTES[attr["dtype"]]
            found.append(
                Collective(
                    attr["collective_name"],
                    attr["dtype"],
                    attr["in_msg_nelems"],
                    attr["pg_size"],
                    attr["global_rank_start"],
                    attr["global_rank_stride"],
                )
            )
        except KeyError as error:
            what = f"node {node.id} ({node.name}) has no {error}"
            raise bad_file(trace.file, what, TRACE_AGAIN) from None
    return found
