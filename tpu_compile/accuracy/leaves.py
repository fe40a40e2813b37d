"""Every tensor in a tree of arguments or results, those in modules and in plain objects too."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, torch.dtype, torch.device)


def named_leaves(
    value: Any, name: str, seen: frozenset[int] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree, each with its name: tensors and what else is compared by value.

    Args:
        value: containers that pytree knows, modules, and objects with attributes.
        name: of the whole; a module's parameters have the names of its ``state_dict`` after it.
        seen: what the walk is within.
    """
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        label = f"{name}{pytree.keystr(path)}"
        if isinstance(leaf, torch.nn.Module):
            prefix = f"{label}." if label else ""
            for key, t in _held(leaf):
                yield prefix + key, t
        elif isinstance(leaf, torch.Tensor) or not hasattr(leaf, "__dict__"):
            yield label, leaf
        elif not isinstance(leaf, _OPAQUE) and id(leaf) not in seen:
            for key, attribute in vars(leaf).items():
                yield from named_leaves(attribute, f"{label}.{key}", seen | {id(leaf)})


def _held(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
    for prefix, part in module.named_modules():
        for key, attribute in vars(part).items():
            if isinstance(attribute, torch.Tensor):
                yield f"{prefix}.{key}".lstrip("."), attribute
