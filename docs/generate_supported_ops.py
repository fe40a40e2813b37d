"""Writes docs/supported_ops.md: how each ATen overload is run, read off the registry and torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._ops import OpOverload

from tpu_compile.lowering import decompositions, registry
from tpu_compile.passes.functional_random import RANDOM_OPS

PAGE = Path(__file__).with_name("supported_ops.md")

HEAD = """# Supported ops

Written by `python docs/generate_supported_ops.py`; a test fails when it is stale. Overloads that
write in place or to `out=` are not listed: AOTAutograd turns them into the ones below.

- **direct**: a rule emits StableHLO.
- **bridged**: a rule traces a JAX function into the program.
- **pass**: a pass replaces it (random ops: by pure functions of a seed).
- **decomposed**: torch takes it apart into others.
- **fallback**: runs eagerly on the CPU with a warning, or is refused with `fallback="error"`.

"""


def overloads() -> Iterator[OpOverload]:
    """Every functional ATen overload, by name."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        if namespace != "aten":
            continue
        base, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        op = getattr(packet, overload or "default", None)
        if isinstance(op, OpOverload) and not op._schema.is_mutable:
            yield op


def support(op: OpOverload) -> str:
    """How an overload is run."""
    rule = registry.find(op)
    if rule is not None:
        return "bridged" if registry.is_bridged(rule) else "direct"
    if op in RANDOM_OPS:
        return "pass"
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), "CompositeImplicitAutograd"
    )
    if op in decompositions.table(RANDOM_OPS) or composite:
        return "decomposed"
    return "fallback"


def page() -> str:
    """The whole page."""
    rows = [(op, support(op)) for op in overloads()]
    counts = Counter(how for _, how in rows)
    core = [(op, how) for op, how in rows if torch.Tag.core in op.tags]
    of_core = Counter(how for _, how in core)
    listed = ", ".join(f"{n} {how}" for how, n in counts.most_common())
    listed_core = ", ".join(f"{n} {how}" for how, n in of_core.most_common())
    lines = [
        HEAD,
        f"{len(rows)} overloads: {listed}.\n",
        f"{len(core)} of torch's core set: {listed_core}.\n",
        "| overload | how | core |",
        "|---|---|---|",
    ]
    lines += [f"| `{op}` | {how} | {'yes' * (torch.Tag.core in op.tags)} |" for op, how in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
