"""One instruction of an HLO module, and its attributes, each read when asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tpu_compile.aot.shapes import Shape


@dataclass(frozen=True)
class Metadata:
    """Where an instruction comes from, as far as the compiler kept it."""

    op_name: str = ""
    stack_frame_id: int | None = None
    source_file: str | None = None
    source_line: int | None = None


@dataclass(frozen=True)
class DotDims:
    """Dimension numbers of a ``dot``."""

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]


@dataclass(frozen=True)
class WindowDim:
    """One spatial dimension of the window of a convolution or reduce-window."""

    size: int = 1
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    lhs_dilate: int = 1
    rhs_dilate: int = 1


_CALLED = (
    "calls", "to_apply", "body", "condition", "select", "scatter", "branch_computations",
    "true_computation", "false_computation", "called_computations",
)  # fmt: skip
_NAME = re.compile(r"%([\w.\-]+)")
_NUMBER = re.compile(r"-?\d+")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SOURCE_FILE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"')
_SOURCE_LINE = re.compile(r"\bsource_line=(\d+)")
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_CYCLES = re.compile(r'"estimated_cycles":\s*"?(\d+)')
_TRIPS = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"?(\d+)')


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Args:
        name: unique in the module.
        shape: an array, or a tuple of shapes.
        opcode: such as ``fusion`` or ``all-gather-start``.
        operands: names of instructions of the same computation.
        attributes: texts by key, unread.
        literal: what stands in the parentheses instead of operands: a parameter's number, a
            constant's value.
        line: number of the line in the text, from 1.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    attributes: Mapping[str, str] = field(repr=False)
    literal: str = ""
    line: int = 0

    def attribute(self, key: str) -> str:
        """An attribute's text, or ``""``."""
        return self.attributes.get(key, "")

    def numbers(self, key: str) -> tuple[int, ...]:
        """The integers in an attribute."""
        return tuple(int(n) for n in _NUMBER.findall(self.attribute(key)))

    def computation(self, key: str) -> str:
        """Name of the computation that an attribute calls, or ``""``."""
        return self.attribute(key).removeprefix("%")

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of all computations the instruction calls, in the order of the keys above."""
        return tuple(n for key in _CALLED for n in _NAME.findall(self.attribute(key)))

    @cached_property
    def branches(self) -> tuple[str, ...]:
        """Names of a ``conditional``'s branches."""
        keys = ("branch_computations", "true_computation", "false_computation")
        return tuple(n for key in keys for n in _NAME.findall(self.attribute(key)))

    @cached_property
    def metadata(self) -> Metadata:
        """The instruction's origin; all empty when the compiler kept none."""
        text = self.attribute("metadata")
        frame, line = _FRAME.search(text), _SOURCE_LINE.search(text)
        op, file = _OP_NAME.search(text), _SOURCE_FILE.search(text)
        return Metadata(
            op[1] if op else "",
            int(frame[1]) if frame else None,
            file[1] if file else None,
            int(line[1]) if line else None,
        )

    @property
    def backend_config(self) -> str:
        """What the backend notes for itself, mostly JSON."""
        return self.attribute("backend_config")

    @property
    def estimated_cycles(self) -> int | None:
        """The TPU compiler's own estimate for one execution; above 1e12 it is uninitialised."""
        found = _CYCLES.search(self.backend_config)
        return int(found[1]) if found and int(found[1]) <= 10**12 else None

    @property
    def known_trip_count(self) -> int | None:
        """A ``while``'s trips where the compiler notes them (the CPU's does, the TPU's not)."""
        found = _TRIPS.search(self.backend_config)
        return int(found[1]) if found else None

    @property
    def custom_call_target(self) -> str:
        """Target of a ``custom-call``, or ``""``."""
        return self.attribute("custom_call_target").strip('"')

    @property
    def dot_dims(self) -> DotDims:
        """Dimension numbers of a ``dot``."""
        return DotDims(
            self.numbers("lhs_contracting_dims"),
            self.numbers("rhs_contracting_dims"),
            self.numbers("lhs_batch_dims"),
            self.numbers("rhs_batch_dims"),
        )

    @property
    def dim_labels(self) -> tuple[str, str, str]:
        """A convolution's labels of lhs, rhs and output, such as ``("b01f", "01io", "b01f")``."""
        ins, _, out = self.attribute("dim_labels").partition("->")
        lhs, _, rhs = ins.partition("_")
        return lhs, rhs, out

    @property
    def feature_group_count(self) -> int:
        """Feature groups of a convolution."""
        return int(self.attribute("feature_group_count") or 1)

    @property
    def batch_group_count(self) -> int:
        """Batch groups of a convolution."""
        return int(self.attribute("batch_group_count") or 1)

    @property
    def window(self) -> tuple[WindowDim, ...]:
        """The window's spatial dimensions; none for a convolution that is a plain product."""
        parts = dict(p.split("=", 1) for p in self.attribute("window").strip("{}").split() if p)
        sizes = parts.get("size", "")
        if not sizes:
            return ()

        def column(key: str, default: str) -> list[str]:
            return parts[key].split("x") if key in parts else [default] * len(sizes.split("x"))

        pads = [pad.split("_") for pad in column("pad", "0_0")]
        return tuple(
            WindowDim(int(size), int(stride), int(pad[0]), int(pad[1]), int(lhs), int(rhs))
            for size, stride, pad, lhs, rhs in zip(
                column("size", "1"),
                column("stride", "1"),
                pads,
                column("lhs_dilate", "1"),
                column("rhs_dilate", "1"),
                strict=True,
            )
        )
