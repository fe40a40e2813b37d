"""Products of matrices and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tpu_compile.lowering.builder.attributes import dense_ints, i64s
from tpu_compile.lowering.builder.conversion import convert
from tpu_compile.lowering.builder.shapes import transpose
from tpu_compile.lowering.mlir import Value, hlo, ir
from tpu_compile.lowering.types import dtype_of, shape_of, tensor_type


def dot_general(
    x: Value,
    y: Value,
    *,
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    contract: tuple[Sequence[int], Sequence[int]],
    precision: str = "HIGHEST",
    dtype: torch.dtype | None = None,
) -> Value:
    """Contracts two values; the result has batch, then x's, then y's free dimensions.

    Args:
        x: the left operand.
        y: the right operand, of x's dtype.
        batch: the batch dimensions of x and of y.
        contract: the contracted dimensions of x and of y.
        precision: DEFAULT, HIGH or HIGHEST.
        dtype: the result's dtype, and the accumulator's; default x's.
    """
    xs, ys = shape_of(x), shape_of(y)
    free_x = [n for i, n in enumerate(xs) if i not in (*batch[0], *contract[0])]
    free_y = [n for i, n in enumerate(ys) if i not in (*batch[1], *contract[1])]
    wider = None if dtype == dtype_of(x) else dtype
    if wider is not None and len(free_y) > 1 and len(xs) - 1 not in contract[0]:
        # XLA:CPU has no bfloat16 or float16 product into float32 of this form. With the operands
        # the other way round it has; where both have several free dimensions it multiplies wider.
        if len(free_x) > 1:
            x, y = convert(x, wider), convert(y, wider)
            return dot_general(x, y, batch=batch, contract=contract, precision=precision)
        turned = dot_general(
            y, x, batch=batch[::-1], contract=contract[::-1], precision=precision, dtype=wider
        )
        b, many = len(batch[0]), len(free_y)
        order = [*range(b), *range(b + many, b + many + len(free_x)), *range(b, b + many)]
        return transpose(turned, order)
    out = [*(xs[i] for i in batch[0]), *free_x, *free_y]
    numbers = hlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=list(batch[0]),
        rhs_batching_dimensions=list(batch[1]),
        lhs_contracting_dimensions=list(contract[0]),
        rhs_contracting_dimensions=list(contract[1]),
    )
    each = hlo.PrecisionAttr.get(precision)
    return hlo.dot_general(
        tensor_type(out, dtype or dtype_of(x)),
        x,
        y,
        numbers,
        precision_config=ir.ArrayAttr.get([each, each]),
    )


def convolution(
    x: Value,
    kernel: Value,
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    input_dims: Sequence[int],
    kernel_dims: Sequence[int],
    output_dims: Sequence[int],
    padding: Sequence[tuple[int, int]],
    strides: Sequence[int] | None = None,
    input_dilation: Sequence[int] | None = None,
    kernel_dilation: Sequence[int] | None = None,
    feature_groups: int = 1,
    batch_groups: int = 1,
    precision: str = "HIGHEST",
) -> Value:
    """Slides a kernel over a value.

    Args:
        x: the input.
        kernel: of x's dtype.
        shape: the result's.
        dtype: the result's, and the accumulator's.
        input_dims: where x has batch, features, and each spatial dimension.
        kernel_dims: where the kernel has output features, input features, and each spatial one.
        output_dims: where the result has batch, features, and each spatial dimension.
        padding: low and high, per spatial dimension; negative amounts cut.
        strides: of the kernel's places.
        input_dilation: the distance of x's elements.
        kernel_dilation: the distance of the kernel's elements.
        feature_groups: how many groups the features fall into.
        batch_groups: how many groups the batch falls into, each with its own output features.
        precision: DEFAULT, HIGH or HIGHEST.
    """
    ones = [1] * len(padding)
    numbers = hlo.ConvDimensionNumbers.get(
        input_batch_dimension=input_dims[0],
        input_feature_dimension=input_dims[1],
        input_spatial_dimensions=list(input_dims[2:]),
        kernel_input_feature_dimension=kernel_dims[1],
        kernel_output_feature_dimension=kernel_dims[0],
        kernel_spatial_dimensions=list(kernel_dims[2:]),
        output_batch_dimension=output_dims[0],
        output_feature_dimension=output_dims[1],
        output_spatial_dimensions=list(output_dims[2:]),
    )
    each = hlo.PrecisionAttr.get(precision)
    i64 = ir.IntegerType.get_signless(64)
    return hlo.convolution(
        tensor_type(shape, dtype),
        x,
        kernel,
        numbers,
        ir.IntegerAttr.get(i64, feature_groups),
        ir.IntegerAttr.get(i64, batch_groups),
        window_strides=i64s(strides or ones),
        padding=dense_ints(np.asarray(padding, np.int64), shape=[len(ones), 2]),
        lhs_dilation=i64s(input_dilation or ones),
        rhs_dilation=i64s(kernel_dilation or ones),
        precision_config=ir.ArrayAttr.get([each, each]),
    )
