"""Layer, group and batch normalization with gradients: float32 statistics, in two passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tpu_compile.lowering import builder
from tpu_compile.lowering.builder import as_type, broadcast_in_dim, broadcast_to, full_like, reshape
from tpu_compile.lowering.context import LoweringContext
from tpu_compile.lowering.mlir import Value, hlo
from tpu_compile.lowering.ops.reduction import count, moments
from tpu_compile.lowering.registry import lowers
from tpu_compile.lowering.types import TensorType, dtype_of, math_dtype, shape_of

aten = torch.ops.aten


def _wide(v: Value) -> Value:
    return as_type(v, math_dtype(dtype_of(v)))


def _spread(v: Value, like: Value, dims: Sequence[int]) -> Value:
    """A value of some of another's dimensions, repeated along the rest, in its dtype."""
    return broadcast_in_dim(as_type(v, dtype_of(like)), shape_of(like), dims)


def _inverse_deviation(var: Value, eps: float) -> Value:
    return hlo.rsqrt(hlo.add(var, full_like(var, eps)))


def _normalized(v: Value, mean: Value, rstd: Value) -> Value:
    """v without its mean and scale; both broadcast from the right, as torch does."""
    mean, rstd = broadcast_to(mean, shape_of(v)), broadcast_to(rstd, shape_of(v))
    return hlo.multiply(hlo.subtract(v, mean), rstd)


def _affine(v: Value, weight: Value | None, bias: Value | None, dims: Sequence[int]) -> Value:
    if weight is not None:
        v = hlo.multiply(v, _spread(weight, v, dims))
    return v if bias is None else hlo.add(v, _spread(bias, v, dims))


def _mean(v: Value, dims: Sequence[int]) -> Value:
    sum_ = builder.reduce(v, dims, hlo.add, 0, keepdim=True)
    return broadcast_to(hlo.divide(sum_, full_like(sum_, count(v, dims))), shape_of(v))


def _input_gradient(grad: Value, normal: Value, rstd: Value, dims: Sequence[int]) -> Value:
    """The gradient of what was normalized over ``dims``, from that of the normalized value."""
    along = hlo.multiply(normal, _mean(hlo.multiply(grad, normal), dims))
    off = hlo.subtract(hlo.subtract(grad, _mean(grad, dims)), along)
    return hlo.multiply(off, broadcast_to(rstd, shape_of(off)))


def _returned(v: Value, t: TensorType) -> Value:
    return reshape(as_type(v, t.dtype), t.shape)


def _wanted(
    ctx: LoweringContext, output_mask: Sequence[bool], *makers: Callable[[], Value]
) -> tuple[Value | None, ...]:
    """One result for each True of the mask, None for the others."""
    types = iter(ctx.outs)
    return tuple(
        _returned(make(), next(types)) if wanted else None
        for wanted, make in zip(output_mask, makers, strict=True)
    )


def _gradients(
    ctx: LoweringContext,
    output_mask: Sequence[bool],
    grad: Value,
    normal: Value,
    dims: Sequence[int],
    grad_input: Callable[[], Value],
) -> tuple[Value | None, ...]:
    """The gradients of input, weight and bias; the latter two sum over ``dims``."""
    return _wanted(
        ctx,
        output_mask,
        grad_input,
        lambda: builder.reduce(hlo.multiply(grad, normal), dims, hlo.add, 0),
        lambda: builder.reduce(grad, dims, hlo.add, 0),
    )


