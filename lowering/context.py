"""What a rule knows beside its arguments: the types torch inferred, and how to refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from tpu_compile.errors import UnsupportedCase
from tpu_compile.lowering import builder
from tpu_compile.lowering.mlir import Value
from tpu_compile.lowering.types import RuntimeScalar, TensorType, math_dtype

if TYPE_CHECKING:
    from jax.interpreters.mlir import LoweringRuleContext

    from tpu_compile.lowering.checks import Checks


@dataclass(frozen=True)
class LoweringContext:
    """One node's lowering.

    Attributes:
        node: the FX node. Rules don't touch it; errors name it.
        jax: JAX's own lowering context, for the bridge.
        target: "cpu" or "tpu".
        matmul_precision: "DEFAULT", "HIGH" or "HIGHEST", for float32 matmuls and convolutions.
        checks: where to add what must hold of values in a run; None where nothing is checked.
    """

    node: fx.Node
    jax: LoweringRuleContext
    target: str = "cpu"
    matmul_precision: str = "HIGHEST"
    checks: Checks | None = None

    @property
    def out(self) -> TensorType:
        """The type of the op's only (or first) result."""
        return self.outs[0]

    @property
    def outs(self) -> tuple[TensorType, ...]:
        """The types of the op's tensor results; None results are left out."""
        return types_of(self.node.meta["val"])

    @property
    def promoted(self) -> torch.dtype:
        """The dtype torch promotes the op's tensor and scalar arguments to."""
        return self._elementwise(ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)

    @property
    def math_type(self) -> torch.dtype:
        """The dtype torch computes elementwise in: the promoted one, float32 for bf16 and fp16."""
        return math_dtype(self.promoted)

    @property
    def float_math_type(self) -> torch.dtype:
        """As ``math_type``, with integers and bools promoted to the default float dtype."""
        return math_dtype(self._elementwise(ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT))

    def _elementwise(self, kind: ELEMENTWISE_TYPE_PROMOTION_KIND) -> torch.dtype:
        args = [a.meta["val"] if isinstance(a, fx.Node) else a for a in self.node.args]
        args = [a.example if isinstance(a, RuntimeScalar) else a for a in args]
        kinds = (torch.Tensor, int, float, complex)
        return elementwise_dtypes(
            *(a for a in args if isinstance(a, kinds)), type_promotion_kind=kind
        )[1]

    def layout(self, i: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Size, stride and storage offset that torch has for positional argument ``i``."""
        val = self.node.args[i].meta["val"]  # type: ignore[union-attr]
        size, stride = (tuple(int(n) for n in ns) for ns in (val.shape, val.stride()))
        return size, stride, int(val.storage_offset())

    def operands(self, *values: Value | complex, dtype: torch.dtype | None = None) -> list[Value]:
        """Converts values to one dtype (default: ``math_type``) and broadcasts them to ``out``."""
        dtype = dtype or self.math_type
        return [builder.as_type(v, dtype, self.out.shape) for v in values]

    def rounded(self, *values: Value | complex, dtype: torch.dtype | None = None) -> list[Value]:
        """As ``operands``, rounded to the promoted dtype first.

        Most ops of torch round a scalar, or a 0-d tensor of another dtype, to bf16 before they
        compute in float32; products and quotients take it as it is.
        """
        return self.operands(
            *(builder.rounded(v, self.promoted) for v in values), dtype=dtype or self.math_type
        )

    def result(self, v: Value) -> Value:
        """Converts a value to ``out``'s dtype, as torch rounds."""
        return builder.as_type(v, self.out.dtype)

    def fail(self, why: str) -> NoReturn:
        """Refuses these arguments, with the reason."""
        raise UnsupportedCase(op=self.node.target, why=why, node=self.node)


def types_of(val: Any) -> tuple[TensorType, ...]:
    """The types of a node's tensor values (``meta["val"]``), nested lists flattened."""
    if isinstance(val, torch.Tensor):
        return (TensorType(tuple(int(s) for s in val.shape), val.dtype),)
    if isinstance(val, list | tuple):
        return tuple(t for v in val for t in types_of(v))
    if isinstance(val, RuntimeScalar):
        return (TensorType((), val.dtype),)
    if isinstance(val, bool | int | float):
        return (TensorType((), RuntimeScalar(type(val)).dtype),)
    return ()
