"""Two values compared: how far apart they are, where, and whether that is more than allowed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tpu_compile.lowering.types import TensorType

# rtol and atol of torch.testing.assert_close; any other dtype has to be equal.
_DEFAULTS: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
_WIDE = (torch.float64, torch.complex128)
# Two orders of summation are both right, and one may have this many times the other's error.
ROUNDING = 4
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True)
class Tolerance:
    """How much a value may be off: ``atol + rtol * abs(expected)``, by dtype where not given.

    Integers and bools have to be equal. NaN equals NaN, and an infinity only itself. Where neither
    is given, what is off by more is let pass if it is rounding (see ``Difference.rounding``).
    """

    rtol: float | None = None
    atol: float | None = None

    @property
    def given(self) -> bool:
        """Whether it is the caller's."""
        return self.rtol is not None or self.atol is not None

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        """rtol and atol for a dtype."""
        if not (dtype.is_floating_point or dtype.is_complex):
            return 0.0, 0.0
        rtol, atol = _DEFAULTS.get(dtype, (0.0, 0.0))
        return (
            rtol if self.rtol is None else self.rtol,
            atol if self.atol is None else self.atol,
        )

    def __str__(self) -> str:
        pairs = (("rtol", self.rtol), ("atol", self.atol))
        given = [f"{name} {value:g}" for name, value in pairs if value is not None]
        rest = [] if len(given) == 2 else ["torch.testing.assert_close's for each dtype"]
        return ", ".join([*given, *rest, *([] if given else ["or rounding"])])


@dataclass(frozen=True)
class Difference:
    """How far a value is from torch's.

    Attributes:
        what: which value of several.
        dtype: torch's.
        shape: torch's.
        max_abs: the largest absolute error.
        max_rel: the largest error relative to torch's value, where that is not 0.
        excess: the largest error in units of its tolerance: more than 1 departs.
        index: where that is.
        got: the value there.
        expected: torch's value there.
        why: what is wrong with a value that can't be compared: another shape or dtype.
        from_exact: the value's own largest error, and torch's, from the same computed in float64;
            known where it is off by more than its tolerance.
        rounding: whether it is off by more, and yet about as close to float64's as torch's is.
    """

    what: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float = 0.0
    max_rel: float = 0.0
    excess: float = 0.0
    index: tuple[int, ...] = ()
    got: Any = None
    expected: Any = None
    why: str = ""
    from_exact: tuple[float, float] | None = None
    rounding: bool = False

    @property
    def departs(self) -> bool:
        """Whether that is more than the tolerance, and not rounding."""
        return bool(self.why) or (self.excess > 1 and not self.rounding)

    @property
    def size(self) -> str:
        """How large it is, in short."""
        if self.why or not self.excess:
            return self.why or "equal"
        if math.isinf(self.excess):
            return f"{_shown(self.got)} where torch has {_shown(self.expected)}"
        error = f"error {self.max_abs:.2g} (relative {self.max_rel:.2g})"
        return f"{error}, {self.excess:.2g} times the tolerance" + (", rounding" * self.rounding)

    def __str__(self) -> str:
        head = f"{self.what} " if self.what else ""
        head += f"{self.dtype}{list(self.shape)}: {self.size}"
        if self.why or not self.excess:
            return head
        if not math.isinf(self.excess):
            head += f"; {_shown(self.got)} where torch has {_shown(self.expected)}"
        head += f" at {list(self.index)}"
        if self.from_exact is None:
            return head
        mine, torchs = self.from_exact
        return f"{head}; off by {mine:.2g} from float64's, where torch's is by {torchs:.2g}"


