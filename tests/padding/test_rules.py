"""Each op's padding rule: values and gradients as eager whatever the padding, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rounded import compile_with, results
from torch import Tensor

import tpu_compile
from tpu_compile.errors import PaddingRefused

B, D = 2, 6
LENGTHS = (3, 8, 5, 11)  # buckets are 8 and 16
KINDS = {
    "x": lambda n: torch.randn(B, n, D),
    "y": lambda n: torch.randn(B, n, D),
    "w": lambda n: torch.randn(D, 4),
    "v": lambda n: torch.randn(D),
    "row": lambda n: torch.randn(B, n),
    "ids": lambda n: torch.randint(0, 5, (B, n)),
    "at": lambda n: torch.randint(0, n, (B, n)),
    "few": lambda n: torch.randint(0, n, (B, 2)),
    "mask": lambda n: torch.rand(B, n) > 0.3,
    "table": lambda n: torch.randn(5, 3),
    "fixed": lambda n: torch.randn(B, 2, D),
    "q": lambda n: torch.randn(B, n, 2, 4),
    "k": lambda n: torch.randn(B, n, 2, 4),
    "image": lambda n: torch.randn(B, n, 3, 5).transpose(1, 2),
    "images": lambda n: torch.randn(n, 3, 4, 6),
    "kernel": lambda n: torch.randn(4, 3, 3, 3),
}

CASES: dict[str, tuple[str, Callable[..., Any]]] = {
    "elementwise": ("x y v", lambda x, y, v: torch.sin(x) * y + v / 2),
    "length as value": ("x", lambda x: x * x.shape[1] + x.shape[1]),
    "merge": ("x w", lambda x, w: (x.view(-1, D) @ w).view(B, -1, 4).relu()),
    "merge and reduce": ("x", lambda x: (x.reshape(-1, D) * 2).sum(0)),
    "merge all": ("x", lambda x: x.flatten().square().sum()),
    "merge all, mean": ("x", lambda x: x.flatten().square().mean()),
    "split heads": ("x", lambda x: x.view(B, -1, 2, 3).transpose(1, 2).contiguous().exp()),
    "sum": ("x", lambda x: (x.sum(1), x.sum((1, 2)), x.sum(), x.sum(1, keepdim=True) * x)),
    "mean": ("x", lambda x: (x.mean(1), x.mean((0, 1)), x.mean(), x.mean(-1))),
    "mean, bf16": ("x", lambda x: x.bfloat16().mean(1)),
    "extremes": ("x", lambda x: (x.amax(1), x.amin(1), x.max(), x.min(1).values, x.max(1)[0])),
    "positions": ("x", lambda x: (x.argmax(1), x.argmin(1), x.max(1)[1], x.argmax(-1))),
    "any, all": ("mask", lambda m: (m.any(1), m.all(1), m.any(), m.all())),
    "integers": ("ids", lambda i: (i.sum(1), i.amax(1), i.amin(1), i.float().mean(1))),
    "prod, norm": ("x", lambda x: (x.prod(1), x.norm(dim=1), torch.linalg.vector_norm(x, 1))),
    "var": ("x", lambda x: x.var(-1)),
    "logsumexp": ("x", lambda x: torch.logsumexp(x, 1)),
    "softmax": ("x", lambda x: (F.softmax(x, 1), F.log_softmax(x, 1), F.softmax(x, -1))),
    "cumsum": ("x", lambda x: (x.cumsum(1), x.cumsum(-1), x.detach().cumprod(1))),
    "positions from ones": ("ids", lambda i: (torch.ones_like(i).cumsum(1) - 1) * i),
    "arange": ("x", lambda x: x + torch.arange(x.shape[1])[None, :, None]),
    "arange from the length": ("x", lambda x: torch.arange(x.shape[1], x.shape[1] + 3)),
    "causal": (
        "q",
        lambda q: (
            q[..., 0].transpose(1, 2)
            @ q[..., 0].mul(torch.ones(q.shape[1], q.shape[1]).tril().sum(1)[None, :, None])
        ),
    ),
    "products": ("x y", lambda x, y: (x @ y.mT, x.mT @ y, torch.einsum("bsd,bse->de", x, y))),
    "addmm": ("x w v", lambda x, w, v: torch.addmm(w[0], x.view(-1, D), w)),
    "linear": ("x w", lambda x, w: F.linear(x, w.T)),
    "first, last": ("x", lambda x: (x[:, 0], x[:, -1], x[:, -2], x[:, :-1], x[:, 1:], x[:, -2:])),
    "reversed": ("x", lambda x: (x.flip(1), x.flip((0, 1, 2)), x.flip(2))),
    "repeat": ("x", lambda x: (x.repeat(2, 1, 1), x.repeat(1, 3, 1).sum(0), x.repeat(3, 1, 1, 2))),
    "steps": ("x", lambda x: (x[:, ::2], x[:, 1:3], x[..., ::2])),
    "shifted": ("x", lambda x: (x[:, 1:] - x[:, :-1]).square().sum()),
    "join": ("x fixed", lambda x, f: (torch.cat([f, x], 1), torch.cat([x, x], 2))),
    "grow": ("x fixed", lambda x, f: torch.cat([x, f], 1) * 2),
    "grow by another": ("x y fixed", lambda x, y, f: torch.cat([x, y, f, x], 1).cumsum(1)),
    "stack": ("x y", lambda x, y: torch.stack([x, y], 1).sum(1)),
    "pad": ("x", lambda x: (F.pad(x, (0, 0, 1, 2), value=3.0).sum(1), F.pad(x, (1, 1)))),
    "write": ("x fixed", lambda x, f: (_write(x, f), x.slice_scatter(f, 1, 0, 2))),
    "write a row": ("x", lambda x: (x.select_scatter(x[:, 0], 1, -1), _row(x))),
    "where": ("x mask", lambda x, m: torch.where(m[..., None], x, -1e9).softmax(1)),
    "masked fill": ("x mask", lambda x, m: x.masked_fill(m[..., None], 0.0).sum(1)),
    "embedding": ("ids table", lambda i, t: F.embedding(i, t) * 2),
    "gather": ("x at", lambda x, at: torch.gather(x, 1, at[..., None].expand(-1, -1, D))),
    "gather few": ("row few", lambda r, few: torch.gather(r, 1, few)),
    "index": ("x few", lambda x, few: (x[:, few[0]], x[torch.arange(B), few[:, 0]])),
    "index from the end": ("x few", lambda x, few: x[torch.arange(B), few[:, 0] - x.shape[1]]),
    "index select": ("x at", lambda x, at: x.index_select(1, at[0])),
    "scatter": ("row ids", lambda r, i: torch.zeros(B, 5).scatter_add(1, i, r)),
    "one hot": ("ids", lambda i: F.one_hot(i, 5).sum(1)),
    "layer norm": ("x v", lambda x, v: F.layer_norm(x, (D,), v, v)),
    "rms norm": ("x v", lambda x, v: F.rms_norm(x, (D,), v)),
    "loss": (
        "x ids",
        lambda x, i: F.cross_entropy(x.flatten(0, 1), i.flatten(), ignore_index=2),
    ),
    "losses": ("x y", lambda x, y: (F.mse_loss(x, y), F.smooth_l1_loss(x, y, reduction="sum"))),
    "attention": ("q k", lambda q, k: _attend(q, k)),
    "causal attention": ("q", lambda q: _attend(q, q, is_causal=True)),
    "masked attention": (
        "q k mask",
        lambda q, k, m: _attend(
            q, k, attn_mask=(m | (torch.arange(m.shape[1]) == 0))[:, None, None]
        ),
    ),
    "convolution": ("image kernel", lambda x, w: F.conv2d(x, w, padding=1, stride=(2, 1))),
    "triangles": ("x y", lambda x, y: (x @ y.mT).tril().sum(-1) + (x @ y.mT).triu(1).sum(-1)),
    "pools": (
        "images",
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3), F.pad(x, (1, 1, 1, 1), "reflect")),
    ),
    "batch norm": ("images", lambda x: F.batch_norm(x.detach(), torch.zeros(3), torch.ones(3))),
    "several results": ("x", lambda x: torch.frexp(x.detach())),
    "numbers of the length": (
        "x w v",
        lambda x, w, v: (
            torch.addmm(v[:4], x.view(-1, D), w, alpha=x.shape[1], beta=x.shape[1]),
            torch.full((x.shape[1],), x.shape[1]),
            x.clamp(max=1 / x.shape[1]),
            x.shape[1] ** 0.5,
        )[:3],
    ),
    "diagonal of the length": ("x", lambda x: (x @ x.mT).tril(x.shape[1] - 3)),
    "copies": ("x", lambda x: (x.clone(), x.to(torch.float64), x.contiguous(), x.detach())),
    "views": ("x", lambda x: (x.mT, x.unsqueeze(1), x[:, None].squeeze(1), x.unflatten(2, (2, 3)))),
    "parts": ("x", lambda x: (*x.chunk(2, -1), *x.unbind(0), *x.split([1, 5], 2))),
    "expand": ("v x", lambda v, x: v.expand(B, x.shape[1], D).reshape(-1, D) + x.reshape(-1, D)),
    "in place": ("x fixed", lambda x, f: _in_place(x.clone(), f)),
}

REFUSED: dict[str, tuple[str, Callable[..., Any]]] = {
    "sort": ("x", lambda x: x.sort(1).values),
    "topk": ("x", lambda x: x.topk(2, 1).values),
    "norm over the length": ("row", lambda r: F.layer_norm(r, (r.shape[1],))),
    "merged the other way": ("x", lambda x: x.reshape(-1, D) + x.transpose(0, 1).reshape(-1, D)),
    "position in a merged size": ("x", lambda x: x.reshape(-1, D).argmax(0)),
    "running over a merged size": ("x", lambda x: x.reshape(-1, D).cumsum(0)),
    "random below the length": ("x", lambda x: torch.randint(0, x.shape[1], (4,)) + x[0, 0, 0]),
    "stride of the length": ("image kernel", lambda x, w: F.conv2d(x, w, stride=(1, x.shape[2]))),
    "steps of the length": (
        "x",
        lambda x: torch.arange(0, 4 * x.shape[1], x.shape[1]) + x[0, 0, 0],
    ),
    "random, merged the other way": (
        "x",
        lambda x: F.dropout(x.transpose(0, 1).reshape(-1, D)) * 2,
    ),
    "index that does not change, merged the other way": (
        "x table",
        lambda x, t: (
            x.transpose(0, 1).reshape(-1, D)
            * F.embedding(torch.full((x.shape[1] * B,), 3), t)[:, :1]
        ),
    ),
    "space of a pool": ("image", lambda x: F.max_pool2d(x, 2)),
    "median": ("x", lambda x: x.median(1).values),
    "write at indices": ("row few", lambda r, f: torch.zeros(9).index_put((r.long(),), r)),
}


def _write(x: Tensor, f: Tensor) -> Tensor:
    x = x.clone()
    x[:, -2:] = f
    return x


def _row(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1] = 5.0
    return x


def _in_place(x: Tensor, f: Tensor) -> Tensor:
    x.mul_(2)
    x[:, 1:].add_(1)
    x[:, -2:].copy_(f)
    return x


def _attend(q: Tensor, k: Tensor, **how: Any) -> Tensor:
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, k, **how).transpose(1, 2).flatten(2)


def _inputs(kinds: str, n: int) -> list[Tensor]:
    tensors = [KINDS[kind](n) for kind in kinds.split()]
    for kind, t in zip(kinds.split(), tensors, strict=True):
        if t.is_floating_point():
            t.requires_grad_()
        for d, size in enumerate(t.shape):
            if size != KINDS[kind](n + 1).shape[d]:
                torch._dynamo.mark_dynamic(t, d)
    return tensors


@pytest.mark.parametrize("name", CASES)
def test_padding_changes_nothing(name: str) -> None:
    kinds, f = CASES[name]
    g = compile_with(f, {"batch": [8, 16], "seq": [8, 16], "*.2": [8, 16]})
    tpu_compile.compile_log.reset()
    for n in LENGTHS:
        args = _inputs(kinds, n)
        (got, grads), (want, wanted) = results(g, args), results(f, args)
        for a, e in zip(got, want, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5, check_stride=True)
        for a, e in zip(grads, wanted, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)
    log = tpu_compile.recompiles()
    assert sum(c.graph == "frame" for c in log) == 1
    assert sum(c.graph != "frame" for c in log) <= 2  # the second bucket, forward and backward


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    kinds, f = REFUSED[name]
    with pytest.raises(Exception, match="rounded up to buckets") as caught:
        compile_with(f, {"batch": [8, 16], "seq": [8, 16], "*.2": [8, 16]})(*_inputs(kinds, 5))
    assert PaddingRefused.__name__ in f"{caught.type.__name__} {caught.value!r}"
    assert "test_rules.py" in str(caught.value)


def test_a_scale_of_the_length_is_that_of_the_true_one() -> None:
    f = lambda q: _attend(q, q, scale=1 / q.shape[1])  # noqa: E731
    g = compile_with(f, {"seq": [8, 16]})
    for n in LENGTHS:  # Dynamo traces again for each: a float argument is a constant to it
        (q,) = _inputs("q", n)
        torch.testing.assert_close(g(q), f(q), rtol=1e-5, atol=1e-5)
