"""Bytes of HBM that one executed HLO instruction reads and writes, by the rules of XLA's fusions.

A fusion keeps what it computes on chip, so only its operands and results count; of an operand that
it slices or gathers from, only what it takes; of a buffer that it updates in place, the update.
A Pallas kernel counts as much, or what its ``cost_estimate`` says if that is less: what it reads
twice is not known, and what it leaves unread only its author knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpu_compile.aot import shapes
from tpu_compile.aot.flops import ELEMENTWISE, TRANSCENDENTAL, cost_estimate
from tpu_compile.aot.hlo import Computation, Module
from tpu_compile.aot.instruction import Instruction

# Names for values that are there already, and ops whose cost is that of what they run.
FREE = frozenset((
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all",
    "add-dependency", "opt-barrier", "partition-id", "replica-id", "domain", "while",
    "conditional", "call",
))  # fmt: skip
_FREE_CALLS = frozenset((
    "AllocateBuffer", "ConcatBitcast", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape",
))  # fmt: skip
_TAKES = ("slice", "dynamic-slice", "gather")
_PASSES_ALL = ELEMENTWISE | TRANSCENDENTAL | {"bitcast", "reshape", "transpose", "copy"}
_SAME_BUFFER = ("bitcast", "reshape")


@dataclass(frozen=True)
class _Written:
    """What a fusion writes to one of its results.

    Args:
        elements: written.
        parameter: number of the parameter whose buffer the result is, or None.
    """

    elements: float
    parameter: int | None = None


class TrafficOf:
    """Counts the HBM traffic of a module's instructions; looks into each fusion once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._read: dict[str, dict[int, float]] = {}
        self._written: dict[str, list[_Written]] = {}

    def instruction(self, computation: Computation, instruction: Instruction) -> float:
        """Bytes read from and written to HBM by one execution."""
        opcode = instruction.opcode
        if opcode in FREE or opcode.endswith(("-done", "-update")):
            return 0.0
        if opcode == "custom-call":
            return self._custom_call(computation, instruction)
        inputs = computation.operands(instruction)
        result = instruction.shape
        if opcode.endswith("-start"):
            opcode = opcode.removesuffix("-start")
            result = result_of_start(opcode, result)
        callee = instruction.computation("calls")
        if callee in self._module.computations:
            return self._fusion(callee, inputs, result)
        return _plain(opcode, inputs, result)

    def _custom_call(self, computation: Computation, instruction: Instruction) -> float:
        if instruction.custom_call_target in _FREE_CALLS:
            return 0.0
        boundary = _boundary(computation.operands(instruction), instruction.shape)
        said = cost_estimate(instruction).get("bytes_accessed", 0.0)
        return min(said, boundary) if said else boundary

    def _fusion(self, callee: str, inputs: list[Instruction], result: shapes.Shape) -> float:
        reads = self.reads(callee)
        total: dict[str, float] = {}
        for number, operand in enumerate(inputs):
            size = shapes.hbm_bytes(operand.shape)
            count = shapes.elements(operand.shape)
            if size and count:
                read = total.get(operand.name, 0.0) + size * reads.get(number, count) / count
                total[operand.name] = min(size, read)
        arrays = list(shapes.arrays(result))
        writes = self.writes(callee)
        if len(writes) != len(arrays):
            writes = [_Written(array.elements) for array in arrays]
        written = sum(
            array.hbm_bytes * min(1.0, write.elements / array.elements)
            for array, write in zip(arrays, writes, strict=True)
            if array.elements
        )
        return sum(total.values()) + written

    def reads(self, name: str) -> dict[int, float]:
        """Elements that a fusion's computation needs of each of its parameters, by number."""
        known = self._read.get(name)
        if known is None:
            computation = self._module.computations[name]
            needed = self._needed(computation)
            known = {n: needed.get(p.name, 0.0) for n, p in computation.parameters.items()}
            self._read[name] = known
        return known

    def _needed(self, computation: Computation) -> dict[str, float]:
        """Elements of each value that are computed at all, from the root backwards."""
        needed = {computation.root.name: float(shapes.elements(computation.root.shape))}
        in_place = self._updated_in_place(computation)
        for user in reversed(computation.instructions):
            wanted = needed.get(user.name)
            if wanted is None:
                continue
            for index, operand in enumerate(computation.operands(user)):
                size = float(shapes.elements(operand.shape))
                if (user.name, index) in in_place:
                    share = 0.0
                else:
                    share = self._share(user, index, wanted, size)
                needed[operand.name] = min(size, needed.get(operand.name, 0.0) + share)
        return needed

    def _share(self, user: Instruction, index: int, wanted: float, size: float) -> float:
        """Elements of operand ``index`` that ``user`` reads for ``wanted`` of its own."""
        if user.opcode in _TAKES and index == 0:
            return wanted
        if user.opcode in _PASSES_ALL and size == shapes.elements(user.shape):
            return wanted
        if user.opcode == "fusion":
            return self.reads(user.computation("calls")).get(index, size)
        return size

    def writes(self, name: str) -> list[_Written]:
        """What a fusion's computation writes to each of its results."""
        known = self._written.get(name)
        if known is None:
            computation = self._module.computations[name]
            root = computation.root
            roots = computation.operands(root) if root.opcode == "tuple" else [root]
            known = [written for r in roots for written in self._trace(computation, r)]
            self._written[name] = known
        return known

    def _trace(self, computation: Computation, root: Instruction) -> list[_Written]:
        """Follows a result through updates in place to the parameter it is the buffer of."""
        full = [_Written(array.elements) for array in shapes.arrays(root.shape)]
        if len(full) != 1:
            return full
        updated = 0.0
        at = root
        while at.opcode != "parameter":
            operands = computation.operands(at)
            if at.opcode == "dynamic-update-slice":
                updated += shapes.elements(operands[1].shape)
            elif at.opcode == "scatter":
                updated += shapes.elements(operands[-1].shape)
            elif at.opcode == "fusion":
                inner = self.writes(at.computation("calls"))
                if len(inner) != 1 or inner[0].parameter is None:
                    return full
                updated += inner[0].elements
                at = operands[inner[0].parameter]
                continue
            elif at.opcode not in _SAME_BUFFER:
                return full
            at = operands[0]
        return [_Written(updated, int(at.literal))] if updated else full

    def _updated_in_place(self, computation: Computation) -> set[tuple[str, int]]:
        """Uses (user, operand index) that only hand a buffer on to be updated in place."""
        uses = set()
        root = computation.root
        for at in computation.operands(root) if root.opcode == "tuple" else [root]:
            if self._trace(computation, at)[0].parameter is None:
                continue
            while at.opcode != "parameter":
                index = 0
                if at.opcode == "fusion":
                    index = self.writes(at.computation("calls"))[0].parameter or 0
                else:
                    uses.add((at.name, index))
                at = computation.operands(at)[index]
        return uses


