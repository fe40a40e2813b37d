"""Models and arguments without their memory: fake tensors on the CPU, of any tensor's shape."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tpu_compile.torch_internals import FakeMode, fake_mode_of


class Faker:
    """Makes fake copies, in which what was one tensor is one tensor again."""

    def __init__(self, *values: Any) -> None:
        """Takes the fake mode of the tensors in ``values``, or a new one where none is fake."""
        self.mode = fake_mode_of(list(_tensors(values))) or FakeMode(allow_non_fake_inputs=True)
        self._made: dict[int, torch.Tensor] = {}
        self._kept: list[Any] = []  # ids must stay taken

    def copy(self, value: Any) -> Any:
        """A copy of a module, or of a tree of arguments, with every tensor fake and on the CPU.

        A function is returned as it is: tensors that it closes over stay real.
        """
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        return pytree.tree_map_only(torch.Tensor, self.tensor, value)

    def _module(self, module: torch.nn.Module) -> torch.nn.Module:
        memo: dict[int, Any] = {id(t): self.tensor(t) for t in _tensors(module)}
        return copy.deepcopy(module, memo)

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        """A fake of a real, fake or meta tensor: its dtype, sizes, strides and requires_grad."""
        if id(t) not in self._made:
            self._kept.append(t)
            self._made[id(t)] = self._fake(t)
        return self._made[id(t)]

    def _fake(self, t: torch.Tensor) -> torch.Tensor:
        if t.device.type != "meta":
            return self.mode.from_tensor(t)
        with self.mode:
            fake = torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu")
        if isinstance(t, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=t.requires_grad)
        return fake.requires_grad_(t.requires_grad)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, torch.nn.Module):
            yield from leaf.parameters()
            yield from leaf.buffers()
            # Plain attributes keep their values, where they have any.
            for attribute in (a for module in leaf.modules() for a in vars(module).values()):
                if isinstance(attribute, torch.Tensor) and attribute.is_meta:
                    yield attribute
