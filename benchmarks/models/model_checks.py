"""A model compiled beside the same model eager: errors of results and losses, in many settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from small_models import MODELS, logits_of
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig

Compile = Callable[[nn.Module], Callable[..., Any]]
STEPS = 5
BATCHES = 16  # for a root mean square: some models return ten numbers for one
# Blocks of our own models that checkpointing recomputes; Transformers' models know theirs.
BLOCKS = ("Block", "Residual", "Bottleneck", "Dlrm")


def compile_strictly(model: nn.Module) -> Callable[..., Any]:
    """The model compiled as one graph with no fallback."""
    options = {"fallback": "error"}
    return torch.compile(model, backend="tpu", fullgraph=True, options=options)


def compile_in_parts(model: nn.Module) -> Callable[..., Any]:
    """The model compiled with no fallback, but where Dynamo itself breaks the graph."""
    return torch.compile(model, backend="tpu", options={"fallback": "error"})


def build(
    name: str, *, train: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Any:
    """A model and its batch, the same for a seed; no dropout, so that eager is a reference."""
    torch.manual_seed(seed)
    model, inputs = MODELS[name]()
    without_dropout(model)
    inputs = {k: _cast(v, dtype) for k, v in inputs.items()}
    return model.to(dtype).train(train), inputs


def _cast(value: Any, dtype: torch.dtype) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if floating else value


def without_dropout(model: nn.Module) -> None:
    """Sets every probability of dropping something to zero."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for holder in (*model.modules(), *_configs(model)):
        for key, value in vars(holder).items():
            if "drop" in key and isinstance(value, float):
                setattr(holder, key, 0.0)


def _configs(model: nn.Module) -> list[PreTrainedConfig]:
    found = [getattr(module, "config", None) for module in model.modules()]
    return [config for config in found if isinstance(config, PreTrainedConfig)]


def checkpointed(model: nn.Module) -> None:
    """Has a model recompute its blocks in the backward."""
    if hasattr(model, "gradient_checkpointing_enable"):
        for config in _configs(model):
            config.use_cache = False  # else a warning is logged, which ends Dynamo's graph
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return
    for module in model.modules():
        if type(module).__name__ in BLOCKS:
            module.forward = _recomputed(module.forward)  # type: ignore[method-assign]


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


@contextlib.contextmanager
def autocast(enabled: bool) -> Iterator[None]:
    """bfloat16 autocast on the CPU, or nothing."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        yield


def _outcome(
    name: str, run: Compile, *, dtype: torch.dtype, cast: bool, batches: int = 1
) -> torch.Tensor:
    model, _ = build(name, dtype=dtype)
    function, found = run(model), []
    for seed in range(batches):
        _, inputs = build(name, dtype=dtype, seed=seed)
        with torch.no_grad(), autocast(cast):
            found.append(logits_of(function(**inputs)).float())
    return torch.cat(found)


def eager(model: nn.Module) -> nn.Module:
    """The model as it is."""
    return model


def forward_error(name: str, run: Compile = compile_strictly) -> float:
    """The largest error of a float32 forward, as a part of the largest value."""
    wanted = _outcome(name, eager, dtype=torch.float32, cast=False)
    got = _outcome(name, run, dtype=torch.float32, cast=False)
    return float((got - wanted).abs().max() / wanted.abs().max())


def low_precision_errors(
    name: str, run: Compile = compile_strictly, *, cast: bool
) -> tuple[float, float]:
    """Errors of a bfloat16 forward: root mean squares, as parts of that of the values.

    Args:
        name: the model's.
        run: what compiles it.
        cast: float32 weights under autocast; else bfloat16 weights.

    Returns:
        Of the compiled model and of the eager one, both against eager in float32.
    """
    dtype = torch.float32 if cast else torch.bfloat16
    n = BATCHES
    exact = _outcome(name, eager, dtype=torch.float32, cast=False, batches=n)
    wanted = _outcome(name, eager, dtype=dtype, cast=cast, batches=n)
    got = _outcome(name, run, dtype=dtype, cast=cast, batches=n)
    scale = exact.square().mean().sqrt()
    ours, own = (float((v - exact).square().mean().sqrt() / scale) for v in (got, wanted))
    return ours, own


def losses(
    name: str, run: Compile, *, train: bool = True, cast: bool = False, recompute: bool = False
) -> tuple[torch.Tensor, nn.Module]:
    """The losses of a few AdamW steps, and the model after them."""
    model, inputs = build(name, train=train)
    if recompute:
        checkpointed(model)
    function = run(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with autocast(cast):
            loss = function(**inputs).loss
        loss.backward()
        optimizer.step()
        found.append(loss.detach().float())
    return torch.stack(found), model


def loss_error(name: str, run: Compile = compile_strictly, **settings: bool) -> float:
    """The largest relative difference of a step's loss from eager's."""
    wanted, _ = losses(name, eager, **settings)
    got, _ = losses(name, run, **settings)
    return float(((got - wanted) / wanted).abs().max())


def autocast_loss_errors(name: str, run: Compile = compile_strictly) -> tuple[float, float]:
    """The largest relative difference of a step's loss under autocast.

    Returns:
        Of the compiled model from eager under autocast; of that from eager in float32.
    """
    exact, _ = losses(name, eager)
    wanted, _ = losses(name, eager, cast=True)
    got, _ = losses(name, run, cast=True)
    ours, own = (float(((a - b) / b).abs().max()) for a, b in ((got, wanted), (wanted, exact)))
    return ours, own


def buffers_equal(mine: nn.Module, theirs: nn.Module) -> None:
    """Compares what a model keeps beside its parameters, as BatchNorm's statistics."""
    for (name, a), (_, e) in zip(mine.named_buffers(), theirs.named_buffers(), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-4, msg=name)
