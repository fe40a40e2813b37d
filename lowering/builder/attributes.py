"""Attributes that the bindings make slowly or type wrongly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpu_compile.lowering.mlir import ir


def i64s(values: Sequence[int]) -> ir.DenseI64ArrayAttr:
    return ir.DenseI64ArrayAttr.get([int(v) for v in values])


# The bindings' stubs know neither numpy arrays nor shapes as arguments of these two.
dense: Callable[..., ir.Attribute] = ir.DenseElementsAttr.get
dense_ints: Callable[..., ir.Attribute] = ir.DenseIntElementsAttr.get
