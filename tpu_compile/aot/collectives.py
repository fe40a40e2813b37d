"""Bytes that a device sends over its links for one HLO collective."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from tpu_compile.aot import shapes
from tpu_compile.aot.flops import RUNS
from tpu_compile.aot.hlo import Computation, Module
from tpu_compile.aot.instruction import Instruction

_IOTA_GROUPS = re.compile(r"\[([\d,]+)\]<=")
_MESH_GROUPS = re.compile(r"mesh\[([^\]]*)\] *\{([^}]*)\}")
_MESH_AXIS = re.compile(r"'(\w+)'=(\d+)")
_GROUP_AXIS = re.compile(r"'(\w+)'(?::\(\d+\)(\d+))?")
_GROUP = re.compile(r"\{([\d, ]+)\}")
_PAIR = re.compile(r"\{(\d+),\s*(\d+)\}")

# Of n devices with b bytes each, what each has to send at least.
_SENT: dict[str, Callable[[float, int], float]] = {
    "all-reduce": lambda operand, n: 2 * operand * (n - 1) / n,  # reduce-scatter, all-gather
    "all-gather": lambda operand, n: operand * (n - 1),
    "reduce-scatter": lambda operand, n: operand * (n - 1) / n,
    "all-to-all": lambda operand, n: operand * (n - 1) / n,
    "ragged-all-to-all": lambda operand, n: operand * (n - 1) / n,
    "collective-broadcast": lambda operand, n: operand,
    "collective-permute": lambda operand, n: operand,
}
OPCODES = frozenset(_SENT)


def group_size(module: Module, instruction: Instruction) -> int:
    """Devices of one replica group of a collective; all of them when it names no groups."""
    text = instruction.attribute("replica_groups")
    if iota := _IOTA_GROUPS.match(text):
        return int(iota[1].split(",")[-1])
    if mesh := _MESH_GROUPS.match(text):
        sizes = dict(_MESH_AXIS.findall(mesh[1]))
        return math.prod(int(part or sizes[axis]) for axis, part in _GROUP_AXIS.findall(mesh[2]))
    groups = _GROUP.findall(text)
    return max((len(group.split(",")) for group in groups), default=module.devices)


class CollectiveBytesOf:
    """Counts what a module's instructions send, those in fusions too; each computation once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, float] = {}

    def computation(self, name: str) -> float:
        """Bytes that one execution of a computation's collectives sends."""
        known = self._known.get(name)
        if known is None:
            computation = self._module.computations.get(name)
            known = 0.0
            for instruction in computation.instructions if computation else ():
                assert computation is not None
                sent = self.instruction(computation, instruction)
                scatters = sent and _is_scattered(computation, instruction)
                known += sent / 2 if scatters else sent
            self._known[name] = known
        return known

    def instruction(self, computation: Computation, instruction: Instruction) -> float:
        """Bytes that one device sends, at least, for one execution of an instruction."""
        opcode = instruction.opcode.removesuffix("-start")
        sent = _SENT.get(opcode)
        if sent is None:
            runs = opcode in RUNS and instruction.called
            return self.computation(instruction.called[0]) if runs else 0.0
        operands = sum(
            array.nbytes
            for operand in computation.operands(instruction)
            for array in shapes.arrays(operand.shape)
        )
        if opcode == "collective-permute":
            pairs = _PAIR.findall(instruction.attribute("source_target_pairs"))
            return float(operands) if any(a != b for a, b in pairs) else 0.0
        return sent(float(operands), group_size(self._module, instruction))


def _is_scattered(computation: Computation, instruction: Instruction) -> bool:
    """Whether this is the TPU's form of reduce-scatter: a fused all-reduce that is only sliced."""
    if instruction.opcode != "all-reduce":
        return False
    names = {instruction.name}
    sliced = False
    for user in computation.instructions:
        if names.isdisjoint(user.operands):
            continue
        if user.opcode in ("get-tuple-element", "bitcast", "reshape"):
            names.add(user.name)
        elif user.opcode in ("dynamic-slice", "slice"):
            sliced = True
        else:
            return False
    return sliced
