"""Bitwise logic and shifts of integers and bools."""

from __future__ import annotations

import torch

from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.elementwise import binary, unary
from tpu_compile.lowering.types import dtype_of

aten = torch.ops.aten


def shift_right(x: Value, y: Value) -> Value:
    """x >> y: by a negative or too large amount all bits become the sign, as torch has it."""
    shift = hlo.shift_right_arithmetic if dtype_of(x).is_signed else hlo.shift_right_logical
    return shift(x, y)


binary(
    {
        (
            aten.bitwise_and.Tensor,
            aten.bitwise_and.Scalar,
            aten.bitwise_and.Scalar_Tensor,
        ): hlo.and_,
        (aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor): hlo.or_,
        (
            aten.bitwise_xor.Tensor,
            aten.bitwise_xor.Scalar,
            aten.bitwise_xor.Scalar_Tensor,
        ): hlo.xor,
        # StableHLO reads amounts as unsigned: negative ones shift everything out, as in torch.
        (
            aten.bitwise_left_shift.Tensor,
            aten.bitwise_left_shift.Tensor_Scalar,
            aten.bitwise_left_shift.Scalar_Tensor,
            aten.__lshift__.Tensor,
            aten.__lshift__.Scalar,
        ): hlo.shift_left,
        (
            aten.bitwise_right_shift.Tensor,
            aten.bitwise_right_shift.Tensor_Scalar,
            aten.bitwise_right_shift.Scalar_Tensor,
            aten.__rshift__.Tensor,
            aten.__rshift__.Scalar,
        ): shift_right,
    }
)
unary({aten.bitwise_not.default: hlo.not_})
