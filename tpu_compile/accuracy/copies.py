"""Copies of a function and its arguments, so that a call of them changes nothing of the user's."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tpu_compile.accuracy.leaves import named_leaves


@dataclass(frozen=True)
class Call:
    """A function and its arguments, to be called once.

    Attributes:
        fn: a copy, with copies of the modules and tensors that it holds.
        args: copies.
        kwargs: copies.
        roots: all that was copied, by name.
        scopes: the globals of copied functions.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    roots: dict[str, Any]
    scopes: list[dict[str, Any]]

    @classmethod
    def of(cls, fn: Callable[..., Any], args: Any, kwargs: Any) -> Call:
        """Copies, in which what was one tensor, or memory of one, is so again."""
        copier = _Copier()
        new = copier.copy(fn, "")
        args, kwargs = copier.copy(args, "args"), copier.copy(kwargs, "kwargs")
        return cls(new, args, kwargs, copier.roots, list(copier.scopes.values()))

    def forget(self) -> None:
        """Lets go of copies that Dynamo would keep until it is reset."""
        for scope in self.scopes:
            scope.update(dict.fromkeys(scope))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are now in what was copied, by name."""
        found = (pair for name, root in self.roots.items() for pair in named_leaves(root, name))
        return {name: leaf for name, leaf in found if isinstance(leaf, torch.Tensor)}


@contextlib.contextmanager
def same_randomness() -> Iterator[None]:
    """Puts the random generators of torch's CPU, Python and NumPy back to where they were."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


class _Copier:
    def __init__(self) -> None:
        self.roots: dict[str, Any] = {}
        self._memo: dict[int, Any] = {}
        self.scopes: dict[int, dict[str, Any]] = {}

    def copy(self, value: Any, name: str) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            fn = self.copy(value.__func__, name)
            return types.MethodType(fn, self.copy(value.__self__, name))
        if isinstance(value, functools.partial):
            new = self.copy(value.func, name)
            return functools.partial(
                new, *self.copy(value.args, name), **self.copy(value.keywords, name)
            )
        for t in _tensors_in(value):
            if not t.is_leaf and id(t) not in self._memo:
                # of a graph that is not ours to go back through
                self._memo[id(t)] = t.detach().clone().requires_grad_(t.requires_grad)
        for fn in _functions_in(value):  # hooks and the like, which deepcopy takes as they are
            self._function(fn)
        new = copy.deepcopy(value, self._memo)
        while self.roots.get(name, new) is not new:
            name += "'"
        self.roots[name] = new
        for t in _tensors_in(new):
            t.grad = None
        return new

    def _function(self, fn: types.FunctionType) -> Any:
        """A function whose closure, defaults and globals are copies; itself where it has none."""
        if id(fn) in self._memo:
            return self._memo[id(fn)]
        if not _holds(fn, set()):
            return fn
        cells = tuple(types.CellType() for _ in fn.__closure__ or ())
        scope = self._scope(fn)
        code = fn.__code__.replace()  # Dynamo keeps what it compiles with the code object
        new = types.FunctionType(code, scope, fn.__name__, None, cells or None)
        new.__qualname__, new.__module__ = fn.__qualname__, fn.__module__
        new.__dict__.update(fn.__dict__)
        self._memo[id(fn)] = new
        self._memo.setdefault(id(self._memo), []).append(fn)  # as deepcopy does: ids stay taken
        for name, cell, old in zip(
            fn.__code__.co_freevars, cells, fn.__closure__ or (), strict=True
        ):
            with contextlib.suppress(ValueError):  # an empty cell
                cell.cell_contents = self._held(old.cell_contents, name)
        for name in _global_names(fn):
            scope[name] = self._held(fn.__globals__[name], name)
        new.__defaults__ = self._held(fn.__defaults__, "defaults")
        new.__kwdefaults__ = self._held(fn.__kwdefaults__, "defaults")
        return new

    def _scope(self, fn: types.FunctionType) -> dict[str, Any]:
        """The globals that a copied function reads: those of its module, copies among them."""
        if id(fn.__globals__) not in self.scopes:
            # Dynamo would look the globals of a scope with a name up in the module of that name.
            named = {k: v for k, v in fn.__globals__.items() if k != "__name__"}
            self.scopes[id(fn.__globals__)] = named
        return self.scopes[id(fn.__globals__)]

    def _held(self, value: Any, name: str) -> Any:
        return self.copy(value, name) if _holds(value, set()) else value


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for _, leaf in named_leaves(value, "") if isinstance(leaf, torch.Tensor))


def _functions_in(value: Any) -> Iterator[types.FunctionType]:
    """The functions that are attributes of modules, their hooks among them."""
    modules = [
        m for v in pytree.tree_leaves(value) if isinstance(v, torch.nn.Module) for m in v.modules()
    ]
    for attribute in (a for module in modules for a in vars(module).values()):
        for v in attribute.values() if isinstance(attribute, dict) else (attribute,):
            if isinstance(v, types.FunctionType):
                yield v


def _holds(value: Any, seen: set[int]) -> bool:
    """Whether a value is, or reaches, a module or a tensor."""
    if isinstance(value, torch.Tensor | torch.nn.Module):
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    return any(_holds(v, seen) for v in _reached(value))


def _reached(value: Any) -> Iterator[Any]:
    """What a value refers to, as far as that may be the user's model."""
    if isinstance(value, list | tuple | set):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.FunctionType):
        yield from _reached_by_code(value)
    elif not isinstance(value, type | types.ModuleType):
        yield from getattr(value, "__dict__", {}).values()


def _reached_by_code(fn: types.FunctionType) -> Iterator[Any]:
    if "-packages" in fn.__code__.co_filename:
        return  # a library's function holds nothing of the user's
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):
            yield cell.cell_contents
    yield from (fn.__globals__[name] for name in _global_names(fn))
    yield from (fn.__defaults__, fn.__kwdefaults__)


def _global_names(fn: types.FunctionType) -> list[str]:
    """The globals that a function's code, and the code within it, may read."""
    names: set[str] = set()
    codes = [fn.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return sorted(names & fn.__globals__.keys())
