"""A loaded model: what a call does with its arguments, weights and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from tpu_compile import buffers, calling, errors, random_ops
from tpu_compile.portable import codec, compiling, views
from tpu_compile.portable.errors import WrongInput
from tpu_compile.portable.manifest import Argument, Input, Manifest, Output

Program = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]


@dataclass
class Run:
    """A compiled program on its device; weights that are not the CPU's are kept there.

    Attributes:
        program: of arrays on the device.
        device: where it runs.
    """

    program: Program
    device: jax.Device

    def __post_init__(self) -> None:
        # by argument: the host's tensor as it was when it was copied, and the copy
        self._copies: dict[int, tuple[tuple[int, int], jax.Array]] = {}

    def __call__(
        self, arguments: calling.Arguments, tensors: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Runs the program on tensors of the CPU and waits for it."""
        home = buffers.device("cpu")
        arrays = (
            arguments.arrays(tensors) if self.device == home else self._sent(arguments, tensors)
        )
        try:
            results = self.program(arrays)
            # The inputs are the user's own memory: the program must have read it on return.
            for r in results:
                r.block_until_ready()
            if self.device != home:
                results = jax.device_put(list(results), home)
        except jax.errors.JaxRuntimeError as err:
            raise errors.ExecutionFailed(why=str(err)) from err
        return buffers.to_torch(results)

    def _sent(
        self, arguments: calling.Arguments, tensors: Sequence[torch.Tensor]
    ) -> list[jax.Array]:
        """The arguments on a device that is not the host's; weights go there once."""
        arrays = []
        for i, (slot, t) in enumerate(zip(arguments.slots, tensors, strict=True)):
            if not isinstance(t, torch.nn.Parameter | torch.nn.Buffer):
                arrays.append(jax.device_put(slot.convert(t), self.device))
                continue
            seen = (t.data_ptr(), t._version)
            if i not in self._copies or self._copies[i][0] != seen:
                self._copies[i] = seen, jax.device_put(slot.convert(t), self.device)
            arrays.append(self._copies[i][1])
        return arrays


