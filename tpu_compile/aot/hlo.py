"""The text of an optimized HLO module (``compiled.as_text()``) to frozen dataclasses.

Names, shapes, opcodes and operands are read at once and strictly. Attributes are split, and read
only when asked for, so those that nobody knows yet do no harm. One pass, linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tpu_compile.aot import shapes
from tpu_compile.aot.errors import UnreadableHlo
from tpu_compile.aot.instruction import Instruction


@dataclass(frozen=True)
class Computation:
    """Instructions in the order of the text, which is that of execution when scheduled."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Parameters by number."""
        return {int(i.literal): i for i in self.instructions if i.opcode == "parameter"}

    @cached_property
    def readers(self) -> dict[str, list[Instruction]]:
        """For each name, the instructions that read it, in the order of the text."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for name in instruction.operands:
                found.setdefault(name, []).append(instruction)
        return found

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions an instruction reads."""
        return [self.by_name[name] for name in instruction.operands]


@dataclass(frozen=True)
class FileLocation:
    """One place in a file: numbers of its file and function in the tables, and its line."""

    file: int
    function: int
    line: int


@dataclass(frozen=True)
class StackFrame:
    """One frame: the number of its location, and that of the frame that called it (0: none)."""

    location: int
    parent: int


@dataclass(frozen=True)
class Module:
    """A parsed module.

    Args:
        name: such as ``jit_step``.
        entry: name of the computation that is run.
        computations: by name.
        devices: how many devices run it together: replicas times partitions.
        file_names, function_names, file_locations, stack_frames: the tables that
            ``Metadata.stack_frame_id`` points into.
    """

    name: str
    entry: str
    computations: Mapping[str, Computation]
    devices: int
    file_names: Mapping[int, str]
    function_names: Mapping[int, str]
    file_locations: Mapping[int, FileLocation]
    stack_frames: Mapping[int, StackFrame]


