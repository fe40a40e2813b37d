"""Topology names, and the devices behind them."""

from __future__ import annotations

import importlib.util

import pytest

from tpu_compile import topologies
from tpu_compile.errors import MissingTpuCompiler, UnknownTopology

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler"
)


@pytest.mark.parametrize(
    ("name", "chips", "devices"),
    [
        ("v4:2x2x1", 4, 8),
        ("v5e:4x4", 16, 16),
        ("v5p:2x2x2", 8, 8),
        ("v6e", 1, 1),
        ("tpu7x", 1, 2),
        ("tpu7x:16x16x16", 4096, 8192),
    ],
)
@needs_libtpu
def test_a_name_has_the_devices_that_jax_describes(name: str, chips: int, devices: int) -> None:
    topology = topologies.parse(name)
    assert (topology.chips, topology.devices) == (chips, devices)
    assert len(topologies.devices(topology)) == devices


@pytest.mark.parametrize("generation", topologies.GENERATIONS)
@needs_libtpu
def test_every_usual_shape_is_known_to_the_compiler(generation: str) -> None:
    for shape in topologies.GENERATIONS[generation].usual:
        name = f"{generation}:{shape}"
        topology = topologies.parse(name)
        assert topology.name == name
        assert len(topologies.devices(topology)) == topology.devices


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("v6e:2y2", "Did you mean 'v6e:2x2'"),
        ("v6:2x2", "Did you mean 'v6e:2x2'"),
        ("v6e:3x3", "v6e:{1x1, 2x2"),
        ("v6e:2x2x1", "v6e:{1x1, 2x2"),
        ("tpu7x:2x2", "tpu7x:{1x1x1"),
        ("v6e:32x32", "up to 16x16"),
        ("v6e:", "v6e:{1x1"),
        ("h100", "v5p:{1x1x1"),
    ],
)
def test_a_wrong_name_lists_valid_ones(wrong: str, hint: str) -> None:
    with pytest.raises(UnknownTopology, match="Valid names") as caught:
        topologies.parse(wrong)
    assert hint in str(caught.value)


def test_without_libtpu_the_text_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    topologies.devices.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingTpuCompiler, match=r"pip install 'tpu_compile\[tpu\]'"):
        topologies.devices(topologies.parse("v6e:2x2"))