class LoadedModel:
    """A model without its Python code: call it as the model was called when it was exported.

    Results are new tensors, in tuples, lists, dicts and namedtuples as the model returned them; an
    output class, such as those of Transformers, comes as a dict of its fields. What the model
    writes to, buffers as well as arguments, is written to as in eager. No gradients are recorded.

    Attributes:
        manifest: what the file says of itself.
        weights: parameters, buffers and constants by name. Write into a tensor to change a weight
            (``model.weights[name].copy_(value)``); names that were tied are one tensor.
    """

    def __init__(
        self, manifest: Manifest, weights: Mapping[str, torch.Tensor], run: Run | None
    ) -> None:
        self.manifest, self._run = manifest, run
        self.weights = dict(weights)
        arrays = [a.array for a in manifest.arguments]
        self._arguments = calling.Arguments(
            slots=[calling.Slot(i, array.order) for i, array in enumerate(arrays)],
            scalars=[],
            types=[compiling.in_memory(array) for array in arrays],
            inputs=[array.order for array in arrays],
            positions=list(range(len(arrays))),
        )
        self._orders = [calling.inverse(r.array.order) for r in manifest.results]
        self._check()

    def _check(self) -> None:
        """Compares the manifest's references with what there is."""
        m = self.manifest
        inputs, results = range(len(m.inputs)), range(len(m.results))
        references = [(a.weight, a.input) for a in m.arguments]
        references += [(o.weight, o.input) for o in m.outputs]
        sound = all(w is None or w in self.weights for w, _ in references)
        sound &= all(i is None or i in inputs for _, i in references)
        sound &= all(o.result is None or o.result in results for o in m.outputs)
        sound &= all(views.is_known(v.op) for o in m.outputs for v in o.views)
        sound &= all({*r.weights} <= {*self.weights} for r in m.results)
        sound &= all(i in inputs for r in m.results for i in r.inputs)
        sound &= sum(1 for p in m.parameters for _ in p.tree.paths()) == len(m.inputs)
        sound &= sum(1 for _ in m.tree.paths()) == len(m.outputs)
        if not sound:
            raise codec.Malformed("its manifest refers to what is not there")

    def __repr__(self) -> str:
        return f"LoadedModel({self.manifest.model}{self.manifest.signature})"

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, as the module's own ``state_dict`` has them."""
        kinds = {name: w.kind for name, w in self.manifest.weights.items()}
        return {n: t.detach() for n, t in self.weights.items() if kinds[n] != "constant"}

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model.

        Raises:
            WrongInput: for an argument of another dtype, shape or structure than the exported one.
        """
        inputs = self._inputs(args, kwargs)
        results: list[torch.Tensor] = []
        if self._run is not None:
            tensors = [self._argument(a, inputs) for a in self.manifest.arguments]
            raw = self._run(self._arguments, tensors)
            results = [t.permute(back) for t, back in zip(raw, self._orders, strict=True)]
            self._write(results, inputs)
        leaves = [self._output(o, results, inputs) for o in self.manifest.outputs]
        return self.manifest.tree.build(iter(leaves))

    # ------------------------------------------------------------ arguments

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        parameters, given = self.manifest.parameters, dict(kwargs)
        places = [p.name for p in parameters if p.positional]
        if len(args) > len(places):
            raise self._refuse(repr(len(places) + 1), f"takes {len(places)} by position")
        for name, value in zip(places, args, strict=False):
            if name in given:
                raise self._refuse(repr(name), "is given twice")
            given[name] = value
        leaves: list[Any] = []
        for p in parameters:
            if p.name not in given:
                raise self._refuse(repr(p.name), "is missing")
            leaves += p.tree.take(given.pop(p.name), p.name, self._refuse)
        for name in given:
            raise self._refuse(repr(name), "is not among what the model was exported with")
        for described, leaf in zip(self.manifest.inputs, leaves, strict=True):
            self._check_input(described, leaf)
        return leaves

    def _check_input(self, described: Input, leaf: Any) -> None:
        array = described.array
        if array is None:
            if repr(leaf) != repr(described.constant):
                why = f"the model was exported for {described.constant!r}, got {leaf!r}"
                raise self._refuse(described.name, why)
            return
        if not isinstance(leaf, torch.Tensor):
            raise self._refuse(described.name, f"expected a tensor, got a {type(leaf).__name__}")
        if leaf.dtype != array.torch_dtype or tuple(leaf.shape) != array.shape:
            got = f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
            raise self._refuse(described.name, f"expected {array}, got {got}")
        if leaf.device.type != "cpu":
            raise self._refuse(described.name, f"expected a CPU tensor, got one on {leaf.device}")

    def _refuse(self, name: str, why: str) -> WrongInput:
        return WrongInput(name=name, why=why, signature=self.manifest.signature)

    def _argument(self, a: Argument, inputs: Sequence[Any]) -> torch.Tensor:
        if a.weight is not None:
            return self.weights[a.weight]
        return random_ops.draw_seed() if a.input is None else inputs[a.input]

    # ------------------------------------------------------------ results

    def _write(self, results: Sequence[torch.Tensor], inputs: Sequence[Any]) -> None:
        for described, value in zip(self.manifest.results, results, strict=True):
            for name in described.weights:
                self.weights[name].copy_(value)
            for i in described.inputs:
                inputs[i].copy_(value)

    def _output(self, o: Output, results: Sequence[torch.Tensor], inputs: Sequence[Any]) -> Any:
        if o.result is not None:
            return results[o.result]
        if o.input is not None:
            return views.apply(inputs[o.input], o.views)
        if o.weight is not None:
            return views.apply(self.weights[o.weight].detach(), o.views)
        return o.constant
