"""What collectives send, on a mesh of four devices."""

from __future__ import annotations

from collections.abc import Callable

import hlo_programs as programs
import jax
import jax.numpy as jnp
import pytest
from hlo_programs import TPU, close
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from tpu_compile.aot import hlo
from tpu_compile.aot.cost import measure

COLLECTIVES: dict[str, tuple[Callable[[Array], Array], float]] = {
    "all-reduce": (lambda x: lax.psum(x, "d"), 2 * 3 / 4),
    "all-gather": (lambda x: lax.all_gather(x, "d", tiled=True), 3),
    "reduce-scatter": (lambda x: lax.psum_scatter(x, "d", tiled=True), 3 / 4),
    "all-to-all": (lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True), 3 / 4),
    "collective-permute": (lambda x: lax.ppermute(x, "d", [(i, (i + 1) % 4) for i in range(4)]), 1),
}


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_bytes_that_collectives_send(kind: str) -> None:
    collective, share = COLLECTIVES[kind]
    mesh = programs.mesh("d", TPU)
    spec = PartitionSpec("d")
    fn = jax.shard_map(collective, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    x = jax.ShapeDtypeStruct((4 * 4096, 1024), jnp.float32, sharding=NamedSharding(mesh, spec))
    cost = programs.measured(jax.jit(fn).lower(x).compile())
    local = 4096 * 1024 * 4
    assert cost.collective_bytes == close(share * local, 0.01)
    assert any(op.category == "collective" for op in cost.ops)
    sending = [op for op in cost.ops if op.collective_bytes]
    assert all(op in cost.ops_without_cycles or op.cycles is not None for op in sending)


def test_collectives_of_sparse_cores() -> None:
    """tpu7x runs them in asynchronous calls; its chips are two devices each."""
    mesh = programs.mesh("d", "tpu7x:2x2x1")
    spec = PartitionSpec("d")
    fn = jax.shard_map(lambda x: lax.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=spec)
    x = jax.ShapeDtypeStruct((8 * 4096, 1024), jnp.float32, sharding=NamedSharding(mesh, spec))
    cost = programs.measured(jax.jit(fn).lower(x).compile())
    assert cost.collective_bytes == close(2 * 7 / 8 * 4096 * 1024 * 4, 0.01)


BY_HAND = """HloModule m, num_partitions=8

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %c = bf16[] add(%a, %b)
}

%all-reduce-scatter (p: bf16[64], q: bf16[32]) -> (bf16[16], bf16[8]) {
  %p = bf16[64]{0} parameter(0)
  %q = bf16[32]{0} parameter(1)
  %r = (bf16[64]{0}, bf16[32]{0}) all-reduce(%p, %q), replica_groups={{0,1,2,3},{4,5,6,7}}, \
to_apply=%add
  %s = bf16[64]{0} get-tuple-element(%r), index=0
  %t = bf16[32]{0} get-tuple-element(%r), index=1
  %i = u32[] partition-id()
  %u = bf16[16]{0} dynamic-slice(%s, %i), dynamic_slice_sizes={16}
  %v = bf16[8]{0} dynamic-slice(%t, %i), dynamic_slice_sizes={8}
  ROOT %w = (bf16[16]{0}, bf16[8]{0}) tuple(%u, %v)
}

ENTRY %main (x: bf16[64], y: bf16[32]) -> bf16[64] {
  %x = bf16[64]{0} parameter(0)
  %y = bf16[32]{0} parameter(1)
  %f = (bf16[16]{0}, bf16[8]{0}) fusion(%x, %y), kind=kCustom, calls=%all-reduce-scatter
  %g = bf16[16]{0} get-tuple-element(%f), index=0
  %h = bf16[32]{0} all-gather(%g), replica_groups=GROUPS, dimensions={0}
  ROOT %k = bf16[64]{0} all-reduce(%x), to_apply=%add
}
"""


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", 4),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", 8),
        ("mesh['axis_0'=8] {'axis_0':(1)2}", 2),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("{{0,1},{2,3},{4,5},{6,7}}", 2),
        ("{}", 8),
    ],
)
def test_groups_and_fused_reduce_scatter(groups: str, size: int) -> None:
    text = BY_HAND.replace("GROUPS", groups)
    sent = {op.name: op.collective_bytes for op in measure(hlo.parse(text)).ops}
    assert sent["f"] == 3 / 4 * (64 + 32) * 2  # reduces and scatters, does not gather
    assert sent["h"] == (size - 1) * 16 * 2
    assert sent["k"] == 2 * 7 / 8 * 64 * 2
