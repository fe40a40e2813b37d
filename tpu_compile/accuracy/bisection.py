"""``bisect``: from eager to the compiled program step by step, up to the first that is off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from tpu_compile import backend, process_state, topologies, versions
from tpu_compile.accuracy.copies import Call
from tpu_compile.accuracy.one_op import OneOpPrograms
from tpu_compile.accuracy.op_check import OpCheck
from tpu_compile.accuracy.program_check import ProgramCheck
from tpu_compile.accuracy.recording import Recorded, Recording, Seen, Step, record, seen_of
from tpu_compile.accuracy.reference import InFloat64, Reference, in_float64, output_names, widened
from tpu_compile.accuracy.result import Bisection, OpFinding, Where, line_of, name_of
from tpu_compile.accuracy.tolerance import Difference, Tolerance, compare_all
from tpu_compile.errors import InvalidOption
from tpu_compile.options import Options


def bisect(
    model: Callable[..., Any],
    *args: Any,
    train: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Bisection:
    """Finds the first place where a compiled model departs from eager torch.

    Compared are, in this order: the captured graph run by torch's own kernels with the model; each
    pass's graph with the one before; each op, compiled alone and fed with torch's values, with
    torch's kernel; each whole program with torch. Copies of the model and its arguments are run:
    nothing of the caller's changes, random generators included.

    Args:
        model: a module or function, as for ``torch.compile``.
        args: its arguments.
        train: also compare the backward of every output that requires grad.
        rtol: relative tolerance; default that of ``torch.testing.assert_close`` for each dtype.
        atol: absolute tolerance, likewise. Integers and bools have to be equal.
        options: of the backend.
        kwargs: the model's keyword arguments.

    Raises:
        InvalidOption: for a wrong option, a target that is not run here, or ``train`` where no
            output requires grad.
    """
    versions.check()
    process_state.without_tpu()
    opts = _options(options)
    model = getattr(model, "_orig_mod", getattr(model, "_torchdynamo_orig_callable", model))
    programs = OneOpPrograms(opts, backend.settings_for(opts))
    copies = lambda: Call.of(model, args, kwargs)  # noqa: E731
    call = copies()
    eager = seen_of(call, call.fn, train=train)
    recorded = record(copies(), programs, train=train)
    wide = lambda: record(copies(), programs, train=train, wide=True).seen  # noqa: E731
    return _Search(Tolerance(rtol, atol), programs, eager, recorded, wide).run()


def _options(given: Mapping[str, Any] | None) -> Options:
    opts = backend.read_options(dict(given) if given is not None else None)
    if topologies.is_name(opts.target):
        valid = "bisect runs what it compiles: use 'auto', 'cpu' or 'tpu'."
        raise InvalidOption(name="target", value=opts.target, valid=valid)
    return dataclasses.replace(opts, dump_dir=None)


@dataclass
class _Search:
    tolerance: Tolerance
    programs: OneOpPrograms
    eager: Seen
    recording: Recording
    wide: Callable[[], Seen]
    ops: list[OpFinding] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self) -> Bisection:
        for stage in (self._capture, self._passes, self._ops, self._programs):
            found = stage()
            if found is not None:
                return found
        return self._result("nothing")

    def _result(self, where: Where, at: fx.Node | None = None, **fields: Any) -> Bisection:
        if at is not None:
            line, source = line_of(at)
            fields |= {"node": at.name, "line": line, "source": source}
        ops, passes, notes = tuple(self.ops), tuple(self.passes), tuple(self.notes)
        return Bisection(where, self.tolerance, ops, passes, notes, **fields)

    def _capture(self) -> Bisection | None:
        calls = self.recording.calls
        if not calls:
            self.notes.append("no graph was captured: nothing of this is compiled")
        self.notes += [
            f"graph {c.name} was called {c.calls} times; its first call is compared"
            for c in calls
            if c.calls > 1
        ]
        mine, theirs = self.recording.seen, self.eager
        if mine.random or theirs.random:
            self.notes.append(_RANDOM)
            return None
        names = list(dict.fromkeys([*theirs.values, *mine.values]))
        got, expected = ([seen.values.get(n) for n in names] for seen in (mine, theirs))

        def exact() -> Sequence[Any] | None:
            seen = in_float64(lambda: [self.wide()])
            return seen and [widened(seen[0].values.get(n)) for n in names]

        # the captured graph's own rounding is known: the model has to be as close to float64's
        found = compare_all(got, expected, names, self.tolerance, exact, suspect="expected")
        off = _departing(found)
        return self._result("capture", errors=off) if off else None

    def _passes(self) -> Bisection | None:
        for call in self.recording.calls:
            before = call.steps[0]
            for step in call.steps[1:]:
                self.passes.append(f"{step.name} ({call.name})")
                if found := self._pass(call, before, step):
                    return found
                before = step
            if (err := call.failure) is not None:
                name = err.fields["name"]
                return self._result("pass", name=name, graph=call.name, why=str(err))
        return None

    def _pass(self, call: Recorded, before: Step, step: Step) -> Bisection | None:
        where: dict[str, Any] = {"name": step.name, "graph": call.name}
        expected = self._outputs(Reference, before, call)
        try:
            got = self._outputs(Reference, step, call)
        except Exception as err:
            return self._result("pass", None, **where, why=f"{type(err).__name__}: {err}")
        exact = lambda: in_float64(lambda: self._outputs(InFloat64, before, call))  # noqa: E731
        names = output_names(step.gm)
        off = _departing(compare_all(got, expected, names, self.tolerance, exact))
        if not off:
            return None
        node = next((n for n in step.gm.graph.nodes if n.name == off[0].what), None)
        return self._result("pass", node, **where, errors=off)

    def _outputs(self, run: type[Reference], step: Step, call: Recorded) -> list[Any]:
        return run(step.gm, self.programs.choices).outputs(call.args)

    def _ops(self) -> Bisection | None:
        for call in self.recording.calls:
            check = OpCheck(call.final, self.programs, self.tolerance, call.name)
            check.outputs(call.args)
            self.ops += check.findings
        skipped = [f.op for f in self.ops if f.status == "skipped"]
        if skipped:
            names = ", ".join(sorted(set(skipped)))
            self.notes.append(f"ops with nothing to be compared with: {len(skipped)} ({names})")
        first = next((f for f in self.ops if f.status in ("departs", "failed")), None)
        if first is None:
            return None
        return self._result(
            "op",
            name=first.op,
            graph=first.graph,
            node=first.node,
            line=first.line,
            source=first.source,
            errors=_departing(first.differences),
            why=first.why,
            repro=first.repro,
        )

    def _programs(self) -> Bisection | None:
        programs = self.programs
        check = ProgramCheck(programs.options, programs.settings, self.tolerance, programs.choices)
        for call in self.recording.calls:
            if whole := check.whole(call.steps[0].gm, call.args):
                found = check.smallest_prefix(call.final, call.args, whole)
                assert found.node is not None
                return self._result(
                    "program",
                    found.node,
                    name=name_of(found.node),
                    graph=call.name,
                    errors=found.differences,
                    why=found.why,
                )
        return None


_RANDOM = (
    "the model draws random numbers, and they are not eager's: the captured graph is not compared "
    "with the model (in eval mode, or with no dropout, it would be)"
)


def _departing(found: Sequence[Difference]) -> tuple[Difference, ...]:
    return tuple(d for d in found if d.departs)
