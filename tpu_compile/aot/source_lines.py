"""HLO instruction to the line of the user's code that it comes from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

import tpu_compile
from tpu_compile.aot.hlo import Computation, Module
from tpu_compile.aot.instruction import Instruction

# Code between the user and the compiler, wherever it is installed.
_LIBRARIES = re.compile(r"/(?:site|dist)-packages/(?:torch|functorch|jax|jaxlib|tpu_compile)/")
_OUR_FOLDERS = tuple(
    f"{folder}/"
    for root in tpu_compile.__path__
    for folder in (
        [root]
        if PurePath(root).name == "tpu_compile"
        else [f"{root}/{name}" for name in ("lowering", "passes", "kernels")]
    )
)


# How often a value is handed on at most between a copy and what reads it: start, done, a tuple.
_HANDED_ON = 4


class SourceLine(NamedTuple):
    """A line of a file, whose text is ``file.py:12``; the path is as the compiler was given it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"


class SourceLines:
    """Finds the user's lines of a module's instructions."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._frames: dict[int, SourceLine | None] = {}
        self._computations: dict[str, SourceLine | None] = {}

    def of(self, instruction: Instruction) -> SourceLine | None:
        """The user's line: the instruction's own, else that of what it runs.

        For a fusion that is its root's, else the commonest among its instructions.
        """
        own = self._own(instruction)
        if own is not None and is_user_file(own.file):
            return own
        inner = [line for name in instruction.called if (line := self._computation(name))]
        return inner[0] if inner else own

    def of_neighbour(self, computation: Computation, instruction: Instruction) -> SourceLine | None:
        """The line of the first that reads a value, else of what it is made of.

        For what the compiler adds itself: copies into VMEM and out of it come with no line.
        """
        reads = lambda i: computation.readers.get(i.name, [])  # noqa: E731
        return self._first_line(instruction, reads) or self._first_line(
            instruction, computation.operands
        )

    def _first_line(
        self, start: Instruction, neighbours: Callable[[Instruction], list[Instruction]]
    ) -> SourceLine | None:
        at = [start]
        for _ in range(_HANDED_ON):
            at = [n for i in at for n in neighbours(i)]
            for found in at:
                if line := self.of(found):
                    return line
        return None

    def _own(self, instruction: Instruction) -> SourceLine | None:
        metadata = instruction.metadata
        direct = None
        if metadata.source_file and metadata.source_line:
            direct = SourceLine(metadata.source_file, metadata.source_line)
            if is_user_file(direct.file):
                return direct
        if metadata.stack_frame_id is None:
            return direct
        return self._frame(metadata.stack_frame_id) or direct

    def _frame(self, number: int) -> SourceLine | None:
        """The innermost frame of the user's, else the innermost."""
        if number in self._frames:
            return self._frames[number]
        innermost = chosen = None
        seen = set()
        at = number
        while at in self._module.stack_frames and at not in seen:
            seen.add(at)
            frame = self._module.stack_frames[at]
            location = self._module.file_locations.get(frame.location)
            file = self._module.file_names.get(location.file) if location else None
            if location and file:
                line = SourceLine(file, location.line)
                innermost = innermost or line
                if is_user_file(file):
                    chosen = line
                    break
            at = frame.parent
        self._frames[number] = chosen or innermost
        return self._frames[number]

    def _computation(self, name: str) -> SourceLine | None:
        if name not in self._computations:
            self._computations[name] = None  # a computation never calls itself; be safe
            computation = self._module.computations.get(name)
            if computation:
                self._computations[name] = self._commonest(computation)
        return self._computations[name]

    def _commonest(self, computation: Computation) -> SourceLine | None:
        root = self.of(computation.root)
        if root is not None:
            return root
        lines = Counter(line for i in computation.instructions if (line := self.of(i)))
        return lines.most_common(1)[0][0] if lines else None


def is_user_file(file: str) -> bool:
    """Whether a file is neither of torch, JAX nor this package, nor made up by Python."""
    if file.startswith("<") or _LIBRARIES.search(file):
        return False
    return not file.startswith(_OUR_FOLDERS)
