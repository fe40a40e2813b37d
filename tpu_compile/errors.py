"""Every error and warning a user of the package can see, one class per mistake."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from torch import fx


class TpuCompileError(Exception):
    """Base of all errors: a class-level text filled with the fields it is raised with.

    Args:
        node: the FX node at fault; adds the node and the user's own line as notes.
        fields: what the text's placeholders name; kept as ``self.fields``.
    """

    text = "tpu_compile failed."

    def __init__(self, *, node: fx.Node | None = None, **fields: Any) -> None:
        self.fields = fields
        super().__init__(self.text.format(**fields))
        if node is not None:
            self.blame(node)

    def blame(self, node: fx.Node) -> None:
        """Adds the node and the user's line to the error, once."""
        if getattr(self, "node", None) is not None:
            return
        self.node = node
        self.add_note(f"while lowering: {node.format_node()}")
        if trace := user_frame(node):
            self.add_note(f"from your code:\n{trace}")

    def __str__(self) -> str:
        # Dynamo quotes str(error) and drops notes, and the user's line is the point of them.
        notes = [n for n in getattr(self, "__notes__", []) if not n.startswith("-----")]
        return "\n".join([super().__str__(), *notes])


_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)
_TORCH = re.compile(r"/(site|dist)-packages/(torch|functorch)/")


def user_frame(node: fx.Node) -> str | None:
    """The innermost frame that is not torch's own of a node's recorded stack, as in a traceback."""
    trace = (node.meta.get("stack_trace") or node.stack_trace or "").rstrip()
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return trace or None
    own = [i for i, f in enumerate(frames) if not _TORCH.search(f[1])]
    i = own[-1] if own else len(frames) - 1
    end = frames[i + 1].start() if i + 1 < len(frames) else len(trace)
    return trace[frames[i].start() : end].rstrip()


def user_location(node: fx.Node) -> tuple[str, int] | None:
    """File and line of ``user_frame``, or None."""
    found = _FRAME.search(user_frame(node) or "")
    return (found[1], int(found[2])) if found else None


def user_line(node: fx.Node) -> str:
    """``file.py:12`` of ``user_frame``, or ""."""
    found = user_location(node)
    return f"{PurePath(found[0]).name}:{found[1]}" if found else ""


# ---------------------------------------------------------------- what a user asked for


class InvalidOption(TpuCompileError, ValueError):
    """An option's name or value is not one of those there are."""

    text = "invalid option {name}={value!r}. {valid}"


class UnsupportedMode(TpuCompileError, ValueError):
    """``torch.compile(mode=...)`` names a mode that this backend has nothing for."""

    text = "mode={mode!r} is not supported by backend='tpu': {why} Use one of: {valid}."


class UnsupportedVersion(TpuCompileError, ImportError):
    """An installed package is older or newer than what was tested."""

    text = (
        "{package} {found} is not supported (supported: {supported}). "
        "Install a supported one: pip install '{package}{supported}'."
    )


class TargetUnavailable(TpuCompileError, RuntimeError):
    """The target that was asked for is not there."""

    text = "target {target!r} is not available: {why}"


class UnknownTopology(TpuCompileError, ValueError):
    """A topology's name stands for no slice of TPUs."""

    text = "there is no topology {name!r}. {nearest}Valid names: {valid}."


class MeshDoesNotFit(TpuCompileError, ValueError):
    """A mesh has more or fewer devices than the topology."""

    text = (
        "the mesh ({mesh}) has {size} devices, and {topology} has {devices} ({chips} chips). "
        "What fits: {instead}."
    )


class BadSharding(TpuCompileError, ValueError):
    """A tensor can't be laid over the mesh as a rule says."""

    text = "the sharding of {name!r} does not work: {why}."


class MissingTpuCompiler(TpuCompileError, ImportError):
    """A topology was asked for and the TPU compiler is not there."""

    text = (
        "compiling for a TPU topology needs the TPU compiler, and {why}. "
        "Install it with: pip install 'tpu_compile[tpu]'."
    )


class CompiledOnly(TpuCompileError, RuntimeError):
    """A program compiled for a topology was called with real tensors."""

    text = (
        "this was compiled for {topology}, to be examined and not run: no such TPU is attached. "
        "Use target='auto' to run it here; call it under torch's FakeTensorMode to see shapes."
    )


# ---------------------------------------------------------------- lowering