_HEADER = re.compile(r"HloModule ([\w.\-]+)")
_REPLICAS = re.compile(r"\breplica_count=(\d+)")
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
_TABLE_ROW = re.compile(r'(\d+) (?:"((?:[^"\\]|\\.)*)"|\{(.*)\})\s*')
_FIELD = re.compile(r"(\w+)=(\d+)")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{\s*")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")
_OPERANDS = re.compile(r"((?:%[\w.\-]+(?:, (?:/\*index=\d+\*/)?)?)*)\)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ATTRIBUTE = re.compile(r",? *([\w\-]+)=")
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPECIAL = re.compile(rf"{_STRING}|[\[\](){{}},]")


def _value_pattern(depth: int) -> re.Pattern[str]:
    """Matches an attribute's value of brackets up to ``depth`` deep, without backtracking."""
    inner = ""
    for _ in range(depth):
        inner = rf"|[\[({{](?:[^\"\[\](){{}}]++|{_STRING}{inner})*+[\])}}]"
    return re.compile(rf"(?:[^,\"\[\](){{}}]++|{_STRING}{inner})*+(?=,|$)")


_VALUE = _value_pattern(10)
_LITERAL_OPCODES = ("parameter", "constant")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@dataclass
class _Reader:
    """What has been read so far."""

    name: str = ""
    devices: int = 1
    entry: str = ""
    computations: dict[str, Computation] = field(default_factory=dict)
    tables: dict[str, dict[int, str]] = field(default_factory=lambda: {t: {} for t in _TABLES})
    table: str = ""
    inside: str = ""
    instructions: list[Instruction] = field(default_factory=list)
    root: Instruction | None = None

    def header(self, line: str) -> None:
        found = _HEADER.match(line)
        replicas, partitions = _REPLICAS.search(line), _PARTITIONS.search(line)
        self.name = found[1] if found else ""
        self.devices = int(replicas[1] if replicas else 1) * int(partitions[1] if partitions else 1)

    def outside(self, number: int, line: str) -> None:
        """Reads a line between computations."""
        if line in _TABLES:
            self.table = line
        elif line.startswith("HloModule "):
            self.header(line)
        elif row := _TABLE_ROW.fullmatch(line):
            self.tables[self.table][int(row[1])] = row[2] if row[2] is not None else row[3]
        elif opening := _COMPUTATION.fullmatch(line):
            self.inside = opening[2]
            self.instructions, self.root = [], None
            if opening[1]:
                self.entry = opening[2]
        else:
            raise UnreadableHlo.at(number, line, "neither a table nor a computation begins here")

    def close(self, number: int, line: str) -> None:
        """Ends the open computation."""
        root = self.root
        if root is None:
            raise UnreadableHlo.at(number, line, f"computation %{self.inside} has no ROOT")
        self.computations[self.inside] = Computation(self.inside, tuple(self.instructions), root)
        self.inside = ""

    def instruction(self, number: int, line: str) -> None:
        """Reads a line within a computation."""
        instruction, is_root = _instruction(number, line)
        self.instructions.append(instruction)
        if is_root:
            self.root = instruction

    def rows(self, table: str) -> dict[int, dict[str, int]]:
        """A table of ``{key=number ...}`` rows."""
        return {
            number: {key: int(value) for key, value in _FIELD.findall(row)}
            for number, row in self.tables[table].items()
        }

    def frames(self) -> dict[int, StackFrame]:
        """The stack frames. XLA prints parents plus one, so that none is 1, not 0."""
        rows = self.rows("StackFrames")
        shift = int(all(row.get("parent_frame_id", 0) for row in rows.values()))
        return {
            number: StackFrame(
                row.get("file_location_id", 0), row.get("parent_frame_id", 0) - shift
            )
            for number, row in rows.items()
        }

    def module(self) -> Module:
        """All that was read."""
        return Module(
            self.name,
            self.entry,
            self.computations,
            self.devices,
            self.tables["FileNames"],
            self.tables["FunctionNames"],
            {
                number: FileLocation(
                    row.get("file_name_id", 0), row.get("function_name_id", 0), row.get("line", 0)
                )
                for number, row in self.rows("FileLocations").items()
            },
            self.frames(),
        )


def parse(text: str) -> Module:
    """Reads the text of an optimized HLO module.

    Raises:
        UnreadableHlo: a line is not understood, or the text ends too early.
    """
    reader = _Reader()
    number = 0
    line = ""
    for number, line in enumerate(text.split("\n"), 1):
        if reader.inside:
            if line.startswith("}"):
                reader.close(number, line)
            elif line.strip():
                reader.instruction(number, line)
        elif line.strip():
            reader.outside(number, line)
    if reader.inside or not reader.entry:
        what = f"in computation %{reader.inside}" if reader.inside else "without an ENTRY"
        raise UnreadableHlo.at(number, line, f"the text ends {what}")
    return reader.module()


def _instruction(number: int, line: str) -> tuple[Instruction, bool]:
    opening = _INSTRUCTION.match(line)
    if opening is None:
        raise UnreadableHlo.at(number, line, "no `%name = ` of an instruction")
    try:
        shape, at = shapes.parse(line, opening.end())
    except shapes.BadShape as err:
        raise UnreadableHlo.at(number, line, str(err)) from err
    opcode = _OPCODE.match(line, at)
    if opcode is None:
        raise UnreadableHlo.at(number, line, "no opcode after the shape")
    literal, operands, at = _arguments(number, line, opcode)
    attributes = _attributes(number, line, at)
    return (
        Instruction(opening[2], shape, opcode[1], operands, attributes, literal, number),
        bool(opening[1]),
    )


def _arguments(number: int, line: str, opcode: re.Match[str]) -> tuple[str, tuple[str, ...], int]:
    """The literal, or the operands, and where the parenthesis that holds them ends."""
    plain = _OPERANDS.match(line, opcode.end())
    if plain:
        return "", tuple(_OPERAND.findall(plain[1])), plain.end()
    end = _value_end(number, line, opcode.end())
    text = line[opcode.end() : end]
    if opcode[1] in _LITERAL_OPCODES:
        return text, (), end + 1
    return "", tuple(_OPERAND.findall(text)), end + 1


def _value_end(number: int, line: str, start: int, stop: str = ")") -> int:
    """Where a value ends: at ``stop``, or the line's end, outside of brackets and strings."""
    depth = 0
    for special in _SPECIAL.finditer(line, start):
        mark = special[0]
        if depth == 0 and mark == stop:
            return special.start()
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if depth < 0:
                break
    if depth or stop == ")":
        raise UnreadableHlo.at(number, line, f"unbalanced brackets after column {start + 1}")
    return len(line)


def _attributes(number: int, line: str, start: int) -> dict[str, str]:
    found: dict[str, str] = {}
    at = start
    while key := _ATTRIBUTE.match(line, at):
        value = _VALUE.match(line, key.end())
        at = value.end() if value else _value_end(number, line, key.end(), ",")
        found[key[1]] = line[key.end() : at].rstrip()
    if line[at:].strip():
        raise UnreadableHlo.at(number, line, f"no attribute at column {at + 1}")
    return found
