"""A model captured as the backend captures it, and run by torch's kernels; its graphs are kept."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tpu_compile import backend, errors, program, specialize, torch_internals
from tpu_compile.accuracy.copies import Call, same_randomness
from tpu_compile.accuracy.leaves import named_leaves
from tpu_compile.accuracy.one_op import OneOpPrograms
from tpu_compile.accuracy.reference import InFloat64, Reference
from tpu_compile.passes import pipeline
from tpu_compile.passes.functional_random import functional_random


@dataclass(frozen=True)
class Step:
    """A graph as it was captured, or after a pass that changed it."""

    name: str
    gm: fx.GraphModule


@dataclass
class Recorded:
    """The first call of one graph.

    Attributes:
        name: its number and kind, as in "0 forward".
        steps: concrete graphs, the first as it was captured.
        args: copies of the call's flat arguments.
        failure: what a pass raised; its graph and those of later passes are not in ``steps``.
        calls: how often the graph was called.
    """

    name: str
    steps: list[Step]
    args: list[Any]
    failure: errors.TpuCompileError | None
    calls: int = 1

    @property
    def final(self) -> fx.GraphModule:
        """The graph that is lowered."""
        return self.steps[-1].gm


@dataclass
class _Recorder:
    """One graph, callable: torch's kernels run it, and its first call is kept."""

    name: str
    steps: list[Step]
    extras: list[Callable[[], Any]]
    failure: errors.TpuCompileError | None
    found: list[Recorded]
    ops: OneOpPrograms
    wide: bool

    def __post_init__(self) -> None:
        self._boxed_call = True
        symbolic = [specialize.abstract(step.gm) for step in self.steps]
        self._symbolic = any(symbolic)
        self._recorded: Recorded | None = None

    @classmethod
    def of(
        cls, gm: fx.GraphModule, kind: str, run: _Run, ops: OneOpPrograms, *, wide: bool
    ) -> _Recorder:
        """Runs the passes as a program does."""
        extras = program.lift(gm)
        steps = [Step("captured", specialize.copy_graph(gm))]

        def observe(name: str, gm: fx.GraphModule, changes: int) -> None:
            if changes:
                steps.append(Step(name, specialize.copy_graph(gm)))

        failure = None
        try:
            pipeline.run(gm, pipeline.compose(ops.options.passes_after), observe)
        except (errors.PassFailed, errors.BrokenGraph) as err:
            failure = err
        name = f"{len(run.recorders)} {kind}"
        found = cls(name, steps, extras, failure, run.calls, ops, wide)
        run.recorders.append(found)
        return found

    def __call__(self, args: list[Any]) -> list[Any]:
        args += [make() for make in self.extras]
        if self._recorded is None:
            steps = [Step(s.name, self._concrete(s.gm, args)) for s in self.steps]
            self._recorded = Recorded(self.name, steps, copied(args), self.failure)
            self.found.append(self._recorded)
            gm = steps[0].gm
        else:
            self._recorded.calls += 1
            gm = self._concrete(self.steps[0].gm, args)
        results = self._run(gm, args)
        args.clear()
        return results

    def forget(self) -> None:
        """Lets go of everything, in place: torch's wrappers take over attributes as they are."""
        for held in (self.steps, self.extras, self.found):
            held.clear()
        self._recorded = None

    def _run(self, gm: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
        if not self.wide:
            return Reference(gm, self.ops.samples).outputs(args)
        results = InFloat64(gm, self.ops.samples).outputs(args)
        nodes = pytree.tree_leaves(gm.graph.output_node().args)
        return [_as_promised(v, node) for v, node in zip(results, nodes, strict=True)]

    def _concrete(self, gm: fx.GraphModule, args: Sequence[Any]) -> fx.GraphModule:
        if not self._symbolic:
            return gm
        return specialize.specialize(gm, args, specialize.runtime_scalars(gm))


def _as_promised(value: Any, node: Any) -> Any:
    return value.to(node.meta["val"].dtype) if isinstance(value, torch.Tensor) else value


def copied(args: Sequence[Any]) -> list[Any]:
    """Copies of flat arguments, with their strides, offsets and shared memory."""
    return copy.deepcopy([a.detach() if isinstance(a, torch.Tensor) else a for a in args])


# ---------------------------------------------------------------- a whole model


@dataclass(frozen=True)
class Seen:
    """What the caller of a function can see of a call.

    Attributes:
        values: results, tensors that were written to, and gradients.
        random: whether torch's generator was asked for numbers.
    """

    values: dict[str, Any]
    random: bool


@dataclass(frozen=True)
class Recording:
    """What a call of captured code gave, and what was captured.

    Attributes:
        seen: by the caller.
        calls: the first call of each graph, in the order of the calls.
    """

    seen: Seen
    calls: list[Recorded]


def seen_of(call: Call, fn: Callable[..., Any], *, train: bool) -> Seen:
    """Calls a function, and its backward if asked to.

    Args:
        call: the arguments, and the tensors to look at afterwards.
        fn: the call's function, or it compiled.
        train: whether to go back from every result that requires grad.
    """
    before = {name: _state(t) for name, t in call.tensors().items()}
    state = torch.get_rng_state()
    with same_randomness(), torch.enable_grad() if train else contextlib.nullcontext():
        out = fn(*call.args, **call.kwargs)
        if train:
            _backward(out)
        random = not torch.equal(torch.get_rng_state(), state)
    values = dict(named_leaves(out, "output"))
    for name, t in call.tensors().items():
        if not t.requires_grad or before.get(name) != _state(t):
            values[f"{name} afterwards"] = t
        if t.is_leaf and t.grad is not None:
            values[f"gradient of {name}"] = t.grad
    return Seen(values, random)


def _state(t: torch.Tensor) -> tuple[int, int]:
    return id(t), 0 if t.is_inference() else t._version


def _backward(out: Any) -> None:
    smooth = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not smooth:
        valid = "But no output of the model requires grad."
        raise errors.InvalidOption(name="train", value=True, valid=valid)
    generator = torch.Generator().manual_seed(0)
    # Ones would hide errors where the gradients of a whole row cancel out, as in a softmax.
    grads = [
        torch.randn(t.shape, dtype=t.dtype, generator=generator) if t.dim() else torch.ones_like(t)
        for t in smooth
    ]
    torch.autograd.backward(smooth, grads)


@dataclass
class _Run:
    """What is recorded. Dynamo's caches hold on to it, so it lets go of everything in the end."""

    recorders: list[_Recorder] = field(default_factory=list)
    calls: list[Recorded] = field(default_factory=list)

    def forget(self) -> None:
        for recorder in self.recorders:
            recorder.forget()
        self.recorders, self.calls = [], []


def record(call: Call, ops: OneOpPrograms, *, train: bool, wide: bool = False) -> Recording:
    """Captures a call and runs what was captured by torch's kernels.

    Args:
        call: copies, to be called once.
        ops: for ops that torch has no kernel for.
        train: whether to run the backward of every output that requires grad.
        wide: whether to compute in float64 within each graph.

    Raises:
        TpuCompileError: of the backend, for what it can't do with the whole graph.
    """
    run = _Run()

    def once(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _capture(gm, inputs, lambda g, kind: _Recorder.of(g, kind, run, ops, wide=wide))

    # isolated: this compile does not count where Dynamo limits the caller's own
    compiled = torch.compile(call.fn, backend=once, isolate_recompiles=True)  # type: ignore[call-overload]
    with torch_internals.one_more_compile():
        try:
            seen = seen_of(call, compiled, train=train)
            return Recording(seen, list(run.calls))
        except torch._dynamo.exc.BackendCompilerFailed as err:
            if isinstance(err.inner_exception, errors.TpuCompileError):
                raise err.inner_exception from None
            raise
        finally:
            run.forget()
            call.forget()


Build = Callable[[fx.GraphModule, str], Callable[[list[Any]], list[Any]]]


def _capture(gm: fx.GraphModule, inputs: Sequence[Any], build: Build) -> Callable[..., Any]:
    """AOTAutograd as the backend sets it up; ``build`` makes each of its graphs callable."""

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_one(graph: fx.GraphModule, _inputs: Any) -> Callable[[list[Any]], list[Any]]:
            if kind == "inference":
                functional_random.run(graph)
            return build(graph, kind)

        return compile_one

    return backend.through_aot(gm, inputs, compiler, None)
