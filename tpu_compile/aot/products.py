"""Matrix products: FLOPs of dots and convolutions, and what kind the MXU is asked for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from tpu_compile.aot import shapes
from tpu_compile.aot.hlo import Computation
from tpu_compile.aot.instruction import Instruction, WindowDim

MATMUL_OPCODES = ("dot", "convolution")

# bfloat16 products that the MXU takes for one of float32 (DEFAULT, HIGH, HIGHEST).
PASSES = {"default": 1, "high": 3, "highest": 6}
_PASSES_OF_ALGORITHM = re.compile(r"_x(\d+)$")


@dataclass(frozen=True)
class Product:
    """What kind of matrix product: this decides how fast the MXU is.

    Args:
        dtype: the wider of the operands' types.
        passes: bfloat16 products taken for one, which is more than 1 for float32 only.
    """

    dtype: str
    passes: int = 1


def product(computation: Computation, instruction: Instruction) -> tuple[Product, float]:
    """Kind and FLOPs of a ``dot`` or ``convolution``."""
    lhs, rhs = (shapes.first(operand.shape) for operand in computation.operands(instruction)[:2])
    if instruction.opcode == "dot":
        summed = math.prod(lhs.dims[d] for d in instruction.dot_dims.lhs_contracting)
        flops = 2.0 * shapes.first(instruction.shape).elements * summed
    else:
        flops = 2.0 * _multiplications(lhs, rhs, shapes.first(instruction.shape), instruction)
    if lhs.dtype.startswith("c"):
        flops *= 4  # four products and two sums for each product and sum
    kind = Product(max(lhs, rhs, key=lambda shape: _width(shape.dtype)).dtype)
    if kind.dtype == "f32":
        kind = Product("f32", passes(instruction))
    return kind, flops


def _width(dtype: str) -> tuple[int, bool]:
    """Orders types: the wider, and of one width the floating one, decides."""
    return shapes.bits(dtype), dtype[0] not in "su"


def passes(instruction: Instruction) -> int:
    """bfloat16 products that a float32 dot or convolution takes, from its precision."""
    algorithm = _PASSES_OF_ALGORITHM.search(instruction.attribute("algorithm"))
    if algorithm:
        return int(algorithm[1])
    precisions = re.findall(r"\w+", instruction.attribute("operand_precision").lower())
    return max((PASSES.get(p, 1) for p in precisions), default=1)


def _multiplications(
    lhs: shapes.ArrayShape,
    rhs: shapes.ArrayShape,
    out: shapes.ArrayShape,
    instruction: Instruction,
) -> float:
    """Multiplications of a convolution, those with padding or with dilation's holes left out.

    The TPU compiler writes products as convolutions, batched ones with the batch as a window that
    meets one element only, so leaving holes out is not a nicety.
    """
    lhs_labels, rhs_labels, out_labels = instruction.dim_labels
    total = 1.0
    for axis, window in enumerate(instruction.window):
        total *= meetings(
            lhs.dims[lhs_labels.index(str(axis))],
            out.dims[out_labels.index(str(axis))],
            window,
        )
    features = lhs.dims[lhs_labels.index("f")] // instruction.feature_group_count
    batch = lhs.dims[lhs_labels.index("b")] // instruction.batch_group_count
    return total * features * batch * rhs.dims[rhs_labels.index("o")]


@lru_cache(maxsize=4096)
def meetings(size: int, out: int, window: WindowDim) -> int:
    """Pairs of output and window positions that meet an element of the input, in one dimension."""
    stride, hole = window.stride, window.lhs_dilate
    step = math.gcd(stride, hole)
    last = (size - 1) * hole
    pairs = 0
    for position in range(window.size):
        shift = position * window.rhs_dilate - window.pad_low
        if shift % step:
            continue
        # outputs o with 0 <= o * stride + shift <= last and a multiple of `hole`
        low = max(0, -(shift // stride))
        high = min(out - 1, (last - shift) // stride)
        period = hole // step
        inverse = pow(stride // step, -1, period) if period > 1 else 0
        lowest = (-(shift // step) * inverse) % period if period > 1 else 0
        at = low + (lowest - low) % period
        if at <= high:
            pairs += (high - at) // period + 1
    return pairs