def result_of_start(opcode: str, shape: shapes.Shape) -> shapes.Shape:
    """The result's shape in that of an asynchronous start, which holds operands and flags too.

    Args:
        opcode: without ``-start``.
        shape: that of the start.
    """
    if isinstance(shape, shapes.ArrayShape) or opcode == "all-reduce":
        return shape
    if opcode == "copy":  # (destination, source, flag)
        return shape[0]
    return shape[1] if len(shape) > 1 else shape


def _boundary(inputs: list[Instruction], result: shapes.Shape) -> float:
    read = {operand.name: shapes.hbm_bytes(operand.shape) for operand in inputs}
    return float(sum(read.values()) + shapes.hbm_bytes(result))


def _plain(opcode: str, inputs: list[Instruction], result: shapes.Shape) -> float:
    """An instruction that is no fusion."""
    if opcode in _TAKES:
        source = shapes.first(inputs[0].shape)
        taken = shapes.elements(result) * source.element_bits / 8 if source.hbm_bytes else 0.0
        return taken + _boundary(inputs[1:], result)
    if opcode == "dynamic-update-slice":
        return 2.0 * shapes.hbm_bytes(inputs[1].shape)
    if opcode == "scatter":
        # reads indices, updates and what they go to, and writes that
        outputs = len(inputs) // 2
        updates = sum(shapes.hbm_bytes(i.shape) for i in inputs[outputs + 1 :])
        return 3.0 * updates + shapes.hbm_bytes(inputs[outputs].shape)
    return _boundary(inputs, result)