class MissingLowering(TpuCompileError, NotImplementedError):
    """An op of the graph has no rule."""

    text = (
        "no TPU lowering for {op}. Add one in lowering/ops/ (docs/adding_a_rule.md), add the op to "
        "lowering/decompositions.py, or run it eagerly with options={{'fallback': 'warn'}}."
    )


class UnsupportedCase(TpuCompileError, NotImplementedError):
    """A rule exists, and declines these arguments."""

    text = "{op} can't be lowered here: {why}"


class PaddingRefused(TpuCompileError):
    """Rounding sizes up to buckets can't be shown to change nothing for an op."""

    text = (
        "{op} can't run on sizes rounded up to buckets: {why}. Leave the dimension that reaches it "
        "out of options['buckets'], or pad the inputs and mask the results yourself."
    )


class UnsupportedDtype(TpuCompileError, TypeError):
    """A dtype that XLA has no equal of."""

    text = "dtype {dtype} has no XLA type. Convert the tensor first, e.g. to {instead}."


class RuleMismatch(TpuCompileError, AssertionError):
    """A rule returned another type than torch's meta function promised: a bug in the rule."""

    text = (
        "the rule for {op} returned {got} where torch promises {expected}. This is a bug in the "
        "rule: please report it with the repro script."
    )


class InvalidRule(TpuCompileError, TypeError):
    """A rule registered twice, or with parameters that aren't its op's."""

    text = "rule {rule} for {op}: {why}"


# ---------------------------------------------------------------- passes


class InvalidPass(TpuCompileError, ValueError):
    """A pass in an order it can't have, or placed after one there is not."""

    text = "pass {name!r}: {why}"


class BrokenGraph(TpuCompileError, RuntimeError):
    """A pass left an invalid graph behind."""

    text = "pass {name!r} left an invalid graph: {why}. The graph before it was valid."


class PassFailed(TpuCompileError, RuntimeError):
    """A pass raised."""

    text = "pass {name!r} raised {error}."


# ---------------------------------------------------------------- compile and run


class CompileFailed(TpuCompileError, RuntimeError):
    """XLA refused or failed to compile a lowered graph."""

    text = "XLA failed to compile the graph for target {target!r}: {why}"


class DoesNotFit(TpuCompileError, RuntimeError):
    """A program needs more memory than the chip that it is compiled for has.

    ``fields["peak"]`` is the estimate of what is alive at its peak (``tpu_compile.liveness.Peak``).
    """

    text = "the {program} program does not fit one device of {topology}: {why}\n{estimate}"


class OutOfMemory(TpuCompileError, RuntimeError):
    """A compiled program ran out of memory."""

    text = (
        "out of memory running a compiled graph ({arguments} of arguments, {outputs} of outputs, "
        "{temporaries} of temporaries): {why}. Reduce the batch, use activation checkpointing, or "
        "a smaller dtype."
    )


class ExecutionFailed(TpuCompileError, RuntimeError):
    """A compiled program failed while running."""

    text = "a compiled graph failed: {why}"


class IndexOutOfRange(TpuCompileError, IndexError):
    """An index was outside of what it indexes, in a compiled program."""

    text = (
        "{op}: an index is out of range, not in {valid}. On a TPU such an index is not noticed; "
        "options={{'checks': 'off'}} leaves the check out on the CPU too.{where}"
    )


class AssertionFailed(TpuCompileError, RuntimeError):
    """An assertion on a tensor's values failed in a compiled program."""

    text = "{message} ({op}){where}"


class Recompiled(TpuCompileError, RuntimeError):
    """A compile happened though ``on_recompile='error'`` forbids it."""

    text = (
        "recompile forbidden by options={{'on_recompile': 'error'}}: {reason}. "
        "tpu_compile.recompiles() lists every compile so far; mark a changing size with "
        "torch._dynamo.mark_dynamic, or allow it with on_recompile='ignore'."
    )


# ---------------------------------------------------------------- warnings


class TpuCompileWarning(UserWarning):
    """Base of all warnings."""


class FallbackWarning(TpuCompileWarning):
    """An op runs eagerly on the CPU: counted, and warned of once per op and line."""


class CacheWarning(TpuCompileWarning):
    """A cache could not be read or written; compiling goes on without it."""


class RecompileWarning(TpuCompileWarning):
    """A compile after the first, with ``on_recompile='warn'``."""
