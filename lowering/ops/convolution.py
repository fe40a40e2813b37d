"""Convolutions and their gradients: each one StableHLO convolution, or a dot for a 1x1 kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, reshape, transpose
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.reduction import total
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import dtype_of, math_dtype, shape_of

aten = torch.ops.aten

MANY_PLACES = 64  # of a kernel, up to which its gradient is one product for each
LONG = 512  # elements of the small side from which the batch is summed after the products


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution: [N, I, *large] by [O, I/groups, *kernel] to [N, O, *small].

    A transposed convolution is the map from small to large, with the same weight.
    """

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    precision: str

    @staticmethod
    def of(
        ctx: LoweringContext,
        weight: Value,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Window:
        """The window of a rule's arguments; one number stands for all dimensions."""
        rank = len(shape_of(weight)) - 2
        wide = dtype_of(weight).itemsize >= 4
        every = [[*v] if len(v) == rank else [*v] * rank for v in (stride, padding, dilation)]
        return Window(
            every[0], every[1], every[2], groups, ctx.matmul_precision if wide else "DEFAULT"
        )

    def is_product(self, weight: Value, x: Value, size: Sequence[int]) -> bool:
        """Whether it is a matrix product over channels, at each place by itself."""
        return (
            self.groups == 1
            and math.prod(shape_of(weight)[2:]) == 1
            and not any(self.padding)
            and tuple(size) == shape_of(x)[2:]
        )


def forward(x: Value, weight: Value, w: Window, size: Sequence[int]) -> Value:
    """From large to small, of the given spatial size."""
    if w.is_product(weight, x, size):
        return _mixed_channels(x, weight, 1, w.precision)
    large, kernel = shape_of(x)[2:], shape_of(weight)[2:]
    pads = []
    for n, small, k, s, p, d in zip(
        large, size, kernel, w.stride, w.padding, w.dilation, strict=True
    ):
        pads.append((p, (small - 1) * s + 1 + d * (k - 1) - n - p))
    return _convolution(x, weight, w, padding=pads, strides=w.stride, kernel_dilation=w.dilation)


def backward(grad: Value, weight: Value, w: Window, size: Sequence[int]) -> Value:
    """From small to large, of the given spatial size: the gradient of ``forward``'s input."""
    if w.is_product(weight, grad, size):
        return _mixed_channels(grad, weight, 0, w.precision)
    small, kernel = shape_of(grad)[2:], shape_of(weight)[2:]
    pads = []
    for n, large, k, s, p, d in zip(
        small, size, kernel, w.stride, w.padding, w.dilation, strict=True
    ):
        low = d * (k - 1) - p
        pads.append((low, large - (n - 1) * s - 1 - low + d * (k - 1)))
    weight = builder.reverse(_swapped(weight, w.groups), range(2, 2 + len(kernel)))
    return _convolution(
        grad, weight, w, padding=pads, input_dilation=w.stride, kernel_dilation=w.dilation
    )


def weight_gradient(
    ctx: LoweringContext, x: Value, grad: Value, w: Window, kernel: Sequence[int]
) -> Value:
    """The gradient of ``forward``'s weight."""
    if ctx.target == "cpu" and math.prod(kernel) <= MANY_PLACES:
        return _weight_gradient_by_products(x, grad, w, kernel)
    large, small = shape_of(x)[2:], shape_of(grad)[2:]
    pads = []
    for n, m, k, s, p, d in zip(large, small, kernel, w.stride, w.padding, w.dilation, strict=True):
        pads.append((p, (k - 1) * d + (m - 1) * s + 1 - n - p))
    return _convolution(
        x,
        grad,
        w,
        padding=pads,
        strides=w.dilation,
        kernel_dilation=w.stride,
        channels=(1, 0),
    )


def _weight_gradient_by_products(x: Value, grad: Value, w: Window, kernel: Sequence[int]) -> Value:
    """For each place of the kernel, a product of gradients and what they were multiplied by.

    As a convolution, batch and channels change roles, and the gradient is the kernel: XLA:CPU then
    takes 2 to 20 times as long (3x3 over 56x56: 48 ms instead of 16; 1x1: 81 instead of 4).
    """
    small = shape_of(grad)[2:]
    high = [
        (m - 1) * s + (k - 1) * d + 1 - n - p
        for n, m, k, s, p, d in zip(
            shape_of(x)[2:], small, kernel, w.stride, w.padding, w.dilation, strict=True
        )
    ]
    x = builder.pad(x, [0, 0, *w.padding], [0, 0, *high])
    dtype = math_dtype(dtype_of(x))
    shape = [shape_of(grad)[1], shape_of(x)[1] // w.groups]
    if 0 in (*shape_of(x), *shape_of(grad)):
        return builder.zeros([*shape, *kernel], dtype)
    parts = []
    for place in itertools.product(*map(range, kernel)):
        low = [k * d for k, d in zip(place, w.dilation, strict=True)]
        stop = [a + (m - 1) * s + 1 for a, m, s in zip(low, small, w.stride, strict=True)]
        part = builder.slice_(x, [0, 0, *low], [*shape_of(x)[:2], *stop], [1, 1, *w.stride])
        parts.append(reshape(_channel_products(grad, part, w), [*shape, 1]))
    whole = builder.concatenate(parts, 2)
    return reshape(whole, [*shape, *kernel])


def _channel_products(grad: Value, x: Value, w: Window) -> Value:
    """[group, O/groups, I/groups]: sums over batch and places."""
    batch, spatial = shape_of(grad)[0], math.prod(shape_of(grad)[2:])
    split = [[batch, w.groups, shape_of(v)[1] // w.groups, spatial] for v in (grad, x)]
    grad, x = (reshape(v, s) for v, s in zip((grad, x), split, strict=True))
    late = spatial >= LONG
    dims = [0, 1] if late else [1]
    over = [3] if late else [0, 3]
    out = builder.dot_general(
        grad,
        x,
        batch=(dims, dims),
        contract=(over, over),
        precision=w.precision,
        dtype=math_dtype(dtype_of(x)),
    )
    return builder.reduce(out, [0], hlo.add, 0) if late else out


def _mixed_channels(x: Value, weight: Value, contract: int, precision: str) -> Value:
    weight = reshape(weight, shape_of(weight)[:2])
    out = builder.dot_general(
        weight,
        x,
        contract=([contract], [1]),
        precision=precision,
        dtype=math_dtype(dtype_of(x)),
    )
    return transpose(out, [1, 0, *range(2, len(shape_of(out)))])


def _swapped(weight: Value, groups: int) -> Value:
    """[O, I/groups, ...] as [I, O/groups, ...]."""
    o, i, *kernel = shape_of(weight)
    rest = range(3, 3 + len(kernel))
    weight = transpose(reshape(weight, [groups, o // groups, i, *kernel]), [0, 2, 1, *rest])
    return reshape(weight, [groups * i, o // groups, *kernel])


def _convolution(
    x: Value,
    kernel: Value,
    w: Window,
    *,
    padding: Sequence[tuple[int, int]],
    strides: Sequence[int] | None = None,
    input_dilation: Sequence[int] | None = None,
    kernel_dilation: Sequence[int] | None = None,
    channels: tuple[int, int] = (0, 1),
) -> Value:
    """One convolution in the type torch accumulates in.

    Args:
        x: the input.
        kernel: what slides over it.
        w: for groups and precision.
        padding: low and high, per spatial dimension; negative amounts cut.
        strides: of the kernel's places.
        input_dilation: the distance of the input's elements.
        kernel_dilation: the distance of the kernel's elements.
        channels: where x has its batch and its features: (0, 1); or (1, 0) to contract over the
            batch of both, for [O, I/groups, ...].
    """
    spatial = list(range(2, len(shape_of(x))))
    batch, feature = channels
    by_batch = batch == 1
    sizes = [
        _places(*each)
        for each in zip(
            shape_of(x)[2:],
            shape_of(kernel)[2:],
            padding,
            strides or [1] * len(spatial),
            input_dilation or [1] * len(spatial),
            kernel_dilation or [1] * len(spatial),
            strict=True,
        )
    ]
    if by_batch:
        out = [shape_of(kernel)[1], shape_of(x)[1] // w.groups, *sizes]
    else:
        out = [shape_of(x)[0], shape_of(kernel)[0], *sizes]
    dtype = math_dtype(dtype_of(x))
    if 0 in (*shape_of(x), *shape_of(kernel), *out):
        return builder.zeros(out, dtype)
    return builder.convolution(
        x,
        kernel,
        out,
        dtype,
        input_dims=[batch, feature, *spatial],
        kernel_dims=[batch, feature, *spatial],
        output_dims=[batch, feature, *spatial],
        padding=padding,
        strides=strides,
        input_dilation=input_dilation,
        kernel_dilation=kernel_dilation,
        feature_groups=1 if by_batch else w.groups,
        batch_groups=w.groups if by_batch else 1,
        precision=w.precision,
    )


def _places(n: int, k: int, pads: tuple[int, int], stride: int, spread: int, dilation: int) -> int:
    """How many places a kernel of k elements has over n elements."""
    room = (n - 1) * spread + 1 + sum(pads) - (k - 1) * dilation - 1
    return room // stride + 1


@lowers(aten.convolution.default)
def convolution(
    ctx: LoweringContext,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Value:
    """convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor"""  # noqa: E501
    w = Window.of(ctx, weight, stride, padding, dilation, groups)
    size = ctx.out.shape[2:]
    out = backward(input, weight, w, size) if transposed else forward(input, weight, w, size)
    if bias is not None:
        bias = builder.broadcast_in_dim(as_type(bias, dtype_of(out)), shape_of(out), [1])
        out = hlo.add(out, bias)
    return ctx.result(out)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    ctx: LoweringContext,
    grad_output: Value,
    input: Value,
    weight: Value,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    """convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    w = Window.of(ctx, weight, stride, padding, dilation, groups)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        if transposed:
            grad_input = forward(grad_output, weight, w, shape_of(input)[2:])
        else:
            grad_input = backward(grad_output, weight, w, shape_of(input)[2:])
        grad_input = as_type(grad_input, dtype_of(input))
    if output_mask[1]:
        large, small = (grad_output, input) if transposed else (input, grad_output)
        grad_weight = weight_gradient(ctx, large, small, w, shape_of(weight)[2:])
        grad_weight = as_type(grad_weight, dtype_of(weight))
    if output_mask[2]:
        grad = as_type(grad_output, math_dtype(dtype_of(grad_output)))
        every = [d for d in range(len(shape_of(grad))) if d != 1]
        grad_bias = as_type(total(grad, every), dtype_of(grad_output))
    return grad_input, grad_weight, grad_bias
