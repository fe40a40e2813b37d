"""An estimate of what is in memory at a graph's peak.

The compiler, when memory runs out, tells a total and no buffer. This is a walk over the lowered
graph in its own order: a tensor lives from the op that makes it to the last that reads it, views
live in their base, arguments and outputs to the end, and an elementwise result with one elementwise
reader is taken to be fused away. The compiler reorders, fuses and recomputes more than that: it is
an estimate, and called one wherever it is shown.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import fx

from tpu_compile import calling
from tpu_compile.errors import user_line
from tpu_compile.lowering.context import types_of
from tpu_compile.meshes import Mesh

LARGEST = 12


@dataclass(frozen=True)
class Buffer:
    """One tensor that is alive at the peak.

    Attributes:
        name: the graph's node; of an argument its name in the user's code, where it has one.
        op: what makes it, or "argument".
        shape: its sizes.
        dtype: as torch writes it, without "torch.".
        bytes: without a TPU's padding of tiles.
        line: ``file.py:12`` of the user's code, or "".
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    line: str


@dataclass(frozen=True)
class Peak:
    """Where a graph needs most memory.

    Attributes:
        bytes: of everything alive there, estimated.
        at: the op there.
        line: its line of the user's code, or "".
        largest: the largest buffers alive there, largest first.
        arguments: bytes of the graph's arguments.
    """

    bytes: int
    at: str
    line: str
    largest: tuple[Buffer, ...]
    arguments: int


def size_of(node: fx.Node) -> int:
    """Bytes of a node's tensors."""
    total = 0
    for t in types_of(node.meta.get("val")):
        count = 1
        for n in t.shape:
            count *= n
        total += count * t.dtype.itemsize
    return total


def share_of(node: fx.Node, mesh: Mesh | None) -> int:
    """Bytes of an argument that one device holds: its part where it is split over a mesh."""
    spec = node.meta.get("sharding")
    return size_of(node) // (mesh.share(spec) if mesh and spec else 1)


def peak(gm: fx.GraphModule, mesh: Mesh | None = None) -> Peak:
    """The peak of a concrete graph.

    Args:
        gm: the graph.
        mesh: over which arguments are split as their metadata says. How the compiler splits what
            is in between is not known here: that counts whole.
    """
    nodes = list(gm.graph.nodes)
    base = _bases(nodes)
    last: dict[fx.Node, int] = {}
    for i, node in enumerate(nodes):
        for read in node.all_input_nodes:
            if base[read].op != "placeholder":
                last[base[read]] = i
    ending: dict[int, list[fx.Node]] = defaultdict(list)
    for node, i in last.items():
        ending[i].append(node)
    alive: dict[fx.Node, int] = {}
    now = most = 0
    at, there = nodes[0], dict[fx.Node, int]()
    for i, node in enumerate(nodes):
        if base[node] is node and node.op != "output" and not _fused(node):
            alive[node] = share_of(node, mesh)
            now += alive[node]
        if now > most:
            most, at, there = now, node, dict(alive)
        for done in ending[i]:
            now -= alive.pop(done, 0)
    largest = sorted(there.items(), key=lambda item: -item[1])[:LARGEST]
    arguments = sum(share_of(n, mesh) for n in nodes if n.op == "placeholder")
    return Peak(
        most, _op(at), user_line(at), tuple(_buffer(n, size) for n, size in largest), arguments
    )


def _bases(nodes: list[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For each node the one whose memory it is in."""
    base: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        view = node.op == "call_function" and node.target in calling.VIEWS
        base[node] = base[node.all_input_nodes[0]] if view and node.all_input_nodes else node
    return base


def _fused(node: fx.Node) -> bool:
    if not _elementwise(node) or len(node.users) != 1:
        return False
    (user,) = node.users
    return _elementwise(user)


def _elementwise(node: fx.Node) -> bool:
    return (
        isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
    )


def _op(node: fx.Node) -> str:
    return "argument" if node.op == "placeholder" else str(node.target)


def _buffer(node: fx.Node, size: int) -> Buffer:
    types = types_of(node.meta.get("val"))
    shape = types[0].shape if types else ()
    dtype = str(types[0].dtype).removeprefix("torch.") if types else ""
    name = node.meta.get("argument", node.name)
    return Buffer(name, _op(node), tuple(shape), dtype, size, user_line(node))


def text(found: Peak) -> str:
    """A peak as lines of text: the largest buffers, and what would help."""
    gib = lambda n: f"{n / 2**30:.2f} GiB"  # noqa: E731
    at = f"{found.at} ({found.line})" if found.line else found.at
    lines = [
        f"By our estimate from the graph {gib(found.bytes)} are alive at {at}, "
        f"{gib(found.arguments)} of them arguments. The largest:"
    ]
    for b in found.largest:
        where = f"  {b.line}" if b.line else ""
        op = f"{b.op} {b.name}" if b.op == "argument" else b.op
        lines.append(f"  {gib(b.bytes)}  {b.dtype}{list(b.shape)}  {op}{where}")
    return "\n".join([*lines, f"What would help: {advice(found)}."])


def advice(found: Peak) -> str:
    """What makes a program smaller, by what fills it."""
    if found.arguments > found.bytes / 2:
        return (
            "most of it are parameters and other arguments: a smaller dtype, or sharding them over "
            "more chips"
        )
    return (
        "most of it are activations: a smaller batch or sequence, activation checkpointing "
        "(torch.utils.checkpoint), or sharding the batch over more chips"
    )