# ---------------------------------------------------------------- layer


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    ctx: LoweringContext,
    input: Value,
    normalized_shape: list[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    """native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    v = _wide(input)
    rank = builder.rank_of(v)
    dims = range(rank - len(normalized_shape), rank)
    var, mean = moments(v, dims, 0, keepdim=True)
    rstd = _inverse_deviation(var, eps)
    out = _affine(_normalized(v, mean, rstd), weight, bias, dims)
    return tuple(_returned(*each) for each in zip((out, mean, rstd), ctx.outs, strict=True))  # type: ignore[return-value]


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    ctx: LoweringContext,
    grad_out: Value,
    input: Value,
    normalized_shape: list[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: list[bool],
) -> tuple[Value | None, ...]:
    """native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    grad, v, mean, rstd = (_wide(t) for t in (grad_out, input, mean, rstd))
    rank = builder.rank_of(v)
    dims = range(rank - len(normalized_shape), rank)
    normal = _normalized(v, mean, rstd)
    scaled = _affine(grad, weight, None, dims)
    return _gradients(
        ctx,
        output_mask,
        grad,
        normal,
        range(dims.start),
        lambda: _input_gradient(scaled, normal, rstd, dims),
    )


# ---------------------------------------------------------------- group


@lowers(aten.native_group_norm.default)
def native_group_norm(
    ctx: LoweringContext,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    """native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    v = reshape(_wide(input), [N, group, C // group * HxW])
    var, mean = moments(v, [2], 0, keepdim=True)
    rstd = _inverse_deviation(var, eps)
    out = _affine(reshape(_normalized(v, mean, rstd), [N, C, HxW]), weight, bias, [1])
    return tuple(_returned(*each) for each in zip((out, mean, rstd), ctx.outs, strict=True))  # type: ignore[return-value]


@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    ctx: LoweringContext,
    grad_out: Value,
    input: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: list[bool],
) -> tuple[Value | None, ...]:
    """native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    groups, channels = [N, group, C // group * HxW], [N, C, HxW]
    mean, rstd = (reshape(_wide(t), [N, group, 1]) for t in (mean, rstd))
    grad = reshape(_wide(grad_out), channels)
    normal = _normalized(reshape(_wide(input), groups), mean, rstd)
    scaled = reshape(_affine(grad, weight, None, [1]), groups)
    return _gradients(
        ctx,
        output_mask,
        grad,
        reshape(normal, channels),
        [0, 2],
        lambda: _input_gradient(scaled, normal, rstd, [2]),
    )


# ---------------------------------------------------------------- batch


def _per_channel(v: Value, like: Value) -> Value:
    """A value per channel as one that broadcasts to [N, C, ...]."""
    wide = as_type(v, dtype_of(like))
    return reshape(wide, [1, *shape_of(wide), *[1] * (builder.rank_of(like) - 2)])


def _all_but_channel(v: Value) -> list[int]:
    return [d for d in range(builder.rank_of(v)) if d != 1]


def _by_batch(
    input: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value, Value]:
    """Normalized by the statistics of the batch: result, mean, inverse deviation and variance."""
    v = _wide(input)
    var, mean = moments(v, _all_but_channel(v), 0, keepdim=True)
    rstd = _inverse_deviation(var, eps)
    return _affine(_normalized(v, mean, rstd), weight, bias, [1]), mean, rstd, var


def _by_running(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    eps: float,
) -> Value:
    v = _wide(input)
    mean, var = _per_channel(running_mean, v), _per_channel(running_var, v)
    return _affine(_normalized(v, mean, _inverse_deviation(var, eps)), weight, bias, [1])


def _moved(old: Value, new: Value, momentum: float) -> Value:
    old = _wide(old)
    new = as_type(reshape(new, shape_of(old)), dtype_of(old))
    kept = hlo.multiply(old, full_like(old, 1 - momentum))
    return hlo.add(kept, hlo.multiply(new, full_like(new, momentum)))


@lowers(aten._native_batch_norm_legit_functional.default)
def _native_batch_norm_legit_functional(
    ctx: LoweringContext,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""  # noqa: E501
    if not training:
        out = _by_running(input, weight, bias, running_mean, running_var, eps)
        none = builder.zeros((0,), ctx.outs[1].dtype)
        results: tuple[Value, ...] = (out, none, none, running_mean, running_var)
        return tuple(_returned(*each) for each in zip(results, ctx.outs, strict=True))
    out, mean, rstd, var = _by_batch(input, weight, bias, eps)
    n = count(input, _all_but_channel(input))
    unbiased = hlo.multiply(var, full_like(var, n / max(n - 1, 1)))
    results = (
        out,
        mean,
        rstd,
        _moved(running_mean, mean, momentum),
        _moved(running_var, unbiased, momentum),
    )
    return tuple(_returned(*each) for each in zip(results, ctx.outs, strict=True))


@lowers(aten._native_batch_norm_legit.no_stats)
def _native_batch_norm_legit_no_stats(
    ctx: LoweringContext,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    if not training:
        ctx.fail("neither statistics of the batch nor running ones")
    results = _by_batch(input, weight, bias, eps)[:3]
    return tuple(_returned(*each) for each in zip(results, ctx.outs, strict=True))


@lowers(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm_legit_no_training(
    ctx: LoweringContext,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    out = _by_running(input, weight, bias, running_mean, running_var, eps)
    return ctx.result(out), *(builder.zeros(t.shape, t.dtype) for t in ctx.outs[1:])


@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    ctx: LoweringContext,
    grad_out: Value,
    input: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[Value | None, ...]:
    """native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    grad, v = _wide(grad_out), _wide(input)
    dims = _all_but_channel(v)
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, rstd = _per_channel(save_mean, v), _per_channel(save_invstd, v)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = _per_channel(running_mean, v)
        rstd = _inverse_deviation(_per_channel(running_var, v), eps)
    normal = _normalized(v, mean, rstd)
    scaled = _affine(grad, weight, None, [1])

    def grad_input() -> Value:
        if train:
            return _input_gradient(scaled, normal, rstd, dims)
        return hlo.multiply(scaled, broadcast_to(rstd, shape_of(scaled)))

    return _gradients(ctx, output_mask, grad, normal, dims, grad_input)
