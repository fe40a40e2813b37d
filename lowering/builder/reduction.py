"""Reductions, whole and over windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tpu_compile.lowering.builder.attributes import dense_ints, i64s
from tpu_compile.lowering.builder.constants import Scalar, constant
from tpu_compile.lowering.builder.shapes import reshape
from tpu_compile.lowering.mlir import Value, hlo, ir
from tpu_compile.lowering.types import dtype_of, shape_of, tensor_type


def reduce(
    v: Value,
    dims: Sequence[int],
    combine: Callable[[Value, Value], Value],
    identity: Scalar,
    *,
    keepdim: bool = False,
) -> Value:
    """Folds one value along dimensions.

    Args:
        v: the operand.
        dims: non-negative dimensions; none of them reduces nothing.
        combine: emits one binary op, e.g. ``hlo.add``, on rank-0 values.
        identity: what an empty range gives.
        keepdim: whether reduced dimensions stay, with size 1.
    """
    shape = shape_of(v)
    (out,) = reduce_many([v], dims, lambda x, y: [combine(x[0], y[0])], [identity])
    if keepdim:
        return reshape(out, [1 if i in set(dims) else n for i, n in enumerate(shape)])
    return out


def reduce_many(
    values: Sequence[Value],
    dims: Sequence[int],
    combine: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
    identities: Sequence[Scalar],
) -> list[Value]:
    """Folds several values of one shape together, as argmax folds values and indices."""
    shape = shape_of(values[0])
    out_shape = [n for i, n in enumerate(shape) if i not in set(dims)]
    inits = [constant(i, dtype_of(v)) for i, v in zip(identities, values, strict=True)]
    op = hlo.ReduceOp(
        [tensor_type(out_shape, dtype_of(v)) for v in values], list(values), inits, i64s(dims)
    )
    fill_region(op.regions[0], [dtype_of(v) for v in values], combine)
    return list(op.results)


def fill_region(
    region: ir.Region,
    dtypes: Sequence[torch.dtype],
    combine: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
) -> None:
    scalars = [tensor_type((), d) for d in dtypes]
    n = len(scalars)
    block = region.blocks.append(*scalars, *scalars, arg_locs=[ir.Location.unknown()] * (2 * n))
    with ir.InsertionPoint(block):
        args = list(block.arguments)
        hlo.return_(list(combine(args[:n], args[n:])))


def reduce_window(
    v: Value,
    combine: Callable[[Value, Value], Value],
    identity: Scalar,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> Value:
    """Folds every window of a value; one entry per dimension in each argument."""
    (out,) = reduce_window_many(
        [v],
        lambda x, y: [combine(x[0], y[0])],
        [identity],
        window=window,
        strides=strides,
        padding=padding,
        dilation=dilation,
    )
    return out


def reduce_window_many(
    values: Sequence[Value],
    combine: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
    identities: Sequence[Scalar],
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> list[Value]:
    """Folds every window of several values of one shape together, as ``reduce_many`` does."""
    dtypes = [dtype_of(v) for v in values]
    dilation = list(dilation or [1] * len(window))
    sizes = [
        max(0, (n + lo + hi - ((w - 1) * d + 1)) // s + 1)
        for n, (lo, hi), w, d, s in zip(
            shape_of(values[0]), padding, window, dilation, strides, strict=True
        )
    ]
    op = hlo.ReduceWindowOp(
        [tensor_type(sizes, d) for d in dtypes],
        list(values),
        [constant(i, d) for i, d in zip(identities, dtypes, strict=True)],
        i64s(window),
        window_strides=i64s(strides),
        window_dilations=i64s(dilation),
        padding=dense_ints(np.asarray(padding, np.int64), shape=[len(window), 2]),
    )
    fill_region(op.regions[0], dtypes, combine)
    return list(op.results)
