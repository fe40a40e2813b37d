"""What is in an exported file, as frozen dataclasses: ``manifest.json`` is these, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

import torch

from tpu_compile.portable import codec
from tpu_compile.portable.trees import Tree
from tpu_compile.portable.views import View

FORMAT = "tpu_compile.portable"
VERSION = 1


@dataclass(frozen=True)
class Array:
    """A tensor's type.

    Attributes:
        dtype: torch's name of it, as ``"float32"``.
        shape: as the user sees it.
        order: of its dimensions in memory, outermost first.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return dtype_of(self.dtype)


@dataclass(frozen=True)
class Parameter:
    """One argument of the model's call.

    Attributes:
        name: of the Python parameter.
        positional: whether it may be given by position; by keyword it may always.
        tree: its containers; the leaves of all parameters in order are the inputs.
    """

    name: str
    positional: bool
    tree: Tree


@dataclass(frozen=True)
class Input:
    """A leaf of the arguments: a tensor, or a value that the program was made for.

    Attributes:
        name: where it is, as ``batch['x'][0]``.
        array: its type; None where it is not a tensor.
        constant: the value it must have, then.
    """

    name: str
    array: Array | None = None
    constant: str | int | float | bool | None = None


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant of the model.

    Attributes:
        kind: which of them.
        array: its type.
        stored: the name of the tensor in ``weights.safetensors`` that it is, or is a view of.
        stride: of the view, where it is one.
        offset: of the view.
        mutated: whether calls change it.
    """

    kind: Literal["parameter", "buffer", "constant"]
    array: Array
    stored: str
    stride: tuple[int, ...] | None = None
    offset: int = 0
    mutated: bool = False


@dataclass(frozen=True)
class Argument:
    """One argument of the programs: a weight, an input, or a seed drawn for the call.

    Attributes:
        array: its type.
        weight: the name of the weight that it is.
        input: the number of the input that it is.
    """

    array: Array
    weight: str | None = None
    input: int | None = None


@dataclass(frozen=True)
class Result:
    """One result of the programs, and where it is written: calls may change weights and inputs.

    Attributes:
        array: its type.
        weights: names of the weights that it becomes the value of.
        inputs: numbers of the inputs that it is written into.
    """

    array: Array
    weights: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Output:
    """A leaf of what the model returns.

    Attributes:
        result: the number of the program's result that it is.
        input: the number of the input that it is, or is a view of.
        weight: the name of the weight that it is, or is a view of.
        views: which view.
        constant: its value, where it is none of these.
    """

    result: int | None = None
    input: int | None = None
    weight: str | None = None
    views: tuple[View, ...] = ()
    constant: str | int | float | bool | None = None


@dataclass(frozen=True)
class SavedExecutable:
    """A program compiled by XLA, and what it needs of the place where it runs.

    Attributes:
        file: the member that holds it.
        platform: "tpu" or "cpu".
        target: the topology it was compiled for, or "cpu".
        device: the kind of device, as JAX names it.
        versions: of the packages that must be the same.
    """

    file: str
    platform: str
    target: str
    device: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Member:
    """A member of the file beside the manifest.

    Attributes:
        size: in bytes.
        sha256: of its bytes, in hex.
    """

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that a call needs to know.

    Attributes:
        model: the name of the model's class or function.
        versions: of the packages it was exported with, for information.
        parameters: the arguments of a call.
        inputs: their leaves.
        weights: by name.
        arguments: of the programs.
        results: of the programs.
        outputs: the leaves of what a call returns.
        tree: the containers of what a call returns.
        programs: by platform, the member that holds the StableHLO.
        executables: what is compiled already.
        members: by name.
        format: what kind of file this is.
        version: of the format.
    """

    model: str
    versions: dict[str, str]
    parameters: tuple[Parameter, ...]
    inputs: tuple[Input, ...]
    weights: dict[str, Weight]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    outputs: tuple[Output, ...]
    tree: Tree
    programs: dict[str, str] = field(default_factory=dict)
    executables: tuple[SavedExecutable, ...] = ()
    members: dict[str, Member] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION

    def to_json(self) -> str:
        """The manifest as text."""
        stamped = {"format": self.format, "version": self.version, **codec.encode(self)}
        return json.dumps(stamped, indent=1) + "\n"

    @property
    def signature(self) -> str:
        """The arguments of a call as text: ``(tokens: int64[2, 64], *, scale: 2)``."""
        leaves = iter(self.inputs)
        parts, by_keyword = [], False
        for p in self.parameters:
            if not p.positional and not by_keyword:
                parts.append("*")
                by_keyword = True
            shown = p.tree.build(_Shown(i) for i in leaves)
            parts.append(f"{p.name}: {shown!r}")
        return f"({', '.join(parts)})"


class _Shown:
    def __init__(self, leaf: Input) -> None:
        self.leaf = leaf

    def __repr__(self) -> str:
        return str(self.leaf.array) if self.leaf.array is not None else repr(self.leaf.constant)


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype's name: ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name.

    Raises:
        Malformed: where there is none.
    """
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(dtype, torch.dtype):
        raise codec.Malformed(f"there is no dtype {name!r}")
    return dtype
