"""Where the valid elements of a padded tensor lie: each dimension as a product of padded factors.

A dimension of size ``b*s`` that a view merged from ``b`` and ``s`` has its padding between the
rows, not at its end. So a dimension is a tuple of factors, outermost first, as in mixed radix
notation: an element is valid where each factor's index is below that factor's true value. In a
factor alone, the valid elements are the first ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from tpu_compile.specialize import Number


@dataclass(frozen=True)
class Dim:
    """One dimension.

    Attributes:
        factors: sizes whose product is the dimension's, outermost first.
        constant: whether the tensor has the same values all along it, padding included: such a
            dimension is valid however its padding lies.
    """

    factors: tuple[sympy.Expr, ...]
    constant: bool = False

    @property
    def size(self) -> sympy.Expr:
        """The number of elements, padding included."""
        return sympy.Mul(*self.factors)

    def padded(self, symbols: Collection[sympy.Symbol]) -> bool:
        """Whether there is padding in it, where these symbols are rounded up."""
        return any(varies(f, symbols) for f in self.factors)


Layout = tuple[Dim, ...]
ONE = Dim(())
"""A dimension of one element."""


def varies(size: sympy.Expr, symbols: Collection[sympy.Symbol]) -> bool:
    """Whether a size changes with some symbols."""
    return not size.free_symbols.isdisjoint(symbols)


def expr_of(v: Any) -> sympy.Expr:
    """A size in a tensor's metadata as an expression."""
    return v.expr if isinstance(v, Number) else sympy.Integer(v)


def same(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two sizes are equal for all values of their symbols."""
    return a == b or sympy.expand(a - b) == 0


def dim(factors: Sequence[sympy.Expr], symbols: Collection[sympy.Symbol]) -> Dim:
    """A dimension with neighbours that have no padding merged into one factor."""
    if 0 in factors:
        return Dim((sympy.Integer(0),))
    merged: list[sympy.Expr] = []
    for f in factors:
        if f == 1:
            continue
        if merged and not varies(f, symbols) and not varies(merged[-1], symbols):
            merged[-1] *= f
        else:
            merged.append(f)
    return Dim(tuple(merged))


def constant(size: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> Dim:
    """A dimension along which a tensor does not change."""
    return Dim(of_argument(size, symbols).factors, constant=True)


def whole(size: sympy.Expr) -> Dim:
    """A dimension whose valid elements are its first ones."""
    return Dim(() if size == 1 else (size,))


def of_argument(size: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> Dim:
    """A dimension of an argument, which may be padded as one likes: each symbol a factor.

    Args:
        size: of the dimension.
        symbols: those that are rounded up, outermost first.
    """
    if not varies(size, symbols):
        return whole(size)
    parts = sympy.Mul.make_args(sympy.factor(size))
    fixed = [p for p in parts if not varies(p, symbols)]
    rest = [p for p in parts if varies(p, symbols)]
    rest.sort(key=lambda p: min(i for i, s in enumerate(symbols) if s in p.free_symbols))
    return dim([sympy.Mul(*fixed), *rest], symbols)


def plain(layout: Layout) -> Layout:
    """A layout without the claim that anything is constant along a dimension."""
    return tuple(Dim(d.factors) for d in layout)


def equal(a: Dim, b: Dim) -> bool:
    """Whether two dimensions of one size have their padding in the same places."""
    return len(a.factors) == len(b.factors) and all(map(same, a.factors, b.factors))


def viewed(
    layout: Layout, sizes: Sequence[sympy.Expr], symbols: Collection[sympy.Symbol]
) -> Layout | None:
    """The layout of a row-major view, or None where a padded factor would be split.

    Args:
        layout: of the tensor that is viewed.
        sizes: the view's.
        symbols: those that are rounded up.
    """
    left = [(f, d.constant) for d in layout for f in d.factors]
    new: list[Dim] = []
    for size in sizes:
        taken: list[sympy.Expr] = []
        constant = True
        need = size
        while need != 1:
            if not left:
                return None
            f, same_along = left.pop(0)
            constant &= same_along
            if _divides(f, need):
                taken.append(f)
                need = sympy.cancel(need / f)
            elif not varies(f, symbols) and (part := sympy.gcd(f, need)) != 1:
                taken.append(part)
                left.insert(0, (sympy.cancel(f / part), same_along))
                need = sympy.cancel(need / part)
            else:
                return None
        made = dim(taken, symbols)
        new.append(Dim(made.factors, constant and bool(taken)))
    return None if any(f != 1 for f, _ in left) else tuple(new)


def _divides(f: sympy.Expr, size: sympy.Expr) -> bool:
    if f.is_Integer and size.is_Integer:
        return int(size) % int(f) == 0
    return bool(sympy.fraction(sympy.cancel(size / f))[1] == 1)
