"""Instructions to the user's lines, by hand and through the real compilers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hlo_programs as programs
import jax
import jax.numpy as jnp
import pytest
import torch
from functorch.compile import make_boxed_func
from jax import Array
from torch._dynamo.backends.common import aot_autograd

import tpu_compile
from tpu_compile.aot import hlo
from tpu_compile.aot.cost import measure
from tpu_compile.aot.source_lines import SourceLine, SourceLines, is_user_file
from tpu_compile.executable import compile_graph
from tpu_compile.lowering import decompositions, interpreter
from tpu_compile.lowering.interpreter import Settings

TARGETS = ["cpu", "v6e:2x2"]
TABLES = """HloModule m

FileNames
1 "/home/me/model.py"
2 "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"
3 "/venv/lib/python3.11/site-packages/jax/_src/numpy/ufuncs.py"
4 "/home/me/other.py"

FunctionNames
1 "forward"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=3 end_column=9}
2 {file_name_id=2 function_name_id=1 line=125 end_line=125 column=3 end_column=9}
3 {file_name_id=3 function_name_id=1 line=7 end_line=7 column=3 end_column=9}
4 {file_name_id=4 function_name_id=1 line=30 end_line=30 column=3 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=3 parent_frame_id=1}
5 {file_location_id=4 parent_frame_id=5}

%fused (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} negate(%a), metadata={op_name="neg" stack_frame_id=3}
  %c = f32[8]{0} negate(%b), metadata={op_name="neg" stack_frame_id=3}
  %d = f32[8]{0} negate(%c), metadata={op_name="neg" stack_frame_id=5}
  ROOT %e = f32[8]{0} copy(%d)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %q = f32[8]{0} negate(%p), metadata={op_name="neg" stack_frame_id=3}
  %r = f32[8]{0} negate(%q), metadata={op_name="neg" stack_frame_id=4}
  %s = f32[8]{0} negate(%r), metadata={op_name="neg" source_file="/home/me/x.py" source_line=3}
  %t = f32[8]{0} negate(%s)
  ROOT %u = f32[8]{0} fusion(%t), kind=kLoop, calls=%fused
}
"""


def test_frames_of_libraries_are_skipped_where_the_user_has_one() -> None:
    module = hlo.parse(TABLES)
    lines = SourceLines(module)
    main = module.computations["main"].by_name
    assert lines.of(main["q"]) == SourceLine("/home/me/model.py", 12)
    assert str(lines.of(main["r"])) == "ufuncs.py:7"  # no frame of the user's
    assert str(lines.of(main["s"])) == "x.py:3"
    assert lines.of(main["t"]) is None
    assert str(lines.of(main["u"])) == "model.py:12"  # root has none: the commonest


def test_which_files_are_the_users() -> None:
    here = Path(tpu_compile.__file__).parent
    assert is_user_file(__file__)
    assert is_user_file("/venv/lib/python3.11/site-packages/transformers/models/llama.py")
    assert not is_user_file(torch.__file__)
    assert not is_user_file(jax.__file__)
    assert not is_user_file("<string>")
    assert not is_user_file(str(here / "backend.py"))
    assert not is_user_file(interpreter.__file__)


def marked(fn: object, mark: str) -> int:
    """The number of the line of ``fn`` that ends in a comment."""
    source, first = inspect.getsourcelines(fn)  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(source) if line.rstrip().endswith(f"# {mark}"))


@pytest.mark.parametrize("target", TARGETS)
def test_lines_of_a_jax_program(target: str) -> None:
    def fn(x: Array, w: Array) -> Array:
        y = x @ w  # product
        z = jnp.sort(y, axis=0)  # sort
        return z.sum()

    cost = programs.cost_of(target, fn, programs.array(64, 128), programs.array(128, 128))
    (product,) = (op for op in cost.ops if op.category == "matmul")
    assert product.source == SourceLine(__file__, marked(fn, "product"))
    assert SourceLine(__file__, marked(fn, "sort")) in {op.source for op in cost.ops}


@pytest.mark.parametrize("topology", [None, "v6e:2x2"])
def test_lines_of_a_torch_program(topology: str | None) -> None:
    """Through this package's own lowering, whose locations are the user's lines."""
    if topology:
        programs.devices(topology)  # or skips

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, w)  # product
        return torch.cumsum(y, 0).sum()  # sums

    settings = Settings("tpu" if topology else "cpu", topology=topology)
    texts = []

    def compiler(gm: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        texts.append(compile_graph(gm, settings, cache=False).compiled.as_text())
        return make_boxed_func(gm.forward)

    backend = aot_autograd(fw_compiler=compiler, decompositions=decompositions.table())
    with decompositions.rules_first():
        torch.compile(fn, backend=backend, fullgraph=True)(
            torch.randn(64, 128), torch.randn(128, 128)
        )
    cost = measure(hlo.parse(texts[0]))
    expected = {SourceLine(__file__, marked(fn, "sums"))}
    if topology:  # XLA:CPU swaps the operands, and forgets where the product came from
        expected.add(SourceLine(__file__, marked(fn, "product")))
    assert {op.source for op in cost.ops} >= expected


def test_by_line_adds_up() -> None:
    def fn(x: Array, w: Array) -> Array:
        return jnp.tanh(x @ w) @ w  # both

    cost = programs.cost_of("cpu", fn, programs.array(64, 128), programs.array(128, 128))
    lines = cost.by_line("flops")
    assert lines[0].source == SourceLine(__file__, marked(fn, "both"))
    assert sum(line.flops for line in lines) == pytest.approx(cost.flops)
    assert sum(line.bytes for line in lines) == pytest.approx(cost.bytes)
    assert measure(hlo.parse(TABLES)).by_line()[0].ops >= 1