def _shown(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def compare(got: Any, expected: Any, tolerance: Tolerance, what: str = "") -> Difference:
    """Compares a tensor or number with torch's."""
    if not all(isinstance(v, torch.Tensor | bool | int | float | complex) for v in (got, expected)):
        same = type(got) is type(expected) and (got is None or bool(got == expected))
        why = "" if same else f"{got!r} where torch has {expected!r}"
        return Difference(what, type(expected).__name__, (), why=why)
    a, e = _tensor(got), _tensor(expected)
    types = [TensorType(tuple(t.shape), t.dtype) for t in (a, e)]
    name, shape = str(e.dtype).removeprefix("torch."), tuple(e.shape)
    if types[0] != types[1]:
        return Difference(what, name, shape, why=f"{types[0]} where torch has {types[1]}")
    if not e.numel():
        return Difference(what, name, shape)
    return _measure(a, e, tolerance.of(e.dtype), what)


# Gives the same values computed in float64, or None where torch can't compute them so.
Exact = Callable[[], Sequence[Any] | None]


def compare_all(
    got: Sequence[Any],
    expected: Sequence[Any],
    names: Sequence[str],
    tolerance: Tolerance,
    exact: Exact,
    *,
    suspect: Literal["got", "expected"] = "got",
) -> list[Difference]:
    """Compares as many values as there are names.

    Args:
        got: the values.
        expected: torch's.
        names: what they are called.
        tolerance: how much they may be off.
        exact: asked where one is off by more.
        suspect: which of the two has to be close to ``exact``, which the other one is known to be.
    """
    if len(got) != len(expected):
        why = f"{len(got)} results where torch has {len(expected)}"
        return [Difference("", "", (len(expected),), why=why)]
    triples = list(zip(got, expected, names, strict=True))
    found = [compare(g, e, tolerance, name) for g, e, name in triples]
    if not any(d.departs and not d.why for d in found) or (truths := exact()) is None:
        return found
    return [
        _judged(d, g, e, truth, tolerance, suspect) if d.departs and not d.why else d
        for d, (g, e, _), truth in zip(found, triples, truths, strict=True)
    ]


def _judged(
    found: Difference, got: Any, expected: Any, exact: Any, tolerance: Tolerance, suspect: str
) -> Difference:
    """Tells rounding from what is wrong."""
    if exact is None:
        return found
    g, e, truth = _tensor(got), _tensor(expected), _tensor(exact)
    is_float = e.dtype.is_floating_point or e.dtype.is_complex
    if not is_float or truth.dtype not in _WIDE or truth.shape != e.shape:
        return found
    errors = [_error(t.to(truth.dtype), truth) for t in (g, e)]
    mine, torchs = (float(error.max()) for error in errors)
    rtol, atol = tolerance.of(e.dtype)
    here, other = (errors[0], torchs) if suspect == "got" else (errors[1], mine)
    rounding = bool((here <= atol + rtol * truth.abs() + ROUNDING * other).all())
    return dataclasses.replace(
        found, from_exact=(mine, torchs), rounding=rounding and not tolerance.given
    )


def _error(a: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """The absolute errors of wide values; 0 between two NaN, infinite where one is."""
    same = (a == e) | ((a != a) & (e != e))
    return torch.where(same, 0.0, (a - e).abs().nan_to_num(nan=math.inf, posinf=math.inf))


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        t = value.detach().resolve_conj().resolve_neg()
        return t.to_dense() if t.is_sparse else t
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _measure(
    a: torch.Tensor, e: torch.Tensor, limits: tuple[float, float], what: str
) -> Difference:
    name, shape = str(e.dtype).removeprefix("torch."), tuple(e.shape)
    a, e = _comparable(a), _comparable(e)
    same = (a == e) | ((a != a) & (e != e))
    wide = torch.complex128 if e.dtype.is_complex else torch.float64
    size = e.to(wide).abs()
    error = _error(a.to(wide), e.to(wide))
    if not (e.dtype.is_floating_point or e.dtype.is_complex):
        error = error.clamp(min=1.0)  # integers too close to differ in float64
    error = torch.where(same, 0.0, error)
    rtol, atol = limits
    excess = torch.where(same, 0.0, error / (atol + rtol * size)).nan_to_num(
        nan=math.inf, posinf=math.inf
    )
    relative = torch.where(same | (size == 0) | size.isinf(), 0.0, error / size)
    worst = int(excess.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), shape))
    return Difference(
        what,
        name,
        shape,
        float(error.max()),
        float(relative.nan_to_num(nan=0.0, posinf=math.inf).max()),
        float(excess.flatten()[worst]),
        index,
        a[index].item(),
        e[index].item(),
    )


def _comparable(t: torch.Tensor) -> torch.Tensor:
    """In a dtype that torch compares; equal where it is equal."""
    if t.dtype in _SIGNED:
        return t.contiguous().view(_SIGNED[t.dtype])
    small = t.dtype.is_floating_point and t.dtype.itemsize == 1
    return t.float() if small else t
