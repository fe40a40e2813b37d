"""Meshes, specs and rules: what is refused, and with what advice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec
from torch import nn

from tpu_compile import meshes, topologies, torch_internals
from tpu_compile.errors import BadSharding, InvalidOption, MeshDoesNotFit
from tpu_compile.meshes import Mesh
from tpu_compile.options import read

MESH = Mesh((("data", 2), ("model", 4)))
ON = {"target": "v6e:2x4", "mesh": {"data": 2, "model": 4}}


@pytest.mark.parametrize(
    ("mesh", "topology", "instead"),
    [
        ({"data": 3}, "v6e:2x2", "mesh (data=4)"),
        ({"data": 2, "model": 4}, "v6e:2x2", "mesh (data=1, model=4) or topology 'v6e:2x4'"),
        ({"data": 3, "model": 5}, "v6e:2x2", "mesh (data=4)"),
        ({"data": 4}, "tpu7x:2x2x1", "mesh (data=8)"),  # two devices a chip
        ({"data": 2}, "v5p", "mesh (data=1)"),
    ],
)
def test_a_mesh_that_does_not_fit(mesh: dict[str, int], topology: str, instead: str) -> None:
    with pytest.raises(MeshDoesNotFit) as caught:
        read({"target": topology, "mesh": mesh})
    assert topologies.parse(topology).name in str(caught.value)
    assert f"What fits: {instead}." in str(caught.value)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.sampled_from(["2x2", "2x4", "8x8"]))
def test_the_mesh_that_is_proposed_fits(sizes: list[int], shape: str) -> None:
    topology = topologies.parse(f"v6e:{shape}")
    mesh = Mesh(tuple((f"axis{i}", n) for i, n in enumerate(sizes)))
    if math.prod(sizes) == topology.devices:
        meshes.check_fit(mesh, topology)
        return
    with pytest.raises(MeshDoesNotFit) as caught:
        meshes.check_fit(mesh, topology)
    proposed = str(caught.value).split("What fits: mesh (")[1].split(")")[0]
    axes = dict(part.split("=") for part in proposed.split(", "))
    meshes.check_fit(Mesh(tuple((k, int(v)) for k, v in axes.items())), topology)


@pytest.mark.parametrize("mesh", [{}, {"data": 0}, {"data": True}, {"a b": 2}, {2: 2}, "data", [4]])
def test_what_is_no_mesh(mesh: Any) -> None:
    with pytest.raises(InvalidOption, match="such as"):
        read({"target": "v6e:2x2", "mesh": mesh})


@pytest.mark.parametrize("target", ["auto", "cpu", "tpu"])
def test_a_mesh_needs_a_topology(target: str) -> None:
    with pytest.raises(InvalidOption, match="needs a topology"):
        read({"target": target, "mesh": {"data": 4}})


def test_shardings_need_a_mesh() -> None:
    with pytest.raises(InvalidOption, match="need a mesh"):
        read({"target": "v6e:2x2", "shardings": {"x": ("data",)}})


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (("dta",), r"Did you mean 'data'\? The mesh has the axes data, model"),
        (("data", "data"), "one dimension only"),
        ("data", "Valid values"),
        (4, "Valid values"),
    ],
)
def test_what_is_no_spec(spec: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        read({**ON, "shardings": {"x": spec}})


def test_a_spec_may_be_jaxs_own() -> None:
    given = {"a": PartitionSpec("data", None, ("model",)), "b": (("data", "model"), None)}
    assert read({**ON, "shardings": given}).shardings == (
        ("a", (("data",), (), ("model",))),
        ("b", (("data", "model"), ())),
    )


@pytest.mark.parametrize(
    ("shape", "spec", "text"),
    [
        (
            (6, 8),
            (("model",),),
            "model = 4 does not divide dimension 0 of .6, 8.*is .None, 'model'",
        ),
        ((6, 9), (("model",),), "the nearest that works is .None, None"),
        ((4, 8), (("data", "model"),), "data x model = 8 does not divide dimension 0"),
        ((8,), (("data",), ("model",)), "names 2 dimensions, the tensor is .8"),
    ],
)
def test_a_tensor_that_can_not_be_split_so(shape: Any, spec: Any, text: str) -> None:
    with pytest.raises(BadSharding, match=f"(?i)'w'.*{text}"):
        meshes.check_spec("w", shape, spec, MESH)


@given(
    st.lists(st.integers(0, 24), min_size=2, max_size=3),
    st.permutations([("data",), ("model",), ()]),
)
def test_the_spec_that_is_proposed_works(shape: list[int], entries: Any) -> None:
    spec = tuple(entries[: len(shape)])
    try:
        meshes.check_spec("w", tuple(shape), spec, MESH)
    except BadSharding as err:
        proposed = eval(str(err).split("works is ")[1].rstrip("."))
        again = tuple(() if e is None else (e,) for e in proposed)
        meshes.check_spec("w", tuple(shape), again, MESH)


def test_the_first_rule_counts_and_each_must_be_of_use() -> None:
    tensors = [("a.weight", (8, 8)), ("a.bias", (8,)), ("x", (4, 8))]
    rules = meshes.read_rules({"a.*": ("model",), "*": ("data",)}, MESH)
    found = meshes.assign(rules, MESH, tensors)
    assert found == [(("model",),), (("model",),), (("data",),)]
    rules = meshes.read_rules({"a.*": ("model",), "a.wight": ("data",)}, MESH)
    with pytest.raises(BadSharding, match=r"'a\.wight'.*such as a\.weight"):
        meshes.assign(rules, MESH, tensors)


def test_names_are_the_users() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.layers = nn.ModuleList([nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.norm(self.layers[0](x)) + more["mask"]

    names: list[str] = []

    def backend(gm: Any, _inputs: Any) -> Any:
        names.extend(name for name, _ in torch_internals.named_inputs(gm))
        return gm.forward

    model = Inner().eval()
    x, more = torch.ones(2, 4), {"mask": torch.ones(2, 4)}
    torch.compile(model, backend=backend, fullgraph=True)(x, more)
    state = {n for n in model.state_dict() if "num_batches" not in n}
    assert set(names) == {*state, "x", "more.mask"}
    names.clear()
    other = nn.Linear(4, 4)
    torch.compile(lambda x: model(x, more), backend=backend, fullgraph=True)(x)
    assert {*names} == {*state, "x", "more.mask"}
    names.clear()
    torch.compile(lambda x: other(model(x, more)), backend=backend, fullgraph=True)(x)
    assert {*names} > {*(f"model.{n}" for n in state), "other.weight", "x", "more.mask"}
