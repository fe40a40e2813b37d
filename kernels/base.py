"""What a kernel is: a torch op, its JAX reference, a Pallas version, and when the latter fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverload

from tpu_compile.verdict import Verdict


@dataclass(frozen=True)
class Kernel:
    """A Pallas kernel and all that lowering needs to choose it.

    Attributes:
        op: the ``torch.ops.tpu`` overload that it computes.
        supports: from the arguments' shapes and dtypes (``jax.ShapeDtypeStruct``): yes, or why not.
        reference: the same in plain ``jax.numpy``, right for every input.
        pallas: the kernel; takes ``interpret: bool`` to run without a TPU.
    """

    op: OpOverload
    supports: Callable[..., Verdict]
    reference: Callable[..., Any]
    pallas: Callable[..., Any]
